// Package stats is maths on numbers: quantiles and their intervals, shares and
// theirs, what correlation costs a sample, distances and a histogram that adds.
// Most people need Sorted, which gives nearest-rank quantiles of values some of
// which may be missing, and ClopperPearson, the exact interval of a share.
//
// It knows nothing of requests or tokens, and it decides nothing: an interval
// goes out, what it means is for the caller to say.
package stats

import (
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Mean is the arithmetic mean; NaN for no values.
func Mean(x []float64) float64 { return stat.Mean(x, nil) }

// CV is the coefficient of variation: population standard deviation over mean.
// NaN for no values or a mean of 0.
func CV(x []float64) float64 {
	mean, std := stat.PopMeanStdDev(x, nil)
	if mean == 0 {
		return math.NaN()
	}
	return std / mean
}

// Pearson is the linear correlation of pairs, -1 to 1. NaN where either side
// does not vary. The slices must be of one length.
func Pearson(x, y []float64) float64 { return stat.Correlation(x, y, nil) }

// Spearman is Pearson's correlation of the ranks, ties at the middle of theirs.
func Spearman(x, y []float64) float64 { return Pearson(MidRanks(x), MidRanks(y)) }

// MidRanks gives each value its rank from 1, equal values the mean of the ranks
// they share.
func MidRanks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case x[a] < x[b]:
			return -1
		case x[a] > x[b]:
			return 1
		}
		return 0
	})
	ranks := make([]float64, len(x))
	for i := 0; i < len(order); {
		j := i + 1
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = float64(i+1+j) / 2 // ranks i+1 .. j
		}
		i = j
	}
	return ranks
}

// BinCounts counts the times that fall into consecutive bins of one width from
// start on. Only whole bins before end count; the last partial one is dropped.
func BinCounts(times []time.Duration, start, end, width time.Duration) []int64 {
	if width <= 0 || end-start < width {
		return nil
	}
	counts := make([]int64, (end-start)/width)
	for _, t := range times {
		if t < start {
			continue
		}
		if i := (t - start) / width; int64(i) < int64(len(counts)) {
			counts[i]++
		}
	}
	return counts
}

// Dispersion is the index of dispersion of counts: population variance over
// mean. 1 for a Poisson process, 0 for a constant rate; NaN for fewer than two
// bins or nothing in them.
func Dispersion(counts []int64) float64 {
	if len(counts) < 2 {
		return math.NaN()
	}
	x := make([]float64, len(counts))
	for i, c := range counts {
		x[i] = float64(c)
	}
	mean, variance := stat.PopMeanVariance(x, nil)
	if mean == 0 {
		return math.NaN()
	}
	return variance / mean
}

// KS is the Kolmogorov-Smirnov distance between a sample and a distribution:
// the largest difference of their distribution functions, 0 to 1. The values
// must be ascending. NaN for no values.
func KS(sorted []float64, cdf func(float64) float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	n, d := float64(len(sorted)), 0.0
	for i, v := range sorted {
		f := cdf(v)
		// The empirical function steps from i/n to (i+1)/n at v.
		d = max(d, f-float64(i)/n, float64(i+1)/n-f)
	}
	return d
}

// KS2 is the same distance between two samples, both ascending. NaN where
// either is empty.
func KS2(x, y []float64) float64 {
	if len(x) == 0 || len(y) == 0 {
		return math.NaN()
	}
	return stat.KolmogorovSmirnov(x, nil, y, nil)
}
