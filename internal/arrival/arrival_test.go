package arrival

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/draw"
)

func all(p Process) []time.Duration {
	var at []time.Duration
	for {
		t, ok := p.Next()
		if !ok {
			return at
		}
		at = append(at, t)
	}
}

func run(g Gaps, c Curve, seed uint64) []time.Duration {
	return all(New(g, c, draw.Stream(seed, "arrivals")))
}

func gaps(at []time.Duration) []float64 {
	var g []float64
	for i := 1; i < len(at); i++ {
		g = append(g, (at[i] - at[i-1]).Seconds())
	}
	return g
}

func moments(x []float64) (mean, cv float64) {
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	var sq float64
	for _, v := range x {
		sq += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(sq/float64(len(x))) / mean
}

// idc is the index of dispersion for counts: variance over mean of the counts
// in windows of the given width.
func idc(at []time.Duration, span, width time.Duration) float64 {
	counts := make([]float64, span/width)
	for _, t := range at {
		if i := int(t / width); i < len(counts) {
			counts[i]++
		}
	}
	mean, cv := moments(counts)
	return cv * cv * mean
}

// ks is the largest distance between the sample's distribution and cdf.
func ks(x []float64, cdf func(float64) float64) float64 {
	x = slices.Sorted(slices.Values(x))
	n := float64(len(x))
	var d float64
	for i, v := range x {
		f := cdf(v)
		d = max(d, math.Abs(f-float64(i)/n), math.Abs(float64(i+1)/n-f))
	}
	return d
}

func TestL1_ConstantDoesNotDrift(t *testing.T) {
	for seed := range uint64(20) {
		at := run(Constant(), Flat(0, 50*time.Second, 200), seed)
		if len(at) < 9999 || len(at) > 10_001 {
			t.Errorf("200/s for 50 s: %d arrivals, want 10,000 within 0.1 %%", len(at))
		}
		for i, a := range at {
			if want := at[0] + time.Duration(i)*5*time.Millisecond; a-want > 2 || want-a > 2 {
				t.Fatalf("arrival %d is at %v, want %v", i, a, want)
			}
		}
	}
	// Half an hour of 1,200 a minute.
	if n := len(run(Constant(), Flat(0, 30*time.Minute, 20), 1)); n < 35_999 || n > 36_001 {
		t.Errorf("1,200/min for 30 min: %d arrivals, want 36,000", n)
	}
}

func TestL2_TheNameTellsTheTruth(t *testing.T) {
	at := run(Constant(), Flat(0, 100*time.Second, 10), 3)
	if _, cv := moments(gaps(at)); cv >= 0.01 {
		t.Errorf("constant 10/s: gap CV %g, want below 0.01", cv)
	}
	at = run(Poisson(), Flat(0, 10_000*time.Second, 0.2), 3)
	whole := 0
	for _, a := range at {
		if a%time.Second == 0 {
			whole++
		}
	}
	if whole > 0 {
		t.Errorf("poisson 0.2/s: %d of %d arrivals on whole seconds", whole, len(at))
	}
	g := gaps(at)
	d := ks(g, func(x float64) float64 { return -math.Expm1(-0.2 * x) })
	if limit := 1.63 / math.Sqrt(float64(len(g))); d > limit { // level 1 %
		t.Errorf("poisson 0.2/s: KS distance %g to the exponential, limit %g", d, limit)
	}
}

func TestGapsHaveTheirDistribution(t *testing.T) {
	for _, c := range []struct {
		name string
		g    Gaps
		cv   float64
		cdf  func(float64) float64 // nil: moments only
	}{
		{"gamma cv 1 is exponential", Gamma(1), 1, func(x float64) float64 { return -math.Expm1(-x) }},
		{"gamma cv 0.5 is Erlang 4", Gamma(0.5), 0.5, func(x float64) float64 {
			y := 4 * x
			return 1 - math.Exp(-y)*(1+y+y*y/2+y*y*y/6)
		}},
		{"gamma cv 2", Gamma(2), 2, nil},
		{"weibull cv 1 is exponential", Weibull(1), 1, func(x float64) float64 { return -math.Expm1(-x) }},
		{"weibull cv √5 has shape ½", Weibull(math.Sqrt(5)), math.Sqrt(5), func(x float64) float64 { return -math.Expm1(-math.Sqrt(2 * x)) }},
		{"weibull cv 0.3", Weibull(0.3), 0.3, nil},
	} {
		g := gaps(run(c.g, Flat(0, 200_000*time.Second, 1), 11))
		mean, cv := moments(g)
		n := math.Sqrt(float64(len(g)))
		if math.Abs(mean-1) > 4*c.cv/n {
			t.Errorf("%s: mean gap %g, want 1", c.name, mean)
		}
		if math.Abs(cv-c.cv) > 0.06*c.cv {
			t.Errorf("%s: gap CV %g, want %g", c.name, cv, c.cv)
		}
		if c.cdf != nil {
			if d := ks(g, c.cdf); d > 1.63/n {
				t.Errorf("%s: KS distance %g, limit %g", c.name, d, 1.63/n)
			}
		}
	}
}

func TestWeibullShape(t *testing.T) {
	for _, c := range []struct{ cv, shape float64 }{{1, 1}, {math.Sqrt(5), 0.5}} {
		if k := weibullShape(c.cv); math.Abs(k-c.shape) > 1e-9 {
			t.Errorf("cv %g: shape %g, want %g", c.cv, k, c.shape)
		}
	}
	for x := 1.0; x < 40; x += 0.37 {
		want, _ := math.Lgamma(x)
		if got := logGamma(x); math.Abs(got-want) > 1e-12*(1+math.Abs(want)) {
			t.Errorf("logGamma(%g) = %.16g, want %.16g", x, got, want)
		}
	}
}

// Counts per second of Poisson arrivals have variance/mean 1. The chi-square
// band at 99.9 % for 39 degrees of freedom is 16.3 to 74.7.
func TestL3_DispersionOfPoisson(t *testing.T) {
	for seed := range uint64(10) {
		at := run(Poisson(), Flat(0, 40*time.Second, 100), seed)
		chi := idc(at, 40*time.Second, time.Second) * 40
		if chi < 16.3 || chi > 74.7 {
			t.Errorf("seed %d: 40 one-second counts of Poisson 100/s: chi-square %.1f, want 16.3 to 74.7", seed, chi)
		}
	}
}

// Over windows much longer than a gap the dispersion of counts is that of the
// gaps, CV². 333 windows know it to 8 %: the band is four times that.
func TestDispersionIsThatOfTheGaps(t *testing.T) {
	for _, c := range []struct {
		name string
		g    Gaps
		want float64
	}{{"poisson", Poisson(), 1}, {"gamma cv 2", Gamma(2), 4}, {"weibull cv 1.5", Weibull(1.5), 2.25}, {"gamma cv 0.5", Gamma(0.5), 0.25}} {
		const span = 20_000 * time.Second
		if got := idc(run(c.g, Flat(0, span, 10), 21), span, time.Minute); math.Abs(got/c.want-1) > 0.31 {
			t.Errorf("%s: index of dispersion at 60 s %.3f, want %.3f", c.name, got, c.want)
		}
	}
}

// A hundred gaps of mean 1 and shape 0.1 span 100 with variance 100/0.1: the
// standard deviation is 31.6, where rescaled draws would have 0.
func TestL4_DrawsAreNotRescaled(t *testing.T) {
	var spans []float64
	for seed := range uint64(200) {
		p := New(Gamma(math.Sqrt(10)), Flat(0, Forever, 1), draw.Stream(seed, "arrivals"))
		first, _ := p.Next()
		var last time.Duration
		for range 100 {
			last, _ = p.Next()
		}
		spans = append(spans, (last - first).Seconds())
	}
	mean, cv := moments(spans)
	sd := mean * cv
	if math.Abs(mean-100) > 4*31.6/math.Sqrt(200) {
		t.Errorf("mean span %g, want 100", mean)
	}
	if sd < 27 || sd > 37 { // the spread of a sample's deviation is about 5 %, more for skewed ones
		t.Errorf("standard deviation of the span %g, want 31.6", sd)
	}
}

// rate is the curve's at t, 0 outside of it.
func rate(c Curve, t time.Duration) float64 {
	for i := range c {
		if t >= c[i].Start && t < c[i].End {
			return c[i].at(t)
		}
	}
	return 0
}

func TestL5_RampInTime(t *testing.T) {
	ramp := Line(0, 60*time.Second, 0, 100)
	if r := rate(ramp, 30*time.Second); math.Abs(r-50) > 1e-9 {
		t.Errorf("rate at half time %g, want 50", r)
	}
	at := run(Constant(), ramp, 5)
	if n := len(at); n < 2999 || n > 3001 {
		t.Errorf("%d arrivals, want 3,000", n)
	}
	// Around half time the arrivals come 20 ms apart, and a quarter of all (750)
	// come in the first half.
	i, _ := slices.BinarySearch(at, 30*time.Second)
	if i < 749 || i > 751 {
		t.Errorf("%d arrivals in the first half, want 750", i)
	}
	if gap := (at[i+5] - at[i-5]).Seconds() / 10; math.Abs(gap-0.02) > 1e-4 {
		t.Errorf("gap at half time %g s, want 0.0200", gap)
	}
	var half, n float64
	for seed := range uint64(200) {
		for _, a := range run(Poisson(), ramp, seed) {
			n++
			if a >= 29*time.Second && a < 31*time.Second {
				half++
			}
		}
	}
	if rate := half / 200 / 2; math.Abs(rate-50) > 4*math.Sqrt(50/400.0) {
		t.Errorf("poisson rate around half time %g, want 50.0", rate)
	}
	if math.Abs(n/200-3000) > 4*math.Sqrt(3000/200.0) {
		t.Errorf("poisson: %g arrivals on average, want 3,000", n/200)
	}
}

// Downwards to 0, a wave, steps with silence between: the counts are the
// integrals and no arrival lies outside.
func TestCurves(t *testing.T) {
	const s = time.Second
	spike := append(append(Flat(0, 10*s, 2), Flat(10*s, 15*s, 40)...), Flat(15*s, 40*s, 2)...)
	for _, c := range []struct {
		name  string
		curve Curve
		want  float64
		at    map[time.Duration]float64
	}{
		{"down to 0", Line(0, 60*s, 100, 0), 3000, map[time.Duration]float64{30 * s: 50, 45 * s: 25}},
		{"wave", Sine(0, 100*s, 50, 50, 100*s), 5000, map[time.Duration]float64{25 * s: 100, 75 * s: 0, 0: 50}},
		{"half a wave", Sine(0, 100*s, 50, 50, 100*s).Cut(0, 50*s), 2500 + 5000/math.Pi, nil},
		{"the other half", Sine(0, 100*s, 50, 50, 100*s).Cut(50*s, 100*s), 2500 - 5000/math.Pi, map[time.Duration]float64{75 * s: 0}},
		{"silence between", append(append(Flat(0, 10*s, 5), Flat(10*s, 20*s, 0)...), Flat(20*s, 30*s, 5)...), 100, map[time.Duration]float64{15 * s: 0}},
		{"spike", spike, 270, map[time.Duration]float64{12 * s: 40, 16 * s: 2}},
		{"a ramp goes on at its end", Line(0, 10*s, 0, 10).Cut(0, 20*s), 150, map[time.Duration]float64{15 * s: 10}},
		{"part of a ramp", Line(0, 60*s, 0, 100).Cut(30*s, 60*s), 2250, map[time.Duration]float64{45 * s: 75}},
		{"before 0", Flat(-20*s, 10*s, 7), 210, nil},
	} {
		if got := c.curve.Expected(); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: expects %g arrivals, want %g", c.name, got, c.want)
		}
		at := run(Constant(), c.curve, 9)
		if n := float64(len(at)); math.Abs(n-c.want) > 1.01 {
			t.Errorf("%s: %g arrivals, want %g", c.name, n, c.want)
		}
		for i, a := range at {
			if a < c.curve[0].Start || a >= c.curve[len(c.curve)-1].End || i > 0 && a < at[i-1] {
				t.Fatalf("%s: arrival %d at %v is out of order or outside", c.name, i, a)
			}
			if rate(c.curve, a) < 1e-9 && len(c.curve) > 1 {
				t.Errorf("%s: an arrival at %v, where the rate is 0", c.name, a)
			}
		}
		for when, want := range c.at {
			if got := rate(c.curve, when); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: rate %g at %v, want %g", c.name, got, when, want)
			}
		}
		// Where arrivals lie agrees with the integral at every one of them.
		for i := 0; i < len(at)-1; i += 97 {
			between := c.curve.Cut(at[0], at[i]+1)
			if i > 0 && math.Abs(between.Expected()-float64(i)) > 1e-3 {
				t.Fatalf("%s: %g expected up to arrival %d", c.name, between.Expected(), i)
			}
		}
	}
}

