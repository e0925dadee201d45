package experiment

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/store"
	"github.com/trueload/trueload/internal/trace"
	"github.com/trueload/trueload/internal/workload"
)

// pipeListener is a network of net.Pipe: it works in a test bubble, where real
// sockets do not.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble runs an experiment against a simulated engine, all in one bubble of
// virtual time, and returns the result with the engine's own log.
func inBubble(t *testing.T, file string, o httpapi.Options) (*Result, []*record.Record, map[string]httpapi.Truth) {
	t.Helper()
	exp := experimentOf(t, file)
	dir := filepath.Join(t.TempDir(), "result")
	truths := map[string]httpapi.Truth{}
	var mu sync.Mutex
	o.Truth = func(tr httpapi.Truth) { mu.Lock(); truths[tr.ID] = tr; mu.Unlock() }
	var res *Result
	synctest.Test(t, func(t *testing.T) {
		srv, err := httpapi.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ln := newPipes()
		go srv.Serve(ln)
		var log strings.Builder
		res, err = Run(t.Context(), exp, Options{Dir: dir, Dial: ln.dial, Virtual: true, Log: &log, Simulated: true})
		if err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		srv.Close()
		synctest.Wait()
	})
	return res, recordsOf(t, dir), truths
}

func recordsOf(t *testing.T, dir string) []*record.Record {
	t.Helper()
	r, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var recs []*record.Record
	if err := r.Records(func(r *record.Record) error { recs = append(recs, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return recs
}

// sums checks what must hold of every run: outcomes sum to what was planned, and
// no figure is NaN.
func sums(t *testing.T, s *analysis.Summary) {
	t.Helper()
	c := s.Counts
	if sum := c.OK + c.Rejected + c.HTTPError + c.StreamError + c.Empty + c.Timeout + c.ConnectError + c.Cancelled + c.Unfinished + c.Shed + c.Skipped + c.NotDue; sum != c.Planned {
		t.Errorf("outcomes sum to %d, planned %d: %+v", sum, c.Planned, c)
	}
}

const hourOfTraffic = `
target: {url: http://sim, timeout: 120s}
seed: 7
workload:
  classes:
    - name: chat
      share: 3
      text: {random: words}
      input_tokens: {lognormal: {p50: 120, p99: 1500}, max: 3000}
      output_tokens: {lognormal: {p50: 60, p99: 400}, max: 600}
      session: {turns: {geometric: {mean: 2}}, think: {lognormal: {p50: 10s, p90: 40s}, max: 2m}}
    - name: rag
      share: 1
      text: {random: words}
      input_tokens: {lognormal: {p50: 900, p99: 4000}, max: 6000}
      output_tokens: {uniform: {min: 20, max: 80}}
      prefix: {tokens: 256, pool: 4}
load:
  arrivals: {gamma: {cv: 1.5}}
  rate: %s
  phases:
    - {name: warm-up, for: 60s, measured: false}
    - {name: steady, for: %s}
slo: {ttft: 1s, tpot: 50ms, attainment: 99%%}
`

// An hour of traffic, client and server, in one bubble: the client's records
// against the engine's own log, and the same figures a second time.
func TestAnHourOfTrafficInVirtualTime(t *testing.T) {
	rate, long := "2/s", "3600s"
	if testing.Short() {
		long = "300s"
	}
	file := fmt.Sprintf(hourOfTraffic, rate, long)
	opt := httpapi.Options{Replicas: 2, Router: httpapi.LeastLoaded, TemplateTokens: 10, Seed: 1, Engine: sim.Config{Jitter: 0.03}}
	wall := time.Now()
	res, recs, truths := inBubble(t, file, opt)
	t.Logf("%d turns in %v", res.Summary.Counts.Planned, time.Since(wall).Round(time.Millisecond))
	s := res.Summary
	sums(t, s)
	if !s.Verdict.Valid {
		t.Errorf("invalid: %v", s.Verdict.InvalidReasons)
	}
	if s.Counts.OK < s.Counts.Planned*9/10 {
		t.Errorf("only %d of %d ok", s.Counts.OK, s.Counts.Planned)
	}
	man := struct {
		StartedAt time.Time `json:"started_at"`
		Salt      string    `json:"salt"`
	}{}
	r, _ := store.Open(res.Dir)
	if err := r.ReadJSON(store.ManifestName, &man); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, rec := range recs {
		if rec.Outcome != record.OK {
			continue
		}
		tr, ok := truths[fmt.Sprintf("%s-%d-%d", man.Salt, rec.ID.Session, rec.ID.Turn)]
		if !ok {
			t.Fatalf("the engine never saw turn %v", rec.ID)
		}
		// The same clock on both sides, so the client's stamp of the first output
		// must be the server's time of writing it. JSON keeps nanoseconds.
		off := func(at time.Time) time.Duration { return at.Sub(man.StartedAt) }
		if d := rec.FirstOutput - off(tr.FirstWrite); d < 0 || d > time.Microsecond {
			t.Fatalf("turn %v: first output at %v, written at %v", rec.ID, rec.FirstOutput, off(tr.FirstWrite))
		}
		if d := rec.LastOutput - off(tr.LastWrite); d < 0 || d > time.Microsecond {
			t.Fatalf("turn %v: last output at %v, written at %v", rec.ID, rec.LastOutput, off(tr.LastWrite))
		}
		if rec.Sent > off(tr.Arrived) || rec.Scheduled != rec.Released {
			t.Fatalf("turn %v: scheduled %v released %v sent %v arrived %v", rec.ID, rec.Scheduled, rec.Released, rec.Sent, off(tr.Arrived))
		}
		if rec.InputTokens != tr.PromptTokens || rec.OutputTokens != tr.OutputTokens || rec.CachedTokens > 0 && rec.CachedTokens != tr.CachedTokens {
			t.Fatalf("turn %v: tokens %d/%d/%d, the engine's %d/%d/%d", rec.ID, rec.InputTokens, rec.OutputTokens, rec.CachedTokens, tr.PromptTokens, tr.OutputTokens, tr.CachedTokens)
		}
		if rec.OutputTokens != rec.AskedOutput {
			t.Fatalf("turn %v: %d output tokens, asked %d", rec.ID, rec.OutputTokens, rec.AskedOutput)
		}
		checked++
	}
	if checked < 100 {
		t.Errorf("only %d records had a truth to compare", checked)
	}
	work, err := workload.New(experimentOf(t, file), "")
	if err != nil {
		t.Fatal(err)
	}
	if hash, err := work.Hash(); err != nil || hash != s.Run.PlanHash {
		t.Errorf("the run's plan hash is %s, the workload's %s (%v)", s.Run.PlanHash, hash, err)
	}
	again, _, _ := inBubble(t, file, opt)
	a, b := s, again.Summary
	if a.Run.PlanHash == "" || a.Run.PlanHash != b.Run.PlanHash {
		t.Errorf("plan hashes %q and %q", a.Run.PlanHash, b.Run.PlanHash)
	}
	if d := cmp.Diff(a.Counts, b.Counts); d != "" {
		t.Errorf("a second run counted otherwise:\n%s", d)
	}
	for name, q := range map[string][2]analysis.Quantile{
		"ttft p50": {a.Latency.TTFT.All.P50, b.Latency.TTFT.All.P50}, "ttft p99": {a.Latency.TTFT.All.P99, b.Latency.TTFT.All.P99},
		"e2e p50": {a.Latency.E2E.All.P50, b.Latency.E2E.All.P50}, "tpot p99": {a.Latency.TPOT.All.P99, b.Latency.TPOT.All.P99},
	} {
		if d := cmp.Diff(q[0], q[1]); d != "" {
			t.Errorf("a second run's %s differs:\n%s", name, d)
		}
	}
}

// repoFile names a file of the repository's testdata.
func repoFile(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("..", "..", "testdata", "traces", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// Real traces replayed against four replicas: every row is sent within its
// recorded send delay of the trace's own offset, lengths as recorded.
func TestReplaysKeepTheTrace(t *testing.T) {
	for _, c := range []struct {
		file  string
		first time.Duration
	}{
		{"azure_conv_2023.csv", 300 * time.Second},
		{"azure_code_2023.csv", 300 * time.Second},
		{"mooncake_conversation.jsonl", 120 * time.Second},
	} {
		t.Run(c.file, func(t *testing.T) {
			if testing.Short() {
				c.first /= 4
			}
			res, recs, _ := inBubble(t, fmt.Sprintf(`
target: {url: http://sim, timeout: 600s}
workload:
  trace: {file: %q, rows: {first: %s}}
load: {arrivals: trace}
`, repoFile(t, c.file), c.first), httpapi.Options{Replicas: 4, Router: httpapi.LeastLoaded, TemplateTokens: 10, Seed: 1})
			sums(t, res.Summary)
			tr, err := trace.Open(repoFile(t, c.file), trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			rows, _, err := tr.Load(0)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, r := range rows {
				if r.At < c.first {
					n++
				}
			}
			if int64(n) != res.Summary.Counts.Planned {
				t.Errorf("%d turns planned, the trace has %d rows in its first %v", res.Summary.Counts.Planned, n, c.first)
			}
			seen := 0
			for _, rec := range recs {
				row := rows[rec.ID.Session]
				if rec.Scheduled != row.At {
					t.Fatalf("row %d is due at %v, scheduled %v", rec.ID.Session, row.At, rec.Scheduled)
				}
				if d := rec.Connected - rec.Scheduled; rec.Sent-rec.Scheduled < d || d < 0 {
					t.Fatalf("row %d: send delay %v", rec.ID.Session, d)
				}
				if rec.Outcome != record.OK {
					t.Fatalf("row %d: %v %s", rec.ID.Session, rec.Outcome, rec.Error)
				}
				if rec.OutputTokens != row.Output {
					t.Fatalf("row %d: %d output tokens, recorded %d", rec.ID.Session, rec.OutputTokens, row.Output)
				}
				// Shorter than salt and template is impossible; those are counted.
				if rec.InputTokens != row.Input && row.Input > 40 {
					t.Fatalf("row %d: %d input tokens, recorded %d", rec.ID.Session, rec.InputTokens, row.Input)
				}
				seen++
			}
			if seen != n {
				t.Errorf("%d records for %d rows", seen, n)
			}
			if s := res.Summary; strings.HasPrefix(c.file, "mooncake") {
				if s.Prefix.PlannedInfinite == nil || s.Prefix.ObservedUsage == nil || *s.Prefix.ObservedUsage <= 0 || *s.Prefix.ObservedUsage > *s.Prefix.PlannedInfinite+0.01 {
					t.Errorf("prefix: planned %v, observed %v: shared blocks must share their text", s.Prefix.PlannedInfinite, s.Prefix.ObservedUsage)
				}
			}
		})
	}
}

// Planned reuse counts what a scripted session's later prompts repeat of its
// earlier ones, and of the prefixes that sessions share.
func TestPlannedReuseIsWhatAnEngineSees(t *testing.T) {
	res, _, _ := inBubble(t, `
target: {url: http://sim}
workload:
  classes:
    - name: c
      text: {random: words}
      input_tokens: 400
      output_tokens: 40
      prefix: {tokens: 480, pool: 2}
      session: {turns: 3, think: 5s, history: scripted}
load: {rate: 2/s, phases: [{name: warm-up, for: 20s, measured: false}, {name: steady, for: 120s}]}
`, httpapi.Options{})
	p := res.Summary.Prefix
	if p.PlannedInfinite == nil || p.ObservedUsage == nil {
		t.Fatalf("%+v", p)
	}
	// 880, 1320 and 1760 tokens, of which 480, 880 and 1320 came before.
	if want := (480.0 + 880 + 1312) / (880 + 1320 + 1760); math.Abs(*p.PlannedInfinite-want) > 0.01 || math.Abs(*p.ObservedUsage-want) > 0.02 {
		t.Errorf("planned %.3f, observed %.3f, want %.3f", *p.PlannedInfinite, *p.ObservedUsage, want)
	}
}

// A closed loop of so many requests lasts until the last of them has ended, and
// its rates are over that time.
func TestAClosedLoopOfRequests(t *testing.T) {
	res, recs, _ := inBubble(t, `
target: {url: http://sim}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 100, output_tokens: 20}]}
load: {closed: {clients: 4}, phases: [{name: steady, requests: 200}]}
`, httpapi.Options{})
	var last time.Duration
	for _, r := range recs {
		last = max(last, r.Done)
	}
	s := res.Summary
	sums(t, s)
	if s.Counts.OK != 200 || s.Window.Measured != last.Seconds() || s.Window.End != last.Seconds() {
		t.Errorf("%d ok; the window is told to be %v s long, the last request ended at %v", s.Counts.OK, s.Window.Measured, last)
	}
	if r := s.Rates.Completed; r == nil || math.Abs(*r*last.Seconds()-200) > 1 {
		t.Errorf("completed %v per second in %v", r, last)
	}
}
