package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func near(a, b, tol float64) bool { return math.Abs(a-b) <= tol }

func TestClopperPearson(t *testing.T) {
	tests := []struct {
		name            string
		k, n, low, high float64
	}{
		// With no (only) successes the ends have a closed form: 1 - tail^(1/n).
		{"none of 10", 0, 10, 0, 1 - math.Pow(0.025, 0.1)},
		{"all of 10", 10, 10, math.Pow(0.025, 0.1), 1},
		// 5 of 10: the usual table.
		{"5 of 10", 5, 10, 0.187086, 0.812914},
		{"1 of 20", 1, 20, 0.001265, 0.248733},
		{"nothing known", 0, 0, 0, 1},
		{"n not whole", 0, 12.5, 0, 1 - math.Pow(0.025, 1/12.5)},
	}
	for _, tt := range tests {
		low, high := ClopperPearson(tt.k, tt.n, TwoSided95)
		if !near(low, tt.low, 1e-6) || !near(high, tt.high, 1e-6) {
			t.Errorf("%s: %v..%v, want %v..%v", tt.name, low, high, tt.low, tt.high)
		}
	}
	// All of n, divided by a design effect, is still all of it, however k*eff/n
	// rounds: once it rounded above eff, and the low end was 1.
	for i := range 1000 {
		n := 40.0
		eff := n / (1 + float64(i)/300)
		if low, high := ClopperPearson(n*eff/n, eff, TwoSided95); !near(low, math.Pow(TwoSided95, 1/eff), 1e-9) || high != 1 {
			t.Fatalf("40 of 40 worth %v: %v..%v", eff, low, high)
		}
	}
	// Its definition: at the ends the tails are what was asked.
	for _, c := range [][2]int{{3, 50}, {990, 1000}, {7, 7200}} {
		low, high := ClopperPearson(float64(c[0]), float64(c[1]), TwoSided95)
		if got := sumAtMost(c[0], c[1], high); !near(got, TwoSided95, 1e-9) {
			t.Errorf("%v: P(X <= k) at the high end = %v", c, got)
		}
		if got := 1 - sumAtMost(c[0]-1, c[1], low); !near(got, TwoSided95, 1e-9) {
			t.Errorf("%v: P(X >= k) at the low end = %v", c, got)
		}
	}
}

func TestMoreToSettle(t *testing.T) {
	// All of 200 within the limit against 99 %: 168 more.
	if more, ok := MoreToSettle(200, 200, 200, 0.99, TwoSided95); !ok || more != 168 {
		t.Errorf("%d, %v; want 168", more, ok)
	}
	if more, ok := MoreToSettle(500, 500, 500, 0.99, TwoSided95); !ok || more != 0 {
		t.Errorf("settled: %d, %v; want 0", more, ok)
	}
	if _, ok := MoreToSettle(99, 100, 100, 0.99, TwoSided95); ok {
		t.Error("a share that is the limit never settles")
	}
	if more, ok := MoreToSettle(50, 100, 100, 0.99, TwoSided95); !ok || more != 0 {
		t.Errorf("clearly failed: %d, %v; want 0", more, ok)
	}
	// What is promised is so: with that many, the interval lies to one side.
	more, ok := MoreToSettle(970, 1000, 400, 0.96, TwoSided95)
	n := float64(1000+more) * 0.4
	if low, _ := ClopperPearson(0.97*n, n, TwoSided95); !ok || low < 0.96 || low > 0.9601 {
		t.Errorf("%d more give a low end of %v", more, low)
	}
}

