package analysis

import (
	"fmt"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
	"github.com/trueload/trueload/internal/unit"
)

// Limits are where a run stops being valid: past them the instrument failed,
// whatever the server did. A zero takes the default.
type Limits struct {
	// The p99 of lateness may be this share of the median service TTFT (default
	// 0.01) or this long (default 1 ms), whichever is larger.
	LatenessShare float64
	Lateness      time.Duration
	// The p99 of the width of stamp intervals may be this share of the median
	// gap (default 0.05) or this long (default 5 ms), whichever is larger.
	StampWidthShare float64
	StampWidth      time.Duration
	// Unreleased is the share of due sessions that the instrument may have failed
	// to release at all (default 0.001).
	Unreleased float64
}

func (l Limits) withDefaults() Limits {
	if l.LatenessShare == 0 {
		l.LatenessShare = 0.01
	}
	if l.Lateness == 0 {
		l.Lateness = time.Millisecond
	}
	if l.StampWidthShare == 0 {
		l.StampWidthShare = 0.05
	}
	if l.StampWidth == 0 {
		l.StampWidth = 5 * time.Millisecond
	}
	if l.Unreleased == 0 {
		l.Unreleased = 0.001
	}
	return l
}

// verdict says whether the instrument held, and what the SLO's gate answers.
// Cap wait, connect time and a slow server are no reason: they are the plan's
// choice and the thing under test.
func (s *Summarizer) verdict(v *view, sum *Summary) Verdict {
	out := Verdict{InvalidReasons: []string{}}
	no := func(format string, args ...any) {
		out.InvalidReasons = append(out.InvalidReasons, fmt.Sprintf(format, args...))
	}

	l := s.opt.Limits
	out.Limits.LatenessP99 = l.Lateness.Seconds()
	if m := sum.Latency.ServiceTTFT.All.P50.Value; m != nil {
		out.Limits.LatenessP99 = max(out.Limits.LatenessP99, l.LatenessShare**m)
	}
	out.Limits.StampWidthP99 = l.StampWidth.Seconds()
	if m := sum.Latency.Gap.All.P50.Value; m != nil {
		out.Limits.StampWidthP99 = max(out.Limits.StampWidthP99, l.StampWidthShare**m)
	}
	// The p99 of fewer than a hundred is their maximum: one straggler is no verdict.
	if late := sum.Generator.LatenessP99; late != nil && *late > out.Limits.LatenessP99 {
		if n := v.beyond(&lateness, out.Limits.LatenessP99); n > 1 {
			no("requests were released late: p99 %s, limit %s; %d of %d were later", seconds(*late), seconds(out.Limits.LatenessP99), n, sum.Latency.Lateness.All.N)
		}
	}
	if w := sum.Generator.StampWidthP99; w != nil && *w > out.Limits.StampWidthP99 {
		no("arrival times are known too coarsely: stamp interval p99 %s, limit %s", seconds(*w), seconds(out.Limits.StampWidthP99))
	}
	for _, hit := range sum.Generator.LimitsHit {
		no("a local resource ran out: %s", hit)
	}
	if p := s.opt.Planned.Turns; p > 0 && int64(len(s.rows)) < p {
		no("records are missing: %d of %d planned turns have one", len(s.rows), p)
	}
	all, due, unreleased := int64(0), int64(0), int64(0)
	s.sessions(func(ses session) {
		all++
		if first := &ses[0]; s.inWindow(first) && first.offered() && first.outcome != record.Shed {
			due++
			if first.released() == record.Unset {
				unreleased++
			}
		}
	})
	if p := s.opt.Planned.Sessions; p > 0 && all != p {
		no("session arrivals are not the planned ones: %d sessions are recorded, %d were planned", all, p)
	}
	if !s.opt.ClosedLoop && !s.opt.CutShort && float64(unreleased) > l.Unreleased*float64(due) {
		no("session arrivals are not the planned ones: %d of %d due sessions were never released", unreleased, due)
	}
	out.Valid = len(out.InvalidReasons) == 0

	out.SLO = sum.SLO.Judgment
	for _, o := range sum.SLO.Objectives {
		out.SLO = worse(out.SLO, o.Judgment)
	}
	if !out.Valid && out.SLO == Pass {
		out.SLO = Inconclusive // an invalid run passes no gate
	}
	return out
}

// worse joins two answers: one failure fails, and one doubt leaves a doubt.
func worse(a, b Judgment) Judgment {
	order := []Judgment{NoVerdict, Pass, Inconclusive, Fail}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// beyond counts the turns whose figure lies above a limit in seconds.
func (v *view) beyond(f *figure, limit float64) (n int) {
	for _, r := range v.rows {
		if d, has := f.value(r); has == exists && d.Seconds() > limit {
			n++
		}
	}
	return n
}

// generator fills in what the records say of the instrument.
func (s *Summarizer) generator(sum *Summary, w span) Generator {
	g := s.opt.Generator
	if g.LimitsHit == nil {
		g.LimitsHit = []string{}
	}
	late := &sum.Latency.Lateness.All
	g.LatenessP50, g.LatenessP99, g.LatenessMax = late.P50.Value, late.P99.Value, late.Max
	g.StampSources = s.stamps.sources
	switch len(s.stamps.sources) {
	case 0:
	case 1:
		for name := range s.stamps.sources {
			g.StampSource = name
		}
	default:
		// A kernel refuses now and then (its time was older than the data was
		// readable); one read in a hundred changes no figure.
		g.StampSource = "mixed"
		if s.stamps.sources["read"] == 0 && 100*s.stamps.refused <= s.stamps.reads {
			g.StampSource = "kernel"
		}
	}
	g.Reads, g.MultiEventReads, g.RefusedStamps = s.stamps.reads, s.stamps.multi, s.stamps.refused
	g.StampWidthP50 = pooledQuantile(&s.stamps.width, stats.P50).Value
	g.StampWidthP99 = pooledQuantile(&s.stamps.width, stats.P99).Value
	g.StampWidthP999 = pooledQuantile(&s.stamps.width, stats.P999).Value
	if g.EventsPerSecond == nil {
		g.EventsPerSecond = w.perSecond(float64(s.stamps.events))
	}
	return g
}

// seconds prints a time for a sentence.
func seconds(s float64) string { return unit.Duration(time.Duration(s * 1e9)) }

// quantileName is p50, p99, p999.
func quantileName(p stats.Permille) string {
	if p%10 == 0 {
		return fmt.Sprintf("p%02d", p/10)
	}
	return fmt.Sprintf("p%03d", p)
}
