package stats

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

type times []float64

func (h times) Len() int           { return len(h) }
func (h times) Less(i, j int) bool { return h[i] < h[j] }
func (h times) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *times) Push(x any)        { *h = append(*h, x.(float64)) }
func (h *times) Pop() any          { o := *h; x := o[len(o)-1]; *h = o[:len(o)-1]; return x }

// queue simulates an M/M/c queue of service rate 1/c per server, first come first
// served: n arrivals at the given utilisation after a warm-up. Blocks hold what
// the tests look at.
type queue struct {
	level       []float64 // in the system at the edges of blocks
	completions []float64 // by block
	wait        []float64 // median sojourn by block
	fine        []float64 // in the system, sampled
}

func simulate(rng *rand.Rand, c int, rho float64, warm, n, blocks int) queue {
	free := make(times, c) // when each server is free
	type job struct{ in, out float64 }
	jobs := make([]job, 0, warm+n)
	at := 0.0
	for range warm + n {
		at += rng.ExpFloat64() / rho
		start := max(at, free[0])
		out := start + rng.ExpFloat64()*float64(c)
		free[0] = out
		heap.Fix(&free, 0)
		jobs = append(jobs, job{at, out})
	}
	begin, end := 0.0, at
	if warm > 0 {
		begin = jobs[warm-1].in
	}
	q := queue{level: make([]float64, blocks+1), completions: make([]float64, blocks), fine: make([]float64, 500)}
	waits := make([][]float64, blocks)
	width := (end - begin) / float64(blocks)
	for _, j := range jobs {
		present(q.level, (j.in-begin)/width, (j.out-begin)/width)
		present(q.fine, (j.in-begin)/(end-begin)*500-0.5, (j.out-begin)/(end-begin)*500-0.5)
		if b := int((j.out - begin) / width); j.out >= begin && b < blocks {
			q.completions[b]++
		}
		if b := int((j.in - begin) / width); j.in >= begin && b < blocks {
			waits[b] = append(waits[b], j.out-j.in)
		}
	}
	for _, w := range waits {
		slices.Sort(w)
		m, _ := Sorted[float64]{Values: w}.Quantile(P50)
		q.wait = append(q.wait, m)
	}
	return q
}

// present counts one more at the whole numbers from in (inside) to out (outside).
func present(count []float64, in, out float64) {
	for e := max(0, int(math.Ceil(in))); e < len(count) && float64(e) < out; e++ {
		count[e]++
	}
}

// A queue below capacity is steady and stable, and one past it is not stable, each
// over 10,000 completions: at most 8 % false alarms at 70 %, at least 95 %
// detections at 105 %, none to speak of up to 95 %. The long form has 200 runs of
// each, the short one 40.
func TestQueuesBelowAndPastCapacity(t *testing.T) {
	runs := 200
	if testing.Short() {
		runs = 40
	}
	for _, k := range []struct {
		servers, warm, arrivals int
		rho                     float64
		unstable                [2]int // at least and at most, in percent
		alarms                  int    // steady and stable together, at most, in percent
	}{
		{1, 1000, 10000, 0.7, [2]int{0, 1}, 8},
		{8, 1000, 10000, 0.7, [2]int{0, 1}, 8},
		{64, 1000, 10000, 0.7, [2]int{0, 1}, 8},
		{8, 0, 10000, 0.7, [2]int{0, 1}, 8},
		{8, 1000, 10000, 0.9, [2]int{0, 1}, 8},
		{8, 1000, 10000, 0.95, [2]int{0, 2}, 10},
		{8, 0, 10000, 0.95, [2]int{0, 2}, 10},
		{1, 0, 10700, 1.05, [2]int{95, 100}, 100},
		{8, 0, 10700, 1.05, [2]int{95, 100}, 100},
		{64, 0, 10700, 1.05, [2]int{95, 100}, 100},
		{8, 1000, 10700, 1.05, [2]int{95, 100}, 100},
		{8, 1000, 10700, 1.2, [2]int{100, 100}, 100},
	} {
		unstable, alarms := 0, 0
		for i := range runs {
			q := simulate(rand.New(rand.NewPCG(uint64(i), 5)), k.servers, k.rho, k.warm, k.arrivals, 20)
			_, grows, ok := Growth(q.level)
			_, through, ok2 := Trend(q.completions)
			_, waits, ok3 := Trend(q.wait)
			if !ok || !ok2 || !ok3 {
				t.Fatal("not judged")
			}
			if grows < 0.1 {
				unstable++
			}
			if grows < 0.1 || through < 0.01 || waits < 0.01 {
				alarms++
			}
		}
		t.Logf("%d servers at %.2f, warm-up of %d: of %d runs %d unstable, %d unstable or not steady", k.servers, k.rho, k.warm, runs, unstable, alarms)
		if 100*unstable < k.unstable[0]*runs || 100*unstable > k.unstable[1]*runs {
			t.Errorf("%+v: unstable in %d of %d runs", k, unstable, runs)
		}
		if 100*alarms > k.alarms*runs {
			t.Errorf("%+v: %d alarms in %d runs", k, alarms, runs)
		}
	}
}

