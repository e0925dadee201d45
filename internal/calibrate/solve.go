package calibrate

import (
	"fmt"
	"math"

	"github.com/trueload/trueload/internal/sim"
)

// terms are those that are fitted, in the order in which they are taken in: one
// that the terms before it explain cannot be told from them.
var terms = [...]struct {
	name string
	of   func(*sim.Profile) *float64
	kind int // of the observations that tell it
	why  string
}{
	{"floor_ms", func(p *sim.Profile) *float64 { return &p.Floor }, 0, ""},
	{"per_context_us", func(p *sim.Profile) *float64 { return &p.PerContext }, 0, "the context did not vary enough"},
	{"per_decode_us", func(p *sim.Profile) *float64 { return &p.PerDecode }, 0, "the batch did not vary enough, or only with the context"},
	{"per_token_us", func(p *sim.Profile) *float64 { return &p.PerToken }, 1, "too few prompts long enough to be computed slower than the weights are read"},
	{"base_ms", func(p *sim.Profile) *float64 { return &p.Base }, 1, "the prompts' lengths did not vary enough"},
	{"per_attended_ns", func(p *sim.Profile) *float64 { return &p.PerAttended }, 1, "the prompts' lengths did not vary enough"},
}

const nTerms = len(terms)

// Their places in terms.
const (
	floorTerm = iota
	contextTerm
	decodeTerm
	tokenTerm
	baseTerm
	attendedTerm
)

type row [nTerms]float64

const (
	// independent is the least part of a term's regressor, as a share of its
	// root mean square, that the terms before it must leave unexplained.
	independent = 0.05
	// useful is the largest standard error, as a share of the times that the
	// term takes part in, with which a term is said to be known.
	useful = 0.10
	// An observation farther out than this many standard deviations (by the
	// median) is no step of this kind: a stall, a preemption, another client.
	trim       = 4.0
	rounds     = 40
	absRounds  = 15    // of these by least absolute errors, which outliers do not draw
	leastScale = 0.002 // of the residuals, relative: stamps are not exact
)

// model is a profile that is being fitted.
type model struct{ p sim.Profile }

// newModel starts from base, whose fixed terms must leave room for the others.
func newModel(base sim.Profile, obs []observation) (*model, []string) {
	m := &model{linear(base)}
	var notes []string
	if len(base.Points) > 0 {
		notes = append(notes, "the base's measured points are replaced by floor_ms, base_ms and per_token_us")
	}
	var gaps []float64
	for i := range obs {
		if obs[i].prompt == 0 {
			gaps = append(gaps, obs[i].seconds)
		}
	}
	typical := median(gaps)
	if m.p.Host+m.p.DecodeBase+m.p.HeadBase > typical/2 {
		m.p.Host, m.p.DecodeBase, m.p.HeadBase, m.p.HeadPerSeq, m.p.PrefillBase = 0, 0, 0, 0, 0
		notes = append(notes, "steps are faster than twice the base's host, decode and head terms: those are set to 0, and floor_ms holds them")
	}
	// A start of the right size, whatever the base's hardware: the floor is as in
	// the typical gap, and long prompts run along a line from half of it.
	m.p.Floor = max(typical-(m.predict(&observation{decodes: 1, context: 1})-m.p.Floor), typical/2)
	m.p.Base = m.p.Floor / 2
	var slopes []float64
	for i := range obs {
		if ob := &obs[i]; ob.prompt >= 256 && ob.seconds > m.p.Floor {
			slopes = append(slopes, (ob.seconds-m.p.Base)/float64(ob.prompt))
		}
	}
	if len(slopes) > 0 {
		m.p.PerToken = median(slopes)
	}
	return m, notes
}

// linear is p with its points as a floor and a line: the first point's time, and
// the last segment's slope.
func linear(p sim.Profile) sim.Profile {
	if n := len(p.Points); n >= 2 {
		a, b := p.Points[n-2], p.Points[n-1]
		p.Floor = p.Points[0].Seconds
		p.PerToken = (b.Seconds - a.Seconds) / float64(b.Tokens-a.Tokens)
		p.Base = max(0, b.Seconds-p.PerToken*float64(b.Tokens))
	}
	p.Points = nil
	return p
}

