package analysis

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// server answers turns first come first served on c servers of exponential
// service times, busy to the given share on average; times are those of a run
// of 1,000 s.
func server(seed uint64, c int, busy func(at time.Duration) float64, turns int) []*record.Record {
	rng := rand.New(rand.NewPCG(seed, 6))
	free := make([]time.Duration, c)
	mean := 1000 * time.Second / time.Duration(turns)
	var recs []*record.Record
	for i, at := int64(0), time.Duration(0); at < 1000*time.Second; i++ {
		k := slices.Index(free, slices.Min(free))
		start := max(at, free[k])
		free[k] = start + time.Duration(rng.ExpFloat64()*float64(c)*busy(at)*float64(mean))
		recs = append(recs, reply(i, at, start-at+ms, free[k]-at+2*ms))
		at += time.Duration(rng.ExpFloat64() * float64(mean))
	}
	return recs
}

func always(busy float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return busy }
}

func warmUp(d time.Duration) []plan.Phase {
	return []plan.Phase{
		{Name: "warm-up", End: d, Constant: true},
		{Name: "steady", Start: d, End: 900 * time.Second, Measured: true, Constant: true},
		{Name: "tail", Start: 900 * time.Second, End: 1000 * time.Second, Constant: true},
	}
}

func told(t *testing.T, name string, got *bool, want bool) {
	t.Helper()
	if got == nil {
		t.Errorf("%s was not judged", name)
	} else if *got != want {
		t.Errorf("%s is %v", name, *got)
	}
}

func TestAtRest(t *testing.T) {
	sum := summarize(t, Options{Phases: warmUp(100 * time.Second)}, server(1, 8, always(0.7), 5000)...)
	p := sum.Window.Phases[1]
	told(t, "steady", p.Steady, true)
	told(t, "stable", p.Stable, true)
	told(t, "saturated", p.Saturated, false)
	told(t, "warmed up", p.WarmedUp, true)
	told(t, "the window, steady", sum.Window.Steady, true)
	told(t, "the window, saturated", sum.Window.Saturated, false)
	if len(p.Tests) != 3 || p.InFlightStart == nil || p.InFlightEnd == nil || p.TransientEnd == nil {
		t.Errorf("%+v", p)
	}
	for i, other := range sum.Window.Phases {
		if i != 1 && (other.Steady != nil || other.Stable != nil || len(other.Tests) > 0) {
			t.Errorf("%s was judged", other.Name)
		}
	}
	for _, rule := range []string{"saturated", "not-steady", "warm-up-too-short"} {
		if f := finding(sum, rule); f != nil {
			t.Errorf("%+v", f)
		}
	}
}

// The whole judgment over seeds, of about 11,000 completions each: of runs at
// rest few are warned of, and of runs past capacity few are missed.
func TestJudgmentOverSeeds(t *testing.T) {
	runs := 200
	if testing.Short() {
		runs = 25
	}
	rules := []string{"saturated", "not-steady", "warm-up-too-short"}
	over := func(busy float64) map[string]int {
		count := map[string]int{}
		for i := range runs {
			sum := summarize(t, Options{Phases: warmUp(100 * time.Second)}, server(uint64(i), 8, always(busy), 12500)...)
			for _, rule := range rules {
				if finding(sum, rule) != nil {
					count[rule]++
				}
			}
		}
		t.Logf("of %d runs at %v of capacity: %v", runs, busy, count)
		return count
	}
	if n := over(0.7); 100*(n["saturated"]+n["not-steady"]) > 8*runs || 100*n["warm-up-too-short"] > 8*runs {
		t.Errorf("of %d runs at 70 %%: %v", runs, n)
	}
	if n := over(1.05); 100*n["saturated"] < 95*runs {
		t.Errorf("of %d runs at 105 %%: %v", runs, n)
	}
}

