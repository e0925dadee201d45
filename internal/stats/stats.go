// Package stats is maths on numbers: quantiles and their intervals, shares and
// theirs, what correlation costs a sample, whether a series is at rest, and a histogram.
// Most people need Sorted, which gives nearest-rank quantiles of values some of
// which may be missing, and ClopperPearson, the exact interval of a share.
//
// It knows nothing of requests or tokens, and it decides nothing: an interval
// goes out, what it means is for the caller to say.
package stats

import (
	"math"
	"time"

	"gonum.org/v1/gonum/stat"
)

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
