package wire

import "time"

// kernelSlack is how far outside the interval a kernel time may lie and still
// be taken: the kernel stamps a segment when it comes off the network device
// and makes it readable some microseconds later, in which time a read may find
// nothing. The error of the clock's mapping comes on top.
const kernelSlack = 50 * time.Microsecond

// doubtAfter: a kernel time outside the interval may mean that the wall clock
// was set, so the mapping is renewed if it is older than this.
const doubtAfter = 10 * time.Millisecond

// resolve makes the stamp of a read that returned at read, whose bytes cannot
// have come before earliest, and for which the kernel gave the wall-clock time
// wall (0: none).
func (c *Clock) resolve(earliest, read time.Duration, wall int64) Stamp {
	if wall == 0 {
		return stampAt(earliest, read, Unset, 0)
	}
	at, err := c.Map(wall, read)
	s := stampAt(earliest, read, at, err)
	if s.Refused {
		at, err = c.mapWithin(wall, read, doubtAfter)
		s = stampAt(earliest, read, at, err)
	}
	return s
}

// stampAt takes the kernel's time where it lies inside [earliest, read], give
// or take its error, and else the time of the read.
func stampAt(earliest, read, kernel, err time.Duration) Stamp {
	earliest = min(earliest, read)
	s := Stamp{At: read, Earliest: earliest, Read: read}
	switch slack := kernelSlack + err; {
	case kernel == Unset:
	case kernel < earliest-slack || kernel > read+slack:
		s.Refused = true
	default:
		s.At, s.Kernel = min(max(kernel, earliest), read), true
	}
	return s
}
