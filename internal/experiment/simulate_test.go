package experiment

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/simulate"
	"github.com/trueload/trueload/internal/store"
)

const overload = `
target: {url: http://sim, timeout: 6s}
seed: 5
workload:
  classes:
    - name: chat
      text: {random: words}
      input_tokens: {lognormal: {p50: 300, p99: 3000}, max: 6000}
      output_tokens: {lognormal: {p50: 100, p99: 800}, max: 1500}
      hang_up: {share: 20%%, after: 2s}
      session: {turns: {geometric: {mean: 3}}, think: {exponential: {mean: 3s}}}
load:
  rate: 6/s
  %s
  phases: [{name: warm-up, for: 20s, measured: false}, {name: steady, for: 100s}]
`

// onPaper simulates an experiment.
func onPaper(t *testing.T, file string, o simulate.Options) (*Result, []*record.Record) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "result")
	var log strings.Builder
	res, err := Run(t.Context(), experimentOf(t, file), Options{Dir: dir, Simulate: &o, Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	sums(t, res.Summary)
	return res, recordsOf(t, dir)
}

// The same experiment over HTTP in a bubble of virtual time, and simulated: the
// same plan, the same outcomes, and every record the same to the nanosecond.
// There is no network in either, and engines without jitter. A refusal takes a
// millisecond on paper and no time in the bubble.
//
// Under a cap it is not so exact: where one step ends two answers, two waiting
// turns are sent at the same instant, and which of them the engine hears of
// first is the scheduler's whim over HTTP. Past capacity that is another history
// of the same queue: medians within 5 % either way, without a bias.
func TestSimulatedIsAsOverHTTP(t *testing.T) {
	long := "600s"
	if testing.Short() {
		long = "120s"
	}
	for _, c := range []struct {
		name string
		file string
		o    simulate.Options
		near bool // not exactly
	}{
		{"sessions with think time and shared prefixes, two replicas", fmt.Sprintf(hourOfTraffic, "2/s", long), simulate.Options{Replicas: 2, Router: sim.LeastLoaded}, false},
		{"the same by prefix, four replicas of few blocks", fmt.Sprintf(hourOfTraffic, "4/s", "120s"), simulate.Options{Replicas: 4, Router: sim.PrefixAware, Engine: sim.Config{Blocks: 2000, MaxModelLen: 16000}}, false},
		{"hang-ups and deadlines, past what the engine can do", fmt.Sprintf(overload, ""), simulate.Options{Engine: sim.Config{MaxSeqs: 16}}, false},
		{"the same under a cap", fmt.Sprintf(overload, "max_in_flight: 24"), simulate.Options{Engine: sim.Config{MaxSeqs: 16}}, true},
		{"scripted sessions, few blocks, a queue that refuses", `
target: {url: http://sim, timeout: 60s}
seed: 6
workload:
  classes:
    - name: agent
      text: {random: words}
      input_tokens: {uniform: {min: 100, max: 1500}}
      output_tokens: {uniform: {min: 50, max: 400}}
      prefix: {tokens: 512, pool: 3}
      session: {turns: {fixed: 3}, think: {exponential: {mean: 4s}}, history: scripted}
load:
  rate: 3/s
  phases: [{name: warm-up, for: 20s, measured: false}, {name: steady, for: 60s}]
`, simulate.Options{Replicas: 2, MaxQueue: 8, Engine: sim.Config{Blocks: 700, MaxModelLen: 8192, MaxSeqs: 64}}, false},
		{"a closed loop", `
target: {url: http://sim, timeout: 60s}
workload: {classes: [{name: c, text: {random: words}, input_tokens: {uniform: {min: 50, max: 2000}}, output_tokens: {uniform: {min: 20, max: 200}}}]}
load: {closed: {clients: 20, think: {exponential: {mean: 1s}}}, phases: [{name: warm-up, for: 10s, measured: false}, {name: steady, for: 60s}]}
`, simulate.Options{Replicas: 2, Router: sim.LeastLoaded}, false},
		{"completions", `
target: {url: http://sim, api: openai-completions}
workload: {classes: [{name: c, text: {random: words}, input_tokens: {uniform: {min: 50, max: 4000}}, output_tokens: {uniform: {min: 5, max: 100}}}]}
load: {rate: 5/s, phases: [{name: steady, for: 60s}]}
`, simulate.Options{}, false},
		{"answers that are not streamed", `
target: {url: http://sim, stream: false, timeout: 5s}
workload: {classes: [{name: c, text: {random: words}, input_tokens: {uniform: {min: 50, max: 4000}}, output_tokens: {uniform: {min: 5, max: 600}}}]}
load: {rate: 5/s, phases: [{name: steady, for: 60s}]}
`, simulate.Options{}, false},
		{"a trace with shared blocks", fmt.Sprintf(`
target: {url: http://sim, timeout: 60s}
workload: {trace: {file: %q, repeat: true}}
load: {rate: 2/s, phases: [{name: steady, for: 20s}]} # its own times are the same for several rows
`, repoFile(t, "mooncake_conversation.jsonl")), simulate.Options{Replicas: 4, Router: sim.LeastLoaded}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.TemplateTokens, c.o.Seed = 10, 1
			if c.o.Replicas > 1 && c.o.Router != sim.PrefixAware {
				// The probe's prompts go to one replica after another: it does not
				// see that they take cache_salt, and the salt is eight words.
				c.o.SaltTokens = 8
			}
			over, want, _ := inBubble(t, c.file, httpapi.Options{
				Engine: c.o.Engine, Replicas: c.o.Replicas, Router: c.o.Router, MaxQueue: c.o.MaxQueue,
				TemplateTokens: c.o.TemplateTokens, Seed: c.o.Seed,
			})
			res, got := onPaper(t, c.file, c.o)
			a, b := over.Summary, res.Summary
			if a.Run.PlanHash == "" || a.Run.PlanHash != b.Run.PlanHash {
				t.Errorf("plan hashes %q and %q", a.Run.PlanHash, b.Run.PlanHash)
			}
			figures := []struct {
				name      string
				over, sim *float64
			}{
				{"TTFT p50", a.Latency.TTFT.All.P50.Value, b.Latency.TTFT.All.P50.Value}, {"TTFT p99", a.Latency.TTFT.OK.P99.Value, b.Latency.TTFT.OK.P99.Value},
				{"TPOT p99", a.Latency.TPOT.All.P99.Value, b.Latency.TPOT.All.P99.Value}, {"E2E p50", a.Latency.E2E.OK.P50.Value, b.Latency.E2E.OK.P50.Value},
			}
			differ := 0
			for _, f := range figures {
				if f.over == nil || f.sim == nil {
					if f.over != f.sim {
						t.Errorf("%s is missing on one side", f.name)
					}
					continue
				}
				t.Logf("%s %.6f s over HTTP, %.6f simulated", f.name, *f.over, *f.sim)
				if c.near && math.Abs(*f.sim / *f.over - 1) > 0.12 {
					t.Errorf("%s: %v s over HTTP, %v s simulated", f.name, *f.over, *f.sim)
				}
			}
			if n := float64(a.Counts.OK); c.near && math.Abs(float64(b.Counts.OK)-n) > 0.02*n {
				t.Errorf("%v ok over HTTP, %d simulated", n, b.Counts.OK)
			}
			if c.near {
				return
			}
			if d := cmp.Diff(a.Counts, b.Counts); d != "" {
				t.Errorf("counts differ (-HTTP +simulated):\n%s", d)
			}
			for _, l := range [][]*record.Record{want, got} {
				slices.SortFunc(l, func(a, b *record.Record) int {
					return int(a.ID.Session-b.ID.Session)*1000 + int(a.ID.Turn-b.ID.Turn)
				})
			}
			if len(want) != len(got) || len(got) < 40 {
				t.Fatalf("%d records over HTTP, %d simulated", len(want), len(got))
			}
			// The run ends with a step, and whether what else left in that step is
			// still read is chance over HTTP.
			end, cut := time.Duration(0), map[int64]bool{}
			for _, w := range want {
				end = max(end, w.Done)
			}
			for i, w := range want {
				if w.Done == end || got[i].Done == end {
					cut[w.ID.Session] = true
				}
			}
			for i, w := range want {
				if cut[w.ID.Session] {
					continue
				}
				if d := cmp.Diff(comparable(w), comparable(got[i])); d != "" {
					if differ++; differ <= 3 {
						t.Errorf("turn %v differs (-HTTP +simulated):\n%s", w.ID, d)
					}
				}
			}
			if len(cut) > 40 {
				t.Errorf("%d sessions were under way at the end: too little is compared", len(cut))
			}
			t.Logf("%d of %d records differ, %d sessions were under way at the end", differ, len(got), len(cut))
		})
	}
}

