package synth

import "math/rand/v2"

// Pair is the input and output length of one request.
type Pair struct{ Input, Output int }

// Pairs are rows of a trace to draw from. Whole rows are drawn, so that input
// and output stay as correlated as they were (a copula or two separate draws
// would lose some or all of it).
type Pairs []Pair

// Draw returns one of the pairs, each as likely as the others.
func (p Pairs) Draw(r *rand.Rand) Pair { return p[r.IntN(len(p))] }