// predict is what an observation takes.
func (m *model) predict(ob *observation) float64 {
	x, fixed := m.row(ob)
	for i := range terms {
		fixed += x[i] * *terms[i].of(&m.p)
	}
	return fixed
}

// row is the time of ob as a linear function of the terms, which it is as long
// as no step crosses from the floor to the line of the matrix products:
// fixed + x·terms, by the formula of sim.Profile.
func (m *model) row(ob *observation) (x row, fixed float64) {
	step := func(weight float64, n int, kv int64, last bool) {
		tokens := float64(n) + ob.decodes
		if m.p.Base+m.p.PerToken*tokens > m.p.Floor {
			x[baseTerm] += weight
			x[tokenTerm] += weight * tokens
		} else {
			x[floorTerm] += weight
		}
		t, sampled := m.p.Host, ob.decodes
		if ob.decodes > 0 {
			t += m.p.DecodeBase
			x[decodeTerm] += weight * ob.decodes
			x[contextTerm] += weight * ob.context
		}
		if n > 0 {
			t += m.p.PrefillBase
			x[attendedTerm] += weight * (float64(n)*float64(kv) + float64(n)*float64(n)/2)
		}
		if last {
			sampled++
		}
		if sampled > 0 {
			t += m.p.HeadBase + m.p.HeadPerSeq*sampled
		}
		fixed += weight * t
	}
	if ob.prompt == 0 {
		step(1, 0, 0, false)
		return x, fixed
	}
	if ob.wait > 0 {
		step(ob.wait, 0, 0, false)
	}
	// Then its chunks, beside the decoding ones.
	budget := max(m.p.MaxBatchedTokens-int(ob.decodes), 1)
	for left, kv := ob.prompt, int64(ob.cached); left > 0; {
		n := min(left, budget)
		left -= n
		step(1, n, kv, left == 0)
		kv += int64(n)
	}
	return x, fixed
}

type solution struct {
	fitted [nTerms]bool
	stderr [nTerms]float64
	why    [nTerms]string
	used   []bool
}

// solve fits m to obs: least squares of relative errors, which is what a jitter
// in proportion asks for, by Gauss-Newton, since a step is linear in the terms
// on either side of the floor. First by least absolute errors (iteratively
// reweighted), then without what lies too far out.
//
// Gaps and times to first output take turns: the many gaps would else decide
// about prompts, where the profile's shape is not quite the server's.
func (m *model) solve(obs []observation, base sim.Profile) *solution {
	sol := &solution{used: make([]bool, len(obs))}
	weight := make([]float64, len(obs))
	var drop [nTerms]bool
	fit := func(from int) {
		for round := from; round < rounds; round++ {
			before := m.p
			for k := range kinds {
				m.round(sol, obs, weight, k, round, &drop, base)
			}
			if !m.settled(&before) {
				continue
			}
			if round >= absRounds {
				break
			}
			round = absRounds - 1
		}
	}
	fit(0)
	// A term that is known too badly is the base's after all.
	for range nTerms {
		worst, by := -1, useful
		for t := range terms {
			if sol.fitted[t] && t != floorTerm {
				if u := m.uncertain(obs, t, sol.stderr[t]); u > by {
					worst, by = t, u
				}
			}
		}
		if worst < 0 {
			break
		}
		drop[worst] = true
		sol.why[worst] = fmt.Sprintf("known to %.0f %% of a step only", 100*by)
		fit(absRounds)
	}
	for t := range terms {
		if !sol.fitted[t] && sol.why[t] == "" {
			sol.why[t] = terms[t].why
		}
	}
	return sol
}

