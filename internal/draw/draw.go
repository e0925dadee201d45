// Package draw makes random numbers that are the same on every machine. A plan
// is built from them, and its hash must not depend on the processor: a fused
// multiply-add or an assembly version of math.Exp changes a last bit, that bit
// changes a nanosecond, and two machines no longer send the same load. So this
// package uses + - * / and square root only, each of which IEEE 754 rounds in
// one way, keeps the compiler from fusing them, and has its own Log and Exp.
//
// Stream makes a generator for one purpose; Exp, Normal, Gamma and the others
// draw from it. It is no home for statistics: it judges no numbers.
package draw

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// Seed derives the seed of one purpose from a run's seed and the purpose's
// name, so that a change to one part of an experiment moves no draw of another.
func Seed(seed uint64, name string) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, seed)
	sum := sha256.Sum256(append(b, name...))
	return binary.LittleEndian.Uint64(sum[:])
}

// Stream returns the generator for a purpose.
func Stream(seed uint64, name string) *rand.Rand {
	return rand.New(rand.NewPCG(Seed(seed, name), Seed(seed, name+"/2")))
}

// Indexed is a generator that can be set to the start of the stream of any
// index, so that the i-th session's draws do not depend on how many the
// sessions before it took. The zero value is not usable; see NewIndexed.
type Indexed struct {
	*rand.Rand
	pcg  *rand.PCG
	seed uint64
}

// NewIndexed returns the family of streams of a purpose, at index 0.
func NewIndexed(seed uint64, name string) *Indexed {
	pcg := rand.NewPCG(0, 0)
	x := &Indexed{Rand: rand.New(pcg), pcg: pcg, seed: Seed(seed, name)}
	x.At(0)
	return x
}

// At goes to the start of stream i and returns its generator, which is valid
// until the next call.
func (x *Indexed) At(i int64) *rand.Rand {
	hi := Mix(x.seed + Mix(uint64(i)))
	x.pcg.Seed(hi, Mix(hi+x.seed))
	return x.Rand
}

// Mix scatters the bits of x: a bijection after which neighbours look unrelated
// (the finalizer of SplitMix64; Steele, Lea and Flood 2014).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Uniform draws from (0, 1), the ends never included.
func Uniform(r *rand.Rand) float64 {
	return float64((float64(r.Uint64()>>12) + 0.5) / (1 << 52))
}

// Exponential draws with mean 1.
func Exponential(r *rand.Rand) float64 { return -Log(Uniform(r)) }

// Normal draws with mean 0 and standard deviation 1, by Marsaglia's polar
// method. It takes a varying number of draws from r.
func Normal(r *rand.Rand) float64 {
	for {
		u := float64(2*Uniform(r)) - 1
		v := float64(2*Uniform(r)) - 1
		s := float64(u*u) + float64(v*v)
		if s < 1 && s > 0 {
			return float64(u * math.Sqrt(-2*Log(s)/s))
		}
	}
}

// Gamma draws with the given shape > 0 and scale 1 (Marsaglia and Tsang 2000;
// below shape 1 by Gamma(k) = Gamma(k+1)·U^(1/k)).
func Gamma(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		g := Gamma(r, shape+1)
		return float64(g * Exp(Log(Uniform(r))/shape))
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := Normal(r)
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = float64(v * v * v)
		// Accept where ln U < x²/2 + d(1 − v + ln v).
		if Log(Uniform(r)) < float64(float64(x*x)/2)+float64(d*(1-v+Log(v))) {
			return float64(d * v)
		}
	}
}

// Geometric draws from 1, 2, 3, ... with the given mean >= 1: how many turns a
// session has when each is followed by another with probability 1 − 1/mean.
func Geometric(r *rand.Rand, mean float64) int {
	if mean <= 1 {
		return 1
	}
	// P(N > n) = q^n, so N = 1 + ⌊ln U / ln q⌋.
	n := Log(Uniform(r)) / Log(1-1/mean)
	return 1 + int(math.Floor(min(n, 1<<30)))
}

// Parts of ln 2: the first holds 33 bits, so that k·ln2Hi is exact.
const (
	ln2Hi = 0x1.62e42feep-01
	ln2Lo = 0x1.a39ef35793c76p-33
)

// Log is the natural logarithm of x > 0, within 2 units of the last place.
// For 0 it is −Inf, below 0 NaN.
//
// With x = 2^k·m, m in [√½, √2), and s = (m−1)/(m+1):
// ln x = k·ln 2 + 2·atanh s = k·ln 2 + 2(s + s³/3 + s⁵/5 + …).
func Log(x float64) float64 {
	switch {
	case x != x || x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	case x > math.MaxFloat64:
		return x
	}
	m, k := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		k--
	}
	f := m - 1
	s := f / (2 + f)
	z := s * s // below 0.0295: eleven terms reach 2^-58
	p := 0.0
	for _, c := range &oddInverses {
		p = float64((p + c) * z)
	}
	// 2·atanh s = 2s + 2s·p, and 2s = f − s·f keeps the bits of f.
	log1 := f - float64(s*(f-float64(2*p)))
	return float64(float64(k)*ln2Hi) + (log1 + float64(float64(k)*ln2Lo))
}

// oddInverses are the factors of the series of 2·atanh, the last term's first.
var oddInverses = [...]float64{
	1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3,
}

// Exp is e^x, within 2 units of the last place.
//
// With k = round(x/ln 2) and r = x − k·ln 2: e^x = 2^k·(1 + r + r²/2! + …).
func Exp(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > 709.7:
		return math.Inf(1)
	case x < -745:
		return 0
	}
	k := math.Floor(float64(x/math.Ln2) + 0.5)
	r := x - float64(k*ln2Hi) - float64(k*ln2Lo)
	p := 1.0 // |r| below 0.35: fourteen terms reach 2^-56
	for n := 15.0; n >= 1; n-- {
		p = 1 + float64(p*r)/n
	}
	return math.Ldexp(p, int(k))
}

// Pow is x^y for x > 0; 0^y is 0.
func Pow(x, y float64) float64 {
	if x == 0 {
		return 0
	}
	return Exp(float64(y * Log(x)))
}

// Cycle returns sin and cos of 2πx: x counts turns, so that whole periods are
// exact however late they come.
func Cycle(x float64) (sin, cos float64) {
	x -= math.Floor(x)
	quarter := math.Floor(float64(4*x) + 0.5)
	a := 2 * math.Pi * (x - float64(quarter/4)) // within ±π/4
	z := a * a
	s, c := 1.0, 1.0
	for n := 17.0; n >= 3; n -= 2 {
		s = 1 - float64(s*z)/(n*(n-1))
	}
	for n := 16.0; n >= 2; n -= 2 {
		c = 1 - float64(c*z)/(n*(n-1))
	}
	s *= a
	switch int(quarter) % 4 {
	case 1:
		return c, -s
	case 2:
		return -s, -c
	case 3:
		return -c, s
	}
	return s, c
}
