package wire

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestStampAt(t *testing.T) {
	for _, c := range []struct {
		name                   string
		earliest, read, kernel time.Duration
		at                     time.Duration
		isKernel, refused      bool
	}{
		{"no kernel time", 10 * ms, 11 * ms, Unset, 11 * ms, false, false},
		{"inside", 10 * ms, 11 * ms, 10*ms + 300, 10*ms + 300, true, false},
		{"a little early: stamped before it was readable", 10 * ms, 11 * ms, 10*ms - kernelSlack, 10 * ms, true, false},
		{"too early", 10 * ms, 11 * ms, 10*ms - kernelSlack - 1, 11 * ms, false, true},
		{"a little late: the clock's mapping", 10 * ms, 11 * ms, 11*ms + kernelSlack, 11 * ms, true, false},
		{"too late", 10 * ms, 11 * ms, 11*ms + kernelSlack + 1, 11 * ms, false, true},
	} {
		s := stampAt(c.earliest, c.read, c.kernel, 0)
		want := Stamp{At: c.at, Earliest: c.earliest, Read: c.read, Kernel: c.isKernel, Refused: c.refused}
		if s != want {
			t.Errorf("%s: got %+v, want %+v", c.name, s, want)
		}
	}
	if s := stampAt(12*ms, 11*ms, Unset, 0); s.Earliest != s.Read {
		t.Errorf("Earliest %v is after Read %v", s.Earliest, s.Read)
	}
}

func TestWidth(t *testing.T) {
	for _, c := range []struct {
		s    Stamp
		want time.Duration
	}{
		{Stamp{At: 5, Earliest: 2, Kernel: true}, 0},
		{Stamp{At: 5, Earliest: 2, Kernel: true, More: true}, 3},
		{Stamp{At: 5, Earliest: 2}, 3},
	} {
		if got := c.s.Width(); got != c.want {
			t.Errorf("%+v: width %d, want %d", c.s, got, c.want)
		}
	}
}

// fakeClock returns a clock whose wall is off from the monotonic clock by
// offset, and a way to step time and wall.
func fakeClock(offset int64) (c *Clock, now *time.Duration, wall *int64) {
	now, wall = new(time.Duration), &offset
	c = NewClock()
	c.pair = func() (time.Duration, int64, time.Duration) {
		before := *now
		*now += 50
		w := int64(*now) + *wall
		*now += 50
		return before, w, *now
	}
	return c, now, wall
}

// I1: two segments, the first lost and sent again 300 ms later, come in one
// read that the kernel stamps with the arrival of the second.
func TestI1_RefusedStamp(t *testing.T) {
	const wall = int64(1_700_000_000_000_000_000)
	c, _, _ := fakeClock(wall)
	// The last sweep that saw nothing was at 999.5 ms: until then the second
	// segment could not be read, as the first was missing.
	s := c.resolve(999*ms+500*time.Microsecond, 1000*ms, wall+int64(366*ms))
	want := Stamp{At: 1000 * ms, Earliest: 999*ms + 500*time.Microsecond, Read: 1000 * ms, Refused: true}
	if s != want {
		t.Fatalf("got %+v, want %+v", s, want)
	}
	s = c.resolve(999*ms+500*time.Microsecond, 1000*ms, wall+int64(999*ms)+700_000)
	if !s.Kernel || s.Refused || (s.At-(999*ms+700*time.Microsecond)).Abs() > 100 {
		t.Fatalf("a time inside the interval: got %+v", s)
	}
}

// I4: naive pairs err by up to 1.2 ms; the best of n is tight.
func TestI4_BestOfPairs(t *testing.T) {
	const offset = int64(1_700_000_000_123_456_789)
	rng := rand.New(rand.NewPCG(1, 4))
	var now time.Duration
	worst := time.Duration(0)
	c := NewClock()
	c.pair = func() (time.Duration, int64, time.Duration) {
		delay := func() {
			now += time.Duration(30 + rng.IntN(40))
			if rng.IntN(3) == 0 { // the thread loses its processor
				now += time.Duration(rng.Int64N(int64(1200 * time.Microsecond)))
			}
		}
		before := now
		delay()
		wall := int64(now) + offset
		delay()
		naive := wall - int64(before) - offset
		worst = max(worst, time.Duration(naive))
		return before, wall, now
	}
	for range 20 { // seconds
		now += time.Second
		want := now
		at, err := c.Map(offset+int64(want), want)
		if d := (at - want).Abs(); d > err || err > 100 {
			t.Fatalf("off by %v, said to be within %v", d, err)
		}
	}
	if worst < time.Millisecond {
		t.Fatalf("the worst naive pair is off by %v only: the case shows nothing", worst)
	}
	if c.Steps() != 0 {
		t.Fatalf("%d steps of a clock that was never set", c.Steps())
	}
}

func TestClockStep(t *testing.T) {
	for _, c := range []struct {
		name  string
		by    time.Duration
		steps int64
	}{
		{"set back by an hour", -time.Hour, 1},
		{"forth by 2 ms", 2 * ms, 1},
		{"by less than counts", 900 * time.Microsecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock, now, wall := fakeClock(1_700_000_000_000_000_000)
			clock.Map(*wall, *now)
			*now += 500 * ms
			*wall += int64(c.by)
			// Within the second, a stamp of the new wall clock lies outside any
			// narrow interval, which renews the mapping.
			arrived := *now
			s := clock.resolve(arrived-time.Microsecond, arrived+time.Microsecond, int64(arrived)+*wall)
			if !s.Kernel || s.Refused {
				t.Errorf("got %+v, want the kernel's time", s)
			}
			if clock.Steps() != c.steps {
				t.Errorf("%d steps seen, want %d", clock.Steps(), c.steps)
			}
			if at, _ := clock.Map(int64(arrived)+*wall, *now); (at - arrived).Abs() > 100 {
				t.Errorf("mapped to %v, want %v", at, arrived)
			}
		})
	}
}

// A clock that is slewed, not set, keeps wall - monotonic; brackets only narrow.
func TestClockNarrows(t *testing.T) {
	c := NewClock()
	width := time.Duration(math.MaxInt64)
	for i := range 5 {
		_, err := c.Map(time.Now().UnixNano(), c.Now()+time.Duration(i)*2*time.Second)
		if err > width {
			t.Fatalf("the error grew from %v to %v", width, err)
		}
		width = err
	}
	now := c.Now()
	if at, err := c.Map(c.Start().UnixNano(), now); at.Abs() > 5*ms || err > ms {
		t.Fatalf("the start maps to %v ± %v", at, err)
	}
}
