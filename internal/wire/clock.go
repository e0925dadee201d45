package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the run's clock: it counts from its start on the monotonic clock,
// and maps the kernel's wall-clock stamps to that count. It is safe for
// concurrent use.
//
// Between steps of the wall clock, the difference wall - monotonic is constant
// (the kernel slews both alike). Reading the wall between two monotonic reads
// brackets it:
//
//	wall - after <= difference <= wall - before
//
// A single such pair can be wide by more than a millisecond, when the thread is
// stopped in its midst; the narrowest of pairsPerRefresh is tight to tens of
// nanoseconds, and brackets taken later may only narrow the earlier one. Where
// they do not overlap, the wall clock was set.
type Clock struct {
	start time.Time
	pair  func() (before time.Duration, wall int64, after time.Duration)

	mu      sync.Mutex
	current atomic.Pointer[bracket]
	steps   atomic.Int64
}

// bracket bounds wall - monotonic, in nanoseconds, as known at the offset at.
type bracket struct {
	lo, hi int64
	at     time.Duration
}

const (
	pairsPerRefresh = 16
	refreshEvery    = time.Second
	// stepAbove: smaller disagreements are taken over silently.
	stepAbove = int64(time.Millisecond)
)

// NewClock returns a clock that starts now.
func NewClock() *Clock {
	c := &Clock{start: time.Now()}
	c.pair = func() (time.Duration, int64, time.Duration) {
		before := c.Now()
		wall := time.Now().UnixNano()
		return before, wall, c.Now()
	}
	return c
}

// Now returns the time since the clock's start.
func (c *Clock) Now() time.Duration { return time.Since(c.start) }

// Start returns the wall-clock time of offset 0.
func (c *Clock) Start() time.Time { return c.start }

// Steps returns how many steps of the wall clock (of more than 1 ms) were seen
// while kernel stamps were being mapped.
func (c *Clock) Steps() int64 { return c.steps.Load() }

// Map returns the offset of a wall-clock time in nanoseconds since 1970, and
// how far off it may be. now is the present offset: a mapping older than a
// second is renewed first.
func (c *Clock) Map(wall int64, now time.Duration) (at, err time.Duration) {
	return c.mapWithin(wall, now, refreshEvery)
}

func (c *Clock) mapWithin(wall int64, now, age time.Duration) (at, err time.Duration) {
	b := c.current.Load()
	if b == nil || now-b.at >= age {
		b = c.refresh(b)
	}
	return time.Duration(wall - (b.lo + (b.hi-b.lo)/2)), time.Duration(b.hi-b.lo+1) / 2
}

// refresh renews the bracket, unless another goroutine did so since old was
// loaded.
func (c *Clock) refresh(old *bracket) *bracket {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.current.Load(); b != old {
		return b
	}
	next := c.measure()
	if old != nil {
		switch {
		case next.lo <= old.hi && old.lo <= next.hi:
			next.lo, next.hi = max(next.lo, old.lo), min(next.hi, old.hi)
		case next.lo-old.hi > stepAbove || old.lo-next.hi > stepAbove:
			c.steps.Add(1)
		}
	}
	c.current.Store(next)
	return next
}

// measure returns the narrowest bracket of pairsPerRefresh.
func (c *Clock) measure() *bracket {
	best := &bracket{}
	for i := range pairsPerRefresh {
		before, wall, after := c.pair()
		lo, hi := wall-int64(after), wall-int64(before)
		if i == 0 || hi-lo < best.hi-best.lo {
			*best = bracket{lo, hi, after}
		}
		best.at = after
	}
	return best
}
