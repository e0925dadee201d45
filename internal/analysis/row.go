package analysis

import (
	"time"

	"github.com/trueload/trueload/internal/record"
)

// row is what is kept of one record: its figures, as package record defines
// them, the stamps that say when, and its counts; none of its events. A figure
// that does not exist is Unset.
type row struct {
	session int64
	turn    int32

	phase                        int16 // index into the phases; -1: none
	class, tenant, model, source int32 // interned
	priority                     int32
	outcome                      record.Outcome
	lastTurn                     bool
	standing                     standing

	scheduled, sent, last, done         time.Duration // last: output
	ttft, serviceTTFT, firstAnswer, e2e time.Duration
	tpot, stall, itl                    time.Duration // itl: its largest
	lateness, capWait, connect          time.Duration

	askedInput, askedOutput, input, output, reasoning, cached int32
}

// since is b - a, or false where either never came.
func since(a, b time.Duration) (time.Duration, bool) {
	return b - a, a != record.Unset && b != record.Unset
}

// released is when the turn was handed to a worker, or Unset.
func (r *row) released() time.Duration {
	if r.lateness == record.Unset {
		return record.Unset
	}
	return r.scheduled + r.lateness
}

// sendDelay is the sum of what lies between the due time and the sending.
func (r *row) sendDelay() time.Duration {
	if r.lateness == record.Unset || r.capWait == record.Unset || r.connect == record.Unset {
		return record.Unset
	}
	return r.lateness + r.capWait + r.connect
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
	name string
	of   func(*row) time.Duration
	// What a turn without it has: an ok one, and any other.
	ok, other presence
}

var (
	ttft        = figure{"ttft", func(r *row) time.Duration { return r.ttft }, undefined, gone}
	firstAnswer = figure{"first_answer", func(r *row) time.Duration { return r.firstAnswer }, undefined, gone} // a reply may be all reasoning
	e2e         = figure{"e2e", func(r *row) time.Duration { return r.e2e }, undefined, gone}
	tpot        = figure{"tpot", func(r *row) time.Duration { return r.tpot }, undefined, absent}
	stall       = figure{"stall", func(r *row) time.Duration { return r.stall }, undefined, absent}
	longestITL  = figure{"itl", func(r *row) time.Duration { return r.itl }, undefined, absent}
	serviceTTFT = figure{"service_ttft", func(r *row) time.Duration { return r.serviceTTFT }, absent, absent}
	lateness    = figure{"lateness", func(r *row) time.Duration { return r.lateness }, absent, absent}
	capWait     = figure{"cap_wait", func(r *row) time.Duration { return r.capWait }, absent, absent}
	connect     = figure{"connect", func(r *row) time.Duration { return r.connect }, absent, absent}
	sendDelay   = figure{"send_delay", (*row).sendDelay, absent, absent}
)

// value is a turn's figure, and the sense in which it has one. A turn that
// failed after its first output has a TTFT all the same: its user saw it.
func (f *figure) value(r *row) (time.Duration, presence) {
	switch v := f.of(r); {
	case v != record.Unset:
		return v, exists
	case r.outcome == record.OK:
		return 0, f.ok
	}
	return 0, f.other
}