func TestPastCapacity(t *testing.T) {
	for name, recs := range map[string][]*record.Record{
		"twice what it can do": server(1, 8, always(2), 5000),
		"a little more":        server(2, 8, always(1.15), 5000),
	} {
		sum := summarize(t, Options{Phases: warmUp(100 * time.Second)}, recs...)
		p := sum.Window.Phases[1]
		told(t, name+": stable", p.Stable, false)
		told(t, name+": saturated", p.Saturated, true)
		told(t, name+": the window", sum.Window.Saturated, true)
		f := finding(sum, "saturated")
		if f == nil || f.Severity != Error || f.Remedy == "" || !strings.Contains(f.Message, "phase steady") {
			t.Errorf("%s: %+v", name, f)
		}
		if f := finding(sum, "not-steady"); f != nil {
			t.Errorf("%s: said twice: %+v", name, f)
		}
	}
}

// The in-flight cap keeps what the server sees level; the queue is then on our side.
func TestPastCapacityBehindACap(t *testing.T) {
	recs := server(1, 8, always(1.5), 5000)
	for _, r := range recs {
		r.Admitted = r.FirstOutput - ms
		r.Connected, r.Sent, r.Written = r.Admitted, r.Admitted, r.Admitted
	}
	sum := summarize(t, Options{Phases: warmUp(100 * time.Second)}, recs...)
	told(t, "saturated", sum.Window.Phases[1].Saturated, true)
}

func TestNotSteady(t *testing.T) {
	slower := func(at time.Duration) float64 { return 0.4 + 0.5*at.Seconds()/1000 }
	sum := summarize(t, Options{Phases: warmUp(100 * time.Second)}, server(3, 1, slower, 8000)...)
	p := sum.Window.Phases[1]
	told(t, "steady", p.Steady, false)
	told(t, "stable", p.Stable, true)
	told(t, "the window", sum.Window.Steady, false)
	f := finding(sum, "not-steady")
	if f == nil || f.Severity != Warning || !strings.Contains(f.Message, "the median TTFT rose") || strings.Contains(f.Message, "throughput") {
		t.Errorf("%+v", f)
	}
}

// Half of the turns stop coming back in mid-window: the median of a block is then
// infinite, and the throughput half.
func TestNotSteadyWhereTurnsStopComingBack(t *testing.T) {
	recs := server(3, 8, always(0.5), 5000)
	for _, r := range recs {
		if r.Scheduled > 500*time.Second && r.ID.Session%5 < 3 {
			r.Outcome, r.FirstOutput, r.FirstAnswer, r.LastOutput, r.Events = record.StreamError, record.Unset, record.Unset, record.Unset, nil
		}
	}
	sum := summarize(t, Options{Phases: warmUp(100 * time.Second)}, recs...)
	if f := finding(sum, "not-steady"); f == nil || !strings.Contains(f.Message, "throughput fell") || !strings.Contains(f.Message, "the median TTFT rose") {
		t.Errorf("%+v", f)
	}
}

// Requests of 60 s that begin from nothing need two minutes to be as many as
// they will be.
func TestWarmUpTooShort(t *testing.T) {
	long := func() []*record.Record {
		rng := rand.New(rand.NewPCG(7, 7))
		var recs []*record.Record
		for i := range int64(5000) {
			recs = append(recs, reply(i, time.Duration(i)*200*ms, ms, time.Duration(60+60*rng.Float64())*time.Second))
		}
		return recs
	}
	sum := summarize(t, Options{Phases: warmUp(10 * time.Second)}, long()...)
	told(t, "warmed up in 10 s", sum.Window.Phases[1].WarmedUp, false)
	told(t, "saturated", sum.Window.Phases[1].Saturated, false)
	f := finding(sum, "warm-up-too-short")
	if f == nil || f.Severity != Warning || !strings.Contains(f.Remedy, "warm up for at least 1") {
		t.Errorf("%+v", f)
	}
	sum = summarize(t, Options{Phases: warmUp(150 * time.Second)}, long()...)
	told(t, "warmed up in 150 s", sum.Window.Phases[1].WarmedUp, true)
}

