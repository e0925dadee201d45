package stats

import "sort"

// Permille is a quantile's level in parts per thousand. Levels are whole
// numbers so that ranks are exact: 0.9*10 is not 9 in every sum of floats.
type Permille int

const (
	P50  Permille = 500
	P90  Permille = 900
	P95  Permille = 950
	P99  Permille = 990
	P999 Permille = 999
)

// Share is the level as a share, 0 to 1.
func (p Permille) Share() float64 { return float64(p) / 1000 }

// Rank is the nearest rank of the level among n values: the ceil(p*n)-th
// smallest, counted from 1, at least 1. It is 0 where n is.
func (p Permille) Rank(n int) int {
	if n <= 0 {
		return 0
	}
	// Quotient and remainder apart, so that no n overflows.
	whole, rest := n/1000, n%1000
	return max(1, whole*int(p)+(rest*int(p)+999)/1000)
}

// Sorted is a sample in ascending order, some of which may be missing in the
// sense that all one knows of them is that they are longer than any value.
type Sorted[T any] struct {
	Values  []T
	Missing int
}

// N is the size of the sample, missing values included.
func (s Sorted[T]) N() int { return len(s.Values) + s.Missing }

// At returns the value of a rank counted from 1, or false where that is a
// missing value or no value at all.
func (s Sorted[T]) At(rank int) (T, bool) {
	if rank < 1 || rank > len(s.Values) {
		var none T
		return none, false
	}
	return s.Values[rank-1], true
}

// Quantile returns the nearest-rank quantile over values and missing ones, or
// false where it falls on a missing one or there are none.
func (s Sorted[T]) Quantile(p Permille) (T, bool) { return s.At(p.Rank(s.N())) }

// TwoSided95 is the probability that each end of a two-sided 95 % interval
// misses.
const TwoSided95 = 0.025

// QuantileRanks returns the ranks, from 1, of the two order statistics between
// which the true quantile lies, each end missing it with probability of at most
// tail. A rank of 0 means that there is no such end.
//
// Of n independent values the number at or below the true quantile is
// Bin(n, p), so
//
//	low  is the largest  l with P(Bin(n,p) <= l-1) <= tail
//	high is the smallest u with P(Bin(n,p) >= u)   <= tail
//
// (David and Nagaraja, Order Statistics, 3rd ed., section 7.1). Values that hang
// together are worth fewer: eff is how many independent ones they are worth,
// each counting eff/n. At eff = n the interval is the usual exact one; a p99
// then has a high end from n = 368.
func QuantileRanks(n int, eff float64, p Permille, tail float64) (low, high int) {
	if n <= 0 || eff <= 0 {
		return 0, 0
	}
	q, w := p.Share(), weight(n, eff)
	// Both probabilities grow (fall) with the rank, so a binary search finds the edge.
	low = sort.Search(n, func(i int) bool { // i = l-1
		return binomialAtMost(float64(i)*w, float64(n)*w, q) > tail
	})
	high = 1 + sort.Search(n, func(i int) bool { // i = u-1
		return binomialAtLeast(float64(i+1)*w, float64(n)*w, q) <= tail
	})
	if high > n {
		high = 0
	}
	return low, high
}

// MoreForHigh returns how many further values like these would give the
// quantile a finite high end: one that is not a missing value. It is 0 where
// there is one now, and false where no number would do since too large a share
// is missing.
func MoreForHigh(n, missing int, eff float64, p Permille, tail float64) (more int, ok bool) {
	if n <= 0 || eff <= 0 {
		return 0, false
	}
	q, w := p.Share(), weight(n, eff)
	here := float64(n-missing) / float64(n)
	if here <= q { // then the quantile itself is missing, however many there are
		return 0, false
	}
	return least(n, func(m int) bool {
		return binomialAtLeast(float64(m)*w*here, float64(m)*w, q) <= tail
	})
}

func weight(n int, eff float64) float64 { return min(1, eff/float64(n)) }

// least returns how much must be added to n until enough holds, given that it
// goes on holding from there; false where a million times n do not suffice.
func least(n int, enough func(int) bool) (int, bool) {
	if enough(n) {
		return 0, true
	}
	low, high := n, 2*n
	for !enough(high) {
		if high/n > 1_000_000 {
			return 0, false
		}
		low, high = high, 2*high
	}
	return low + sort.Search(high-low, func(i int) bool { return enough(low + i) }) - n, true
}
