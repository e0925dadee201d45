package analysis

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// The levels are per phase: a phase at rest is called not steady in at most 2 %
// of runs (two tests at 1 % each). One that is exactly at its capacity is called
// saturated in 10 to 20 %; one below it in fewer the longer it is measured, down to none.
const (
	steadyLevel = 0.02 / 2
	stableLevel = 0.1
	startLevel  = 0.01
)

// leastTurns is how many turns a phase must hold, per block of it, to be judged.
const leastTurns = 5

// What is tested, and by which test.
const (
	throughputSeries = "throughput"
	ttftSeries       = "ttft_p50"
	inFlightSeries   = "in_flight"

	trendTest  = "trend of ranks against slow movements"
	growthTest = "t test of the steps between blocks"
)

var seriesNames = map[string]string{throughputSeries: "throughput", ttftSeries: "the median TTFT"}

// test returns the phase's test of a series; a zero one where there is none.
func (s *Steadiness) test(series string) PhaseTest {
	for _, t := range s.Tests {
		if t.Series == series {
			return t
		}
	}
	return PhaseTest{}
}

// steadiness judges each measured phase of constant rate, and the window by them. In a
// closed loop there is nothing to judge: what is in flight is what was asked for.
func (s *Summarizer) steadiness(w *Window) {
	if s.opt.ClosedLoop {
		return
	}
	b := s.blocks()
	w.Judged = Judged{Steady: ptr(true), Stable: ptr(true), Saturated: ptr(false)}
	measured := false
	for i := range w.Phases {
		p := &w.Phases[i]
		if !p.Measured {
			continue
		}
		if p.Constant {
			b.judge(i, &p.Steadiness)
			if !measured {
				s.transient(p)
			}
		}
		measured = true
		w.Steady = all(w.Steady, p.Steady)
		w.Stable = all(w.Stable, p.Stable)
	}
	if !measured {
		w.Judged = Judged{}
	}
	w.Saturated = not(w.Stable)
}

// all is the and of two judgments: one false makes it false, else one unknown unknown.
func all(a, b *bool) *bool {
	switch {
	case a != nil && !*a, b != nil && !*b:
		return ptr(false)
	case a == nil || b == nil:
		return nil
	}
	return ptr(true)
}

func not(b *bool) *bool {
	if b == nil {
		return nil
	}
	return ptr(!*b)
}

// edges are moments in order.
type edges []time.Duration

// after returns the first edge later than t; one that never came is after all.
func (e edges) after(t time.Duration) int {
	if t == record.Unset {
		return len(e)
	}
	return sort.Search(len(e), func(i int) bool { return e[i] > t })
}

// inFlight counts the turns that were due before each edge and had not ended
// by then. Waiting for the in-flight cap counts: a queue is a queue on either
// side of the socket.
func (s *Summarizer) inFlight(e edges) []float64 {
	level := make([]float64, len(e)+1)
	for i := range s.rows {
		r := &s.rows[i]
		if !r.offered() || r.outcome == record.Shed || r.scheduled == record.Unset {
			continue
		}
		level[e.after(r.scheduled)]++
		if end := e.after(r.done); end < len(e) {
			level[end]--
		}
	}
	for i := 1; i < len(level); i++ {
		level[i] += level[i-1]
	}
	return level[:len(e)]
}

// blockSeries are what the tests look at, by block of every phase. Phase i has
// the edges from[i] to from[i]+n, and its block j begins at edge from[i]+j.
type blockSeries struct {
	n         int
	from      []int
	level     []float64         // at the edges
	completed []float64         // ok turns that ended in the block
	due       []int             // turns due in it
	waits     [][]time.Duration // their TTFT
	gone      []int             // those of them that did not come back
}

func (s *Summarizer) blocks() *blockSeries {
	b := &blockSeries{n: s.opt.Batches, from: make([]int, len(s.phases))}
	var e edges
	judged := make([]bool, 0, len(s.phases)*(b.n+1)) // by block that begins at the edge
	for i, p := range s.phases {
		b.from[i] = len(e)
		end := s.lastOf(p)
		if !p.Measured || !p.Constant || end <= p.Start {
			continue
		}
		for j := range b.n + 1 {
			e = append(e, p.Start+time.Duration(float64(end-p.Start)*float64(j)/float64(b.n)))
			judged = append(judged, j < b.n)
		}
	}
	b.level = s.inFlight(e)
	b.completed, b.due = make([]float64, len(e)), make([]int, len(e))
	b.waits, b.gone = make([][]time.Duration, len(e)), make([]int, len(e))
	for i := range s.rows {
		r := &s.rows[i]
		if at := e.after(r.done) - 1; r.done != record.Unset && at >= 0 && judged[at] && r.outcome == record.OK {
			b.completed[at]++
		}
		at := e.after(r.scheduled) - 1
		if r.scheduled == record.Unset || at < 0 || !judged[at] || !r.offered() {
			continue
		}
		b.due[at]++
		switch d, has := ttft.value(r); has {
		case exists:
			b.waits[at] = append(b.waits[at], d)
		case gone:
			b.gone[at]++
		}
	}
	return b
}

