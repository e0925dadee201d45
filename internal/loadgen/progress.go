package loadgen

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trueload/trueload/internal/record"
)

// Progress counts a run while it goes. The zero value is ready; one Progress
// serves one run. Any goroutine may call Snapshot at any time.
type Progress struct {
	planned, due, waiting, inFlight atomic.Int64
	in, out                         atomic.Int64
	outcomes                        [record.NotDue + 1]atomic.Int64
	at                              atomic.Int64 // virtual time

	mu    sync.Mutex
	ttfts [256]time.Duration // the latest, a ring
	n     int                // ever written
}

// Snapshot is one look at a run. Its figures were read one after another, so
// they may differ from each other by what happened in between.
type Snapshot struct {
	Planned      int64 // turns taken from the plan so far
	Due          int64 // turns whose time has come
	Waiting      int64 // due, and waiting for a slot under the cap
	InFlight     int64
	Outcomes     [record.NotDue + 1]int64 // by record.Outcome
	InputTokens  int64                    // as counted so far, of ended turns
	OutputTokens int64
	// TTFTs is how many of the latest requests TTFT50 and TTFT95 are over; at
	// 0 they mean nothing. They are for a line on a screen, not for a report.
	TTFTs          int
	TTFT50, TTFT95 time.Duration
	// At is how far a simulated run has come; 0 in a real one.
	At time.Duration
}

// Failed is how many turns went wrong: rejected, errors, empty and timeouts.
func (s Snapshot) Failed() int64 {
	o := s.Outcomes
	return o[record.Rejected] + o[record.HTTPError] + o[record.StreamError] + o[record.Empty] + o[record.Timeout] + o[record.ConnectError]
}

// Snapshot reads the counters.
func (p *Progress) Snapshot() Snapshot {
	s := Snapshot{
		Planned: p.planned.Load(), Due: p.due.Load(), Waiting: p.waiting.Load(), InFlight: p.inFlight.Load(),
		InputTokens: p.in.Load(), OutputTokens: p.out.Load(),
		At: time.Duration(p.at.Load()),
	}
	for i := range s.Outcomes {
		s.Outcomes[i] = p.outcomes[i].Load()
	}
	p.mu.Lock()
	s.TTFTs = min(p.n, len(p.ttfts))
	v := p.ttfts
	p.mu.Unlock()
	if l := v[:s.TTFTs]; len(l) > 0 {
		slices.Sort(l)
		// Nearest rank: the ⌈p·n⌉-th smallest.
		s.TTFT50, s.TTFT95 = l[(50*len(l)+99)/100-1], l[(95*len(l)+99)/100-1]
	}
	return s
}

// ended counts one record.
func (p *Progress) ended(r *record.Record) {
	p.outcomes[r.Outcome].Add(1)
	if r.InputTokens > 0 {
		p.in.Add(int64(r.InputTokens))
	}
	if r.OutputTokens > 0 {
		p.out.Add(int64(r.OutputTokens))
	}
	if d, ok := r.TTFT(); ok {
		p.mu.Lock()
		p.ttfts[p.n%len(p.ttfts)] = d
		p.n++
		p.mu.Unlock()
	}
}
