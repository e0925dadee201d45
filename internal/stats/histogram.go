package stats

import (
	"iter"
	"math/bits"
)

// subBits is the base-two logarithm of the buckets per power of two. With 64 of
// them a bucket is at most 1/64 of its lower end wide, so that its middle is
// within 1/128 = 0.78 % of every value in it.
const subBits = 6

// Histogram is a log-linear histogram of whole numbers from 0 up. The zero value
// is empty and ready. Values below 128 are kept exactly, larger ones within
// 0.8 %; mean and maximum are exact.
type Histogram struct {
	counts []int64
	n      int64
	sum    [2]uint64 // high and low word: exact, so that the order of adding leaves no trace
	max    int64
}

// Add counts one value; a negative one counts as 0.
func (h *Histogram) Add(v int64) { h.AddN(v, 1) }

// AddN counts a value n times.
func (h *Histogram) AddN(v, n int64) {
	if n <= 0 {
		return
	}
	v = max(v, 0)
	i := bucket(v)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]int64, i+1-len(h.counts))...)
	}
	h.counts[i] += n
	h.n += n
	high, low := bits.Mul64(uint64(v), uint64(n))
	var carry uint64
	h.sum[1], carry = bits.Add64(h.sum[1], low, 0)
	h.sum[0], _ = bits.Add64(h.sum[0], high, carry)
	h.max = max(h.max, v)
}

// N is how many values were added.
func (h *Histogram) N() int64 { return h.n }

// Max is the largest value; 0 where there is none.
func (h *Histogram) Max() int64 { return h.max }

// Mean returns the mean, or false where there is no value.
func (h *Histogram) Mean() (float64, bool) {
	if h.n == 0 {
		return 0, false
	}
	return (float64(h.sum[0])*(1<<64) + float64(h.sum[1])) / float64(h.n), true
}

// Quantile returns the middle of the bucket that holds the nearest rank (never
// more than Max), or false where there is no value.
func (h *Histogram) Quantile(p Permille) (int64, bool) {
	if h.n == 0 {
		return 0, false
	}
	rank, seen := int64(p.Rank(int(h.n))), int64(0)
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			low, high := bounds(i)
			return min(h.max, low+(high-1-low)/2), true
		}
	}
	return h.max, true
}

// Buckets yields the buckets that are not empty, ascending: low is inside, high
// outside.
func (h *Histogram) Buckets() iter.Seq[Bucket] {
	return func(yield func(Bucket) bool) {
		for i, c := range h.counts {
			if c == 0 {
				continue
			}
			low, high := bounds(i)
			if !yield(Bucket{low, high, c}) {
				return
			}
		}
	}
}

// Bucket is one bucket of a Histogram: Count values in [Low, High).
type Bucket struct{ Low, High, Count int64 }

// bucket numbers the buckets without a gap: the first 2^subBits values have one
// each, then each power of two has 2^subBits.
func bucket(v int64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(uint64(v)) - 1 - subBits
	return shift<<subBits + int(v>>shift)
}

// bounds is the inverse of bucket. The last bucket's end does not fit and is
// cut to the largest number there is.
func bounds(i int) (low, high int64) {
	if i < 2<<subBits {
		return int64(i), int64(i) + 1
	}
	shift := i>>subBits - 1
	low = int64(i-shift<<subBits) << shift
	if high = low + 1<<shift; high < low {
		high = 1<<63 - 1
	}
	return low, high
}
