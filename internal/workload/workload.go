// Package workload turns an experiment into a plan: who asks for what, and when.
// New makes a Workload of an experiment; its Source hands out the sessions in
// the order they are due, and its Renderer makes their text.
//
// The same experiment and seed give the same plan, bit for bit, on every
// machine: every purpose draws from its own stream, each session from its own
// place in it, and only arithmetic that rounds alike everywhere takes part (see
// package draw). Nothing here looks at a clock or a server, and a plan of
// millions of turns is never in memory at once.
package workload

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/arrival"
	"github.com/trueload/trueload/internal/draw"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/synth"
)

// Workload is an experiment's plan, ready to be read as often as needed.
type Workload struct {
	exp      *spec.Experiment
	dir      string
	classes  []*class
	replay   *replay         // in the place of classes
	choices  []*synth.Choice // of classes, by phase
	phases   []plan.Phase
	stretch  []stretch
	carried  []carried
	sessions int64       // in closed loop by requests: how many; else 0
	pause    *synth.Dist // in closed loop: a client's, between sessions; nil: none
	facts    Facts
}

// stretch is a part of the run in which one arrival process goes on.
type stretch struct {
	of    spec.Arrivals
	gaps  arrival.Gaps
	curve arrival.Curve
}

// New builds the workload of an experiment that is finished and valid. Files
// are looked up relative to dir; where dir is empty, as the experiment says.
func New(exp *spec.Experiment, dir string) (*Workload, error) {
	w := &Workload{exp: exp, dir: dir}
	err := w.build()
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Workload) build() error {
	if t := w.exp.Workload.Trace; t != nil {
		if err := w.openReplay(t); err != nil {
			return err
		}
	} else {
		if len(w.exp.Workload.Classes) == 0 {
			return errors.New("workload: there are neither classes nor a trace")
		}
		for i := range w.exp.Workload.Classes {
			c, err := w.newClass(&w.exp.Workload.Classes[i])
			if c != nil {
				w.classes = append(w.classes, c)
			}
			if err != nil {
				return err
			}
		}
	}
	if err := w.chooseClasses(); err != nil {
		return err
	}
	var err error
	switch {
	case w.exp.Load.Closed != nil:
		err = w.closedPhases()
	case w.byTrace():
		err = w.tracePhases()
	default:
		if err = w.openPhases(); err == nil {
			w.carry()
		}
	}
	if err != nil {
		return err
	}
	w.addTail()
	w.describe()
	return nil
}

// Close closes the files of real text.
func (w *Workload) Close() error {
	var errs []error
	for _, c := range w.classes {
		if c.text != nil {
			errs = append(errs, c.text.Close())
		}
	}
	return errors.Join(errs...)
}

// Phases are the stretches of the run, in order, to be read only. They end with
// an unmeasured tail that keeps the load on while the last requests of the
// measured window end, at most as long as the drain limit. A phase that the
// file gives by its number of requests ends with the arrival of the session
// that brings the planned turns up to that number, at the mean of turns per
// session: for sessions of one turn, right after the n-th arrival.
func (w *Workload) Phases() []plan.Phase { return w.phases }

// Source returns the plan from its beginning. Sources are independent of each
// other. In closed loop a plan given by time has no end.
func (w *Workload) Source() plan.Source {
	if w.replay != nil {
		return w.replaySource()
	}
	return w.classSource()
}

// hashedClosed is how many sessions of an endless plan are hashed.
const hashedClosed = 10_000

// Hash digests the plan as a run does (loadgen.Result.PlanHash): the sessions
// due before the end of the last measured phase. Of an endless plan it digests
// the first 10,000.
func (w *Workload) Hash() (string, error) {
	end := w.phases[len(w.phases)-1].End
	for _, p := range slices.Backward(w.phases) {
		if p.Measured {
			end = p.End
			break
		}
	}
	h := plan.NewHasher()
	src := w.Source()
	endless := w.exp.Load.Closed != nil && w.sessions == 0
	for n := 0; !endless || n < hashedClosed; n++ {
		s, err := src.Next()
		if err == io.EOF || err == nil && s.Scheduled != plan.Unset && s.Scheduled >= end {
			break
		} else if err != nil {
			return "", err
		}
		h.Add(s)
	}
	return h.Sum(), nil
}

func (w *Workload) path(name string) string {
	if w.dir == "" || filepath.IsAbs(name) {
		return w.exp.Path(name)
	}
	return filepath.Join(w.dir, name)
}

func (w *Workload) byTrace() bool { return w.exp.Load.Arrivals.Process == spec.ByTrace }

// chooseClasses makes the choice of classes for each phase.
func (w *Workload) chooseClasses() error {
	if w.replay != nil {
		return nil
	}
	weights := make([]float64, len(w.classes))
	for i, c := range w.classes {
		weights[i] = c.spec.Share
	}
	all, err := synth.NewChoice(weights)
	if err != nil {
		return fmt.Errorf("workload: shares of classes: %w", err)
	}
	for i, p := range w.exp.Load.Phases {
		choice := all
		if p.Shares != nil {
			for k, c := range w.classes {
				weights[k] = p.Shares[c.spec.Name]
			}
			if choice, err = synth.NewChoice(weights); err != nil {
				return fmt.Errorf("load.phases[%d].shares: %w", i, err)
			}
		}
		w.choices = append(w.choices, choice)
	}
	return nil
}