// Independent values give p uniform: 5 % below 0.05, whatever they are distributed like.
func TestTrendHoldsItsLevel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	const runs = 4000
	for name, draw := range map[string]func() float64{
		"normal": rng.NormFloat64, "exponential": rng.ExpFloat64, "whole numbers with ties": func() float64 { return float64(rng.IntN(4)) },
		"now and then infinite": func() float64 {
			if rng.IntN(5) == 0 {
				return math.Inf(1)
			}
			return rng.ExpFloat64()
		},
	} {
		low := 0
		for range runs {
			x := make([]float64, 20)
			for i := range x {
				x[i] = draw()
			}
			if _, p, ok := Trend(x); ok && p < 0.05 {
				low++
			}
		}
		if low < runs*35/1000 || low > runs*65/1000 {
			t.Errorf("%s: p < 0.05 in %d of %d", name, low, runs)
		}
	}
}

func TestTrend(t *testing.T) {
	line := func(n int, f func(i float64) float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = f(float64(i))
		}
		return x
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for _, c := range []struct {
		name string
		x    []float64
		sign float64 // of t where p < 0.01; 0: p is not
		ok   bool
	}{
		{"a rise", line(20, func(i float64) float64 { return i }), 1, true},
		{"a fall beyond its noise", line(20, func(i float64) float64 { return -i + 3*rng.NormFloat64() }), -1, true},
		{"a rise into what never came back", line(20, func(i float64) float64 { return 1 / max(0, 15-i) }), 1, true},
		{"all equal", make([]float64, 20), 0, true},
		{"a hump", line(20, func(i float64) float64 { return i * (19 - i) }), 0, true},
		{"one wild value at the end", append(line(19, func(i float64) float64 { return float64(int(i) % 2) }), 1e9), 0, true},
		{"nine values", line(9, func(i float64) float64 { return i }), 0, false},
		{"a hole", append(line(19, func(i float64) float64 { return i }), math.NaN()), 0, false},
	} {
		got, p, ok := Trend(c.x)
		if ok != c.ok || ok && (p < 0.01) != (c.sign != 0) || got*c.sign < 0 || math.IsNaN(got) || math.IsInf(got, 0) {
			t.Errorf("%s: t %v, p %v, %v", c.name, got, p, ok)
		}
	}
}

// By hand: of ranks 1..4 the linear orthonormal polynomial is (-3, -1, 1, 3)/sqrt(20),
// the quadratic (1, -1, -1, 1)/2.
func TestPolynomials(t *testing.T) {
	for k, want := range []float64{6.5, 15 / math.Sqrt(20), 1.5} {
		if got := polynomials([]float64{2, 1, 4, 6}, 2)[k]; math.Abs(math.Abs(got)-want) > 1e-12 {
			t.Errorf("degree %d: %v, want %v", k, got, want)
		}
	}
	if got := midranks([]float64{3, 1, 3, math.Inf(1), 0}); !slices.Equal(got, []float64{3.5, 2, 3.5, 5, 1}) {
		t.Errorf("midranks %v", got)
	}
}