func TestDesignEffect(t *testing.T) {
	// (t/z)^2 of 4 batches, of tables: t(3) = 3.182446, z = 1.959964.
	tz4 := math.Pow(3.182446/1.959964, 2)
	// The 95 % point of chi-square over its degrees: 2.605 for 4 batches, 2.996 for 3.
	tests := []struct {
		name        string
		hits, sizes []int
		want        float64
	}{
		// p = 1/2, n = 400, deviations of 20: V = 4/3*1600/160000, p(1-p)/n = 1/1600; ratio 64/3.
		{"batches differ", []int{70, 30, 70, 30}, []int{100, 100, 100, 100}, 64.0 / 3 * tz4},
		// Deviations of 1: 4/3*4/40/(1/4) = 8/15, which is below 1.
		{"more even than chance", []int{6, 4, 6, 4}, []int{10, 10, 10, 10}, 1},
		// Deviations 3, -3, 0, 0: 4/3*18/40/(1/4) = 2.4, within chance: as it is.
		{"by hand, within chance", []int{8, 2, 5, 5}, []int{10, 10, 10, 10}, 2.4},
		// p = 1/2; deviations 0, 2, -2: 3/2*8/30/(1/4) = 1.6; batches of no size do not count.
		{"empty batches", []int{5, 0, 7, 3, 0}, []int{10, 0, 10, 10, 0}, 1.6},
		// Deviations 20, 20, -20, -20: r = 400/1600 = 1/4, plus (1+3/4)/4 = 11/16; (1+r)/(1-r) = 27/5.
		{"neighbours alike", []int{70, 70, 30, 30}, []int{100, 100, 100, 100}, 64.0 / 3 * 27 / 5 * tz4},
		{"all hits", []int{10, 10}, []int{10, 10}, 1},
		{"one batch", []int{5, 0}, []int{10, 0}, 1},
		{"a single hit", []int{1, 0, 0}, []int{2, 9, 9}, 1},
		{"a single failure", []int{1, 9, 9}, []int{2, 9, 9}, 1},
		{"none", nil, nil, 1},
		{"never above n", []int{9, 0}, []int{9, 9}, 18},
	}
	for _, tt := range tests {
		if got, alike := DesignEffect(tt.hits, tt.sizes); !near(got, tt.want, 1e-4) || alike {
			t.Errorf("%s: %v, %v; want %v", tt.name, got, alike, tt.want)
		}
	}
	ten := []int{100, 100, 100, 100, 100, 100, 100, 100, 100, 100}
	if _, alike := DesignEffect([]int{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}, ten); !alike {
		t.Error("a trend makes neighbours alike")
	}
	if _, alike := DesignEffect([]int{10, 90, 10, 90, 10, 90, 10, 90, 10, 90}, ten); alike {
		t.Error("neighbours that differ are not alike")
	}
}

func TestIndependentBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	effect, serial, correlation, runs := 0.0, 0.0, 0.0, 2000
	for range runs {
		hits, sizes := make([]int, 20), make([]int, 20)
		for j := range hits {
			sizes[j] = 100
			for range 100 {
				if rng.Float64() < 0.1 {
					hits[j]++
				}
			}
		}
		d, alike := DesignEffect(hits, sizes)
		effect += d / float64(runs)
		correlation += serialCorrelation(hits, sizes) / float64(runs)
		if alike {
			serial += 1 / float64(runs)
		}
	}
	if !near(correlation, 0, 0.02) {
		t.Errorf("correlation %v, want 0", correlation)
	}
	// E[max(1, chi2(19)/19)] = 1.13, and a little for the one in twenty that is corrected.
	if effect < 1.1 || effect > 1.25 {
		t.Errorf("effect %v, want a little above 1", effect)
	}
	if serial > 0.01 {
		t.Errorf("called alike %v of the time, want 0.05 * 0.05", serial)
	}
}

func TestBatch(t *testing.T) {
	for _, tt := range []struct {
		at   time.Duration
		want int
	}{{-time.Second, 0}, {0, 0}, {5*time.Second - 1, 0}, {5 * time.Second, 1}, {99 * time.Second, 19}, {100 * time.Second, 19}, {time.Hour, 19}} {
		if got := Batch(tt.at, 100*time.Second, 20); got != tt.want {
			t.Errorf("batch of %v = %d, want %d", tt.at, got, tt.want)
		}
	}
	if got := Batch(5, 0, 20); got != 0 {
		t.Errorf("no span: %d", got)
	}
}
