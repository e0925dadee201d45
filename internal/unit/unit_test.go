package unit

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	for _, c := range []struct {
		in   string
		want float64
	}{
		{"12/s", 12}, {"90/min", 1.5}, {"90/m", 1.5}, {"3/h", 3.0 / 3600}, {" 0.5 / s ", 0.5}, {"0/s", 0}, {"1e3/s", 1000}, {".5/s", 0.5},
	} {
		got, err := ParseRate(c.in)
		if err != nil || float64(got) != c.want {
			t.Errorf("ParseRate(%q) = %v, %v; want %v", c.in, float64(got), err, c.want)
		}
	}
	for _, c := range []struct{ name, in, says string }{
		{"no unit", "12", "write 12/s"},
		{"negative", "-1/s", "negative"},
		{"unit unknown", "12/d", `unknown unit "/d"`},
		{"a duration", "12s", "is not a rate"},
		{"empty", "", "is not a rate"},
		{"no number", "/s", "is not a rate"},
		{"infinite", "inf/s", "is not a rate"},
		{"hexadecimal", "0x10/s", "is not a rate"},
		{"too large for a number", "1e999/s", "is not a rate"},
	} {
		if _, err := ParseRate(c.in); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: ParseRate(%q): %v; want it to say %q", c.name, c.in, err, c.says)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for _, c := range []struct {
		in   string
		want time.Duration
	}{{"350ms", 350 * time.Millisecond}, {"2m", 2 * time.Minute}, {"1h30m", 90 * time.Minute}, {"0", 0}, {"1.5s", 1500 * time.Millisecond}} {
		if got, err := ParseDuration(c.in); err != nil || got != c.want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", c.in, got, err, c.want)
		}
	}
	for _, c := range []struct{ name, in, says string }{
		{"no unit", "5", "write 5ms, 5s or 5m"},
		{"negative", "-5s", "negative"},
		{"a rate", "5/s", "is not a duration"},
		{"empty", "", "is not a duration"},
	} {
		if _, err := ParseDuration(c.in); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: ParseDuration(%q): %v; want it to say %q", c.name, c.in, err, c.says)
		}
	}
}

func TestParseCount(t *testing.T) {
	for _, c := range []struct {
		in   string
		want int
	}{{"4096", 4096}, {"480k", 480_000}, {"50M", 50_000_000}, {"1.5M", 1_500_000}, {"1.1k", 1100}, {"2G", 2_000_000_000}, {"0", 0}} {
		if got, err := ParseCount(c.in); err != nil || got != c.want {
			t.Errorf("ParseCount(%q) = %v, %v; want %v", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"", "k", "1.5", "0.0001k", "-3", "3m", "1e20", "12/s", "NaN"} {
		if got, err := ParseCount(in); err == nil {
			t.Errorf("ParseCount(%q) = %d, want an error", in, got)
		}
	}
}

// A ratio taken for percent lets a hundred times as many errors through.
func TestA6_ShareUnits(t *testing.T) {
	for _, c := range []struct {
		in   string
		want float64
	}{{"99%", 0.99}, {"0.99", 0.99}, {"1", 1}, {"100%", 1}, {"0", 0}, {"99.9 %", 0.999}, {"0.5%", 0.005}} {
		got, err := ParseShare(c.in)
		if err != nil || float64(got) != c.want {
			t.Errorf("ParseShare(%q) = %v, %v; want %v", c.in, got, err, c.want)
		}
	}
	for _, c := range []struct{ in, says string }{
		{"99", "write 99% if percent is meant"}, {"1.5", "write 1.5% if percent is meant"}, {"101%", "outside"}, {"-1%", "outside"}, {"500", "outside"}, {"all", "is not a share"},
	} {
		if _, err := ParseShare(c.in); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("ParseShare(%q): %v; want it to say %q", c.in, err, c.says)
		}
	}
}

func TestPrint(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Duration(1234 * time.Millisecond), "1.23 s"},
		{Duration(350 * time.Millisecond), "350 ms"},
		{Duration(999_600 * time.Microsecond), "1 s"}, // not 1000 ms
		{Duration(999_400 * time.Microsecond), "999 ms"},
		{Duration(1500 * time.Nanosecond), "1.5 µs"},
		{Duration(12), "12 ns"},
		{Duration(0), "0 ns"},
		{Duration(-20 * time.Millisecond), "-20 ms"},
		{Duration(119 * time.Second), "119 s"},
		{Duration(2 * time.Minute), "2m"},
		{Duration(2*time.Minute + 30*time.Second), "2m30s"},
		{Duration(10 * time.Minute), "10m"},
		{Duration(time.Hour), "1h"},
		{Duration(time.Hour + 30*time.Minute), "1h30m"},
		{Number(4200), "4.2k"},
		{Number(4234), "4.23k"},
		{Number(999.6), "1k"},
		{Number(999.4), "999"},
		{Number(0.0123456), "0.0123"},
		{Number(0), "0"},
		{Number(1e6), "1M"},
		{Number(1.5e12), "1.5T"},
		{Number(1e15), "1000T"},
		{Number(math.NaN()), "NaN"},
		{PerSecond(4200, "tok"), "4.2k tok/s"},
		{Percent(0.995), "99.5 %"},
		{Percent(1), "100 %"},
		{Percent(0), "0 %"},
		{Percent(0.99999), "99.999 %"}, // not 100 %
		{Percent(0.00001), "0.001 %"},
		{Rate(1.5).String(), "1.5/s"},
	} {
		if c.got != c.want {
			t.Errorf("printed %q, want %q", c.got, c.want)
		}
	}
}

// What String writes is read back to the same rate, bit for bit.
func FuzzRateRoundTrip(f *testing.F) {
	for _, s := range []string{"12/s", "90/min", "3/h", "1e-300/s", "0/s", "-1/s", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRate(s)
		if err != nil {
			return
		}
		if r < 0 || math.IsInf(float64(r), 0) || math.IsNaN(float64(r)) {
			t.Fatalf("ParseRate(%q) = %v", s, float64(r))
		}
		back, err := ParseRate(r.String())
		if err != nil || back != r {
			t.Fatalf("%q -> %v -> %q -> %v, %v", s, float64(r), r.String(), float64(back), err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"350ms", "480k", "99%", "1e309", "9223372036854775807", "--", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDuration(s); err == nil && d < 0 {
			t.Errorf("ParseDuration(%q) = %v", s, d)
		}
		if n, err := ParseCount(s); err == nil && n < 0 {
			t.Errorf("ParseCount(%q) = %v", s, n)
		}
		if p, err := ParseShare(s); err == nil && !(p >= 0 && p <= 1) {
			t.Errorf("ParseShare(%q) = %v", s, p)
		}
	})
}

// Three significant digits: what is printed lies within half a unit of the
// third digit of what was given.
func FuzzNumber(f *testing.F) {
	f.Add(999.5)
	f.Add(999499.9)
	f.Add(0.000123456)
	f.Fuzz(func(t *testing.T, x float64) {
		if math.IsNaN(x) || math.Abs(x) > 1e14 || math.Abs(x) < 1e-300 {
			return
		}
		s := Number(x)
		scale := 1.0
		for suffix, by := range map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} {
			if strings.HasSuffix(s, suffix) {
				scale = by
			}
		}
		got := parse(strings.TrimRight(s, "kMGT")) * scale
		if math.Abs(got-x) > 0.00501*math.Abs(x) {
			t.Errorf("Number(%v) = %q", x, s)
		}
	})
}
