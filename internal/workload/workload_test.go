package workload

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/spec"
)

const traces = "../../testdata/traces/"

// experiment parses the file's text, with a target and the usual seed.
func experiment(t testing.TB, text string) *spec.Experiment {
	t.Helper()
	e, err := spec.Parse("test.yaml", []byte("target: {url: 'http://localhost:1'}\n"+text))
	if err == nil {
		err = e.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func build(t testing.TB, text string) *Workload {
	t.Helper()
	w, err := New(experiment(t, text), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// read returns up to n sessions; 0: all.
func read(t testing.TB, w *Workload, n int) []*plan.Session {
	t.Helper()
	var out []*plan.Session
	for src := w.Source(); n == 0 || len(out) < n; {
		s, err := src.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

func hash(t testing.TB, w *Workload) string {
	t.Helper()
	h, err := w.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

const chat = `
workload:
  classes:
    - name: chat
      share: 0.7
      input_tokens: {lognormal: {p50: 120, p99: 2048}}
      output_tokens: {lognormal: {p50: 180, p99: 1500}, max: 4096}
      prefix: {tokens: 600, pool: 8, popularity: {zipf: 1.1}}
      session: {turns: {geometric: {mean: 3.2}}, think: {lognormal: {p50: 20s, p90: 2m}}}
      hang_up: {share: 0.02, after: 5s}
    - name: rag
      share: 0.3
      input_tokens: {normal: {mean: 3000, sd: 500}}
      output_tokens: {uniform: {min: 50, max: 400}}
      tenant: gold
      priority: 3
      adapter: sql
load:
  arrivals: {gamma: {cv: 1.5}}
  rate: 12/s
  phases:
    - {name: warm-up, for: 10s, measured: false}
    - {name: steady, for: 60s}
    - {name: peak, for: 20s, rate: {ramp: {from: 12/s, to: 24/s}}, shares: {chat: 0.3, rag: 0.7}}
    - {name: wave, for: 30s, rate: {sine: {mean: 10/s, amplitude: 5/s, period: 20s}}, arrivals: {weibull: {cv: 2}}}
`

// The plan of a file that uses every kind of draw, as a hash: the same on every
// processor.
func TestGoldenPlan(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"classes", chat, "a971ebf396e708729956a88e6b76c615cc4205d342e4efe2fffaf3622322ec8b"},
		{"trace", "workload: {trace: {file: " + traces + "mooncake_conversation.jsonl, speed: 1.7, spread: 3s}}\n", "ac3217e6756d7ed6fa2c15e1888f188eaec0ae1737d3632abeed34d0f3cf74cd"},
		{"closed", "workload: {classes: [{name: a, session: {turns: {geometric: {mean: 2}}}}]}\nload: {closed: {clients: 4}, phases: [{name: p, requests: 500}]}", "cb26ca0baf8696326b77d50048092b09da4a3a4904ba64da402b1b00dd821d75"},
	} {
		w := build(t, c.text)
		if got := hash(t, w); got != c.want {
			t.Errorf("%s on %s: %s, want %s", c.name, runtime.GOARCH, got, c.want)
		}
		if again := hash(t, build(t, c.text)); again != hash(t, w) {
			t.Errorf("%s: built twice, the plan differs", c.name)
		}
		if other := hash(t, build(t, "seed: 43\n"+c.text)); other == hash(t, w) {
			t.Errorf("%s: another seed gives the same plan", c.name)
		}
	}
}

// Split among machines by Seq, the plan is the same plan: nothing is drawn
// twice and nothing is missing.
func TestL3_SplitPlansAreTheSamePlan(t *testing.T) {
	w := build(t, chat)
	whole := plan.NewHasher()
	for _, s := range read(t, w, 0) {
		whole.Add(s)
	}
	want := whole.Sum()
	for _, n := range []int{1, 2, 3, 16} {
		parts := make([][]*plan.Session, n)
		for k := range n {
			// Each machine reads the plan itself.
			for _, s := range read(t, w, 0) {
				if int(s.Seq)%n == k {
					parts[k] = append(parts[k], s)
				}
			}
		}
		h := plan.NewHasher()
		for i := 0; ; i++ {
			k := i % n
			if len(parts[k]) <= i/n {
				break
			}
			h.Add(parts[k][i/n])
		}
		if got := h.Sum(); got != want {
			t.Errorf("split %d ways: %s, want %s", n, got, want)
		}
	}
}

func TestPhasesAndOrder(t *testing.T) {
	w := build(t, chat)
	var names []string
	for _, p := range w.Phases() {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "warm-up steady peak wave tail" {
		t.Errorf("phases %s", got)
	}
	p := w.Phases()
	if p[0].Measured || !p[1].Measured || p[4].Measured || p[4].End-p[4].Start != 120*time.Second || p[4].Start != p[3].End {
		t.Errorf("phases %+v", p)
	}
	if !p[1].Constant || p[2].Constant || p[3].Constant || math.Abs(p[2].Rate-18) > 1e-9 || math.Abs(p[1].Rate-12) > 1e-9 {
		t.Errorf("phases %+v", p)
	}
	counts, classes := map[string]float64{}, map[string]float64{}
	last := time.Duration(0)
	for i, s := range read(t, w, 0) {
		if s.Seq != int64(i) || s.Scheduled < last {
			t.Fatalf("session %d has seq %d, is due at %v after one at %v", i, s.Seq, s.Scheduled, last)
		}
		last = s.Scheduled
		if ph, ok := plan.PhaseAt(p, s.Scheduled); !ok || ph.Name != s.Phase {
			t.Fatalf("session %d at %v says phase %q", i, s.Scheduled, s.Phase)
		}
		if len(s.History) == 0 { // arrivals, not those carried over
			counts[s.Phase]++
			classes[s.Phase+" "+s.Class]++
		}
		if s.Class == "rag" && (s.Tenant != "gold" || s.Priority != 3 || s.Model != "sql") {
			t.Fatalf("rag session is %+v", s)
		}
		for _, turn := range s.Turns {
			if turn.Timeout != 120*time.Second || turn.At != plan.Unset || turn.InputTokens < 1 || turn.OutputTokens < 1 || turn.OutputTokens > 4096 {
				t.Fatalf("turn %+v", turn)
			}
		}
	}
	// Counts of gamma arrivals have about cv² times the variance of Poisson ones.
	for phase, want := range map[string]float64{"steady": 720, "peak": 360, "wave": 300} {
		if math.Abs(counts[phase]-want) > 4*2*math.Sqrt(want) {
			t.Errorf("%g sessions arrive in %s, want about %g", counts[phase], phase, want)
		}
	}
	if f := classes["peak rag"] / counts["peak"]; math.Abs(f-0.7) > 0.1 {
		t.Errorf("%.2f of the sessions in peak are rag, want 0.7", f)
	}
	if f := classes["steady rag"] / counts["steady"]; math.Abs(f-0.3) > 0.07 {
		t.Errorf("%.2f of the sessions in steady are rag, want 0.3", f)
	}
}

// A phase of n requests ends right after the n-th arrival, and the next begins.
func TestPhasesByRequests(t *testing.T) {
	w := build(t, `
workload: {classes: [{name: a}]}
load: {rate: 20/s, phases: [{name: w, requests: 50, measured: false}, {name: m, requests: 300}, {name: z, for: 5s, measured: false}]}
`)
	n := map[string]int{}
	for _, s := range read(t, w, 0) {
		n[s.Phase]++
	}
	if n["w"] != 50 || n["m"] != 300 {
		t.Errorf("sessions by phase %v, want 50 and 300", n)
	}
	if p := w.Phases(); p[1].Start != p[0].End || p[3].End-p[2].Start != 120*time.Second {
		t.Errorf("phases %+v", p)
	}
}

// A curve of the whole load begins with the first measured phase and goes on in
// the next; the warm-up before it is at its first rate.
func TestL5_TheLoadsCurve(t *testing.T) {
	w := build(t, `
workload: {classes: [{name: a}]}
load:
  arrivals: constant
  rate: {ramp: {from: 0/s, to: 100/s, over: 60s}}
  drain: 5s
  phases: [{name: w, for: 20s, measured: false}, {name: m, for: 30s}, {name: n, for: 60s}]
`)
	n := map[string]int{}
	for _, s := range read(t, w, 0) {
		n[s.Phase]++
	}
	// A quarter of the ramp's 3,000, then the rest and 30 s at 100/s.
	for phase, want := range map[string]int{"w": 0, "m": 750, "n": 2250 + 3000, "tail": 500} {
		if d := n[phase] - want; d < -1 || d > 1 {
			t.Errorf("%d sessions in %s, want %d", n[phase], phase, want)
		}
	}
	if p := w.Phases(); p[0].Rate != 0 || math.Abs(p[1].Rate-25) > 1e-9 || math.Abs(p[2].Rate-87.5) > 1e-9 {
		t.Errorf("phases %+v", p)
	}
}

func TestClosedLoop(t *testing.T) {
	w := build(t, `
workload: {classes: [{name: a, session: {turns: 2}}]}
load: {closed: {clients: 4}, phases: [{name: m, requests: 501}]}
`)
	got := read(t, w, 0)
	if len(got) != 251 || w.Phases()[0].End != plan.Endless || len(w.Phases()) != 1 || w.Facts().Sessions != -1 {
		t.Errorf("%d sessions for 501 requests of 2 a session, phases %+v", len(got), w.Phases())
	}
	for _, s := range got {
		if s.Scheduled != plan.Unset || s.Turns[0].At != plan.Unset || s.Phase != "" {
			t.Fatalf("session %+v has a time", s)
		}
	}
	const mixed = "workload: {classes: [{name: a}]}\nload: {closed: {clients: 4}, phases: [{name: w, for: 5s, measured: false}, {name: m, requests: 5}]}"
	if _, err := New(experiment(t, mixed), ""); err == nil || !strings.Contains(err.Error(), "must be the only one") {
		t.Errorf("error %v", err)
	}
	// By time there is no end.
	w = build(t, "workload: {classes: [{name: a}]}\nload: {closed: {clients: 4}, phases: [{name: m, for: 5s}]}")
	if got := read(t, w, 20_000); len(got) != 20_000 {
		t.Errorf("%d sessions", len(got))
	}
	if len(w.Phases()) != 2 || w.Phases()[1].Name != TailName {
		t.Errorf("phases %+v", w.Phases())
	}
}

func TestTextWithoutAnswers(t *testing.T) {
	file := write(t, "p.jsonl", `{"prompt": "a"}`)
	text := "workload: {classes: [{name: a, text: {jsonl: " + file + "}%s}]}\nload: {rate: 1/s}"
	if _, err := New(experiment(t, fmt.Sprintf(text, "")), ""); err == nil || !strings.Contains(err.Error(), "class a: output_tokens: missing") {
		t.Errorf("error %v", err)
	}
	build(t, fmt.Sprintf(text, ", output_tokens: 50"))
}

// The file says what its rate counts, and both rates come out of the facts.
func TestL10_SessionsOrTurns(t *testing.T) {
	const text = `
workload: {classes: [{name: a, session: {turns: 5}}]}
load: {arrivals: constant, rate: %RATE%, phases: [{name: m, for: 100s}]}
`
	for rate, want := range map[string][2]float64{"2/s": {200, 1000}, "{value: 2/s, per: turns}": {40, 200}} {
		w := build(t, strings.Replace(text, "%RATE%", rate, 1))
		var sessions, turns float64
		for _, s := range read(t, w, 0) {
			if s.Phase == "m" && len(s.History) == 0 {
				sessions++
				turns += float64(len(s.Turns))
			}
		}
		if math.Abs(sessions-want[0]) > 1 || math.Abs(turns-want[1]) > 5 {
			t.Errorf("rate %s: %g sessions of %g turns, want %v", rate, sessions, turns, want)
		}
		if f := w.Facts(); math.Abs(f.Sessions-want[0]) > 1e-6 || math.Abs(f.Turns-want[1]) > 1e-6 {
			t.Errorf("rate %s: the facts say %g sessions of %g turns, want %v", rate, f.Sessions, f.Turns, want)
		}
	}
}

func TestA15_Shares(t *testing.T) {
	const text = `
workload: {classes: [{name: a, share: %A%}, {name: b, share: %B%}, {name: c, share: %C%}]}
load: {rate: 50/s, phases: [{name: m, for: 60s}]}
`
	var hashes []string
	for _, s := range [][3]string{{"0.7", "0.2", "0.1"}, {"7", "2", "1"}} {
		w := build(t, strings.NewReplacer("%A%", s[0], "%B%", s[1], "%C%", s[2]).Replace(text))
		hashes = append(hashes, hash(t, w))
	}
	if hashes[0] != hashes[1] {
		t.Error("shares 0.7, 0.2, 0.1 and 7, 2, 1 split the sessions differently")
	}
}

// turnsPerMinute counts nominal due times of turns, as a server of nominal
// speed would see them.
func turnsPerMinute(t *testing.T, w *Workload, minutes int) []float64 {
	out := make([]float64, minutes)
	service := w.classes[0].service
	for _, s := range read(t, w, 0) {
		at := s.Scheduled
		for i, turn := range s.Turns {
			if i > 0 {
				at += service + turn.Think
			}
			if m := int(at / time.Minute); m < minutes {
				out[m]++
			}
		}
	}
	return out
}

// 12 sessions a second of 3.2 turns are 38.4 turns a second: from the first
// minute, not after ten.
func TestI6_FlatFromTheStart(t *testing.T) {
	const minutes = 15
	text := `
workload:
  classes:
    - name: chat
      session: {turns: {geometric: {mean: 3.2}}, think: {lognormal: {p50: 20s, p90: 2m}}}
load: {arrivals: poisson, rate: 12/s, drain: 1s, phases: [{name: m, for: 15m}]}
`
	var sum [minutes]float64
	const seeds = 10
	for seed := range seeds {
		w := build(t, fmt.Sprintf("seed: %d\n%s", seed, text))
		for m, n := range turnsPerMinute(t, w, minutes) {
			sum[m] += n / seeds / 60
		}
		if w.Facts().Horizon < 5*time.Minute || w.Facts().Carried < 100 {
			t.Fatalf("facts: horizon %v, carried %d", w.Facts().Horizon, w.Facts().Carried)
		}
	}
	t.Logf("turns/s by minute: %.1f", sum)
	for m, rate := range sum {
		// A minute of ten seeds holds 23,000 turns, which come in clusters.
		if math.Abs(rate-38.4) > 0.9 {
			t.Errorf("minute %d: %.1f turns/s, want 38.4 (all: %.1f)", m, rate, sum)
		}
	}
}

func TestCarriedSessions(t *testing.T) {
	w := build(t, chat)
	carried := 0
	for _, s := range read(t, w, 0) {
		if len(s.History) > 0 {
			carried++
		}
		for i, turn := range append(slices.Clone(s.History), s.Turns...) {
			if int(turn.Index) != i {
				t.Fatalf("session %d: turn %d has index %d", s.Seq, i, turn.Index)
			}
			if (turn.Prompt.PrefixTokens > 0) != (i == 0 && s.Class == "chat") {
				t.Fatalf("session %d turn %d: prefix of %d tokens", s.Seq, i, turn.Prompt.PrefixTokens)
			}
		}
		if s.Turns[0].Think != 0 {
			t.Fatalf("session %d: its first turn waits for %v", s.Seq, s.Turns[0].Think)
		}
	}
	if carried < 50 {
		t.Errorf("%d sessions with history", carried)
	}
}

func TestScriptedHasAbsoluteTimes(t *testing.T) {
	w := build(t, `
workload: {classes: [{name: a, session: {turns: {geometric: {mean: 3}}, think: 10s, history: scripted}}]}
load: {rate: 5/s, phases: [{name: m, for: 60s}]}
`)
	for _, s := range read(t, w, 0) {
		if !s.Scripted || s.Turns[0].At != s.Scheduled {
			t.Fatalf("session %+v", s)
		}
		for i := 1; i < len(s.Turns); i++ {
			if d := s.Turns[i].At - s.Turns[i-1].At; d < 10*time.Second || d != w.classes[0].service+10*time.Second {
				t.Fatalf("turn %d is due %v after the one before", i, d)
			}
		}
	}
}

func TestA14_TheCutIsReported(t *testing.T) {
	w := build(t, `
workload: {classes: [{name: a, output_tokens: {lognormal: {p50: 180, p99: 1500}, max: 600}}]}
load: {rate: 5/s, phases: [{name: m, for: 60s}]}
`)
	i := slices.IndexFunc(w.Facts().Cut, func(c Cut) bool { return c.Class == "a" && c.What == "output_tokens" })
	if i < 0 || math.Abs(w.Facts().Cut[i].Share-0.0931) > 0.001 {
		t.Errorf("cut: %+v, want 9.31 %% of output_tokens", w.Facts().Cut)
	}
}

func TestHangUps(t *testing.T) {
	w := build(t, chat)
	var all, hang float64
	for _, s := range read(t, w, 0) {
		for _, turn := range s.Turns {
			if s.Class == "chat" {
				all++
			}
			if turn.HangUp != 0 {
				hang++
				if turn.HangUp != 5*time.Second || s.Class != "chat" {
					t.Fatalf("%s hangs up after %v", s.Class, turn.HangUp)
				}
			}
		}
	}
	if f := hang / all; f < 0.012 || f > 0.028 {
		t.Errorf("%.3f hang up, want 0.02", f)
	}
}

// Changing how one thing is drawn moves no draw of another.
func TestPurposesDrawApart(t *testing.T) {
	a := read(t, build(t, chat), 500)
	b := read(t, build(t, strings.Replace(chat, "input_tokens: {lognormal: {p50: 120, p99: 2048}}", "input_tokens: 100", 1)), 500)
	c := read(t, build(t, strings.Replace(chat, "pool: 8", "pool: 9", 1)), 500)
	for i := range a {
		if a[i].Scheduled != b[i].Scheduled || a[i].Class != b[i].Class || len(a[i].Turns) != len(b[i].Turns) || a[i].Turns[0].Prompt.Seed != b[i].Turns[0].Prompt.Seed {
			t.Fatalf("session %d: other lengths changed more than lengths", i)
		}
		if a[i].Turns[0].OutputTokens != c[i].Turns[0].OutputTokens || a[i].Scheduled != c[i].Scheduled {
			t.Fatalf("session %d: another pool changed more than prefixes", i)
		}
	}
}

// A plan of millions of turns streams: what is held does not grow with it.
func TestLongPlansStayOutOfMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("draws a million sessions")
	}
	w := build(t, `
workload: {classes: [{name: a, session: {turns: {geometric: {mean: 3.2}}, think: {lognormal: {p50: 20s, p90: 2m}}}}]}
load: {rate: 500/s, phases: [{name: m, for: 2000s}]}
`)
	var base, now runtime.MemStats
	src := w.Source()
	turns, sessions := 0, 0
	for {
		s, err := src.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		sessions++
		turns += len(s.Turns)
		if sessions == 1000 {
			runtime.GC()
			runtime.ReadMemStats(&base)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&now)
	if grown := int64(now.HeapAlloc) - int64(base.HeapAlloc); grown > 1<<20 {
		t.Errorf("after %d sessions the heap has grown by %d bytes", sessions, grown)
	}
	if sessions < 1_000_000 || turns < 3_000_000 {
		t.Errorf("%d sessions, %d turns", sessions, turns)
	}
}

func BenchmarkSource(b *testing.B) {
	w := build(b, chat)
	src := w.Source()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := src.Next(); err == io.EOF {
			src = w.Source()
		}
	}
}