// meanTurns is the mean number of turns of the sessions of phase i.
func (w *Workload) meanTurns(i int) float64 {
	if w.replay != nil {
		return float64(len(w.replay.rows)) / float64(w.replay.len())
	}
	var mean float64
	for k, c := range w.classes {
		mean += float64(w.choices[i].Share(k) * c.meanTurns)
	}
	return mean
}

// sessionsFor is how many sessions of phase i bring n requests.
func (w *Workload) sessionsFor(i, n int) int {
	return max(int(math.Ceil(float64(n)/w.meanTurns(i)-1e-9)), 1)
}

// shape is a rate as a curve from start on. whole is how long a ramp takes
// that does not say.
func shape(r *spec.Rate, start, whole time.Duration) arrival.Curve {
	switch {
	case r.Ramp != nil:
		over := r.Ramp.Over
		if over == 0 {
			over = whole
		}
		return arrival.Line(start, start+over, float64(r.Ramp.From), float64(r.Ramp.To))
	case r.Steps != nil:
		var c arrival.Curve
		for _, s := range r.Steps {
			c = append(c, arrival.Flat(start, start+s.For, float64(s.Rate))...)
			start += s.For
		}
		return c
	case r.Sine != nil:
		return arrival.Sine(start, arrival.Forever, float64(r.Sine.Mean), float64(r.Sine.Amplitude), r.Sine.Period)
	case r.Spike != nil:
		s := r.Spike
		var c arrival.Curve
		if s.At > 0 {
			c = arrival.Flat(start, start+s.At, float64(s.Base))
		}
		c = append(c, arrival.Flat(start+s.At, start+s.At+s.For, float64(s.Peak))...)
		return append(c, arrival.Flat(start+s.At+s.For, arrival.Forever, float64(s.Base))...)
	}
	return arrival.Flat(start, arrival.Forever, float64(r.Value))
}

// openPhases lays the phases out and gathers the arrival processes.
//
// A phase's own rate counts from the phase's start. The load's rate, where it
// is a curve, counts from the start of the first measured phase that has no
// rate of its own; before, the load is at the curve's first rate, and after, it
// goes on through all phases that have none.
func (w *Workload) openPhases() error {
	load := &w.exp.Load
	if load.Rate == nil {
		return errors.New("load.rate: missing: how many sessions arrive?")
	}
	var shared arrival.Curve // the load's curve, once it has begun
	var rest arrival.Curve   // the last phase's, going on
	var turns float64        // by which the last phase's rate is divided
	pos := time.Duration(0)
	for i, p := range load.Phases {
		where := fmt.Sprintf("load.phases[%d] (%s)", i, p.Name)
		rate, c := p.Rate, arrival.Curve(nil)
		switch {
		case rate != nil:
			c = shape(rate, pos, p.For)
		case shared == nil && !p.Measured:
			rate = load.Rate
			first := shape(rate, pos, max(p.For, 1))
			c = arrival.Flat(pos, arrival.Forever, first[0].From)
		default:
			rate = load.Rate
			if shared == nil {
				shared = shape(rate, pos, p.For)
			}
			c = shared
		}
		turns = 1
		if rate.Per == "turns" {
			turns = w.meanTurns(i)
		}
		arrivals := load.Arrivals
		if p.Arrivals != nil {
			arrivals = *p.Arrivals
		}
		if len(w.stretch) == 0 || w.stretch[len(w.stretch)-1].of != arrivals {
			gaps, err := arrival.Named(arrivals.Process, arrivals.CV)
			if err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
			w.stretch = append(w.stretch, stretch{of: arrivals, gaps: gaps})
		}
		st := &w.stretch[len(w.stretch)-1]
		if i == 0 {
			// The load as it had been before the run, for what it left behind.
			before := divided(c.Cut(pos, pos+1), turns)
			if h := w.horizon(before[0].From); h > 0 && before[0].From > 0 {
				st.curve = arrival.Flat(-h, 0, before[0].From)
			}
		}
		end := pos + p.For
		if p.For == 0 {
			var err error
			if end, err = w.endOf(len(w.stretch)-1, divided(c.Cut(pos, arrival.Forever), turns), pos, w.sessionsFor(i, p.Requests)); err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
		}
		part := divided(c.Cut(pos, end), turns)
		st.curve = append(st.curve, part...)
		w.phases = append(w.phases, plan.Phase{
			Name: p.Name, Start: pos, End: end, Measured: p.Measured,
			Constant: part.Constant(), Rate: part.Expected() / (float64(end-pos) / 1e9),
		})
		rest, pos = c, end
	}
	if tail := w.tail(); tail > 0 {
		st := &w.stretch[len(w.stretch)-1]
		st.curve = append(st.curve, divided(rest.Cut(pos, pos+tail), turns)...)
	}
	if p := w.replay; p != nil && !p.repeat {
		var sessions float64
		for _, st := range w.stretch {
			sessions += st.curve.Expected()
		}
		if sessions > float64(p.len()) {
			return fmt.Errorf("workload.trace: %s has %d sessions and the load asks for about %.0f, the tail after the last phase included: set repeat: true, or ask for less", p.spec.File, p.len(), sessions)
		}
	}
	return nil
}

