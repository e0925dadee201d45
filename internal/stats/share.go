package stats

import (
	"time"

	"gonum.org/v1/gonum/mathext"
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

// DesignEffect is by how much the variance of a share is larger than it would
// be, were the trials independent: hits[j] of sizes[j] were successes in batch j.
//
//	p  = sum(hits) / n,  n = sum(sizes),  B batches that are not empty
//	V  = B/(B-1) * sum((hits[j] - p*sizes[j])^2) / n^2     (ratio estimator, Cochran, Sampling Techniques, 3rd ed., 6.4)
//	D  = V / (p(1-p)/n)
//
// It is at least 1, for a batch that says trials are better than independent
// says so by luck, and at most n, when all of them are worth one. It is 1 where
// batches tell nothing: with one batch, or fewer than two successes or failures,
// since one alone cannot come in company.
func DesignEffect(hits, sizes []int) float64 {
	var n, k, batches float64
	for j, size := range sizes {
		if size > 0 {
			n, k, batches = n+float64(size), k+float64(hits[j]), batches+1
		}
	}
	if batches < 2 || k < 2 || n-k < 2 {
		return 1
	}
	p, squares := k/n, 0.0
	for j, size := range sizes {
		d := float64(hits[j]) - p*float64(size)
		squares += d * d
	}
	return min(n, max(1, batches/(batches-1)*squares/n/(p*(1-p))))
}
