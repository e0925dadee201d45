package workload

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/arrival"
	"github.com/trueload/trueload/internal/draw"
	"github.com/trueload/trueload/internal/plan"
)

// arrivals hands out the arrivals of a run, those before its start included.
type arrivals struct {
	w    *Workload
	i    int
	proc arrival.Process
	k    int64 // arrivals handed out
}

func (w *Workload) arrivals() *arrivals { return &arrivals{w: w} }

func (a *arrivals) next() (k int64, at time.Duration, ok bool) {
	for a.i < len(a.w.stretch) {
		if a.proc == nil {
			a.proc = a.w.process(a.i, a.w.stretch[a.i].curve)
		}
		if at, ok := a.proc.Next(); ok {
			a.k++
			return a.k - 1, at, true
		}
		a.proc = nil
		a.i++
	}
	return 0, 0, false
}

// carried is a session that began before the run and goes on in it: its first
// turn at or after 0 is due at at.
type carried struct {
	at    time.Duration
	k     int64
	born  time.Duration
	class int32
	turn  int32
}

// classOf draws the class of the k-th arrival, in phase p.
func (w *Workload) classOf(x *draw.Indexed, k int64, p int) int {
	return w.choices[min(p, len(w.choices)-1)].Draw(x.At(k))
}

// How far back the sessions that still go on at the start may have begun.
const (
	horizonShare = 0.999 // of sessions have ended by then
	maxHorizon   = 12 * time.Hour
	maxScanned   = 5_000_000 // sessions that are drawn to find them
)

// horizon is how long before the run's start the load is taken to have been on,
// at rate sessions a second: so long that all but one session in a thousand
// have ended, found from 20,000 of them.
func (w *Workload) horizon(rate float64) time.Duration {
	if w.replay != nil || rate <= 0 {
		return 0
	}
	x := draw.NewIndexed(w.exp.Seed, "horizon")
	drawers := w.drawers()
	const n = 20_000
	ends := make([]time.Duration, n)
	for k := range ends {
		d := drawers[w.classOf(x, int64(k), 0)]
		d.outline(int64(k), func(_ int, at time.Duration) { ends[k] = at })
	}
	slices.Sort(ends)
	h := ends[int(horizonShare*n)]
	// A little more, for the gap that the process begins in.
	if h = min(h, maxHorizon); float64(float64(h)/1e9*rate) > maxScanned {
		h = time.Duration(maxScanned / rate * 1e9)
	}
	w.facts.Horizon = h
	return h
}

func (w *Workload) drawers() []*drawer {
	d := make([]*drawer, len(w.classes))
	for i, c := range w.classes {
		d[i] = newDrawer(c)
	}
	return d
}

// carry finds the sessions that the time before the start left behind, so that
// the load is in its stationary state from the first second. A start from
// nothing would ramp up for as long as sessions live.
func (w *Workload) carry() {
	if w.facts.Horizon == 0 {
		return
	}
	x := draw.NewIndexed(w.exp.Seed, "class")
	drawers := w.drawers()
	end := w.phases[len(w.phases)-1].End + w.tail()
	for a := w.arrivals(); ; {
		k, born, ok := a.next()
		if !ok || born >= 0 {
			break
		}
		class := w.classOf(x, k, 0)
		found := false
		drawers[class].outline(k, func(turn int, at time.Duration) {
			if !found && born+at >= 0 && born+at < end {
				w.carried = append(w.carried, carried{at: born + at, k: k, born: born, class: int32(class), turn: int32(turn)})
			}
			found = found || born+at >= 0
		})
	}
	slices.SortFunc(w.carried, func(a, b carried) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.k, b.k))
	})
	w.facts.Carried = len(w.carried)
}

// classSource merges the carried sessions and the arrivals of the run.
type classSource struct {
	w        *Workload
	drawers  []*drawer
	class    *draw.Indexed
	pause    *draw.Indexed
	carried  []carried
	arrivals *arrivals
	next     struct {
		k  int64
		at time.Duration
		ok bool
	}
	phase int
	seq   int64
}

func (w *Workload) classSource() plan.Source {
	s := &classSource{w: w, drawers: w.drawers(), class: draw.NewIndexed(w.exp.Seed, "class"), pause: draw.NewIndexed(w.exp.Seed, "pause")}
	if w.exp.Load.Closed != nil {
		return s
	}
	s.carried = w.carried
	s.arrivals = w.arrivals()
	for s.advance(); s.next.ok && s.next.at < 0; {
		s.advance()
	}
	return s
}

func (s *classSource) advance() { s.next.k, s.next.at, s.next.ok = s.arrivals.next() }

// Next implements plan.Source.
func (s *classSource) Next() (*plan.Session, error) {
	w := s.w
	var out *plan.Session
	switch {
	case s.arrivals == nil: // closed loop: sessions without a time
		if w.sessions > 0 && s.seq >= w.sessions {
			return nil, io.EOF
		}
		out = s.draw(s.seq, w.classOf(s.class, s.seq, 0), plan.Unset)
		if w.pause != nil {
			out.Turns[0].Think = w.pause.Duration(s.pause.At(s.seq))
		}
	case len(s.carried) > 0 && (!s.next.ok || s.carried[0].at <= s.next.at):
		c := s.carried[0]
		s.carried = s.carried[1:]
		out = s.draw(c.k, int(c.class), c.born)
		out.Scheduled = c.at
		out.History, out.Turns = out.Turns[:c.turn:c.turn], out.Turns[c.turn:]
		out.Turns[0].Think = 0
	case s.next.ok:
		for s.phase < len(w.phases)-1 && s.next.at >= w.phases[s.phase].End {
			s.phase++
		}
		out = s.draw(s.next.k, w.classOf(s.class, s.next.k, s.phase), s.next.at)
		s.advance()
	default:
		return nil, io.EOF
	}
	if out.Scheduled != plan.Unset {
		if p, ok := plan.PhaseAt(w.phases, out.Scheduled); ok {
			out.Phase = p.Name
		}
	}
	out.Seq = s.seq
	s.seq++
	return out, nil
}

func (s *classSource) draw(k int64, class int, at time.Duration) *plan.Session {
	c := s.w.classes[class]
	return s.drawers[class].draw(k, at, s.w.timeout(c))
}