// comparable is a record without what only a network has, or lacks.
func comparable(r *record.Record) record.Record {
	c := *r
	c.StampSource, c.Reads, c.MultiEventReads, c.RefusedStamps, c.Reused, c.Reconnects = "", 0, 0, 0, false, 0
	c.Error = ""
	if c.Outcome == record.Rejected {
		c.Headers, c.Done = record.Unset, record.Unset // a millisecond later on paper
	}
	c.CachedTokens = max(c.CachedTokens, 0) // a server leaves the field out where nothing was cached
	return c
}

// The same seed gives the same summary, byte for byte, and another seed another.
func TestSimulatedSummaryIsRepeatable(t *testing.T) {
	file := fmt.Sprintf(hourOfTraffic, "2/s", "300s")
	o := simulate.Options{Replicas: 3, Router: sim.LeastLoaded, TemplateTokens: 10, Seed: 4, Engine: sim.Config{Jitter: 0.03}}
	summary := func(file string) []byte {
		res, _ := onPaper(t, file, o)
		b, err := os.ReadFile(filepath.Join(res.Dir, store.SummaryName))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := summary(file)
	if two := summary(file); !bytes.Equal(one, two) {
		t.Errorf("two simulations differ:\n%s", cmp.Diff(string(one), string(two)))
	}
	if bytes.Equal(one, summary(strings.Replace(file, "seed: 7", "seed: 8", 1))) {
		t.Error("another seed, the same summary")
	}
}

// A simulated result says so wherever it is read.
func TestSimulatedResultIsMarked(t *testing.T) {
	res, recs := onPaper(t, fmt.Sprintf(hourOfTraffic, "2/s", "60s"), simulate.Options{Replicas: 2})
	var man Manifest
	r, err := store.Open(res.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.ReadJSON(store.ManifestName, &man); err != nil {
		t.Fatal(err)
	}
	if !man.Simulated || man.Simulation == nil || man.Simulation.Replicas != 2 || man.Simulation.Basis != sim.Scaled || man.PlanHash == "" {
		t.Errorf("manifest: %+v", man)
	}
	if res.Summary.Generator.StampSource != simulate.StampSource {
		t.Errorf("stamp source %q", res.Summary.Generator.StampSource)
	}
	if !slices.ContainsFunc(res.Summary.Findings, func(f analysis.Finding) bool { return f.Rule == "simulated" }) {
		t.Errorf("no finding says that it was simulated: %+v", res.Summary.Findings)
	}
	if !slices.ContainsFunc(res.Summary.Run.NotReproduced, func(s string) bool { return strings.Contains(s, "the engine and the network") }) {
		t.Errorf("not reproduced: %q", res.Summary.Run.NotReproduced)
	}
	for _, rec := range recs {
		if rec.Connected != rec.Admitted || rec.Sent != rec.Connected || rec.Scheduled != rec.Released && rec.Released != record.Unset {
			t.Errorf("turn %v: scheduled %v released %v admitted %v connected %v sent %v", rec.ID, rec.Scheduled, rec.Released, rec.Admitted, rec.Connected, rec.Sent)
		}
	}
	again, err := Summarize(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(res.Summary, again); d != "" {
		t.Errorf("the summary made again of the result differs:\n%s", d)
	}
}

// An interrupt leaves a result: what was simulated by then, and what was not due.
func TestSimulatedIsInterrupted(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	dir := filepath.Join(t.TempDir(), "result")
	res, err := Run(t.Context(), experimentOf(t, fmt.Sprintf(hourOfTraffic, "2/s", "60s")), Options{Dir: dir, Simulate: &simulate.Options{}, Stop: stop})
	if err != nil {
		t.Fatal(err)
	}
	sums(t, res.Summary)
	var man Manifest
	r, err := store.Open(dir)
	if err == nil {
		err = r.ReadJSON(store.ManifestName, &man)
	}
	if err != nil {
		t.Fatal(err)
	}
	if res.End != loadgen.EndInterrupted || int64(len(recordsOf(t, dir))) != man.Planned || man.PlanHash == "" || res.Summary.Counts.NotDue == 0 {
		t.Errorf("ended by %q: %+v", res.End, res.Summary.Counts)
	}
}
