package synth

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"github.com/trueload/trueload/internal/draw"
)

// Choice draws an index in proportion to weights.
type Choice struct {
	upto []uint64 // cumulated shares in units of 2⁻⁴⁸, the last one 2⁴⁸
}

const choiceUnit = 1 << 48

// NewChoice makes a choice. Weights are at least 0, one above; they need not
// sum to anything: 0.7, 0.2, 0.1 and 7, 2, 1 draw the same.
func NewChoice(weights []float64) (*Choice, error) {
	var total float64
	for i, w := range weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return nil, fmt.Errorf("weight %d is %g: it must be a number of 0 or more", i+1, w)
		}
		total += w
	}
	if total <= 0 || math.IsInf(total, 0) {
		return nil, errors.New("the weights sum to nothing: one must be above 0")
	}
	c := &Choice{upto: make([]uint64, len(weights))}
	var sum float64
	last := 0
	for i, w := range weights {
		sum += w
		// Rounded to 2⁻³², so that the last bits of the weights do not tell.
		c.upto[i] = uint64(math.Floor(float64(sum/total*(1<<32))+0.5)) << 16
		if w > 0 {
			last = i
		}
	}
	for i := last; i < len(weights); i++ {
		c.upto[i] = choiceUnit
	}
	return c, nil
}

// Zipf is the choice among n in which the k-th, counted from 1, has the weight
// 1/k^s; s = 0 makes all alike.
func Zipf(n int, s float64) (*Choice, error) {
	w := make([]float64, n)
	for k := range w {
		w[k] = draw.Exp(-float64(s * draw.Log(float64(k+1))))
	}
	return NewChoice(w)
}

// Draw returns an index.
func (c *Choice) Draw(r *rand.Rand) int {
	u := r.Uint64() >> 16
	return sort.Search(len(c.upto), func(i int) bool { return c.upto[i] > u })
}

// Share is the probability of index i.
func (c *Choice) Share(i int) float64 {
	before := uint64(0)
	if i > 0 {
		before = c.upto[i-1]
	}
	return float64(c.upto[i]-before) / choiceUnit
}
