package stats

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// slowMovements is against how many other slow movements of a series its trend
// is held. Fewer are slower, and so nearer to what the trend itself would be by
// chance in a series with a long memory; each one less costs a degree of
// freedom.
const slowMovements = 6

// LeastTrend is the shortest series that Trend judges, and the fewest blocks of Growth.
const LeastTrend = 10

// flat bounds every t at 1,000, where there is no variation to hold a difference against.
const flat = 1e-6

// Trend tells whether a series of equally spaced values rises or falls through
// its length beyond chance. It works on ranks, so one wild value has no more
// weight than any other, and +Inf (a median that did not come back) is just the
// largest. With r the ranks (of equal values the mean of theirs), and P[k] the
// polynomials of degree k that are orthonormal over 1..n (Fisher, Philosophical
// Transactions B 213, 1925):
//
//	c[k] = sum over i of r[i] P[k](i)
//	t    = c[1] / sqrt((c[2]^2 + ... + c[q+1]^2) / q),  q = 6
//
// c[1] alone is Spearman's rank correlation with time. Values that are independent
// give t about Student's distribution with q degrees of freedom. Correlated ones
// move slowly by themselves, and it is with those movements that the trend is
// compared, not with the noise from one value to the next: the idea of tests whose
// error comes from the few lowest frequencies (Lazarus, Lewis, Stock and Watson,
// Journal of Business & Economic Statistics 36, 2018).
//
// t is positive where the series rises; p is two-sided. A series of equal values
// has t 0 and p 1. ok is false for fewer than LeastTrend values and where one is NaN.
func Trend(x []float64) (t, p float64, ok bool) {
	if len(x) < LeastTrend || slices.ContainsFunc(x, math.IsNaN) {
		return 0, 0, false
	}
	c := polynomials(midranks(x), slowMovements+1)
	slow := 0.0
	for _, v := range c[2:] {
		slow += v * v
	}
	switch slow /= slowMovements; {
	case math.Abs(c[1]) < 1e-9:
		return 0, 1, true
	case slow < flat*c[1]*c[1]:
		slow = flat * c[1] * c[1] // nothing but trend
	}
	t = c[1] / math.Sqrt(slow)
	return t, 2 * distuv.StudentsT{Sigma: 1, Nu: slowMovements}.Survival(math.Abs(t)), true
}

// midranks are the places of the values in order, from 1; equal ones share the
// mean of theirs.
func midranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(x[a], x[b]) })
	r := make([]float64, len(x))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for _, at := range order[i:j] {
			r[at] = float64(i+1+j) / 2
		}
		i = j
	}
	return r
}

// polynomials returns the coefficients of x on the orthonormal polynomials of
// degree 0 to degree over equally spaced points (Gram-Schmidt, each vector
// orthogonalised twice, which keeps it exact to rounding).
func polynomials(x []float64, degree int) []float64 {
	n := len(x)
	basis := make([][]float64, 0, degree+1)
	c := make([]float64, degree+1)
	for k := range degree + 1 {
		v := make([]float64, n)
		for i := range v {
			at := 2*(float64(i)+0.5)/float64(n) - 1
			v[i] = math.Pow(at, float64(k))
		}
		for range 2 {
			for _, b := range basis {
				d := dot(v, b)
				for i := range v {
					v[i] -= d * b[i]
				}
			}
		}
		norm := math.Sqrt(dot(v, v))
		for i := range v {
			v[i] /= norm
		}
		basis = append(basis, v)
		c[k] = dot(x, v)
	}
	return c
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// Growth tells whether a level rises without end: level[0] to level[B] are its
// values at the edges of B blocks of equal length, d[j] = level[j] - level[j-1].
//
//	t = mean(d) / (sd(d) / sqrt(B)),  B-1 degrees of freedom, one-sided
//
// A queue past what its servers can do is a random walk with a drift, whose steps
// are nearly independent however correlated its levels are, and whose drift is
// told best by its two ends; this is Student's test of it. A queue below that
// comes back to where it was: its steps undo each other, mean(d) is nearly 0
// and the test is far more careful than its level says, and the more so the
// longer the series. The worst case is a queue exactly at its limit.
//
// A start from empty is no growth: it is a few steps upwards at the beginning. What
// grows without end grows at the end as well, so the last half is tested too, at a
// level four times as high (10 % and 40 %: it has half the evidence), and p is the
// larger of p(whole) and p(last half)/4. A start that fills most of the series
// still passes for growth.
//
// ok is false for fewer than LeastTrend blocks and where a level is not finite.
func Growth(level []float64) (t, p float64, ok bool) {
	blocks := len(level) - 1
	if blocks < LeastTrend {
		return 0, 0, false
	}
	for _, v := range level {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, 0, false
		}
	}
	t, p = drift(level)
	_, later := drift(level[blocks/2:])
	return t, max(p, later/lastHalf), true
}