// judge tests phase i. What holds too few turns is not judged.
func (b *blockSeries) judge(i int, out *Steadiness) {
	from, to := b.from[i], b.from[i]+b.n
	if to >= len(b.level) || i+1 < len(b.from) && b.from[i+1] == from {
		return // a phase without length
	}
	turns := 0
	for _, n := range b.due[from:to] {
		turns += n
	}
	if turns < leastTurns*b.n {
		return
	}
	level := b.level[from : to+1]
	out.InFlightStart, out.InFlightEnd = ptr(int64(level[0])), ptr(int64(level[b.n]))
	if t, p, ok := stats.Growth(level); ok && !b.fillingUp(level, turns) {
		out.Tests = append(out.Tests, PhaseTest{inFlightSeries, growthTest, t, p, stableLevel})
		out.Stable = ptr(p >= stableLevel)
		out.Saturated = not(out.Stable)
	}
	steady := true
	for _, x := range []struct {
		name   string
		values []float64
	}{{throughputSeries, b.completed[from:to]}, {ttftSeries, b.medians(from, to)}} {
		t, p, ok := stats.Trend(x.values)
		if !ok {
			return
		}
		out.Tests = append(out.Tests, PhaseTest{x.name, trendTest, t, p, steadyLevel})
		steady = steady && p >= steadyLevel
	}
	out.Steady = &steady
}

// timesInside is how many times its mean request a phase that begins from nothing
// must last: below that, filling up takes too much of it to be told from growth.
const timesInside = 15

// fillingUp tells a phase that began with nothing in flight and is short beside its
// requests, unless its second half alone leaves no doubt that it goes on
// growing. How long a request lasts is by Little's law, in flight over arrival rate:
//
//	length / duration = turns / mean level
func (b *blockSeries) fillingUp(level []float64, turns int) bool {
	if level[0] > 0 {
		return false
	}
	sum := 0.0
	for _, v := range level {
		sum += v
	}
	if float64(turns) >= timesInside*sum/float64(len(level)) {
		return false
	}
	_, p, ok := stats.Growth(level[b.n/2:])
	return !ok || p >= startLevel
}

// medians are of the TTFT of the turns due in each block: infinite where the
// median did not come back, NaN where nothing was due.
func (b *blockSeries) medians(from, to int) []float64 {
	out := make([]float64, 0, to-from)
	for at := from; at < to; at++ {
		slices.Sort(b.waits[at])
		w := stats.Sorted[time.Duration]{Values: b.waits[at], Missing: b.gone[at]}
		switch d, ok := w.Quantile(stats.P50); {
		case ok:
			out = append(out, d.Seconds())
		case w.N() > 0:
			out = append(out, math.Inf(1))
		default:
			out = append(out, math.NaN())
		}
	}
	return out
}

// transientSamples is at how many moments the requests in flight are read to find
// the end of the start-up.
const transientSamples = 500

// transient finds where the start-up ended, and tells whether that was before the
// first measured phase. MSER-5 alone sees a start-up now and then in a series
// that has none; the finding needs the stretch that it cuts from the phase to be
// below the rest beyond chance besides. A start-up that overshoots is not found.
func (s *Summarizer) transient(p *WindowPhase) {
	if p.InFlightEnd == nil {
		return // too few turns to say anything
	}
	start, first := s.phases[0].Start, plan.Phase{}
	for _, ph := range s.phases {
		if ph.Measured {
			first = ph
			break
		}
	}
	length := s.lastOf(first) - start
	at := make(edges, transientSamples)
	for i := range at {
		at[i] = start + time.Duration((float64(i)+0.5)/transientSamples*float64(length))
	}
	level := s.inFlight(at)
	cut, ok := stats.Transient(level)
	if !ok {
		return
	}
	end := start + time.Duration(float64(cut)/transientSamples*float64(length))
	p.TransientEnd = ptr(end.Seconds())
	begin := at.after(first.Start)
	p.WarmedUp = ptr(cut <= begin || stats.Below(level[begin:cut], level[cut:]) >= startLevel)
}