// settled tells whether no term has moved since before.
func (m *model) settled(before *sim.Profile) bool {
	for _, t := range terms {
		if a, b := *t.of(&m.p), *t.of(before); math.Abs(a-b) > 1e-6*math.Abs(b) {
			return false
		}
	}
	return true
}

// round fits the terms that observations of kind k tell, given the others.
func (m *model) round(sol *solution, obs []observation, weight []float64, k, round int, drop *[nTerms]bool, base sim.Profile) {
	rel := make([]float64, len(obs))
	var abs []float64
	for i := range obs {
		if weight[i] = 0; kind(&obs[i]) == k {
			pred := m.predict(&obs[i])
			rel[i] = (obs[i].seconds - pred) / pred
			abs = append(abs, math.Abs(rel[i]))
		}
	}
	scale := max(1.4826*median(abs), leastScale)
	if len(abs) == 0 {
		scale = 1
	}
	for i := range obs {
		if kind(&obs[i]) != k {
			continue
		}
		r := math.Abs(rel[i]) / scale
		switch sol.used[i] = round < absRounds || r <= trim; {
		case round < absRounds:
			weight[i] = obs[i].share / max(r, 0.1)
		case sol.used[i]:
			weight[i] = obs[i].share
		}
	}
	kept, out := m.p, *drop
	for t := range terms {
		if terms[t].kind == k {
			*terms[t].of(&kept) = *terms[t].of(&base)
		} else {
			out[t] = true
		}
	}
	fitted, stderr := m.least(obs, weight, &out, &kept)
	for t := range terms {
		if terms[t].kind == k {
			sol.fitted[t], sol.stderr[t] = fitted[t], stderr[t]
		}
	}
}

// kind is 0 for a gap and 1 for a time to first output.
func kind(ob *observation) int { return min(ob.prompt, 1) }

// kinds of observations.
const kinds = 2

