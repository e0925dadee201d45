package analysis

import (
	"fmt"
	"math"
	"strings"

	"github.com/trueload/trueload/internal/record"
)

// evidence is what a rule may look at.
type evidence struct {
	s    *Summarizer
	view *view
	sum  *Summary
}

// findings runs every rule. Each is a function of its own, so that it can move
// where rules live without changing.
func findings(e *evidence) []Finding {
	out := []Finding{}
	for _, rule := range []func(*evidence) []Finding{
		nothingOK, saturated, notSteady, warmUpTooShort, errorsPresent, inputOff, outputOff, outputShort, unsupportedP99, tooManyUnjudged,
		shortWindow, blocksAlike, capReached, sessionsApart, undefinedTPOT, mixedStamps, hangUpsHideE2E, slicesLeftOut,
	} {
		out = append(out, rule(e)...)
	}
	return out
}

func find(rule string, sev Severity, remedy, format string, args ...any) []Finding {
	return []Finding{{Rule: rule, Severity: sev, Message: fmt.Sprintf(format, args...), Remedy: remedy}}
}

func nothingOK(e *evidence) []Finding {
	if c := e.sum.Counts; c.OK > 0 || e.offered() == 0 {
		return nil
	}
	return find("nothing-ok", Error, "look at the first error and the HTTP status in the records; `trueload probe` tests the target with one request",
		"not one of %d requests was ok", e.offered())
}

func (e *evidence) offered() int64 {
	c := e.sum.Counts
	return c.Planned - c.Skipped - c.NotDue
}

// saturated is an error: no latency of such a phase is a property of the target.
func saturated(e *evidence) []Finding {
	var out []Finding
	for _, p := range e.sum.Window.Phases {
		if p.Saturated == nil || !*p.Saturated {
			continue
		}
		remedy := "lower load.rate until it is stable; the rate completed here is about what the target can do"
		if p.Start == 0 {
			remedy += ". This phase began from nothing: with a warm-up before it, filling up cannot pass for growth"
		}
		t := p.test(inFlightSeries)
		out = append(out, find("saturated", Error, remedy,
			"requests in flight grew from %d to %d through phase %s and went on growing at its end (%s: %s): more is asked than the target can do, and every latency is a function of the run's length",
			*p.InFlightStart, *p.InFlightEnd, p.Name, t.Test, t.said())...)
	}
	return out
}

// said is a test in short, for a message.
func (t PhaseTest) said() string {
	p := fmt.Sprintf("p = %.2g", t.P)
	if t.P < 0.0001 {
		p = "p < 0.0001"
	}
	return fmt.Sprintf("t = %.3g, %s, level %g", t.Statistic, p, t.Level)
}

// notSteady leaves out a saturated phase, which never is steady.
func notSteady(e *evidence) []Finding {
	var out []Finding
	for _, p := range e.sum.Window.Phases {
		if p.Steady == nil || *p.Steady || p.Saturated != nil && *p.Saturated {
			continue
		}
		var trends []string
		for _, t := range p.Tests {
			if t.Series == inFlightSeries || t.P >= t.Level {
				continue
			}
			verb := "rose"
			if t.Statistic < 0 {
				verb = "fell"
			}
			trends = append(trends, fmt.Sprintf("%s %s (%s: %s)", seriesNames[t.Series], verb, t.Test, t.said()))
		}
		out = append(out, find("not-steady", Warning, "warm up for longer, measure for longer, and look at the charts over time for what changed",
			"the rate was constant and the target was not: through phase %s %s; its figures are means over a change", p.Name, strings.Join(trends, ", "))...)
	}
	return out
}

func warmUpTooShort(e *evidence) []Finding {
	for _, p := range e.sum.Window.Phases {
		if p.WarmedUp == nil || *p.WarmedUp || p.Saturated != nil && *p.Saturated {
			continue
		}
		begin := e.s.phases[0].Start.Seconds()
		return find("warm-up-too-short", Warning, fmt.Sprintf("warm up for at least %s", seconds(math.Ceil(*p.TransientEnd-begin))),
			"the start of phase %s still belongs to the start-up: requests in flight settled %s after its beginning (MSER-5; fewer were in flight before than after, level %g)",
			p.Name, seconds(*p.TransientEnd-p.Start), startLevel)
	}
	return nil
}