// Gamma arrivals of CV² 10 from an ordinary start would bring 4.5 arrivals more
// at the beginning: (CV² − 1)/2. From the residual distribution there is none.
func TestI5_ResidualStart(t *testing.T) {
	for _, g := range []struct {
		name string
		gaps Gaps
	}{{"gamma", Gamma(math.Sqrt(10))}, {"weibull", Weibull(math.Sqrt(10))}, {"constant", Constant()}, {"poisson", Poisson()}} {
		var n float64
		const runs = 4000
		for seed := range uint64(runs) {
			n += float64(len(run(g.gaps, Flat(0, 20*time.Second, 1), seed)))
		}
		// The variance of a count of 20 is at most about 10·20.
		if mean := n / runs; math.Abs(mean-20) > 4*math.Sqrt(200.0/runs) {
			t.Errorf("%s: %g arrivals in the first 20 s, want 20", g.name, mean)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	for _, c := range []struct {
		name string
		cv   float64
	}{{"exponential", 0}, {"gamma", 0}, {"gamma", math.NaN()}, {"weibull", -1}, {"weibull", 1e9}, {"", 1}} {
		if _, err := Named(c.name, c.cv); err == nil {
			t.Errorf("%q with cv %g was accepted", c.name, c.cv)
		}
	}
}

// The arrivals as whole nanoseconds: the same on every processor.
func TestGoldenArrivals(t *testing.T) {
	h := sha256.New()
	curve := append(Line(0, 60*time.Second, 0, 100), Sine(60*time.Second, 200*time.Second, 30, 20, 37*time.Second)...)
	for i, g := range []Gaps{Constant(), Poisson(), Gamma(2.5), Gamma(0.4), Weibull(1.7), Weibull(0.2)} {
		for _, at := range run(g, curve, uint64(i)) {
			binary.Write(h, binary.LittleEndian, int64(at))
		}
	}
	const want = "2dd1bef7f5985cd31329435f354abae2224f551bb469c70d5977b8593091884b"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("on %s: %s, want %s", runtime.GOARCH, got, want)
	}
}

func BenchmarkNext(b *testing.B) {
	for _, name := range []string{"poisson", "gamma", "weibull"} {
		b.Run(name, func(b *testing.B) {
			g, err := Named(name, 2)
			if err != nil {
				b.Fatal(err)
			}
			p := New(g, Flat(0, Forever, 1000), draw.Stream(1, "b"))
			for b.Loop() {
				p.Next()
			}
		})
	}
}

func ExampleNew() {
	p := New(Poisson(), Line(0, time.Minute, 0, 100), draw.Stream(42, "arrivals"))
	n := 0
	for _, ok := p.Next(); ok; _, ok = p.Next() {
		n++
	}
	fmt.Println(n, "arrivals where 3,000 are expected")
	// Output: 2914 arrivals where 3,000 are expected
}
