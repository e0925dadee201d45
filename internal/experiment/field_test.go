package experiment

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/store"
)

// The same experiment twice against one server with a prefix cache: the second
// run must not be helped by the first.
func TestA9_ASecondRunIsNotHelpedByTheFirst(t *testing.T) {
	const file = `
target: {url: http://sim, timeout: 60s}
workload:
  classes:
    - {name: rag, text: {random: words}, input_tokens: 2000, output_tokens: 20}
load: {rate: 3/s, phases: [{name: steady, for: 60s}]}
`
	for _, c := range []struct {
		name string
		hide bool // the server does not count cached tokens, so the salt is text
	}{{"cache_salt", false}, {"salt in the text", true}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			var p50 [2]float64
			synctest.Test(t, func(t *testing.T) {
				var cached atomic.Int64
				srv, err := httpapi.New(httpapi.Options{TemplateTokens: 10, HideCachedTokens: c.hide, Truth: func(tr httpapi.Truth) { cached.Add(int64(tr.CachedTokens)) }})
				if err != nil {
					t.Fatal(err)
				}
				ln := newPipes()
				go srv.Serve(ln)
				for i := range p50 {
					cached.Store(0)
					exp := experimentOf(t, file)
					res, err := Run(t.Context(), exp, Options{Dir: filepath.Join(dir, fmt.Sprint(i)), Dial: ln.dial, Virtual: true})
					if err != nil {
						t.Fatal(err)
					}
					p50[i] = *res.Summary.Latency.TTFT.All.P50.Value
					// What the probe's own prompts, of 64, 256, 256 and 3 times 64 words, may find.
					probe := 64 + 256 + 256 + 3*64 + 4*32
					if n := int(res.Summary.Counts.OK); n < 150 || cached.Load() > int64(n*16+probe) {
						t.Errorf("run %d: %d tokens of %d prompts came from the cache", i, cached.Load(), n)
					}
					if res.Summary.Prefix.CacheState != "cold" {
						t.Errorf("run %d: cache state %q", i, res.Summary.Prefix.CacheState)
					}
				}
				srv.Close()
			})
			if p50[1] < p50[0]*0.98 || p50[1] > p50[0]*1.02 {
				t.Errorf("TTFT p50 %v s, then %v s", p50[0], p50[1])
			}
		})
	}
}

// One measured request after a warm-up, against a server that says what it had
// cached: nothing beyond the chat template.
func TestA10_TheWarmUpDoesNotSendTheFirstMeasuredPrompt(t *testing.T) {
	res, recs, _ := inBubble(t, `
target: {url: http://sim}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 1000, output_tokens: 5}]}
load:
  rate: 2/s
  phases: [{name: warm-up, for: 20s, measured: false}, {name: one, requests: 1}]
`, httpapi.Options{TemplateTokens: 40})
	if res.Summary.Counts.OK != 1 {
		t.Fatalf("%d measured requests, want 1", res.Summary.Counts.OK)
	}
	warm := 0
	for _, r := range recs {
		if r.Phase == "warm-up" {
			warm++
		}
		if r.Phase == "one" && r.CachedTokens > 48 {
			t.Errorf("%d cached tokens; the template has 40 and a few", r.CachedTokens)
		}
	}
	if warm < 10 {
		t.Errorf("%d warm-up requests", warm)
	}
}

// An alias that is no tokenizer's name, and nothing else: the run works and the
// counts come from the server.
func TestC1_AnAliasIsAllThatIsNeeded(t *testing.T) {
	res, recs, _ := inBubble(t, `
target: {url: http://sim, model: my-alias}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 100, output_tokens: 5}]}
load: {rate: 5/s, phases: [{name: steady, for: 10s}]}
`, httpapi.Options{Model: "my-alias"})
	if s := res.Summary; s.Counts.OK == 0 || s.Counts.OK != s.Counts.Planned {
		t.Errorf("%+v", s.Counts)
	}
	for _, r := range recs {
		if r.TokenSource != record.TokensFromUsage || r.InputTokens != 100 || r.OutputTokens != 5 {
			t.Errorf("turn %v: %d/%d tokens by %s", r.ID, r.InputTokens, r.OutputTokens, r.TokenSource)
		}
	}
}

