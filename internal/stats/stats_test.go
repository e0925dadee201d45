package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestCV(t *testing.T) {
	x := []float64{2, 4, 4, 4, 5, 5, 7, 9} // mean 5, population deviation 2
	if got := CV(x); !near(got, 0.4, 1e-15) {
		t.Errorf("cv %v, want 0.4", got)
	}
	if !math.IsNaN(CV([]float64{-1, 1})) || !math.IsNaN(CV(nil)) {
		t.Error("what does not exist must be NaN")
	}
}

func TestPearson(t *testing.T) {
	x := []float64{1, 2, 3, 4, 5}
	if got := Pearson(x, []float64{3, 5, 7, 9, 11}); !near(got, 1, 1e-15) {
		t.Errorf("a line: %v", got)
	}
	if got := Pearson(x, []float64{2, 1, 4, 3, 5}); !near(got, 0.8, 1e-12) { // 8/sqrt(10*10)
		t.Errorf("by hand: %v, want 0.8", got)
	}
}

func TestDispersion(t *testing.T) {
	var times []time.Duration
	for i := range 105 {
		times = append(times, time.Duration(i)*100*time.Millisecond)
	}
	counts := BinCounts(times, 0, 10500*time.Millisecond, time.Second)
	if !slices.Equal(counts, []int64{10, 10, 10, 10, 10, 10, 10, 10, 10, 10}) {
		t.Fatalf("the last partial bin must go: %v", counts)
	}
	if got := Dispersion(counts); got != 0 {
		t.Errorf("constant rate: %v", got)
	}
	if got := Dispersion([]int64{0, 4, 0, 4}); got != 2 { // variance 4, mean 2
		t.Errorf("by hand: %v, want 2", got)
	}
	for _, none := range [][]int64{nil, {3}, {0, 0}} {
		if !math.IsNaN(Dispersion(none)) {
			t.Errorf("%v has no dispersion", none)
		}
	}
	if BinCounts(times, 0, time.Second, 0) != nil || BinCounts(times, 0, time.Second, time.Minute) != nil {
		t.Error("no whole bin, no counts")
	}
	if got := BinCounts([]time.Duration{-1, 0, 1, 2}, 0, 2, 1); !slices.Equal(got, []int64{1, 1}) {
		t.Errorf("edges: %v", got)
	}
	// Poisson: n*D is chi-square with n-1 degrees; 95 % band of D at n = 400 is 0.87 to 1.14.
	rng := rand.New(rand.NewPCG(5, 6))
	times = times[:0]
	for at := 0.0; at < 400; at += rng.ExpFloat64() / 20 {
		times = append(times, time.Duration(at*1e9))
	}
	if got := Dispersion(BinCounts(times, 0, 400*time.Second, time.Second)); got < 0.87 || got > 1.14 {
		t.Errorf("Poisson: %v, want 1", got)
	}
}