// uncertain is term t's standard error times what it is multiplied with, as a
// share of the time, on average over the observations in which it takes part.
func (m *model) uncertain(obs []observation, t int, stderr float64) float64 {
	sum, n := 0.0, 0.0
	for i := range obs {
		if kind(&obs[i]) != terms[t].kind {
			continue
		}
		if x, _ := m.row(&obs[i]); x[t] > 0 {
			sum += stderr * x[t] / obs[i].seconds
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// least is one weighted least-squares solution, put into m.p. Terms that are
// dropped, or that the ones before leave nothing of, keep kept's value; one
// that would be below 0 is 0.
func (m *model) least(obs []observation, weight []float64, drop *[nTerms]bool, kept *sim.Profile) (fitted [nTerms]bool, stderr [nTerms]float64) {
	var gram [nTerms][nTerms]float64
	rows := make([]row, len(obs))
	rest := make([]float64, len(obs)) // what the fixed terms leave of the time
	for i := range obs {
		if weight[i] == 0 {
			continue
		}
		x, fixed := m.row(&obs[i])
		pred := fixed
		for t := range terms {
			pred += x[t] * *terms[t].of(&m.p)
		}
		for t := range terms {
			x[t] /= pred
		}
		rows[i], rest[i] = x, (obs[i].seconds-fixed)/pred
		for a := range terms {
			for b := range a + 1 {
				gram[a][b] += weight[i] * x[a] * x[b]
			}
		}
	}
	for a := range terms {
		for b := range a {
			gram[b][a] = gram[a][b]
		}
	}
	in := selected(&gram, drop)
	var zero [nTerms]bool
	for {
		var rhs row
		for i := range obs {
			if weight[i] == 0 {
				continue
			}
			y := rest[i]
			for t := range terms {
				if !in[t] && !zero[t] {
					y -= rows[i][t] * *terms[t].of(kept)
				}
			}
			for t := range terms {
				rhs[t] += weight[i] * rows[i][t] * y
			}
		}
		inv := inverse(&gram, &in)
		var value row
		low, lowest := -1, 0.0
		for a := range terms {
			for b := range terms {
				value[a] += inv[a][b] * rhs[b]
			}
			if in[a] && value[a] < lowest {
				low, lowest = a, value[a]
			}
		}
		// Of those below 0 the one that takes most time away.
		if low >= 0 {
			for a := range terms {
				if in[a] && value[a]*math.Sqrt(gram[a][a]) < value[low]*math.Sqrt(gram[low][low]) {
					low = a
				}
			}
			in[low], zero[low] = false, true
			continue
		}
		for t := range terms {
			switch {
			case in[t]:
				*terms[t].of(&m.p) = value[t]
			case zero[t]:
				*terms[t].of(&m.p) = 0
			default:
				*terms[t].of(&m.p) = *terms[t].of(kept)
			}
		}
		break
	}
	for t := range terms {
		fitted[t] = in[t] || zero[t]
	}
	// Standard errors by White's estimator, which does not ask that all
	// observations vary alike; one of a step's gaps stands for all of them. The
	// terms at 0 count as free here.
	inv := inverse(&gram, &fitted)
	var meat [nTerms][nTerms]float64
	n := 0.0
	for i := range obs {
		if weight[i] == 0 {
			continue
		}
		r := rest[i]
		for t := range terms {
			r -= rows[i][t] * *terms[t].of(&m.p)
		}
		n += obs[i].share
		f := weight[i] * weight[i] / obs[i].share * r * r
		for a := range terms {
			for b := range terms {
				meat[a][b] += f * rows[i][a] * rows[i][b]
			}
		}
	}
	for t := range terms {
		v := 0.0
		for a := range terms {
			for b := range terms {
				v += inv[t][a] * meat[a][b] * inv[b][t]
			}
		}
		stderr[t] = math.Sqrt(max(v, 0) * n / max(n-float64(nTerms), 1))
	}
	return fitted, stderr
}

// selected tells which terms can be told from those before them, by Cholesky's
// pivots of the scaled Gram matrix: each is the square of the share of a
// regressor that the ones before leave unexplained.
func selected(gram *[nTerms][nTerms]float64, drop *[nTerms]bool) (in [nTerms]bool) {
	var l [nTerms][nTerms]float64
	for a := range terms {
		if drop[a] || gram[a][a] == 0 {
			continue
		}
		pivot := 1.0
		for b := range a {
			if !in[b] {
				continue
			}
			v := gram[a][b] / math.Sqrt(gram[a][a]*gram[b][b])
			for c := range b {
				v -= l[a][c] * l[b][c]
			}
			l[a][b] = v / l[b][b]
			pivot -= l[a][b] * l[a][b]
		}
		if pivot < independent*independent {
			l[a] = [nTerms]float64{}
			continue
		}
		l[a][a], in[a] = math.Sqrt(pivot), true
	}
	return in
}

// inverse is that of the selected rows and columns of gram, 0 elsewhere, by
// Gauss-Jordan on the scaled matrix, which is positive definite.
func inverse(gram *[nTerms][nTerms]float64, in *[nTerms]bool) (inv [nTerms][nTerms]float64) {
	var a [nTerms][nTerms]float64
	scale := func(i, j int) float64 { return math.Sqrt(gram[i][i] * gram[j][j]) }
	for i := range terms {
		for j := range terms {
			if in[i] && in[j] && scale(i, j) > 0 {
				a[i][j] = gram[i][j] / scale(i, j)
			}
		}
		if in[i] && gram[i][i] > 0 {
			inv[i][i] = 1
		} else {
			a[i][i] = 1
		}
	}
	for k := range terms {
		p := a[k][k]
		for j := range terms {
			a[k][j] /= p
			inv[k][j] /= p
		}
		for i := range terms {
			if f := a[i][k]; i != k && f != 0 {
				for j := range terms {
					a[i][j] -= f * a[k][j]
					inv[i][j] -= f * inv[k][j]
				}
			}
		}
	}
	for i := range terms {
		for j := range terms {
			if s := scale(i, j); s > 0 {
				inv[i][j] /= s
			}
		}
	}
	return inv
}
