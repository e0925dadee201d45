package trace

import (
	"errors"
	"strconv"
	"time"
)

// A trace of a week has tens of millions of dates, and time.Parse takes most of
// the time of reading them; so both readers of times here work on the bytes.
// Tests hold parseDate to time.Parse.

var (
	errDate   = errors.New("not a date and time such as 2024-05-12 00:00:00.001163+00:00")
	errNumber = errors.New("not a number")
	errRange  = errors.New("out of range")
)

// digits reads n decimal digits at b[i:].
func digits(b []byte, i, n int) (int, bool) {
	if i+n > len(b) {
		return 0, false
	}
	v := 0
	for _, c := range b[i : i+n] {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + int(c-'0')
	}
	return v, true
}

// parseDate reads `2023-11-16 18:17:03.9799600`, `2024-05-12 00:00:00+00:00`
// and `2024-10-15T12:00:00.269Z` and returns nanoseconds since 1970 in UTC; a
// date without a zone is taken as UTC. Digits beyond the ninth are cut.
func parseDate(b []byte) (int64, error) {
	if len(b) < 19 || b[4] != '-' || b[7] != '-' || (b[10] != ' ' && b[10] != 'T' && b[10] != 't') || b[13] != ':' || b[16] != ':' {
		return 0, errDate
	}
	y, ok1 := digits(b, 0, 4)
	mo, ok2 := digits(b, 5, 2)
	d, ok3 := digits(b, 8, 2)
	h, ok4 := digits(b, 11, 2)
	mi, ok5 := digits(b, 14, 2)
	s, ok6 := digits(b, 17, 2)
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6) {
		return 0, errDate
	}
	// Between these years the difference of any two dates fits 64 bits.
	if y < 1970 || y > 2261 || mo < 1 || mo > 12 || d < 1 || d > daysIn(y, mo) || h > 23 || mi > 59 || s > 59 {
		return 0, errDate
	}
	i := 19
	var frac int64
	if i < len(b) && (b[i] == '.' || b[i] == ',') {
		i++
		n := 0
		for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
			if n < 9 {
				frac = frac*10 + int64(b[i]-'0')
				n++
			}
		}
		if n == 0 {
			return 0, errDate
		}
		for ; n < 9; n++ {
			frac *= 10
		}
	}
	zone := 0 // seconds east of Greenwich
	switch rest := b[i:]; {
	case len(rest) == 0:
	case len(rest) == 1 && (rest[0] == 'Z' || rest[0] == 'z'):
	case rest[0] == '+' || rest[0] == '-':
		zh, ok := digits(rest, 1, 2)
		var zm int
		ok2 := false
		switch {
		case len(rest) == 6 && rest[3] == ':':
			zm, ok2 = digits(rest, 4, 2)
		case len(rest) == 5:
			zm, ok2 = digits(rest, 3, 2)
		case len(rest) == 3:
			ok2 = true
		}
		if !ok || !ok2 || zh > 23 || zm > 59 {
			return 0, errDate
		}
		zone = zh*3600 + zm*60
		if rest[0] == '-' {
			zone = -zone
		}
	default:
		return 0, errDate
	}
	sec := daysSince1970(y, mo, d)*86400 + int64(h*3600+mi*60+s-zone)
	return sec*int64(time.Second) + frac, nil
}

func daysIn(y, m int) int {
	switch m {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if y%4 == 0 && (y%100 != 0 || y%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysSince1970 counts days of the Gregorian calendar. The year is taken to
// begin in March, so that the leap day is its last one: then month m (0 for
// March) begins on day (153m + 2)/5, and 1970-01-01 is day 719468 after
// 0000-03-01.
func daysSince1970(y, m, d int) int64 {
	if m <= 2 {
		y--
		m += 12
	}
	return int64(365*y + y/4 - y/100 + y/400 + (153*(m-3)+2)/5 + d - 1 - 719468)
}

// mostOffset is the largest offset that is read, 73 years: the difference of any
// two fits 64 bits.
const mostOffset = 1 << 61

// parseDecimal reads a decimal number of units of 10^scale ns exactly, as whole
// nanoseconds; digits below one are cut. "19440110.0" with scale 9 is
// 19440110 s.
func parseDecimal(b []byte, scale int) (int64, error) {
	const limit = mostOffset
	s := b
	neg := false
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		neg = s[0] == '-'
		s = s[1:]
	}
	var v int64
	seen, point := false, -1 // point: fraction digits read so far
	for i, c := range s {
		switch {
		case c >= '0' && c <= '9':
			seen = true
			if point >= 0 {
				if point == scale {
					continue // below a nanosecond
				}
				point++
			}
			if v > limit/10 {
				return 0, errRange
			}
			v = v*10 + int64(c-'0')
		case c == '.' && point < 0:
			point = 0
		case (c == 'e' || c == 'E') && seen && i+1 < len(s):
			return parseExponent(b, scale)
		default:
			return 0, errNumber
		}
	}
	if !seen {
		return 0, errNumber
	}
	for n := max(point, 0); n < scale; n++ {
		if v > limit/10 {
			return 0, errRange
		}
		v *= 10
	}
	if v > limit {
		return 0, errRange
	}
	if neg {
		v = -v
	}
	return v, nil
}

// parseExponent is parseDecimal for numbers such as 1.2e3, which only a table
// tool's export would write.
func parseExponent(b []byte, scale int) (int64, error) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return 0, errNumber
	}
	for range scale {
		f *= 10
	}
	if !(f < mostOffset && f > -mostOffset) {
		return 0, errRange
	}
	return int64(f), nil
}

// parseCount reads a length: a whole number from 0 to 2^31 - 1, also as "12.0".
func parseCount(b []byte) (int, error) {
	v, err := parseDecimal(b, 9)
	switch {
	case err != nil:
		return 0, err
	case v < 0:
		return 0, errors.New("below zero")
	case v%1e9 != 0:
		return 0, errors.New("not a whole number")
	case v/1e9 > 1<<31-1:
		return 0, errRange
	}
	return int(v / 1e9), nil
}
