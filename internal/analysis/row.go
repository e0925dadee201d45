package analysis

import (
	"time"

	"github.com/trueload/trueload/internal/record"
)

// row is what is kept of one record: its stamps and counts, none of its events.
type row struct {
	session int64
	turn    int32

	phase                        int16 // index into the phases; -1: none
	class, tenant, model, source int32 // interned
	priority                     int32
	outcome                      record.Outcome
	lastTurn, streamed           bool
	standing                     standing

	scheduled, released, admitted, connected, sent time.Duration
	first, answer, last, done                      time.Duration // outputs and the end
	tpot, stall, itl                               time.Duration // itl: its largest

	askedInput, askedOutput, input, output, reasoning, cached int32
}

// since is b - a, or false where either never came.
func since(a, b time.Duration) (time.Duration, bool) {
	return b - a, a != record.Unset && b != record.Unset
}

// offered tells whether a user would have asked this turn.
func (r *row) offered() bool { return r.outcome.Offered() }

// bound is the time the turn is known to have lasted at least, had it gone on:
// it was still waiting when its deadline, its user or the run's end (at end)
// cut it off. 0 where it was refused or broke, for then there is no such time.
func (r *row) bound(end time.Duration) time.Duration {
	switch r.outcome {
	case record.Timeout, record.Cancelled, record.Unfinished:
		stop := r.done
		if stop == record.Unset {
			stop = end
		}
		if d, ok := since(r.scheduled, stop); ok {
			return max(d, 0)
		}
	}
	return 0
}

// presence says in which sense a turn has a figure.
type presence uint8

const (
	exists    presence = iota
	gone               // it did not come back: longer than any that did
	undefined          // it came back and has no such figure
	absent             // it never got so far
)

// figure is one of the latency figures of the measurement contract, section 2.
// Only ttft, first_answer and e2e take the missing as longer than any (section 5):
// for the others a turn that did not come back says nothing.
type figure struct {
	name  string
	value func(*row) (time.Duration, presence)
}

var (
	ttft        = figure{"ttft", func(r *row) (time.Duration, presence) { return waited(r, r.first) }}
	firstAnswer = figure{"first_answer", func(r *row) (time.Duration, presence) { return waited(r, r.answer) }}
	e2e         = figure{"e2e", func(r *row) (time.Duration, presence) {
		// What a cut stream delivered before it broke is not an end.
		if r.outcome != record.OK {
			return 0, gone
		}
		end := r.last
		if !r.streamed {
			end = r.done
		}
		if d, ok := since(r.scheduled, end); ok {
			return d, exists
		}
		return 0, undefined
	}}
	serviceTTFT = figure{"service_ttft", between(func(r *row) (a, b time.Duration) { return r.sent, r.first })}
	tpot        = figure{"tpot", func(r *row) (time.Duration, presence) { return delivered(r, r.tpot) }}
	stall       = figure{"stall", func(r *row) (time.Duration, presence) { return delivered(r, r.stall) }}
	longestITL  = figure{"itl", func(r *row) (time.Duration, presence) { return delivered(r, r.itl) }}
	lateness    = figure{"lateness", between(func(r *row) (a, b time.Duration) { return r.scheduled, r.released })}
	capWait     = figure{"cap_wait", between(func(r *row) (a, b time.Duration) { return r.released, r.admitted })}
	connect     = figure{"connect", between(func(r *row) (a, b time.Duration) { return r.admitted, r.connected })}
	sendDelay   = figure{"send_delay", between(func(r *row) (a, b time.Duration) { return r.scheduled, r.connected })}
)

// waited is the time from scheduled to an output. A turn that failed later has
// it all the same: its user saw that output.
func waited(r *row, output time.Duration) (time.Duration, presence) {
	if d, ok := since(r.scheduled, output); ok {
		return d, exists
	}
	if r.outcome == record.OK {
		return 0, undefined // a reply that is all reasoning has no answer
	}
	return 0, gone
}

func delivered(r *row, v time.Duration) (time.Duration, presence) {
	switch {
	case v != record.Unset:
		return v, exists
	case r.outcome == record.OK:
		return 0, undefined
	}
	return 0, absent
}

func between(stamps func(*row) (a, b time.Duration)) func(*row) (time.Duration, presence) {
	return func(r *row) (time.Duration, presence) {
		d, ok := since(stamps(r))
		if !ok {
			return 0, absent
		}
		return d, exists
	}
}