// divided returns the curve with its rates divided by n.
func divided(c arrival.Curve, n float64) arrival.Curve {
	c = slices.Clone(c)
	if n != 1 {
		for i := range c {
			c[i].From /= n
			c[i].To /= n
			c[i].Amplitude /= n
		}
	}
	return c
}

// process starts the arrivals of stretch i.
func (w *Workload) process(i int, c arrival.Curve) arrival.Process {
	return arrival.New(w.stretch[i].gaps, c, draw.Stream(w.exp.Seed, fmt.Sprintf("arrivals/%d", i)))
}

// endOf is just after the n-th arrival from pos on, when stretch i goes on as c.
func (w *Workload) endOf(i int, c arrival.Curve, pos time.Duration, n int) (time.Duration, error) {
	p := w.process(i, append(slices.Clone(w.stretch[i].curve), c...))
	for {
		at, ok := p.Next()
		if !ok || at > maxRun {
			return 0, fmt.Errorf("at this rate the phase does not see %d sessions in %v: give it a time", n, maxRun)
		}
		if at < pos {
			continue
		}
		if n--; n == 0 {
			return at + 1, nil
		}
	}
}

// maxRun bounds a phase that is given by its number of requests.
const maxRun = 366 * 24 * time.Hour

// closedPhases lays the phases of a closed loop out. How long a number of
// requests takes there, only the run can tell.
func (w *Workload) closedPhases() error {
	if think := w.exp.Load.Closed.Think; think != nil {
		var err error
		if w.pause, err = times(think); err != nil {
			return fmt.Errorf("load.closed.think: %w", err)
		}
	}
	pos := time.Duration(0)
	phases := w.exp.Load.Phases
	for i, p := range phases {
		end := pos + p.For
		if p.For == 0 {
			if len(phases) > 1 {
				return fmt.Errorf("load.phases[%d] (%s): in a closed loop a phase given by requests must be the only one: give the phases times, or leave the warm-up out (--warm-up 0s)", i, p.Name)
			}
			w.sessions = int64(w.sessionsFor(i, p.Requests))
			end = plan.Endless
		}
		w.phases = append(w.phases, plan.Phase{Name: p.Name, Start: pos, End: end, Measured: p.Measured})
		pos = end
	}
	return nil
}

// tracePhases lays the phases of a replay out.
func (w *Workload) tracePhases() error {
	pos := time.Duration(0)
	phases := w.exp.Load.Phases
	for i, p := range phases {
		end := pos + p.For
		switch {
		case p.For > 0:
		case p.Requests > 0:
			at, ok := w.replay.rowAt(w.replay.rowsBefore(pos) + int64(p.Requests) - 1)
			if !ok {
				return fmt.Errorf("load.phases[%d] (%s): the trace has not as many rows left: fewer requests, or repeat: true", i, p.Name)
			}
			end = at + 1
		case w.replay.repeat:
			return fmt.Errorf("load.phases[%d] (%s): a trace that repeats has no end: give the phase a time", i, p.Name)
		default:
			end = max(w.replay.last()+1, pos+1)
		}
		n := w.replay.rowsBefore(end) - w.replay.rowsBefore(pos)
		rate := float64(n) / w.meanTurns(i) / (float64(end-pos) / 1e9)
		w.phases = append(w.phases, plan.Phase{Name: p.Name, Start: pos, End: end, Measured: p.Measured, Rate: rate})
		pos = end
	}
	return nil
}

// tail is how long the load has to go on after the last phase.
func (w *Workload) tail() time.Duration {
	after := w.exp.Load.Drain
	if after == 0 {
		after = w.exp.Target.Timeout
	}
	for i := len(w.phases) - 1; i >= 0 && !w.phases[i].Measured; i-- {
		after -= w.phases[i].End - w.phases[i].Start
	}
	return max(after, 0)
}

// TailName is the name of the phase after the last measured one.
const TailName = "tail"

func (w *Workload) addTail() {
	last := w.phases[len(w.phases)-1]
	after := w.tail()
	if after == 0 || last.End == plan.Endless {
		return
	}
	tail := plan.Phase{Name: TailName, Start: last.End, End: last.End + after, Rate: last.Rate}
	for slices.ContainsFunc(w.phases, func(p plan.Phase) bool { return p.Name == tail.Name }) {
		tail.Name += "+"
	}
	w.phases = append(w.phases, tail)
}