// lastHalf is by how much the level for the last half is wider.
const lastHalf = 4

// drift is Student's test of the steps between successive levels.
func drift(level []float64) (t, p float64) {
	n := float64(len(level) - 1)
	mean := (level[len(level)-1] - level[0]) / n
	squares := 0.0
	for j := 1; j < len(level); j++ {
		e := level[j] - level[j-1] - mean
		squares += e * e
	}
	if math.Abs(mean) < 1e-12 {
		return 0, 0.5
	}
	t = mean / math.Sqrt(max(squares/(n-1), n*flat*mean*mean)/n)
	return t, distuv.StudentsT{Sigma: 1, Nu: n - 1}.Survival(t)
}

// Transient returns how many of the first values belong to the start-up of a
// series, by MSER-5 (White, Simulation 69, 1997; White, Cobb and Spratt, Winter
// Simulation Conference 2000): of the means z of five values each, leave out the
// first d that make the standard error of what is left smallest,
//
//	d = argmin over d of  1/(m-d)^2 * sum over i > d of (z[i] - mean(z[d+1:]))^2
//
// ok is false where that is more than half of the series, which then has no
// steady part to be found (its authors' rule), and for fewer than ten means.
func Transient(x []float64) (cut int, ok bool) {
	m := len(x) / 5
	if m < 10 {
		return 0, false
	}
	z := make([]float64, m)
	for i := range z {
		for _, v := range x[5*i : 5*i+5] {
			z[i] += v / 5
		}
	}
	// From the end on, by Welford's update; the last five are never alone, for
	// few values may be equal by chance.
	best, at := math.Inf(1), 0
	mean, squares, n := 0.0, 0.0, 0.0
	for d := m - 1; d >= 0; d-- {
		n++
		delta := z[d] - mean
		mean += delta / n
		squares += delta * (z[d] - mean)
		if v := squares / (n * n); n >= 5 && v <= best {
			best, at = v, d
		}
	}
	return 5 * at, 2*at <= m
}

// Below is the chance that the mean of the first values of a series lies as far
// below the following stretches of the same length as it does, were it one of them:
// with m and s the mean and the deviation of those k stretches (a prediction
// interval; the remainder at the start of rest is left out),
//
//	t = (mean(first) - m) / (s sqrt(1 + 1/k)),  k-1 degrees of freedom, one-sided
//
// MSER-5 takes the best cut, and by chance there is a best one in any series: before
// or after a burst, say. This tells whether it cut a start from too little. It is
// 1 where rest holds fewer than three stretches.
func Below(first, rest []float64) float64 {
	n := len(first)
	if n == 0 || len(rest)/n < 3 {
		return 1
	}
	var means []float64
	for at := len(rest) % n; at < len(rest); at += n {
		means = append(means, stat.Mean(rest[at:at+n], nil))
	}
	k := float64(len(means))
	m, sd := stat.MeanStdDev(means, nil)
	off := m - stat.Mean(first, nil)
	if off < 1e-12 {
		return 1
	}
	t := off / max(sd*math.Sqrt(1+1/k), 1e-3*off)
	return distuv.StudentsT{Sigma: 1, Nu: k - 1}.Survival(t)
}
