// Package synth makes the shapes of requests: how long prompts and answers are
// (Dist, Pairs), and which of several kinds or shared prefixes comes next
// (Choice). It knows neither text nor time of arrival, and keeps no state: every
// draw comes from the generator that the caller gives.
package synth

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/trueload/trueload/internal/draw"
)

// Dist is a distribution of token or turn counts, or of seconds. Values outside
// its bounds are drawn again, never moved to the bound, so no mass piles up
// there; Cut says how much was outside. It is safe for concurrent use.
type Dist struct {
	name     string
	draw     func(*rand.Rand) float64
	cdf      func(float64) float64 // of the distribution before its bounds
	mean     float64               // the same
	min, max float64
	whole    bool // values are rounded to whole numbers
	discrete bool // they are whole numbers before that
	cut      float64
}

// Fixed is always v.
func Fixed(v float64) *Dist {
	return &Dist{
		name: fmt.Sprintf("fixed %g", v),
		draw: func(*rand.Rand) float64 { return v },
		cdf: func(x float64) float64 {
			if x < v {
				return 0
			}
			return 1
		},
		mean: v, discrete: v == math.Floor(v),
	}
}

// Uniform is even between lo and hi.
func Uniform(lo, hi float64) *Dist {
	return &Dist{
		name: fmt.Sprintf("uniform %g to %g", lo, hi),
		draw: func(r *rand.Rand) float64 { return lo + float64((hi-lo)*draw.Uniform(r)) },
		cdf: func(x float64) float64 {
			if hi == lo {
				return Fixed(lo).cdf(x)
			}
			return min(max((x-lo)/(hi-lo), 0), 1)
		},
		mean: (lo + hi) / 2,
	}
}

// UniformCounts is even over the whole numbers from lo to hi, both included.
func UniformCounts(lo, hi float64) *Dist {
	d := Uniform(lo-0.5, hi+0.5)
	d.name, d.mean, d.discrete = fmt.Sprintf("uniform %g to %g", lo, hi), float64((lo+hi)/2), true
	d.draw = func(r *rand.Rand) float64 { return lo + float64(r.Int64N(int64(hi-lo)+1)) }
	return d
}

// Normal has the given mean and standard deviation.
func Normal(mean, sd float64) *Dist {
	return &Dist{
		name: fmt.Sprintf("normal mean %g sd %g", mean, sd),
		draw: func(r *rand.Rand) float64 { return mean + float64(sd*draw.Normal(r)) },
		cdf:  func(x float64) float64 { return math.Erfc((mean-x)/(sd*math.Sqrt2)) / 2 },
		mean: mean,
	}
}

// LogNormal has a logarithm that is normal with mean mu and deviation sigma.
func LogNormal(mu, sigma float64) *Dist {
	return &Dist{
		name: fmt.Sprintf("lognormal mu %.4g sigma %.4g", mu, sigma),
		draw: func(r *rand.Rand) float64 { return draw.Exp(mu + float64(sigma*draw.Normal(r))) },
		cdf: func(x float64) float64 {
			if x <= 0 {
				return 0
			}
			return math.Erfc((mu-math.Log(x))/(sigma*math.Sqrt2)) / 2
		},
		mean: draw.Exp(mu + float64(float64(sigma*sigma)/2)),
	}
}

// normalQuantiles are z with Φ(z) = p, for the quantiles a lognormal may be given by.
var normalQuantiles = map[float64]float64{
	0.90: 1.2815515655446004,
	0.95: 1.6448536269514722,
	0.99: 2.3263478740408408,
}

// LogNormalBy is the lognormal with the median p50 and, at probability p (0.9,
// 0.95 or 0.99), the quantile q: mu = ln p50, sigma = ln(q/p50)/z(p).
func LogNormalBy(p50, p, q float64) (*Dist, error) {
	z, ok := normalQuantiles[p]
	if !ok {
		return nil, fmt.Errorf("a lognormal is given by p50 and p90, p95 or p99, not p%g", 100*p)
	}
	if !(p50 > 0) || !(q >= p50) {
		return nil, fmt.Errorf("lognormal p50 %g and p%g %g: both must be above 0, the second not below the first", p50, 100*p, q)
	}
	d := LogNormal(draw.Log(p50), draw.Log(q/p50)/z)
	d.name = fmt.Sprintf("lognormal p50 %g p%g %g", p50, 100*p, q)
	return d, nil
}