// A server that accepts and never answers: the run ends at the requests'
// deadline, with every request told.
func TestL12_AServerThatNeverAnswers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "result")
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() { // reads and says nothing
					b := make([]byte, 4096)
					for {
						if _, err := c.Read(b); err != nil {
							return
						}
					}
				}()
			}
		}()
		began := time.Now()
		res, err := Run(t.Context(), experimentOf(t, `
target: {url: http://sim, timeout: 20s}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 100, output_tokens: 5}]}
load: {rate: 2/s, phases: [{name: steady, for: 30s}]}
`), Options{Dir: dir, Dial: ln.dial, Virtual: true})
		if err != nil {
			t.Fatal(err)
		}
		sums(t, res.Summary)
		if !res.Nothing() {
			t.Errorf("%d requests were ok", res.Summary.Counts.OK)
		}
		if took := time.Since(began); took > 10*time.Minute {
			t.Errorf("took %v", took)
		}
	})
	recordsOf(t, dir) // the result is readable
}

// The freeze test as a whole run: every arrival is accounted for, and the
// figures are those of the queue. Poisson 12/s for 120 s, a cap of 16, a server
// of 8 slots that stops from 20 s to 30 s.
func TestL6_FreezeAsAWholeRun(t *testing.T) {
	res, _, _ := inBubble(t, `
target: {url: http://sim, timeout: 120s}
seed: 3
workload: {classes: [{name: c, text: {random: words}, input_tokens: 64, output_tokens: 61}]}
load:
  rate: 12/s
  max_in_flight: 16
  phases: [{name: steady, for: 120s}]
slo: {ttft: 2s, attainment: 99%}
`, httpapi.Options{Engine: sim.Config{MaxSeqs: 8, FreezeAt: 25 * time.Second, FreezeFor: 10 * time.Second}})
	s := res.Summary
	sums(t, s)
	if s.Counts.OK != s.Counts.Planned {
		t.Errorf("%+v", s.Counts)
	}
	// About a tenth of the run's arrivals fall into the freeze, and the queue
	// behind it takes about as long again to drain: a tool that skips ticks says 99 %.
	if a := *s.SLO.Attainment.Value; a < 0.55 || a > 0.92 {
		t.Errorf("attainment %.3f", a)
	}
	if p95 := *s.Latency.TTFT.All.P95.Value; p95 < 6 || p95 > 12 {
		t.Errorf("TTFT p95 %.2f s", p95)
	}
	if *s.Latency.CapWait.All.P95.Value < 1 {
		t.Errorf("cap wait p95 %v s: the wait belongs to the cap", *s.Latency.CapWait.All.P95.Value)
	}
	// One freeze is one piece of evidence, however many requests it held up.
	if s.Verdict.SLO == "pass" {
		t.Errorf("SLO %s", s.Verdict.SLO)
	}
}

