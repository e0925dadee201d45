// Package calibrate fits a step-time profile to a run: what its records say of
// the server's steps, so that a simulated engine behaves like that server. Fit
// does it, and the Result says term by term what the records could tell, and how
// far the fitted profile is from requests that it has not seen.
//
// Between two output events of a request lies one step. Who else was decoding
// then, and with how much context, the records of all requests tell; who was
// waiting for a first output tells which steps held nothing but decoding. Those
// gaps give the decode terms; the prefill terms come from the time to the first
// output of requests that were alone in waiting for theirs.
//
// It reads the client's side only. What a server does besides steps of the
// profile's shape (speculation, preemption, other clients) it does not see; the
// network and the tokenizer, which stand in every time to first output, it
// counts as part of the step. Cache and batch sizes are not fitted.
package calibrate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
)

// Options say what the records do not.
type Options struct {
	// Replicas is the number of engines behind the target; 0: 1. Which of them
	// served a request the records do not tell: a request is taken to share its
	// batch with 1/Replicas of all others. That is exact for one replica only;
	// for more, the terms per request and per token come out too small, by as
	// much as the replicas' batches differ.
	Replicas int
}

// Records hands every record of a run to each, as store.Result.Records does.
type Records func(each func(*record.Record) error) error

// Result is a profile fitted to a run.
type Result struct {
	// Profile is the base with the fitted terms in place of its own. Its name,
	// model and source are the caller's to set.
	Profile sim.Profile
	Terms   []Term
	// Gaps are those between output events, Clean those of them in which nobody
	// waited for a first output (of those looked at, which a note says where it is
	// not all), Used those in the fit: of the even sessions, and
	// not farther out than the rest. The same for times to first output.
	Gaps, Firsts Counts
	// The errors on the odd sessions, which the fit has not seen.
	ByBatch, ByContext, ByPrompt []Bucket
	// Notes say what was assumed and what could not be told.
	Notes []string
	// Simulated records come from an engine in virtual time: the fit is no
	// measurement.
	Simulated bool
}

// Counts says what became of the observations of one kind.
type Counts struct{ All, Clean, Used int }

// Term is one fitted term of the profile.
type Term struct {
	Name  string  // the profile file's key
	Value float64 // in seconds
	Error float64 // standard error, in seconds; NaN where Fitted is false
	Base  float64 // what the base profile has, in seconds
	// Fitted is false where the records cannot tell: Value is then the base's,
	// and Why says what was missing.
	Fitted bool
	Why    string
}

// Bucket is the error of the fit where one quantity lies in [From, To).
type Bucket struct {
	From, To float64
	N        int
	// Measured and Predicted are the medians, in seconds.
	Measured, Predicted float64
	// Error is the median of |predicted − measured|/measured.
	Error float64
}

// What an observation needs at least, in the half that is fitted, for a fit.
const minGaps = 50