func errorsPresent(e *evidence) []Finding {
	share := e.sum.SLO.ErrorShare
	if share == nil || *share == 0 || e.sum.Counts.OK == 0 {
		return nil
	}
	sev := Note
	if *share > 0.01 {
		sev = Warning
	}
	return find("errors", sev, "figures over ok requests alone leave these out; read the ones over all",
		"%.2f %% of the requests that the plan did not cancel were not ok", *share*100)
}

// lengthTolerance is by how many percent the means of asked and delivered
// lengths may differ.
const lengthTolerance = 2

// lengthsOff compares asked with delivered lengths over the ok turns where both
// are known.
func (e *evidence) lengthsOff(rule, what, remedy string, asked, delivered func(*row) int32) []Finding {
	var n, a, d int64
	for _, r := range e.view.rows {
		if x, y := asked(r), delivered(r); r.outcome == record.OK && x >= 0 && y >= 0 {
			n, a, d = n+1, a+int64(x), d+int64(y)
		}
	}
	if a == 0 || 100*max(d-a, a-d) <= lengthTolerance*a {
		return nil
	}
	mean := func(sum int64) float64 { return float64(sum) / float64(n) }
	return find(rule, Warning, remedy, "%s averaged %.1f tokens and %.1f were asked (%+.1f %%): this is the load of other lengths",
		what, mean(d), mean(a), float64(d-a)/float64(a)*100)
}

func inputOff(e *evidence) []Finding {
	return e.lengthsOff("input-length", "prompts", "read the lengths as delivered, or scale input_tokens; `trueload probe` says how many tokens the server counts for a word",
		func(r *row) int32 { return r.askedInput }, func(r *row) int32 { return r.input })
}

func outputOff(e *evidence) []Finding {
	return e.lengthsOff("output-length", "replies", "force lengths where the engine can (ignore_eos, min_tokens), or plan the lengths it gives",
		func(r *row) int32 { return r.askedOutput }, func(r *row) int32 { return r.output })
}

func outputShort(e *evidence) []Finding {
	var short, n, missing, asked int64
	for _, r := range e.view.rows {
		if r.outcome != record.OK || r.askedOutput <= 0 || r.output < 0 {
			continue
		}
		n++
		asked += int64(r.askedOutput)
		if d := int64(r.askedOutput - r.output); d > 0 {
			short++
			missing += d
		}
	}
	if short == 0 {
		return nil
	}
	return find("output-short", Note, "nothing, if the server may stop early; otherwise force lengths (ignore_eos, min_tokens)",
		"%d of %d replies stopped short of what was asked: %d of %d tokens were not generated", short, n, missing, asked)
}

func unsupportedP99(e *evidence) []Finding {
	d := e.sum.Latency.TTFT.All
	if d.N == 0 || d.P99.High != nil {
		return nil
	}
	if d.P99.More == nil {
		return find("p99-unsupported", Warning, "bring the failures down first; the figures over ok requests say nothing of them",
			"the p99 of TTFT has no upper end: %d of %d requests did not come back, and no larger sample would change that", d.Missing, d.N)
	}
	missing := ""
	if d.Missing > 0 {
		missing = fmt.Sprintf(", and %d did not come back", d.Missing)
	}
	return find("p99-unsupported", Warning, fmt.Sprintf("run for %d more requests, or read a lower quantile", *d.P99.More),
		"the p99 of TTFT has no upper end: %d requests are worth %.0f independent ones%s", d.N, *d.NEffective, missing)
}

func tooManyUnjudged(e *evidence) []Finding {
	n := e.sum.SLO.Unjudged
	if n == 0 || float64(n) <= 0.01*float64(e.offered()) {
		return nil
	}
	return find("unjudged", Warning, "ask the server for usage on every event, or leave TPOT out of the SLO",
		"%d of %d requests could not be judged: a figure of the SLO exists and could not be measured", n, e.offered())
}

// timesLongest is how many times its longest request a window must last to have
// sampled the tail.
const timesLongest = 5