// Exponential has the given mean.
func Exponential(mean float64) *Dist {
	return &Dist{
		name: fmt.Sprintf("exponential mean %g", mean),
		draw: func(r *rand.Rand) float64 { return float64(mean * draw.Exponential(r)) },
		cdf: func(x float64) float64 {
			if x <= 0 {
				return 0
			}
			return -math.Expm1(-x / mean)
		},
		mean: mean,
	}
}

// Geometric is on 1, 2, 3, ... with the given mean.
func Geometric(mean float64) *Dist {
	mean = max(mean, 1)
	return &Dist{
		name: fmt.Sprintf("geometric mean %g", mean),
		draw: func(r *rand.Rand) float64 { return float64(draw.Geometric(r, mean)) },
		cdf: func(x float64) float64 {
			if x < 1 {
				return 0
			}
			return 1 - math.Pow(1-1/mean, math.Floor(x))
		},
		mean: mean, discrete: true,
	}
}

// Sample draws from values, each as likely as the others. It keeps a copy.
func Sample(name string, values []float64) *Dist {
	values = slices.Clone(values)
	sorted := slices.Sorted(slices.Values(values))
	var sum float64
	discrete := true
	for _, v := range values {
		sum += v
		discrete = discrete && v == math.Floor(v)
	}
	return &Dist{
		name: fmt.Sprintf("%s (%d values)", name, len(values)),
		draw: func(r *rand.Rand) float64 { return values[r.IntN(len(values))] },
		cdf: func(x float64) float64 {
			n := sort.Search(len(sorted), func(i int) bool { return sorted[i] > x })
			return float64(n) / float64(len(sorted))
		},
		mean: sum / float64(len(values)), discrete: discrete,
	}
}

// leastKept is the smallest share of a distribution that bounds may keep: below
// it the bounds, not the distribution, make the numbers.
const leastKept = 0.01

// Counts makes d a distribution of whole numbers from lo to hi; hi 0 is no
// upper bound. Values are rounded to the nearest, then held against the bounds.
func (d *Dist) Counts(lo, hi int) (*Dist, error) {
	e := *d
	e.whole, e.min, e.max = true, float64(lo), math.MaxInt32
	if hi > 0 {
		e.max = float64(hi)
	}
	// round(x) < lo is x < lo − ½.
	return e.bounded(d.cdf(math.Nextafter(e.min-0.5, -1)) + 1 - d.cdf(math.Nextafter(e.max+0.5, 0)))
}

// Seconds makes d a distribution of durations from lo to hi; hi 0 is no upper bound.
func (d *Dist) Seconds(lo, hi time.Duration) (*Dist, error) {
	e := *d
	e.min, e.max = float64(lo)/1e9, 1e9
	if hi > 0 {
		e.max = float64(hi) / 1e9
	}
	return e.bounded(d.cdf(math.Nextafter(e.min, -1)) + 1 - d.cdf(e.max))
}

func (e Dist) bounded(cut float64) (*Dist, error) {
	e.cut = max(cut, 0)
	if e.cut < 1e-15 {
		e.cut = 0
	}
	if 1-e.cut < leastKept {
		return nil, fmt.Errorf("%s: the bounds %g to %g keep less than 1 %% of it", e.name, e.min, e.max)
	}
	return &e, nil
}

// Cut is the share, 0 to 1, of draws that fell outside the bounds and were
// drawn again.
func (d *Dist) Cut() float64 { return d.cut }

// String names the distribution as it was asked for.
func (d *Dist) String() string { return d.name }

// Count draws a count.
func (d *Dist) Count(r *rand.Rand) int { return int(d.value(r)) }

// Duration draws a duration, to the nanosecond.
func (d *Dist) Duration(r *rand.Rand) time.Duration {
	return time.Duration(math.Floor(float64(d.value(r)*1e9) + 0.5))
}

func (d *Dist) value(r *rand.Rand) float64 {
	// At least one draw in a hundred is kept: 10,000 misses do not happen.
	for range 10_000 {
		v := d.draw(r)
		if d.whole {
			v = math.Floor(v + 0.5)
		}
		if v >= d.min && v <= d.max {
			return v
		}
	}
	return d.min
}

// Mean is the mean of what is drawn, bounds included. Where there are bounds it
// is that of 100,000 draws, the same ones always.
func (d *Dist) Mean() float64 {
	if d.cut == 0 && (!d.whole || d.discrete) {
		return d.mean
	}
	r := draw.Stream(1, "mean/"+d.name)
	var sum float64
	const n = 100_000
	for range n {
		sum += d.value(r)
	}
	return sum / n
}
