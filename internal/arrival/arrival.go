// Package arrival says when sessions arrive. A Process hands out arrival times
// in order; New makes one from a Gaps (constant, Poisson, gamma, Weibull) and a
// Curve (how the rate changes over time).
//
// Processes look at no clock and no server: they are the plan. Draws are never
// rescaled or thinned to fit a count or a length, so a burst stays a burst and
// the number of arrivals varies as the process says it does.
package arrival

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/trueload/trueload/internal/draw"
)

// Process hands out the times of arrivals as offsets from the run's start (they
// may be negative, for what came before it), never falling, until it says
// false, for good. It is not safe for concurrent use.
type Process interface {
	Next() (time.Duration, bool)
}

// Gaps is the distribution of the gaps of a renewal process of rate 1.
type Gaps struct {
	// next draws a gap of mean 1.
	next func(*rand.Rand) float64
	// residual draws the wait from an arbitrary moment to the next arrival. Its
	// density is (1 − F(x))/mean: a moment falls into a gap in proportion to the
	// gap's length, and evenly inside it, so it is U times a gap drawn with
	// density x·f(x)/mean (Cox, Renewal Theory, 1962, section 5.2).
	residual func(*rand.Rand) float64
}

// Constant gaps are all equal. The process begins at a random point of a gap,
// as every stationary one does, so that several of them do not march in step.
func Constant() Gaps {
	return Gaps{
		next:     func(*rand.Rand) float64 { return 1 },
		residual: draw.Uniform,
	}
}

// Poisson gaps are exponential: arrivals of many independent users.
func Poisson() Gaps {
	return Gaps{next: draw.Exponential, residual: draw.Exponential}
}

// Gamma gaps have the given coefficient of variation, above 0: shape 1/cv²,
// scale cv². Above 1 arrivals come in bursts. The "burstiness" of other tools
// is the shape.
func Gamma(cv float64) Gaps {
	scale := float64(cv * cv)
	shape := 1 / scale
	return Gaps{
		next: func(r *rand.Rand) float64 { return float64(scale * draw.Gamma(r, shape)) },
		// x·f(x) of a gamma of shape k is a gamma of shape k+1.
		residual: func(r *rand.Rand) float64 {
			return float64(draw.Uniform(r) * float64(scale*draw.Gamma(r, shape+1)))
		},
	}
}

// Weibull gaps have the given coefficient of variation, above 0.
func Weibull(cv float64) Gaps {
	k := weibullShape(cv)
	scale := 1 / draw.Exp(logGamma(1+1/k)) // of mean 1
	return Gaps{
		next: func(r *rand.Rand) float64 {
			return float64(scale * draw.Pow(draw.Exponential(r), 1/k))
		},
		// With y = (x/scale)^k, x·f(x) becomes a gamma of shape 1 + 1/k in y.
		residual: func(r *rand.Rand) float64 {
			return float64(draw.Uniform(r) * float64(scale*draw.Pow(draw.Gamma(r, 1+1/k), 1/k)))
		},
	}
}

// cvRange bounds the coefficients that Named takes: a gamma of cv 100 already
// holds nearly all of its gaps at zero.
const minCV, maxCV = 0.01, 100

// Named returns the gaps of the process called name; cv is for gamma and weibull.
func Named(name string, cv float64) (Gaps, error) {
	switch name {
	case "constant":
		return Constant(), nil
	case "poisson":
		return Poisson(), nil
	case "gamma", "weibull":
		if !(cv >= minCV && cv <= maxCV) {
			return Gaps{}, fmt.Errorf("arrivals %s: cv %g is outside %g to %g", name, cv, minCV, float64(maxCV))
		}
		if name == "gamma" {
			return Gamma(cv), nil
		}
		return Weibull(cv), nil
	}
	return Gaps{}, fmt.Errorf("arrivals %q are not known; there are constant, poisson, gamma and weibull", name)
}

// New returns the process whose gaps, in units of the curve's integrated rate
// Λ, are those of gaps: the n-th arrival is Λ⁻¹(S_n), where S_n is the sum of n
// gaps. So the rate at any moment is the curve's, and the burstiness is that of
// gaps. It starts at the curve's start from the residual distribution, as if it
// had always been running, and ends with the curve.
func New(gaps Gaps, curve Curve, rng *rand.Rand) Process {
	return &renewal{gaps: gaps, curve: curve, rng: rng}
}

type renewal struct {
	gaps    Gaps
	curve   Curve // what is left of it
	rng     *rand.Rand
	used    float64 // of the first piece's integrated rate
	started bool
	last    time.Duration
}

func (p *renewal) Next() (time.Duration, bool) {
	if len(p.curve) == 0 {
		return 0, false
	}
	var gap float64
	if p.started {
		gap = p.gaps.next(p.rng)
	} else {
		gap = p.gaps.residual(p.rng)
		p.started = true
		p.last = p.curve[0].Start
	}
	p.used += gap
	for len(p.curve) > 0 {
		piece := &p.curve[0]
		if at, inside := piece.inverse(p.used); inside {
			p.last = max(p.last, at)
			return p.last, true
		}
		p.used -= piece.total()
		p.curve = p.curve[1:]
	}
	return 0, false
}
