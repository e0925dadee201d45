package synth

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/draw"
)

func TestCounts(t *testing.T) {
	const n = 100_000
	byP99, err := LogNormalBy(120, 0.99, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		d       *Dist
		lo, hi  int
		mean    float64 // 0: not known
		cut     float64
		percent map[float64]float64 // value: share at or below
	}{
		{name: "fixed", d: Fixed(512), mean: 512, percent: map[float64]float64{511: 0, 512: 1}},
		{name: "uniform 1 to 6", d: UniformCounts(1, 6), mean: 3.5, percent: map[float64]float64{1: 1.0 / 6, 5: 5.0 / 6}},
		{name: "lognormal by p50 and p99", d: byP99, percent: map[float64]float64{120: 0.5, 2048: 0.99}},
		{name: "geometric", d: Geometric(3.2), mean: 3.2, percent: map[float64]float64{1: 1 / 3.2}},
		{name: "geometric up to 5", d: Geometric(4), hi: 5, cut: math.Pow(0.75, 5), percent: map[float64]float64{1: 0.25 / (1 - math.Pow(0.75, 5)), 5: 1}},
		{name: "exponential", d: Exponential(300), percent: map[float64]float64{208: 0.5}, cut: -math.Expm1(-0.5 / 300)},
		{name: "normal, its lower tail cut", d: Normal(100, 50), lo: 50, mean: 114.4, cut: 0.1562, percent: map[float64]float64{100: 0.4126}},
		{name: "sample", d: Sample("x", []float64{1, 1, 10}), mean: 4, percent: map[float64]float64{1: 2.0 / 3}},
	} {
		d, err := c.d.Counts(max(c.lo, 1), c.hi)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if math.Abs(d.Cut()-c.cut) > 0.001 {
			t.Errorf("%s: %g cut, want %g", c.name, d.Cut(), c.cut)
		}
		r := draw.Stream(5, c.name)
		var sum float64
		below := map[float64]float64{}
		for range n {
			x := d.Count(r)
			if x < 1 || c.hi > 0 && x > c.hi || x < c.lo {
				t.Fatalf("%s: drew %d", c.name, x)
			}
			sum += float64(x)
			for v := range c.percent {
				if float64(x) <= v {
					below[v]++
				}
			}
		}
		if c.mean > 0 && math.Abs(sum/n-c.mean) > 0.01*c.mean {
			t.Errorf("%s: mean %g, want %g", c.name, sum/n, c.mean)
		}
		if math.Abs(sum/n-d.Mean()) > 0.03*d.Mean() {
			t.Errorf("%s: mean %g, Mean says %g", c.name, sum/n, d.Mean())
		}
		for v, want := range c.percent {
			if math.Abs(below[v]/n-want) > 0.008 {
				t.Errorf("%s: %.4f at or below %g, want %.4f", c.name, below[v]/n, v, want)
			}
		}
	}
}

// A cap leaves no mass at the bound, and the p99 of what is below it stays that
// of the distribution below it.
func TestA14_CapsRedraw(t *testing.T) {
	base, err := LogNormalBy(180, 0.99, 1500)
	if err != nil {
		t.Fatal(err)
	}
	d, err := base.Counts(1, 600)
	if err != nil {
		t.Fatal(err)
	}
	r := draw.Stream(1, "caps")
	atCap, near := 0, 0
	const n = 200_000
	for range n {
		switch x := d.Count(r); {
		case x == 600:
			atCap++
		case x >= 590:
			near++
		}
	}
	// The ten lengths before the cap hold as much each as the cap itself.
	if f := float64(atCap) / (float64(near) / 10); f < 0.6 || f > 1.5 {
		t.Errorf("%d draws at the cap, %d at the ten lengths before it", atCap, near)
	}
	// ln(600.5/180)/σ with σ = ln(1500/180)/2.3263 is z = 1.3218: 9.31 % above.
	if math.Abs(d.Cut()-0.0931) > 0.0005 {
		t.Errorf("the share cut is %.4f, want 0.0931", d.Cut())
	}
	if _, err := base.Counts(100_000, 0); err == nil {
		t.Error("bounds that keep next to nothing were accepted")
	}
}

