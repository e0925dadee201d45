package stats

import (
	"math"
	"time"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat/distuv"
)

// binomialAtMost is P(X <= k), X ~ Bin(n, p), through the incomplete beta
// function, which also takes an n and k that are not whole:
//
//	P(X <= k) = I_{1-p}(n-k, k+1)
//
// (NIST Handbook of Mathematical Functions, 8.17.5).
func binomialAtMost(k, n, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n:
		return 1
	}
	return mathext.RegIncBeta(n-k, k+1, 1-p)
}

// binomialAtLeast is P(X >= k) = I_p(k, n-k+1).
func binomialAtLeast(k, n, p float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n:
		return 0
	}
	return mathext.RegIncBeta(k, n-k+1, p)
}

// ClopperPearson returns the exact interval of a share of which k of n were
// seen, each end missing the true share with probability of at most tail
// (Clopper and Pearson, Biometrika 26, 1934):
//
//	low  solves P(X >= k) = tail;  0 where k = 0
//	high solves P(X <= k) = tail;  1 where k = n
//
// n and k need not be whole: divide both by the design effect where the n hang
// together. n <= 0 gives 0 and 1: nothing is known.
func ClopperPearson(k, n, tail float64) (low, high float64) {
	low, high = 0, 1
	if n <= 0 {
		return low, high
	}
	k = min(k, n) // n of n, each divided, may round to a little more
	if k > 0 {
		low = invert(func(p float64) bool { return binomialAtLeast(k, n, p) <= tail })
	}
	if k < n {
		high = invert(func(p float64) bool { return binomialAtMost(k, n, p) > tail })
	}
	return low, high
}

// invert returns the edge in (0, 1) up to which holds holds. Bisection on the
// distribution function itself is exact to the last bit that matters, which an
// inverse by series is not for shares near 0 and 1.
func invert(holds func(float64) bool) float64 {
	low, high := 0.0, 1.0
	for range 60 {
		mid := low + (high-low)/2
		if holds(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low + (high-low)/2
}

// MoreToSettle returns how many further trials, with the same share of
// successes, would put the whole interval of the share on one side of limit.
// It is 0 where it is settled, and false where no number would do (the share is
// the limit).
func MoreToSettle(k, n int, eff, limit, tail float64) (more int, ok bool) {
	if n <= 0 || eff <= 0 {
		return 0, false
	}
	w, share := weight(n, eff), float64(k)/float64(n)
	if share == limit {
		return 0, false
	}
	return least(n, func(m int) bool {
		size := float64(m) * w
		// By duality these are "low >= limit" and "high < limit", without the inversion.
		if share > limit {
			return binomialAtLeast(size*share, size, limit) <= tail
		}
		return binomialAtMost(size*share, size, limit) <= tail
	})
}

// Batch returns which of n equal batches of a span a moment falls into, from 0.
// Moments outside go to the nearest.
func Batch(at, span time.Duration, n int) int {
	if span <= 0 || at <= 0 {
		return 0
	}
	if at >= span {
		return n - 1
	}
	// In floats: at*n may not fit, and a nanosecond at an edge does not matter.
	return min(n-1, int(float64(at)/float64(span)*float64(n)))
}

// DesignEffect is by how much more the trials of a share vary together than
// independent ones would, and so by how much to divide n and k: hits[j] of
// sizes[j] were successes in batch j, in the order of time.
//
//	p = sum(hits) / n,  n = sum(sizes),  d[j] = hits[j] - p*sizes[j],  B batches that are not empty
//	V = B/(B-1) * sum(d[j]^2) / n^2            ratio estimator (Cochran, Sampling Techniques, 3rd ed., 6.4)
//	D = V / (p(1-p)/n)
//
// The effect is at least 1, for batches that say trials are better than
// independent say so by luck, and at most n, when all trials are worth one. It is
// 1 where batches tell nothing: with one batch, or fewer than two successes or
// failures, since one alone cannot come in company.
//
// Independent trials give (B-1)D the chi-square distribution of B-1 degrees. A D
// beyond its 95 % point is no chance, and V is then an estimate that has to carry
// the interval; it is corrected for what neighbouring batches still share, when
// they are short beside the memory of what is sampled, and for resting on B
// batches (Korn and Graubard, Survey Methodology 24, 1998):
//
//	D * (1+r)/(1-r) * (t(B-1)/z)^2             r as of serialCorrelation, where above 0
//
// alike is set where, besides, r itself is beyond chance at 5 %: the batches are
// too short to be independent, and the effect is still too small.
func DesignEffect(hits, sizes []int) (effect float64, alike bool) {
	d, p, n := residuals(hits, sizes)
	if k := p * n; len(d) < 2 || k < 1.5 || n-k < 1.5 { // whole numbers but for rounding
		return 1, false
	}
	squares := 0.0
	for _, x := range d {
		squares += x * x
	}
	batches := float64(len(d))
	effect = batches / (batches - 1) * squares / n / (p * (1 - p))
	if effect*(batches-1) > (distuv.ChiSquared{K: batches - 1}).Quantile(0.95) {
		t := distuv.StudentsT{Sigma: 1, Nu: batches - 1}.Quantile(1 - TwoSided95)
		z := distuv.UnitNormal.Quantile(1 - TwoSided95)
		r := serialCorrelation(hits, sizes)
		effect *= (1 + max(r, 0)) / (1 - max(r, 0)) * t * t / (z * z)
		// Of B independent batches r is about normal with variance 1/B, and mean 0
		// once its bias is out (Bartlett, Journal of the Royal Statistical Society
		// Supplement 8, 1946). Fewer than ten cannot show it.
		alike = batches >= 10 && r > distuv.UnitNormal.Quantile(0.95)/math.Sqrt(batches)*(1+3/batches)
	}
	return min(n, max(1, effect)), alike
}

// residuals are the successes of each batch that is not empty beyond its share.
func residuals(hits, sizes []int) (d []float64, p, n float64) {
	k := 0.0
	for j, size := range sizes {
		n, k = n+float64(size), k+float64(hits[j])
	}
	if n == 0 {
		return nil, 0, 0
	}
	p = k / n
	for j, size := range sizes {
		if size > 0 {
			d = append(d, float64(hits[j])-p*float64(size))
		}
	}
	return d, p, n
}

// serialCorrelation is the correlation of a batch's share with that of the next,
// -1 to 0.9, its bias of (1+3r)/B taken out (Kendall,
// Biometrika 41, 1954). Batches that are independent have 0 on average;
// 0 where batches tell nothing.
func serialCorrelation(hits, sizes []int) float64 {
	d, _, _ := residuals(hits, sizes)
	squares, products := 0.0, 0.0
	for j, x := range d {
		squares += x * x
		if j > 0 {
			products += x * d[j-1]
		}
	}
	if squares == 0 {
		return 0
	}
	r := products / squares
	return max(-1, min(0.9, r+(1+3*r)/float64(len(d))))
}