// Ctrl-C: what was measured is kept, the rest is told as not due.
func TestAnInterruptLeavesAResult(t *testing.T) {
	for _, c := range []struct {
		name  string
		twice bool
	}{{"once: drain", false}, {"twice: now", true}} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "result")
			synctest.Test(t, func(t *testing.T) {
				srv, err := httpapi.New(httpapi.Options{})
				if err != nil {
					t.Fatal(err)
				}
				ln := newPipes()
				go srv.Serve(ln)
				stop := make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(30*time.Second, func() { close(stop) })
				if c.twice {
					time.AfterFunc(30*time.Second+time.Millisecond, cancel)
				}
				res, err := Run(ctx, experimentOf(t, `
target: {url: http://sim, timeout: 60s}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 100, output_tokens: 400}]}
load: {rate: 5/s, phases: [{name: steady, for: 120s}]}
`), Options{Dir: dir, Dial: ln.dial, Virtual: true, Stop: stop})
				if err != nil {
					t.Fatal(err)
				}
				srv.Close()
				s := res.Summary
				sums(t, s)
				if res.End != loadgen.EndInterrupted && res.End != loadgen.EndCancelled {
					t.Errorf("ended by %q", res.End)
				}
				if s.Counts.OK < 100 || s.Counts.NotDue < 300 {
					t.Errorf("%+v", s.Counts)
				}
				if c.twice != (s.Counts.Unfinished > 0) {
					t.Errorf("%d unfinished", s.Counts.Unfinished)
				}
			})
			if n := len(recordsOf(t, dir)); n < 500 {
				t.Errorf("%d records, want one for every planned turn", n)
			}
		})
	}
}

// A run whose tables could not be written says so wherever it is read, and what
// its journal gives is the whole run, told once.
func TestTablesThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "result")
	if err := os.MkdirAll(filepath.Join(dir, store.RecordsName+".tmp"), 0o755); err != nil { // in the way
		t.Fatal(err)
	}
	var res *Result
	synctest.Test(t, func(t *testing.T) {
		srv, err := httpapi.New(httpapi.Options{Engine: sim.Config{MaxSeqs: 1}, MaxQueue: 1})
		if err != nil {
			t.Fatal(err)
		}
		ln := newPipes()
		go srv.Serve(ln)
		res, err = Run(t.Context(), experimentOf(t, `
target: {url: http://sim, timeout: 60s}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 100, output_tokens: 100}]}
load: {rate: 10/s, phases: [{name: steady, for: 20s}]}
`), Options{Dir: dir, Dial: ln.dial, Virtual: true})
		if err != nil {
			t.Fatal(err)
		}
		srv.Close()
	})
	rules := func(s *analysis.Summary) map[string]int {
		n := map[string]int{}
		for _, f := range s.Findings {
			n[f.Rule]++
		}
		return n
	}
	live := rules(res.Summary)
	if live["result-incomplete"] != 1 || live["failure"] == 0 || res.Summary.Verdict.Valid {
		t.Errorf("the run says %v, valid: %v", live, res.Summary.Verdict.Valid)
	}
	if b, err := os.ReadFile(filepath.Join(dir, store.SummaryName)); err != nil || !strings.Contains(string(b), "result-incomplete") {
		t.Errorf("summary.json does not say it (%v)", err)
	}
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Summarize(kept, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := rules(again); got["result-incomplete"] != 1 || got["cut-short"] != 0 || got["failure"] != live["failure"] {
		t.Errorf("the run said %v, its journal %v", live, got)
	}
	if again.Counts != res.Summary.Counts || again.Window.Measured != res.Summary.Window.Measured {
		t.Errorf("%+v in %v s, from the journal %+v in %v s", res.Summary.Counts, res.Summary.Window.Measured, again.Counts, again.Window.Measured)
	}
}

// A server that turns out not to take what the file asks for is told in the
// result, as everything is that the target does.
func TestATargetThatCannotTakeTheRequests(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "result")
	synctest.Test(t, func(t *testing.T) {
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/info" {
				io.WriteString(w, `{"max_total_tokens": 4096, "version": "3"}`) // TGI
				return
			}
			http.NotFound(w, r)
		})}
		ln := newPipes()
		go srv.Serve(ln)
		res, err := Run(t.Context(), experimentOf(t, `
target: {url: http://sim, api: openai-completions, model: m}
workload: {classes: [{name: c, text: {random: token_ids}, input_tokens: 100, output_tokens: 5}]}
load: {rate: 1/s, phases: [{name: steady, for: 10s}]}
`), Options{Dir: dir, Dial: ln.dial, Virtual: true})
		if err != nil {
			t.Fatal(err)
		}
		if !res.Nothing() || len(res.Summary.Findings) == 0 || !strings.Contains(res.Summary.Findings[0].Message, "token ids") {
			t.Errorf("findings: %+v", res.Summary.Findings)
		}
		srv.Close()
	})
	if n := len(recordsOf(t, dir)); n != 0 {
		t.Errorf("%d records", n)
	}
}

