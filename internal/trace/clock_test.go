package trace

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestParseDateAgainstTimeParse(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	layouts := []struct{ write, read string }{
		{"2006-01-02 15:04:05.0000000", "2006-01-02 15:04:05.9999999"},
		{"2006-01-02 15:04:05.000000-07:00", "2006-01-02 15:04:05.999999-07:00"},
		{"2006-01-02 15:04:05-07:00", "2006-01-02 15:04:05-07:00"},
		{"2006-01-02T15:04:05.000Z07:00", time.RFC3339Nano},
		{"2006-01-02T15:04:05.000000000Z07:00", time.RFC3339Nano},
		{"2006-01-02 15:04:05-0700", "2006-01-02 15:04:05-0700"},
		{"2006-01-02 15:04:05", "2006-01-02 15:04:05"},
	}
	lo, hi := time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC).UnixNano(), time.Date(2261, 12, 30, 0, 0, 0, 0, time.UTC).UnixNano()
	for range 20000 {
		zone := time.FixedZone("", (rng.IntN(27)-13)*3600+rng.IntN(4)*900)
		s := time.Unix(0, lo+rng.Int64N(hi-lo)).In(zone)
		l := layouts[rng.IntN(len(layouts))]
		text := s.Format(l.write)
		want, err := time.Parse(l.read, text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseDate([]byte(text))
		if err != nil || got != want.UnixNano() {
			t.Fatalf("%s: %d, %v, want %d", text, got, err, want.UnixNano())
		}
	}
}

func TestParseDateRefuses(t *testing.T) {
	for _, s := range []string{
		"", "2023-11-16", "2023-11-16 18:17", "2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-00-01 00:00:00",
		"2023-11-31 00:00:00", "2023-11-16 24:00:00", "2023-11-16 18:60:00", "2023-11-16 18:17:60", "2023-11-16 18:17:03.",
		"2023-11-16 18:17:03Zx", "2023-11-16 18:17:03+1", "2023-11-16 18:17:03+25:00", "2023-11-16 18:17:03 UTC?", "1969-12-31 23:59:59",
		"2262-01-01 00:00:00", "16/11/2023 18:17:03.5", "2023-11-16x18:17:03", "1700158623.97",
	} {
		if ns, err := parseDate([]byte(s)); err == nil {
			t.Errorf("%q: read as %d", s, ns)
		}
	}
}

func TestParseDecimal(t *testing.T) {
	for _, c := range []struct {
		text  string
		scale int
		want  int64
		ok    bool
	}{
		{"5", 9, 5e9, true}, {"19440110.0", 9, 19440110e9, true}, {"0.000000001", 9, 1, true},
		{"0.0000000019", 9, 1, true}, {"1178625", 6, 1178625e6, true}, {"1.5", 6, 1500000, true},
		{"-3", 9, -3e9, true}, {"1e3", 6, 1e9, true}, {"1.2E1", 9, 12e9, true}, {".5", 9, 5e8, true}, {"7.", 9, 7e9, true},
		{"", 9, 0, false}, {"-", 9, 0, false}, {".", 9, 0, false}, {"1.2.3", 9, 0, false}, {"1e", 9, 0, false}, {"nan", 9, 0, false},
		{"1e400", 9, 0, false}, {"99999999999", 9, 0, false}, {strings.Repeat("9", 40), 0, 0, false}, {"0x10", 9, 0, false}, {"12 ", 9, 0, false},
	} {
		got, err := parseDecimal([]byte(c.text), c.scale)
		if (err == nil) != c.ok || got != c.want {
			t.Errorf("%q scale %d: %d, %v, want %d", c.text, c.scale, got, err, c.want)
		}
	}
	for _, c := range []struct {
		text string
		want int
		ok   bool
	}{{"0", 0, true}, {"512", 512, true}, {"12.0", 12, true}, {"2147483647", 1<<31 - 1, true}, {"2147483648", 0, false}, {"-1", 0, false}, {"1.5", 0, false}, {"x", 0, false}} {
		if got, err := parseCount([]byte(c.text)); (err == nil) != c.ok || got != c.want {
			t.Errorf("count %q: %d, %v, want %d", c.text, got, err, c.want)
		}
	}
}

func FuzzParseDate(f *testing.F) {
	for _, s := range []string{"2023-11-16 18:17:03.9799600", "2024-05-12 00:00:00+00:00", "2024-10-15T12:00:00.269Z", "2024-02-29T23:59:59-13:45"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseDate([]byte(s))
		if err != nil {
			return
		}
		// All that is read here time.Parse reads alike, given the layout.
		s = strings.Replace(strings.ToUpper(s), "T", " ", 1)
		s = strings.Replace(s, ",", ".", 1)
		for _, zone := range []string{"", "Z07:00", "Z0700", "Z07"} {
			if want, err := time.Parse("2006-01-02 15:04:05"+zone, s); err == nil {
				if want.UnixNano() != got {
					t.Fatalf("%q: %d, want %d", s, got, want.UnixNano())
				}
				return
			}
		}
		t.Fatalf("%q was read as %s and time.Parse refuses it", s, fmt.Sprint(time.Unix(0, got).UTC()))
	})
}

func BenchmarkParseDate(b *testing.B) {
	s := []byte("2023-11-16 18:17:03.9799600")
	for b.Loop() {
		if _, err := parseDate(s); err != nil {
			b.Fatal(err)
		}
	}
}