func TestSeconds(t *testing.T) {
	base, err := LogNormalBy(20, 0.90, 120)
	if err != nil {
		t.Fatal(err)
	}
	d, err := base.Seconds(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := draw.Stream(2, "think")
	var below [2]int
	const n = 100_000
	for range n {
		x := d.Duration(r)
		if x < 0 {
			t.Fatalf("drew %v", x)
		}
		if x <= 20*time.Second {
			below[0]++
		}
		if x <= 2*time.Minute {
			below[1]++
		}
	}
	if math.Abs(float64(below[0])/n-0.5) > 0.006 || math.Abs(float64(below[1])/n-0.9) > 0.004 {
		t.Errorf("%d and %d of %d at or below 20 s and 2 min, want half and 90 %%", below[0], below[1], n)
	}
	// A normal pause is never negative.
	if d, err = Normal(1, 1).Seconds(0, 0); err != nil || math.Abs(d.Cut()-0.1587) > 0.001 {
		t.Errorf("normal 1 s ± 1 s: cut %v, %v", d.Cut(), err)
	}
	for range 1000 {
		if x := d.Duration(r); x < 0 {
			t.Fatalf("drew %v", x)
		}
	}
}

// Whole rows are drawn: input and output stay as correlated as in the rows.
func TestPairsStayTogether(t *testing.T) {
	p := Pairs{{100, 1}, {200, 2}, {300, 3}}
	r := draw.Stream(3, "pairs")
	seen := map[Pair]int{}
	for range 3000 {
		seen[p.Draw(r)]++
	}
	for _, x := range p {
		if seen[x] < 900 {
			t.Errorf("%v was drawn %d times of 3,000", x, seen[x])
		}
	}
	if len(seen) != 3 {
		t.Errorf("drew %v", seen)
	}
}

func TestA15_SharesNeedNotSum(t *testing.T) {
	draws := func(w ...float64) []int {
		c, err := NewChoice(w)
		if err != nil {
			t.Fatal(err)
		}
		r := draw.Stream(4, "class")
		out := make([]int, 100_000)
		for i := range out {
			out[i] = c.Draw(r)
		}
		return out
	}
	a, b, c := draws(0.7, 0.2, 0.1), draws(7, 2, 1), draws(700, 200, 100)
	var n [3]int
	for i := range a {
		if a[i] != b[i] || a[i] != c[i] {
			t.Fatalf("draw %d: %d, %d and %d", i, a[i], b[i], c[i])
		}
		n[a[i]]++
	}
	for i, want := range []float64{70_000, 20_000, 10_000} {
		if math.Abs(float64(n[i])-want) > 600 {
			t.Errorf("index %d was drawn %d times, want %g", i, n[i], want)
		}
	}
}

func TestChoice(t *testing.T) {
	c, err := NewChoice([]float64{0, 1, 0, 3, 0})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		if i := c.Draw(r); i != 1 && i != 3 {
			t.Fatalf("drew %d, which has no weight", i)
		}
	}
	if c.Share(0) != 0 || c.Share(1) != 0.25 || c.Share(4) != 0 {
		t.Errorf("shares %g %g %g", c.Share(0), c.Share(1), c.Share(4))
	}
	for _, w := range [][]float64{nil, {0}, {-1, 2}, {math.NaN()}, {math.Inf(1)}} {
		if _, err := NewChoice(w); err == nil {
			t.Errorf("weights %v were accepted", w)
		}
	}
	z, err := Zipf(8, 1.1)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := z.Share(0)/z.Share(3), math.Pow(4, 1.1); math.Abs(got-want) > 1e-4 {
		t.Errorf("the first is %g times as popular as the fourth, want %g", got, want)
	}
	if u, _ := Zipf(4, 0); u.Share(0) != 0.25 || u.Share(3) != 0.25 {
		t.Error("without a slope they are not alike")
	}
}
