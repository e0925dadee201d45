package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func oneTo(n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i + 1
	}
	return x
}

// Quantiles by accumulated floats give p90 of 10 values as the 10th.
func TestA4_NearestRankExactly(t *testing.T) {
	tests := []struct {
		n    int
		p    Permille
		want int // the value is its rank
	}{
		{10, P50, 5}, {10, P90, 9}, {10, P95, 10}, {10, P99, 10}, {10, 100, 1}, {10, 1, 1},
		{100, P50, 50}, {100, P90, 90}, {100, P95, 95}, {100, P99, 99}, {100, P999, 100},
		{300, P90, 270}, {300, P95, 285}, {300, P99, 297}, {300, P999, 300},
		{1000, P50, 500}, {1000, P90, 900}, {1000, P99, 990}, {1000, P999, 999},
		{1, P50, 1}, {1, P999, 1}, {3, P50, 2}, {1001, P99, 991}, {7, 1000, 7},
	}
	for _, tt := range tests {
		got, ok := Sorted[int]{Values: oneTo(tt.n)}.Quantile(tt.p)
		if !ok || got != tt.want {
			t.Errorf("p%v of 1..%d = %d, %v; want %d", tt.p, tt.n, got, ok, tt.want)
		}
	}
	if got := P99.Rank(math.MaxInt); got <= 0 {
		t.Errorf("rank of the largest n overflows: %d", got)
	}
}

func TestMissingAreLongerThanAny(t *testing.T) {
	s := Sorted[int]{Values: oneTo(9), Missing: 1}
	if got, ok := s.Quantile(P90); !ok || got != 9 {
		t.Errorf("p90 of 9 values and a missing one = %d, %v; want the 9th", got, ok)
	}
	if _, ok := s.Quantile(P95); ok {
		t.Error("p95 is the missing one and has no value")
	}
	if _, ok := (Sorted[int]{}).Quantile(P50); ok {
		t.Error("nothing has no median")
	}
}

// The contract's sizes, to the unit: a two-sided 95 % interval of a p99 has a
// finite high end from 368 values; with 1, 5 and 10 misses from 555, 1,164 and
// 1,835. One-sided claims at 95 % need 299, 473, 1,049 and 1,693.
func TestSizesOfAP99(t *testing.T) {
	const oneSided95 = 0.05
	for misses, want := range map[int][2]int{0: {368, 299}, 1: {555, 473}, 5: {1164, 1049}, 10: {1835, 1693}} {
		for i, tail := range []float64{TwoSided95, oneSided95} {
			n := want[i]
			t.Run(fmt.Sprintf("%d misses, tail %v", misses, tail), func(t *testing.T) {
				// A missing value is one that lies above every limit: the high end is
				// finite where it falls on one of the others.
				finite := func(n int) bool {
					_, high := QuantileRanks(n, float64(n), P99, tail)
					return high != 0 && high <= n-misses
				}
				if finite(n-1) || !finite(n) {
					t.Errorf("finite at %d: %v, at %d: %v; want the edge between", n-1, finite(n-1), n, finite(n))
				}
				// The same claim as a share: fewer than 1 % miss the limit.
				upper := func(n int) float64 {
					_, high := ClopperPearson(float64(misses), float64(n), tail)
					return high
				}
				if upper(n-1) <= 0.01 || upper(n) > 0.01 {
					t.Errorf("share's high end %v at %d, %v at %d; want 0.01 between", upper(n-1), n-1, upper(n), n)
				}
				// And by adding up the binomial, term by term.
				if sumAtMost(misses, n-1, 0.01) <= tail || sumAtMost(misses, n, 0.01) > tail {
					t.Errorf("the binomial itself disagrees")
				}
			})
		}
	}
	if more, ok := MoreForHigh(200, 0, 200, P99, TwoSided95); !ok || more != 168 {
		t.Errorf("a p99 of 200 values needs %d more, %v; want 168", more, ok)
	}
	if more, ok := MoreForHigh(368, 0, 368, P99, TwoSided95); !ok || more != 0 {
		t.Errorf("a p99 of 368 values needs %d more, %v; want 0", more, ok)
	}
	if more, ok := MoreForHigh(200, 0, 100, P99, TwoSided95); !ok || more != 535 { // 367.04 * 2 = 734.1
		t.Errorf("200 values worth 100 need %d more, %v; want 535", more, ok)
	}
	if _, ok := MoreForHigh(200, 2, 200, P99, TwoSided95); ok {
		t.Error("with 1 % missing no number of values gives a p99 a high end")
	}
}

// sumAtMost is P(Bin(n,p) <= k) by its definition.
func sumAtMost(k, n int, p float64) float64 {
	sum := 0.0
	for i := 0; i <= k; i++ {
		sum += math.Exp(lgamma(n+1) - lgamma(i+1) - lgamma(n-i+1) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}

func lgamma(n int) float64 {
	v, _ := math.Lgamma(float64(n))
	return v
}

func TestQuantileRanks(t *testing.T) {
	tests := []struct {
		name      string
		n         int
		eff       float64
		p         Permille
		low, high int
	}{
		// The median of 10: ranks 2 and 9 (coverage 97.9 %), of tables.
		{"median of 10", 10, 10, P50, 2, 9},
		{"median of 5 has no interval", 5, 5, P50, 0, 0},
		{"median of 6", 6, 6, P50, 1, 6},
		{"median of 100", 100, 100, P50, 40, 61},
		// Ten have ranks 2 and 9, which is 11 and 90 of a hundred; between whole
		// ranks the beta function goes on: I_0.5(8.6, 2.4) = 0.0221, I_0.5(8.5, 2.5) = 0.0260.
		{"a hundred worth ten", 100, 10, P50, 15, 86},
		{"nothing", 0, 0, P50, 0, 0},
	}
	for _, tt := range tests {
		low, high := QuantileRanks(tt.n, tt.eff, tt.p, TwoSided95)
		if low != tt.low || high != tt.high {
			t.Errorf("%s: %d..%d, want %d..%d", tt.name, low, high, tt.low, tt.high)
		}
	}
}

// The interval covers the true quantile as often as it says: exactly, by the
// binomial; and in a simulation of independent values.
func TestQuantileRanksCover(t *testing.T) {
	for _, n := range []int{20, 100, 400, 1000} {
		for _, p := range []Permille{P50, P90, P99} {
			low, high := QuantileRanks(n, float64(n), p, TwoSided95)
			if low > 0 {
				if miss := sumAtMost(low-1, n, p.Share()); miss > TwoSided95 {
					t.Errorf("n %d p%d: the low end misses %v", n, p, miss)
				}
				if miss := sumAtMost(low, n, p.Share()); miss <= TwoSided95 {
					t.Errorf("n %d p%d: the low end could be higher", n, p)
				}
			}
			if high > 0 {
				if miss := 1 - sumAtMost(high-1, n, p.Share()); miss > TwoSided95+1e-12 {
					t.Errorf("n %d p%d: the high end misses %v", n, p, miss)
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	low, high := QuantileRanks(500, 500, P99, TwoSided95)
	covered, runs := 0, 2000
	x := make([]float64, 500)
	for range runs {
		for i := range x {
			x[i] = rng.Float64()
		}
		slices.Sort(x)
		if x[low-1] <= 0.99 && 0.99 <= x[high-1] {
			covered++
		}
	}
	if got := float64(covered) / float64(runs); got < 0.945 {
		t.Errorf("covers %v of the time", got)
	}
}