func TestGrowth(t *testing.T) {
	of := func(steps ...float64) []float64 {
		level := []float64{100}
		for _, s := range steps {
			level = append(level, level[len(level)-1]+s)
		}
		return level
	}
	for _, c := range []struct {
		name  string
		level []float64
		grows bool
		ok    bool
	}{
		{"as many more in every block", of(5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5), true, true},
		{"more and fewer, more in all", of(9, -2, 7, 5, -3, 8, 6, 2, -1, 9, 4, 6), true, true},
		{"a start from empty, then at rest", of(50, 30, 15, 5, 1, -2, 2, -1, 1, -2, 1, -1), false, true},
		{"a backlog that is worked off", of(-5, -5, -4, -6, -5, -5, -5, -4, -6, -5, -5, -5), false, true},
		{"the same all along", of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), false, true},
		{"up and down", of(30, -30, 20, -20, 40, -40, 10, -10, 30, -25), false, true},
		{"nine blocks", of(5, 5, 5, 5, 5, 5, 5, 5, 5), false, false},
		{"not a number", of(5, 5, 5, 5, 5, 5, 5, 5, 5, math.NaN()), false, false},
	} {
		got, p, ok := Growth(c.level)
		if ok != c.ok || ok && (p < 0.1) != c.grows || math.IsNaN(got) || math.IsInf(got, 0) {
			t.Errorf("%s: t %v, p %v, %v", c.name, got, p, ok)
		}
	}
	// mean 2, each of ten steps 2 away from it: sd^2 = 40/9.
	steps := []float64{0, 4, 0, 4, 0, 4, 0, 4, 0, 4}
	if got, _, _ := Growth(of(steps...)); math.Abs(got-2/math.Sqrt(40./9/10)) > 1e-12 {
		t.Errorf("t %v", got)
	}
}

func TestTransient(t *testing.T) {
	series := func(seed uint64, start, startUp, n float64) []float64 {
		rng := rand.New(rand.NewPCG(seed, 3))
		x := make([]float64, int(n))
		for i := range x {
			x[i] = 50 + 5*rng.NormFloat64() + start*max(0, 1-float64(i)/startUp)
		}
		return x
	}
	found, reason := 0, 0
	for i := range uint64(100) {
		x := series(i, -50, 100, 500)
		if cut, ok := Transient(x); ok && cut >= 60 && cut <= 130 {
			found++
			if Below(x[:cut], x[cut:]) < 0.01 {
				reason++
			}
		}
	}
	if found < 85 || reason < 85 {
		t.Errorf("a start-up of 100 of 500 was found in %d of 100 runs, below in %d", found, reason)
	}
	chance := 0
	for i := range uint64(400) {
		x := series(i, 0, 1, 500)
		if cut, ok := Transient(x); ok && cut > 0 && Below(x[:cut], x[cut:]) < 0.01 {
			chance++
		}
	}
	if chance > 20 { // 5 %: the cut is the best one, so more than the level
		t.Errorf("a start-up that is none was found in %d of 400 runs", chance)
	}
	if cut, ok := Transient(series(1, -50, 500, 500)); ok {
		t.Errorf("cut %d of a series that never settles", cut)
	}
	if _, ok := Transient(make([]float64, 49)); ok {
		t.Error("nine batches are too few")
	}
	if cut, ok := Transient(make([]float64, 100)); !ok || cut != 0 {
		t.Errorf("nothing to cut from a constant, %d, %v", cut, ok)
	}
	for _, p := range []float64{Below(nil, []float64{1}), Below([]float64{1, 2}, []float64{3, 4, 5}), Below([]float64{1}, []float64{1, 1, 1}), Below([]float64{2}, []float64{1, 1, 1})} {
		if p != 1 {
			t.Errorf("below %v", p)
		}
	}
}