// A run without a warm-up fills up first: short ones are not judged, and one far
// past capacity is told all the same.
func TestBeginningFromNothing(t *testing.T) {
	phases := func(d time.Duration) []plan.Phase {
		return []plan.Phase{{Name: "steady", End: d, Measured: true, Constant: true}}
	}
	wrong, judged := 0, 0
	for i := range uint64(100) {
		rng := rand.New(rand.NewPCG(i, 8))
		var recs []*record.Record
		for k := range int64(200) { // each lasts 10 s on average, exponential: 40 in flight
			recs = append(recs, reply(k, time.Duration(k)*250*ms, ms, 2*ms+time.Duration(rng.ExpFloat64()*10*float64(time.Second))))
		}
		if p := summarize(t, Options{Phases: phases(50 * time.Second)}, recs...).Window; p.Saturated != nil {
			judged++
			if *p.Saturated {
				wrong++
			}
		}
	}
	if wrong > 3 {
		t.Errorf("%d of %d judged runs were called saturated for filling up", wrong, judged)
	}
	for _, busy := range []float64{1.2, 1.5, 3} {
		sum := summarize(t, Options{Phases: phases(1000 * time.Second)}, server(4, 8, always(busy), 5000)...)
		told(t, "saturated", sum.Window.Saturated, true)
	}
}

func TestNotJudged(t *testing.T) {
	recs := server(1, 8, always(1.5), 5000)
	ramp := warmUp(100 * time.Second)
	ramp[1].Constant = false
	two := append(warmUp(100*time.Second), plan.Phase{Name: "burst", Start: 1000 * time.Second, End: 1001 * time.Second, Measured: true})
	tests := []struct {
		name string
		opt  Options
		recs []*record.Record
		want *bool // of the window: saturated
	}{
		{"a rate that changes", Options{Phases: ramp}, recs, nil},
		{"a closed loop", Options{Phases: warmUp(100 * time.Second), ClosedLoop: true}, recs, nil},
		{"too few turns", Options{Phases: warmUp(100 * time.Second)}, server(1, 8, always(1.5), 90), nil},
		{"no turns", Options{Phases: warmUp(100 * time.Second)}, nil, nil},
		{"one phase that is, one that is not judged", Options{Phases: two}, recs, ptr(true)},
		{"one at rest, one not judged", Options{Phases: two}, server(1, 8, always(0.5), 5000), nil},
		{"a phase without length", Options{Phases: append([]plan.Phase{{Name: "none", Measured: true, Constant: true}}, warmUp(100*time.Second)...)}, recs, ptr(true)},
		{"too few blocks", Options{Phases: warmUp(100 * time.Second), Batches: 5}, recs, nil},
	}
	for _, c := range tests {
		sum := summarize(t, c.opt, c.recs...)
		got := sum.Window.Saturated
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if c.want == nil && finding(sum, "saturated") != nil {
			t.Errorf("%s: %+v", c.name, finding(sum, "saturated"))
		}
	}
}

// What is in flight is the same however it is counted.
func TestInFlight(t *testing.T) {
	recs := server(1, 8, always(0.9), 2000)
	recs[100].Done = record.Unset // until the end
	recs[100].Outcome = record.Unfinished
	recs[200].Outcome = record.Shed // never
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		s.Add(r)
	}
	var e edges
	for at := -time.Second; at < 1100*time.Second; at += 7777 * ms {
		e = append(e, at)
	}
	for i, got := range s.inFlight(e) {
		want := 0.0
		for _, r := range recs {
			done := r.Done
			if done == record.Unset {
				done = math.MaxInt64
			}
			if r.Outcome != record.Shed && r.Scheduled <= e[i] && done > e[i] {
				want++
			}
		}
		if got != want {
			t.Fatalf("%v in flight at %v, want %v", got, e[i], want)
		}
	}
}