// Fit fits the terms of a profile to the records of a run, and takes from base
// those that they cannot tell. The terms
//
//	Floor, Base, PerToken, PerDecode, PerContext, PerAttended
//
// are fitted; Host, DecodeBase, PrefillBase, HeadBase and HeadPerSeq stay the
// base's, since only their sums with the former can be seen from outside: what
// is wrong in them is made up for in Floor, Base and PerDecode. Measured points of
// a base are replaced by Floor, Base and PerToken.
func Fit(records Records, base sim.Profile, o Options) (*Result, error) {
	if o.Replicas < 0 {
		return nil, fmt.Errorf("replicas: %d: must be at least 1", o.Replicas)
	}
	replicas := max(o.Replicas, 1)
	h, err := read(records)
	if err != nil {
		return nil, err
	}
	gaps, firsts := h.observe(replicas, maxGaps)
	if h.gaps == 0 {
		return nil, errors.New("no request has two output events: nothing tells how long a step takes (was the answer streamed, and longer than one token?)")
	}
	res := &Result{
		Gaps: Counts{All: h.gaps, Clean: len(gaps)}, Firsts: Counts{All: h.firsts, Clean: len(firsts)},
		Simulated: h.simulated, Notes: h.notes,
	}
	all := slices.Concat(gaps, firsts)
	var fit []observation
	n := 0
	for _, ob := range all {
		if !ob.held {
			fit = append(fit, ob)
			if ob.prompt == 0 {
				n++
			}
		}
	}
	if n < minGaps {
		return nil, fmt.Errorf("%d gaps of the even sessions lie between two output events with nobody waiting for a first output, of %d gaps in all, and a fit needs %d: run longer, or at a lower rate", n, h.gaps, minGaps)
	}
	m, notes := newModel(base, fit)
	res.Notes = append(res.Notes, notes...)
	start := linear(base)
	sol := m.solve(fit, start)
	for i, ob := range fit {
		switch {
		case !sol.used[i]:
		case ob.prompt == 0:
			res.Gaps.Used++
		default:
			res.Firsts.Used++
		}
	}
	for i := range terms {
		t := Term{Name: terms[i].name, Value: *terms[i].of(&m.p), Base: *terms[i].of(&start), Fitted: sol.fitted[i], Error: math.NaN()}
		if t.Fitted {
			t.Error = sol.stderr[i]
		} else {
			t.Why = sol.why[i]
		}
		res.Terms = append(res.Terms, t)
	}
	res.Profile = m.p
	res.Profile.Basis = sim.Measured
	for _, t := range res.Terms {
		if !t.Fitted {
			res.Profile.Basis = sim.PartMeasured
		}
	}
	if h.simulated {
		res.Profile.Basis = sim.Scaled
		res.Notes = append(res.Notes, "the records are of simulated engines: the fit is no measurement")
	}
	if replicas > 1 {
		res.Notes = append(res.Notes, fmt.Sprintf("a request is taken to share its batch with 1/%d of the others: terms per request and per token come out too small", replicas))
	}
	for _, t := range res.Terms {
		if !(t.Value >= 0 && t.Value <= 1) { // not a number either
			return nil, fmt.Errorf("%s comes out as %.3g s: a profile holds times of up to a second, so these are no records of an engine's steps", t.Name, t.Value)
		}
	}
	res.judge(m, all)
	return res, nil
}

// judge compares the fit with the held-out half.
func (r *Result) judge(m *model, all []observation) {
	var batch, context, prompt buckets
	for i := range all {
		ob := &all[i]
		if !ob.held {
			continue
		}
		e := pair{ob.seconds, m.predict(ob)}
		if ob.prompt > 0 {
			prompt.add(float64(ob.prompt), e)
		} else {
			batch.add(ob.decodes, e)
			context.add(ob.context/ob.decodes, e)
		}
	}
	r.ByBatch, r.ByContext, r.ByPrompt = batch.list(), context.list(), prompt.list()
}

type pair struct{ measured, predicted float64 }

// buckets holds pairs by powers of two of a quantity.
type buckets map[int][]pair

func (b *buckets) add(x float64, e pair) {
	if *b == nil {
		*b = buckets{}
	}
	i := 0
	if x >= 1 {
		i = math.Ilogb(x)
	}
	(*b)[i] = append((*b)[i], e)
}

func (b buckets) list() (list []Bucket) {
	for i := range 64 {
		ps := b[i]
		if len(ps) == 0 {
			continue
		}
		var measured, predicted, errs []float64
		for _, p := range ps {
			measured, predicted = append(measured, p.measured), append(predicted, p.predicted)
			errs = append(errs, math.Abs(p.predicted-p.measured)/p.measured)
		}
		list = append(list, Bucket{
			From: math.Ldexp(1, i), To: math.Ldexp(1, i+1), N: len(ps),
			Measured: median(measured), Predicted: median(predicted), Error: median(errs),
		})
	}
	return list
}

// median sorts x; NaN where there is none.
func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	return x[(len(x)-1)/2]
}

// Source is what the profile's Source says: the run, the terms that are fitted
// and where the others come from.
func (r *Result) Source(base, run string) string {
	var fitted, kept []string
	for _, t := range r.Terms {
		if t.Fitted {
			fitted = append(fitted, t.Name)
		} else {
			kept = append(kept, t.Name)
		}
	}
	s := fmt.Sprintf("fitted to run %s: %s", run, strings.Join(fitted, ", "))
	if r.Simulated {
		s = strings.Replace(s, "run", "simulated run", 1)
	}
	if len(kept) > 0 {
		s += fmt.Sprintf("; %s as in %s, which the run does not tell", strings.Join(kept, ", "), base)
	}
	return s + fmt.Sprintf("; host, decode, prefill and head constants and all sizes from %s", base)
}
