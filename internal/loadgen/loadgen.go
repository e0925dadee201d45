// Package loadgen sends a plan on time, in open or closed loop, and hands out
// what happened. Most people need Run and Options; Progress shows a run while
// it goes.
//
// In open loop the schedule never looks at the server: a session's first turn
// is sent at its own absolute time, a later one at the previous turn's end plus
// its think time (or at the trace's own time in strict replay). Nothing is
// re-anchored, thinned or rescaled. What is late is sent late, and the record
// says how late.
//
// The package knows neither protocols nor sockets (Prepare makes the request),
// keeps no records (Record takes them) and judges nothing.
package loadgen

import (
	"context"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// Prepare makes the request of s.Turns[turn] ahead of its due time and returns
// the function that sends it. replies[i] is the server's reply to s.Turns[i],
// for i < turn; it is nil for a scripted session. Prepare is called from
// several goroutines at once, never on the send path. An error ends the run:
// an instrument that cannot make its requests measures nothing.
//
// send is called once, when the turn is due and has a slot. It fills the
// record's stamps from Connected on and its Outcome. When it ends because ctx
// ended, it leaves Outcome Pending: Run sets Timeout, Cancelled or Unfinished
// by the cause. It must return soon after ctx ends. A turn that is never sent
// (shed, skipped, not due) is never asked to.
type Prepare func(s *plan.Session, turn int, replies []string) (send func(ctx context.Context, rec *record.Record) (reply string), err error)

// Options say how a plan is sent. The zero value sends in open loop, with no
// cap, no deadline but the turns' own, and throws the records away.
type Options struct {
	// Phases are the stretches of the run, in order. The load goes on after the
	// last measured phase, from the source, until every turn scheduled inside a
	// measured phase has ended or Drain has passed. None: all of the plan is
	// sent and waited for.
	Phases []plan.Phase

	// Clients is the number of users of a closed loop, who all come at 0 and each
	// take the next session when free, thinking before its first turn as long as
	// that says; 0: open loop.
	Clients int

	// MaxInFlight caps the requests in flight; 0: no cap. A turn that finds no
	// slot waits in order of arrival, its deadline running, or with Shed is
	// given up at once. Think time holds no slot.
	MaxInFlight int
	Shed        bool

	// Timeout is the deadline of turns that have none of their own, counted
	// from their scheduled time; 0: none.
	Timeout time.Duration
	// Drain is how long the run waits for what is in flight, after the end of
	// the last measured phase and after Stop; 0: DefaultDrain.
	Drain time.Duration

	// Lookahead and LookaheadTurns bound how far ahead of the clock sessions
	// are taken from the source and turns prepared, in time and in number;
	// 0: DefaultLookahead, DefaultLookaheadTurns.
	Lookahead      time.Duration
	LookaheadTurns int
	// Preparers is how many goroutines call Prepare; 0: one per processor, at
	// most 4.
	Preparers int

	// Now is the run's clock: the time since the run's start. It may be
	// negative at first; the first turns are then prepared before they are due.
	// nil: Run starts one that reads -LeadIn.
	Now func() time.Duration
	// Pacer sleeps on Now; nil: NewPacer(Now). Run closes it.
	Pacer Pacer

	// Record is called exactly once for every planned turn as it ends, from one
	// goroutine. The record is its to keep. It may block for a while without
	// delaying the load: records are then held in memory.
	Record func(*record.Record)
	// Progress, where not nil, shows the run while it goes.
	Progress *Progress

	// Stop, when closed, ends the sending; what is in flight is waited for up
	// to Drain. The context's end cuts that short as well.
	Stop <-chan struct{}
}

// Defaults of Options.
const (
	DefaultDrain          = 120 * time.Second
	DefaultLookahead      = 2 * time.Second
	DefaultLookaheadTurns = 4096
	LeadIn                = 200 * time.Millisecond
)

// EndReason says why a run sent no more.
type EndReason string

const (
	EndPlan        EndReason = "plan"        // every turn of the plan has ended
	EndMeasured    EndReason = "measured"    // every turn scheduled in a measured phase has ended
	EndDrain       EndReason = "drain"       // the drain limit passed first
	EndInterrupted EndReason = "interrupted" // Stop was closed
	EndCancelled   EndReason = "cancelled"   // the context ended
	EndError       EndReason = "error"       // the source or Prepare failed
)

// Result sums a run up. Outcomes always sum to Planned.
type Result struct {
	End EndReason
	// LoadEnd is when sending stopped; Finished when the last turn had ended.
	LoadEnd, Finished time.Duration
	// Planned counts turns: all those of sessions scheduled before the end of
	// the last measured phase, and of later sessions (or, in closed loop, any)
	// those that were begun.
	Planned int64
	// Outcomes counts turns by record.Outcome.
	Outcomes [record.NotDue + 1]int64
	// LatePrepared counts turns that were due more than a millisecond before they
	// were prepared. Their delay is part of their lateness.
	LatePrepared int64
	// PlanHash digests the sessions scheduled before the end of the last
	// measured phase (in closed loop those begun).
	PlanHash string
	// PlanRead is set when all of those were read from the source. An
	// interrupted run reads on to record what is left as not_due, up to
	// MaxNotDue turns; where that was not enough, or the context ended,
	// Planned is a lower bound and PlanHash that of a part.
	PlanRead bool
}

// MaxNotDue bounds how many turns an interrupted run reads from the rest of its
// plan only to record them as not_due.
const MaxNotDue = 1_000_000
