package analysis

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// SLO is the service level asked for. The zero value asks nothing.
type SLO struct {
	Objectives []Objective
	// Classes overrides Objectives figure by figure: what a class says of a
	// figure replaces all that is said of it globally.
	Classes map[string][]Objective
	// Attainment is the share of requests that must be good; 0: no target, and
	// objectives of each request then give no verdict.
	Attainment float64
}

// Objective bounds one figure, of each request or at a quantile of the run.
type Objective struct {
	// Figure is ttft, service_ttft, first_answer, tpot, itl, stall or e2e. Pooled
	// gaps and ITL are not independent and cannot be objectives: itl is the largest
	// of each request, and has no quantile.
	Figure string
	// Quantile is the level of an objective on the run; 0: of each request.
	Quantile stats.Permille
	Limit    time.Duration
}

func (o Objective) check() error {
	if _, ok := sloFigures[o.Figure]; !ok {
		return fmt.Errorf("no objective can be set on %q; use ttft, service_ttft, first_answer, tpot, itl, stall or e2e", o.Figure)
	}
	if o.Limit <= 0 {
		return fmt.Errorf("objective on %s: the limit must be above 0, not %v", o.Figure, o.Limit)
	}
	if o.Figure == "itl" && o.Quantile != 0 {
		return errors.New("objective on itl: inter-token latencies of all requests together are not independent and no verdict can rest on their quantile; set a limit for each request (itl: 50ms), or use tpot")
	}
	if o.Quantile < 0 || o.Quantile >= 1000 {
		return fmt.Errorf("objective on %s: the quantile must lie between 0 and 1000 permille, not %d", o.Figure, o.Quantile)
	}
	return nil
}

// sloFigures are the figures an objective may name, with how they are read.
var sloFigures = map[string]*figure{
	"ttft": &ttft, "service_ttft": &serviceTTFT, "first_answer": &firstAnswer,
	"tpot": &tpot, "itl": &longestITL, "stall": &stall, "e2e": &e2e,
}

// of returns the objectives that hold for a class.
func (s *SLO) of(class string) []Objective {
	own := s.Classes[class]
	var all []Objective
	for _, o := range s.Objectives {
		if !slices.ContainsFunc(own, func(c Objective) bool { return c.Figure == o.Figure }) {
			all = append(all, o)
		}
	}
	return append(all, own...)
}

// standing is where a turn stands against one objective, or against them all.
type standing uint8

const (
	met      standing = iota // or it cannot exist
	missed                   // past the limit, or not back
	unjudged                 // it exists and could not be measured
	pending                  // a planned hang-up came first
	apart                    // not offered, or its outcome alone decides
)

// stand judges one figure of one offered turn against the limit of an objective
// of each request. It is called for ok and cancelled turns: the outcome of any
// other is a miss whatever its figures say.
func stand(r *row, o Objective) standing {
	f := sloFigures[o.Figure]
	v, has := f.value(r)
	within := func(v time.Duration) standing {
		if v <= o.Limit {
			return met
		}
		return missed
	}
	if r.outcome == record.OK {
		switch {
		case has == exists:
			return within(v)
		case o.Figure == "tpot" && r.output != 0 && r.output != 1:
			// More than one token came, or nobody knows how many: there was a TPOT.
			return unjudged
		case o.Figure == "itl" && r.stall != record.Unset:
			return unjudged // there were gaps, and nobody knows for how many tokens each
		}
		return met
	}
	// Cancelled: the user left at done. What was settled by then counts.
	waited, known := since(r.scheduled, r.done)
	switch o.Figure {
	case "ttft", "first_answer", "service_ttft":
		if has == exists {
			return within(v)
		}
		if o.Figure == "service_ttft" {
			waited, known = since(r.sent, r.done)
		}
		if known && waited > o.Limit {
			return missed
		}
	case "e2e":
		if known && waited > o.Limit {
			return missed
		}
	case "itl":
		if has == exists && v > o.Limit {
			return missed
		}
	case "stall":
		// Its largest gap so far, or the silence it left in.
		silence, known := since(r.last, r.done)
		if has == exists && v > o.Limit || known && silence > o.Limit {
			return missed
		}
	}
	return pending
}

// judge gives a turn's standing against all objectives of each request of its
// class, and calls miss with the figure of each one it missed. A turn is good
// where the standing is met.
func judge(r *row, objectives []Objective, miss func(figure string)) standing {
	switch {
	case !r.outcome.Offered():
		return apart
	case r.outcome != record.OK && r.outcome != record.Cancelled:
		return missed
	}
	any, worst := false, met
	for _, o := range objectives {
		if o.Quantile != 0 {
			continue
		}
		any = true
		switch s := stand(r, o); s {
		case missed:
			worst = missed
			miss(o.Figure)
		case unjudged, pending:
			if worst == met {
				worst = s
			}
		}
	}
	if r.outcome == record.Cancelled && !any {
		return pending // nothing was asked that it could have met
	}
	return worst
}

// judgeShare answers whether a share is at least target: pass where its
// interval's low end is, fail where its high end is not. There is no pass on
// batches that are not independent.
func judgeShare(s *Share, target float64) Judgment {
	switch {
	case s.Low == nil || s.High == nil:
		return Inconclusive
	case *s.Low >= target && !s.BlocksAlike:
		return Pass
	case *s.High < target:
		return Fail
	}
	return Inconclusive
}
