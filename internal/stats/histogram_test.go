package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestHistogramErrorIsBelow0_8Percent(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	var h Histogram
	var x []int64
	sum := 0.0
	for range 20000 {
		v := int64(math.Exp(rng.Float64() * 40)) // 1 to 2e17
		x = append(x, v)
		sum += float64(v)
		h.Add(v)
	}
	slices.Sort(x)
	for p := Permille(1); p <= 1000; p++ {
		want, _ := Sorted[int64]{Values: x}.Quantile(p)
		got, _ := h.Quantile(p)
		if math.Abs(float64(got-want)) > 0.008*float64(want) {
			t.Fatalf("p%d: %d, want %d within 0.8 %%", p, got, want)
		}
	}
	if mean, ok := h.Mean(); !ok || !near(mean/(sum/20000), 1, 1e-12) {
		t.Errorf("mean %v", mean)
	}
	if h.Max() != x[len(x)-1] || h.N() != 20000 {
		t.Errorf("max %d n %d", h.Max(), h.N())
	}
}

func TestHistogramBuckets(t *testing.T) {
	// Every bucket begins where the one before ends, and holds its own bounds.
	last := bucket(math.MaxInt64)
	end := int64(0)
	for i := 0; i <= last; i++ {
		low, high := bounds(i)
		if low != end || bucket(low) != i || bucket(high-1) != i {
			t.Fatalf("bucket %d is [%d, %d) after %d", i, low, high, end)
		}
		if low >= 128 && float64(high-low) > float64(low)/64 {
			t.Fatalf("bucket %d [%d, %d) is too wide", i, low, high)
		}
		end = high
	}
	if end != math.MaxInt64 {
		t.Errorf("the last bucket ends at %d", end)
	}
}

func TestHistogramOfLittle(t *testing.T) {
	var none Histogram
	if _, ok := none.Quantile(P50); ok {
		t.Error("nothing has no median")
	}
	none.AddN(5, 0)
	none.Add(-3)
	if got, ok := none.Quantile(P50); !ok || got != 0 || none.N() != 1 {
		t.Errorf("a negative value counts as 0: %d, n %d", got, none.N())
	}
}
