package spec

import "time"

// This file holds every default. Those that depend on nothing are in the
// setDefaults methods, called before a value is read; those that depend on
// other values are in derive, called by Finish.

// What a class of random text looks like where nothing is said: a chat turn.
const (
	defaultInputP50, defaultInputP99   = 120, 2048
	defaultOutputP50, defaultOutputP99 = 180, 1500
)

const (
	defaultFor    = 5 * time.Minute
	defaultWarmUp = 60 * time.Second // but at most a fifth of the measured time

	defaultAttainment = 0.99 // where requests have objectives
)

func (e *Experiment) setDefaults() {
	e.Seed = 42
	e.Target.setDefaults()
	e.Load.MaxInFlight.setDefaults()
}

func (t *Target) setDefaults() {
	t.API = "openai-chat"
	t.Timeout = 120 * time.Second
	t.Tokenizer = "none"
	t.Connections = "pooled"
	t.HTTP = "auto"
	t.Stream = true
	t.ForceLength = "auto"
}

func (c *Class) setDefaults() {
	c.Share = 1
	c.Session.setDefaults()
}

func (s *Session) setDefaults()     { s.History = "live" }
func (p *Prefix) setDefaults()      { p.Pool = 1 }
func (r *Rate) setDefaults()        { r.Per = "sessions" }
func (m *MaxInFlight) setDefaults() { m.Policy = "queue" }
func (p *Phase) setDefaults()       { p.Measured = true }

func (t *Trace) setDefaults() {
	t.Format = "auto"
	t.Speed = 1
	t.History = "scripted"
}

// New returns an experiment in which every default is set that depends on nothing.
func New() *Experiment {
	e := &Experiment{source: newSource("", "")}
	e.setDefaults()
	return e
}

// derive fills in what is still unset and follows from the rest.
func (e *Experiment) derive() {
	w, l := &e.Workload, &e.Load
	if len(w.Classes) > 0 && w.ShareOf == "" {
		w.ShareOf = "sessions"
	}
	for i := range w.Classes {
		c := &w.Classes[i]
		if c.Name == "" && len(w.Classes) == 1 {
			c.Name = "default"
		}
		if c.Text == (Text{}) {
			c.Text.Random = "words"
		}
		if c.Text.Random != "" && c.Lengths == nil {
			if c.InputTokens == nil {
				c.InputTokens = &Counts{LogNormal: &LogNormal[float64]{P50: defaultInputP50, P99: defaultInputP99}}
			}
			if c.OutputTokens == nil {
				c.OutputTokens = &Counts{LogNormal: &LogNormal[float64]{P50: defaultOutputP50, P99: defaultOutputP99}}
			}
		}
		if c.Session.Turns == nil {
			one := 1.0
			c.Session.Turns = &Counts{Fixed: &one}
		}
		if c.Deadline == 0 && !e.src().has(classPath(i, "deadline")) {
			c.Deadline = e.Target.Timeout
		}
	}
	if w.Trace != nil && w.Trace.Text == (Text{}) {
		w.Trace.Text.Random = "words"
	}
	if l.Arrivals.Process == "" && l.Closed == nil {
		switch {
		case l.Rate != nil:
			l.Arrivals.Process = Poisson
		case w.Trace != nil:
			l.Arrivals.Process = ByTrace
		}
	}
	if l.Phases == nil {
		l.Phases = e.usualPhases(defaultFor)
	}
	if l.Drain == 0 && !e.src().has("load.drain") {
		l.Drain = e.Target.Timeout
	}
	if e.SLO.Attainment == 0 && !e.src().has("slo.attainment") && e.perRequest() {
		e.SLO.Attainment = defaultAttainment
	}
}

// Rejudge puts slo in the place of all objectives, those of classes included,
// with the attainment that a run takes where slo has none.
func (e *Experiment) Rejudge(slo SLO) {
	e.SLO = slo
	for i := range e.Workload.Classes {
		e.Workload.Classes[i].SLO = SLO{}
	}
	if slo.Attainment == 0 && e.perRequest() {
		e.SLO.Attainment = defaultAttainment
	}
}

// usualPhases returns the phases of a run that measures for d: a warm-up of at
// most a minute and a fifth of d, and then d in full. A trace's own times are
// replayed to their end, in one phase and without a warm-up, which would use up
// the trace's first rows.
func (e *Experiment) usualPhases(d time.Duration) []Phase {
	l, t := &e.Load, e.Workload.Trace
	if t != nil && !t.Repeat && l.Rate == nil && l.Closed == nil && (l.Arrivals.Process == "" || l.Arrivals.Process == ByTrace) {
		return []Phase{{Name: "replay", Measured: true}}
	}
	warm := min(defaultWarmUp, d/5).Round(time.Millisecond)
	steady := Phase{Name: "steady", For: d, Measured: true}
	if warm == 0 {
		return []Phase{steady}
	}
	return []Phase{{Name: "warm-up", For: warm}, steady}
}

// perRequest tells whether any objective is a limit for each request.
func (e *Experiment) perRequest() bool {
	sets := []*SLO{&e.SLO}
	for i := range e.Workload.Classes {
		sets = append(sets, &e.Workload.Classes[i].SLO)
	}
	for _, s := range sets {
		for _, o := range s.Objectives() {
			if o.Limit > 0 {
				return true
			}
		}
	}
	return false
}
