package arrival

import (
	"math"
	"time"

	"github.com/trueload/trueload/internal/draw"
)

// Curve is a rate over time: pieces in order, each beginning where the one
// before ends.
type Curve []Piece

// Forever is the end of a piece that does not end (146 years).
const Forever = time.Duration(math.MaxInt64 / 2)

// Piece is a stretch of a curve. Its rate is a straight line from From to To
// where Period is 0, and From + Amplitude·sin(2π(t − Start + Lead)/Period) else.
type Piece struct {
	Start, End time.Duration // Start is inside
	From, To   float64       // per second, at least 0
	Amplitude  float64       // at most From
	Period     time.Duration
	Lead       time.Duration // how far into the wave the piece begins
}

// Flat is a constant rate per second.
func Flat(start, end time.Duration, rate float64) Curve {
	return Curve{{Start: start, End: end, From: rate, To: rate}}
}

// Line is a ramp.
func Line(start, end time.Duration, from, to float64) Curve {
	return Curve{{Start: start, End: end, From: from, To: to}}
}

// Sine is mean + amplitude·sin(2π(t − start)/period).
func Sine(start, end time.Duration, mean, amplitude float64, period time.Duration) Curve {
	return Curve{{Start: start, End: end, From: mean, To: mean, Amplitude: amplitude, Period: period}}
}

// Cut returns the part of the curve between start and end. Where the curve
// ends before end, its last rate stays.
func (c Curve) Cut(start, end time.Duration) Curve {
	var out Curve
	for i, p := range c {
		if i == len(c)-1 && p.End < end {
			// A wave goes on; a line stays at what it reached.
			if p.Period > 0 {
				p.End = end
			} else if p.From == p.To {
				p.End = end
			} else {
				out = out.add(p, start, end)
				p = Piece{Start: p.End, End: end, From: p.To, To: p.To}
			}
		}
		out = out.add(p, start, end)
	}
	return out
}

func (c Curve) add(p Piece, start, end time.Duration) Curve {
	q := p
	q.Start, q.End = max(p.Start, start), min(p.End, end)
	if q.Start >= q.End {
		return c
	}
	if p.Period > 0 {
		q.Lead = p.Lead + q.Start - p.Start
	} else {
		q.From, q.To = p.at(q.Start), p.at(q.End)
	}
	return append(c, q)
}

// at is the rate at t, which is inside the piece or its end.
func (p *Piece) at(t time.Duration) float64 {
	if p.Period > 0 {
		sin, _ := draw.Cycle(float64(t-p.Start+p.Lead) / float64(p.Period))
		return p.From + float64(p.Amplitude*sin)
	}
	if p.From == p.To {
		return p.From
	}
	return p.From + float64((p.To-p.From)*(float64(t-p.Start)/float64(p.End-p.Start)))
}

// Expected is the expected number of arrivals on the whole curve.
func (c Curve) Expected() float64 {
	var sum float64
	for i := range c {
		sum += c[i].total()
	}
	return sum
}

// Constant reports whether the rate is the same all along.
func (c Curve) Constant() bool {
	for _, p := range c {
		if p.Period > 0 && p.Amplitude != 0 || p.From != p.To || p.From != c[0].From {
			return false
		}
	}
	return len(c) > 0
}

func seconds(d time.Duration) float64 { return float64(d) / 1e9 }

func (p *Piece) total() float64 { return p.integral(p.End - p.Start) }

// integral is the piece's rate integrated over its first x.
func (p *Piece) integral(x time.Duration) float64 {
	if p.Period > 0 {
		// ∫ A·sin(2π(s+lead)/P) ds = A·P/2π·(cos(2π·lead/P) − cos(2π(x+lead)/P))
		_, before := draw.Cycle(float64(p.Lead) / float64(p.Period))
		_, after := draw.Cycle(float64(p.Lead+x) / float64(p.Period))
		wave := float64(p.Amplitude*seconds(p.Period)) / (2 * math.Pi)
		return float64(p.From*seconds(x)) + float64(wave*(before-after))
	}
	s := seconds(x)
	whole := seconds(p.End - p.Start)
	return float64(p.From*s) + float64((p.To-p.From)*(float64(s*s)/(2*whole)))
}

// inverse returns when the integrated rate reaches target, and false where that
// lies after the piece.
func (p *Piece) inverse(target float64) (time.Duration, bool) {
	length := p.End - p.Start
	target = max(target, 0) // a last bit may be left over from the piece before
	if p.Period > 0 {
		if target >= p.integral(length) {
			return 0, false
		}
		// Bisection on whole nanoseconds.
		lo, hi := time.Duration(0), length
		for lo < hi {
			mid := lo + (hi-lo)/2
			if p.integral(mid) < target {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		return p.Start + lo, lo < length
	}
	var s float64
	if p.From == p.To {
		if p.From <= 0 {
			return 0, false
		}
		s = target / p.From
	} else {
		// target = f·s + c·s²/2, c = (to − f)/length, solved so that nothing
		// cancels: s = 2·target/(f + √(f² + 2c·target)). Right for f = 0 too.
		c := (p.To - p.From) / seconds(length)
		root := float64(p.From*p.From) + float64(2*float64(c*target))
		if root < 0 {
			return 0, false // a falling line has its last arrival behind it
		}
		if target == 0 {
			return p.Start, true
		}
		s = 2 * target / (p.From + math.Sqrt(root))
	}
	ns := math.Floor(float64(s*1e9) + 0.5)
	if ns >= float64(length) {
		return 0, false
	}
	return p.Start + time.Duration(ns), true
}