func shortWindow(e *evidence) []Finding {
	longest := 0.0
	for _, r := range e.view.rows {
		if !r.offered() {
			continue
		}
		if d, ok := since(r.scheduled, r.done); ok {
			longest = max(longest, d.Seconds())
		} else if r.outcome == record.Unfinished {
			longest = max(longest, r.bound(e.s.end).Seconds())
		}
	}
	w := e.sum.Window.Measured
	if longest == 0 || w >= timesLongest*longest {
		return nil
	}
	return find("short-window", Warning, fmt.Sprintf("measure for at least %s", seconds(timesLongest*longest)),
		"the window lasted %s and its longest request %s: the tail was not sampled", seconds(w), seconds(longest))
}

func blocksAlike(e *evidence) []Finding {
	if !e.sum.Latency.TTFT.All.BlocksAlike && !e.sum.SLO.Attainment.BlocksAlike {
		return nil
	}
	return find("blocks-alike", Warning, "measure several times longer, or repeat the run with other seeds; if the load was to be steady, look for a trend",
		"neighbouring blocks of the window (%s each) are alike: they are not independent evidence, intervals are too narrow and no gate passes on them",
		seconds(e.sum.Window.Measured/float64(e.sum.Window.Batches)))
}

func capReached(e *evidence) []Finding {
	shed, waited, longest := e.sum.Counts.Shed, int64(0), 0.0
	for _, r := range e.view.rows {
		// Below a millisecond it is the hand-over, not the cap.
		if d, has := capWait.value(r); has == exists && d.Seconds() > 0.001 {
			waited++
			longest = max(longest, d.Seconds())
		}
	}
	if shed == 0 && waited == 0 {
		return nil
	}
	var held []string
	if shed > 0 {
		held = append(held, fmt.Sprintf("%d requests were shed", shed))
	}
	if waited > 0 {
		held = append(held, fmt.Sprintf("%d waited, up to %s, which is part of their latency", waited, seconds(longest)))
	}
	return find("cap-reached", Warning, "raise load.max_in_flight, unless the cap is part of what is tested",
		"the in-flight cap held back the load: %s", strings.Join(held, ", and "))
}

func sessionsApart(e *evidence) []Finding {
	turns, ses := e.sum.Rates.Offered, e.sum.Rates.Sessions.Offered
	if turns == nil || ses == nil || *ses == 0 || math.Abs(*turns / *ses - 1) < 0.01 {
		return nil
	}
	return find("two-rates", Note, "say which rate you mean; the planned load is judged on session arrivals",
		"%.3g sessions/s make %.3g requests/s: later turns follow the replies", *ses, *turns)
}

func undefinedTPOT(e *evidence) []Finding {
	d := e.sum.Latency.TPOT.OK
	if d.Undefined == 0 {
		return nil
	}
	sev := Note
	if d.Undefined > d.N {
		sev = Warning
	}
	return find("tpot-undefined", sev, "ask the server to stream each token, and for usage on every event",
		"%d of %d ok replies have no TPOT: all tokens came in one event, or how many were delivered is unknown", d.Undefined, d.Undefined+d.N)
}

func mixedStamps(e *evidence) []Finding {
	if e.sum.Generator.StampSource != "mixed" {
		return nil
	}
	return find("mixed-stamps", Note, "compare only with runs of the same stamp source",
		"some arrival times are the kernel's and some the reader's")
}

func hangUpsHideE2E(e *evidence) []Finding {
	c := e.sum.Counts
	if n := e.offered(); c.Cancelled == 0 || n == 0 || float64(c.Cancelled) <= 0.01*float64(n) {
		return nil
	}
	return find("planned-hang-ups", Note, "read E2E over ok requests beside it",
		"%d of %d requests were hung up on as planned; over all, they count as longer than any", c.Cancelled, e.offered())
}

func slicesLeftOut(e *evidence) []Finding {
	var out []Finding
	for _, k := range e.s.keys() {
		values := map[string]bool{}
		for _, r := range e.view.rows {
			if v, _, ok := k.of(r); ok {
				values[v] = true
			}
		}
		if len(values) > mostSlices {
			out = append(out, find("slices-left-out", Note, "read the rest from records.parquet",
				"%s has %d values; the %d with the most requests are shown", k.name, len(values), mostSlices)...)
		}
	}
	return out
}
