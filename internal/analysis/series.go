package analysis

import (
	"cmp"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// longestSeries bounds the seconds that are kept apart, for a stamp from a
// broken file: ten days.
const longestSeries = 10 * 24 * 3600

// seriesCounts counts by whole second of the run.
type seriesCounts []second

type second struct {
	offered, dispatched, completed, failed int64
	inFlight                               time.Duration // request time inside this second
	tokens                                 int64         // millionths
}

// at returns the second that t lies in, or nil where it never came.
func (c *seriesCounts) at(t time.Duration) *second {
	i := int64(t / time.Second)
	if t < 0 || i >= longestSeries {
		return nil
	}
	if n := i + 1 - int64(len(*c)); n > 0 {
		*c = append(*c, make([]second, n)...)
	}
	return &(*c)[i]
}

func (c *seriesCounts) add(r *row) {
	if r.offered() {
		if s := c.at(r.scheduled); s != nil {
			s.offered++
		}
	}
	if s := c.at(r.sent); s != nil {
		s.dispatched++
	}
	if s := c.at(r.done); s != nil {
		switch {
		case r.outcome == record.OK:
			s.completed++
		case r.outcome == record.Rejected || failed(r.outcome):
			s.failed++
		}
	}
	if r.sent == record.Unset || r.done == record.Unset {
		return
	}
	for t := max(r.sent, 0); t < r.done; {
		next := min(r.done, (t/time.Second+1)*time.Second)
		s := c.at(t)
		if s == nil {
			return
		}
		s.inFlight += next - t
		t = next
	}
}

func (c *seriesCounts) tokens(at time.Duration, micros int64) {
	if s := c.at(at); s != nil {
		s.tokens += micros
	}
}

func (c seriesCounts) summary(rows []row) Series {
	n := len(c)
	out := Series{
		Second: make([]int64, n), Offered: make([]int64, n), Dispatched: make([]int64, n), Completed: make([]int64, n), Failed: make([]int64, n),
		InFlight: make([]float64, n), Tokens: make([]float64, n), TTFTP50: make([]*float64, n), TTFTP95: make([]*float64, n),
	}
	for i, s := range c {
		out.Second[i] = int64(i)
		out.Offered[i], out.Dispatched[i], out.Completed[i], out.Failed[i] = s.offered, s.dispatched, s.completed, s.failed
		out.InFlight[i] = s.inFlight.Seconds()
		out.Tokens[i] = float64(s.tokens) / micro
	}
	type wait struct {
		second int64
		has    presence
		d      time.Duration
	}
	var waits []wait
	for i := range rows {
		r := &rows[i]
		sec := int64(r.scheduled / time.Second)
		if !r.offered() || r.scheduled < 0 || sec >= int64(n) {
			continue
		}
		if d, has := ttft.value(r); has == exists || has == gone {
			waits = append(waits, wait{sec, has, d})
		}
	}
	slices.SortFunc(waits, func(a, b wait) int {
		return cmp.Or(cmp.Compare(a.second, b.second), cmp.Compare(a.has, b.has), cmp.Compare(a.d, b.d))
	})
	for i := 0; i < len(waits); {
		j := i
		var s stats.Sorted[time.Duration]
		for ; j < len(waits) && waits[j].second == waits[i].second; j++ {
			if waits[j].has == exists {
				s.Values = append(s.Values, waits[j].d)
			} else {
				s.Missing++
			}
		}
		if d, ok := s.Quantile(stats.P50); ok {
			out.TTFTP50[waits[i].second] = ptr(d.Seconds())
		}
		if d, ok := s.Quantile(stats.P95); ok {
			out.TTFTP95[waits[i].second] = ptr(d.Seconds())
		}
		i = j
	}
	return out
}
