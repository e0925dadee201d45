// Package unit parses and prints the quantities of a load test: rates (12/s),
// durations (350ms), counts of tokens (480k) and shares (99%). ParseRate,
// ParseDuration, ParseCount and ParseShare read what users write; Duration,
// Number and Percent print what users read, to three significant digits.
//
// A quantity without its unit is an error wherever two units are plausible: a
// duration of 5, a share of 99. It holds no quantities of its own accord and
// does no arithmetic on them.
package unit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of events per second. It is written and read as "12/s".
type Rate float64

// String writes the rate per second with as many digits as reading it back
// exactly takes.
func (r Rate) String() string { return strconv.FormatFloat(float64(r), 'f', -1, 64) + "/s" }

// MarshalText writes the same as String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what ParseRate does.
func (r *Rate) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRate(string(b))
	return err
}

// Share is a part of a whole, from 0 to 1.
type Share float64

// perSecond holds how many seconds each unit of a rate lasts.
var perSecond = map[string]float64{"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}

// ParseRate reads a rate of zero or more: 12/s, 90/min, 3/h.
func ParseRate(s string) (Rate, error) {
	num, per, ok := strings.Cut(strings.TrimSpace(s), "/")
	num, per = strings.TrimSpace(num), strings.TrimSpace(per)
	v, err := number(num)
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate: write 12/s, 90/min or 3/h", s)
	}
	if !ok {
		return 0, fmt.Errorf("rate %q has no unit: write %s/s, %s/min or %s/h", s, num, num, num)
	}
	secs, ok := perSecond[per]
	if !ok {
		return 0, fmt.Errorf("unknown unit %q in rate %q: use /s, /min or /h", "/"+per, s)
	}
	if v < 0 {
		return 0, fmt.Errorf("rate %q is negative", s)
	}
	return Rate(v / secs), nil
}

// ParseDuration reads a duration of zero or more in the units of
// time.ParseDuration: 350ms, 2m, 1h30m. A bare number is refused, but for 0.
func ParseDuration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	d, err := time.ParseDuration(s)
	if err != nil {
		if _, bad := number(s); bad == nil {
			return 0, fmt.Errorf("duration %q has no unit: write %sms, %ss or %sm", s, s, s, s)
		}
		return 0, fmt.Errorf("%q is not a duration: write 350ms, 2m or 1h30m", s)
	}
	if d < 0 {
		return 0, fmt.Errorf("duration %q is negative", s)
	}
	return d, nil
}

// ParseCount reads a whole number of zero or more, with k for a thousand, M for
// a million and G for a thousand million: 4096, 480k, 1.5M.
func ParseCount(s string) (int, error) {
	t := strings.TrimSpace(s)
	digits, scale := t, 1.0
	if n := len(t); n > 0 {
		switch t[n-1] {
		case 'k', 'K':
			digits, scale = t[:n-1], 1e3
		case 'M':
			digits, scale = t[:n-1], 1e6
		case 'G':
			digits, scale = t[:n-1], 1e9
		}
	}
	v, err := number(digits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a count: write 4096, 480k or 50M", s)
	}
	// 1.1k is 1100.0000000000002 in binary; what is meant is the nearest whole.
	w := math.Round(v * scale)
	switch {
	case v < 0:
		return 0, fmt.Errorf("count %q is negative", s)
	case math.Abs(w-v*scale) > 1e-9*max(1, w):
		return 0, fmt.Errorf("count %q is not a whole number", s)
	case w > 1<<53:
		return 0, fmt.Errorf("count %q is too large", s)
	}
	return int(w), nil
}

// ParseShare reads a share of a whole, from 0 to 1: 0.99, or 99%. A bare number
// above 1 is refused, because nobody knows whether it meant percent.
func ParseShare(s string) (Share, error) {
	t := strings.TrimSpace(s)
	digits, percent := strings.CutSuffix(t, "%")
	digits = strings.TrimSpace(digits)
	if percent && !strings.ContainsAny(digits, "eE") {
		digits += "e-2" // 99.9/100 in binary is not 0.999
	}
	v, err := number(digits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a share: write 99%% or 0.99", s)
	}
	if percent && !strings.HasSuffix(digits, "e-2") {
		v /= 100
	} else if !percent && v > 1 && v <= 100 {
		return 0, fmt.Errorf("share %s is above 1: write %s%% if percent is meant", t, t)
	}
	if v < 0 || v > 1 {
		return 0, fmt.Errorf("share %q lies outside 0%% to 100%%", s)
	}
	return Share(v), nil
}

// number reads a plain decimal number. It refuses what strconv also takes:
// infinities, NaN, hexadecimal and digits parted by underscores.
func number(s string) (float64, error) {
	if s == "" || strings.Trim(s, "0123456789.+-eE") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(s, 64)
}

// Duration prints d to three significant digits: 350 µs, 1.23 s, 2m30s. From
// two minutes on it prints whole seconds.
func Duration(d time.Duration) string {
	a := d.Abs()
	switch {
	case a < time.Microsecond:
		return fmt.Sprintf("%d ns", d)
	case a < time.Millisecond && rounds(float64(a)/1e3):
		return three(float64(d)/1e3) + " µs"
	case a < time.Second && rounds(float64(a)/1e6):
		return three(float64(d)/1e6) + " ms"
	case a < 2*time.Minute:
		return three(d.Seconds()) + " s"
	}
	s := d.Round(time.Second).String() // 1h30m0s
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// rounds tells whether x stays below 1000 at three significant digits.
func rounds(x float64) bool { return x < 999.5 }

// Number prints x to three significant digits with k, M, G or T: 4.2k, 1.5M.
func Number(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Sprint(x)
	}
	for _, s := range []string{"", "k", "M", "G"} {
		if rounds(math.Abs(x)) {
			return three(x) + s
		}
		x /= 1e3
	}
	return three(x) + "T"
}

// PerSecond prints a rate of things: 4.2k tok/s, 12 req/s.
func PerSecond(x float64, thing string) string { return Number(x) + " " + thing + "/s" }

// Percent prints a share of 0 to 1 as percent: 99.5 %. A share short of 1
// never prints as 100 %, nor one above 0 as 0 %.
func Percent(x float64) string {
	if math.IsNaN(x) {
		return "NaN"
	}
	p := x * 100
	for digits := 3; digits < 7; digits++ {
		s := strconv.FormatFloat(p, 'g', digits, 64)
		if v, _ := strconv.ParseFloat(s, 64); v < 100 || x >= 1 {
			return plain(s) + " %"
		}
	}
	return "< 100 %"
}

// three prints x to three significant digits, without an exponent and without
// zeros that say nothing.
func three(x float64) string { return plain(strconv.FormatFloat(x, 'g', 3, 64)) }

// plain turns a number with an exponent into one without.
func plain(s string) string {
	return strconv.FormatFloat(parse(s), 'f', -1, 64)
}

func parse(s string) float64 { v, _ := strconv.ParseFloat(s, 64); return v }