func experimentOf(t *testing.T, file string) *spec.Experiment {
	t.Helper()
	exp, err := spec.Parse("test.yaml", []byte(strings.TrimSpace(file)))
	if err == nil {
		err = exp.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}
	return exp
}

// Later turns of scripted sessions: what the chat template adds to each is
// measured by the probe and taken off, so that the server counts what was asked.
func TestA12_ScriptedLaterTurnsAreAsLongAsAsked(t *testing.T) {
	res, recs, _ := inBubble(t, `
target: {url: http://sim}
workload:
  classes:
    - name: c
      text: {random: words}
      input_tokens: 100
      output_tokens: 20
      session: {turns: 3, think: 2s, history: scripted}
load: {rate: 2/s, phases: [{name: steady, for: 30s}]}
`, httpapi.Options{TemplateTokens: 10})
	later := 0
	for _, r := range recs {
		if r.Outcome != record.OK {
			continue
		}
		if want := 100*int(r.ID.Turn+1) + 20*int(r.ID.Turn); r.AskedInput != want || r.InputTokens != want {
			t.Fatalf("turn %d: asked %d, the server counts %d, want %d", r.ID.Turn, r.AskedInput, r.InputTokens, want)
		}
		if r.ID.Turn > 0 {
			later++
		}
	}
	if later < 50 {
		t.Errorf("%d later turns", later)
	}
	sums(t, res.Summary)
}

// A server behind a Unix socket, and one that speaks HTTP/2 without TLS: real
// sockets, a few requests.
func TestTransports(t *testing.T) {
	for _, c := range []struct{ name, network, http string }{
		{"unix socket", "unix", "auto"}, {"h2c", "tcp", "h2c"}, {"IPv6", "tcp6", "h1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := "127.0.0.1:0"
			switch c.network {
			case "unix":
				addr = filepath.Join(t.TempDir(), "llm.sock")
			case "tcp6":
				addr = "[::1]:0"
			}
			ln, err := net.Listen(c.network, addr)
			if err != nil {
				t.Skipf("no %s here: %v", c.network, err)
			}
			srv, err := httpapi.New(httpapi.Options{Engine: sim.Config{Profile: tiny(t)}})
			if err != nil {
				t.Fatal(err)
			}
			var protocols http.Protocols
			protocols.SetHTTP1(true)
			protocols.SetUnencryptedHTTP2(true)
			server := &http.Server{Handler: srv, Protocols: &protocols}
			go server.Serve(ln)
			t.Cleanup(func() { server.Close(); srv.Close() })
			target := "http://" + ln.Addr().String()
			if c.network == "unix" {
				target = "unix://" + addr
			}
			res, err := Run(t.Context(), experimentOf(t, fmt.Sprintf(`
target: {url: %q, http: %s, timeout: 20s}
workload: {classes: [{name: c, text: {random: words}, input_tokens: 50, output_tokens: 5}]}
load: {rate: 50/s, drain: 5s, phases: [{name: steady, requests: 10}]}
`, target, c.http)), Options{Dir: filepath.Join(t.TempDir(), "result")})
			if err != nil {
				t.Fatal(err)
			}
			if s := res.Summary; s.Counts.Planned < 10 || s.Counts.OK != s.Counts.Planned {
				t.Errorf("%+v %+v", s.Counts, s.Findings)
			}
		})
	}
}

func tiny(t *testing.T) sim.Profile {
	t.Helper()
	p, err := sim.ProfileByName("tiny")
	if err != nil {
		t.Fatal(err)
	}
	return p
}
