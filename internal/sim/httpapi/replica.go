package httpapi

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// replica steps one engine in real time. Its run goroutine alone touches the
// engine: everybody else leaves events in the inbox, each with its time, and
// the engine sees an event at the first step that begins at or after it.
//
// The engine lives on its own timeline: the next step begins when the last one
// ended, not when this goroutine woke up. A late wake-up therefore makes tokens
// late once and moves nothing else, and what the engine did is the same however
// busy the machine was.
type replica struct {
	index  int
	engine *sim.Engine
	size   sim.Config // with defaults; never changes
	start  time.Time
	stop   <-chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	inbox   []event
	closed  bool
	wake    chan struct{}
	load    atomic.Int64 // requests inside, waiting or running
	queued  atomic.Int64 // of these, not yet scheduled
	metrics *metrics
}

type event struct {
	at    time.Duration
	admit *stream
	abort *stream
	reset chan<- bool
}

func newReplica(i int, e *sim.Engine, start time.Time, stop <-chan struct{}) *replica {
	return &replica{
		index: i, engine: e, size: e.Config(), start: start, stop: stop,
		done: make(chan struct{}), wake: make(chan struct{}, 1), metrics: newMetrics(e.Config()),
	}
}

// post leaves an event with the time of now. It reports false once the replica
// has stopped.
func (r *replica) post(e event) bool {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return false
	}
	e.at = time.Since(r.start)
	if e.admit != nil {
		e.admit.arrived = e.at
	}
	r.inbox = append(r.inbox, e)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true
}

// submit hands s to the engine. It reports false where the queue is full.
func (r *replica) submit(s *stream, maxQueue int) bool {
	if n := r.queued.Add(1); maxQueue > 0 && n > int64(maxQueue) {
		r.queued.Add(-1)
		return false
	}
	r.load.Add(1)
	if !r.post(event{admit: s}) {
		r.load.Add(-1)
		r.queued.Add(-1)
		s.fail()
	}
	return true
}

func (r *replica) abort(s *stream) { r.post(event{abort: s}) }

func (r *replica) reset() bool {
	ok := make(chan bool, 1)
	return r.post(event{reset: ok}) && <-ok
}

// take hands the engine the events of up to t. It returns the time of the first
// event that is left, or false.
func (r *replica) take(t time.Duration) (next time.Duration, more bool) {
	r.mu.Lock()
	n := 0
	for n < len(r.inbox) && r.inbox[n].at <= t {
		n++
	}
	due := append([]event(nil), r.inbox[:n]...)
	r.inbox = append(r.inbox[:0], r.inbox[n:]...)
	clear(r.inbox[len(r.inbox):cap(r.inbox)])
	if more = len(r.inbox) > 0; more {
		next = r.inbox[0].at
	}
	r.mu.Unlock()
	for _, e := range due {
		switch {
		case e.admit != nil:
			if err := r.engine.Admit(e.at, &e.admit.req); err != nil {
				r.left(e.admit)
				e.admit.fail()
			}
		case e.abort != nil:
			if r.engine.Abort(&e.abort.req) {
				r.left(e.abort)
				r.metrics.finished(&e.abort.req)
				e.abort.push(nil, sim.FinishedAbort)
			}
		case e.reset != nil:
			e.reset <- r.engine.ResetPrefixCache()
		}
	}
	if len(due) > 0 {
		r.metrics.publish(r.engine)
	}
	return next, more
}

// left counts a request out.
func (r *replica) left(s *stream) {
	r.load.Add(-1)
	if s.req.Life.Scheduled == sim.Unset {
		r.queued.Add(-1)
	}
}

// run steps the engine until stop.
func (r *replica) run() {
	defer close(r.done)
	defer r.shut()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var t time.Duration
	for {
		next, more := r.take(t)
		if r.engine.Idle() {
			if more {
				t = next
				continue
			}
			select {
			case <-r.wake:
				continue
			case <-r.stop:
				return
			}
		}
		step := r.engine.Step(t)
		r.queued.Add(-int64(len(step.Scheduled)))
		t = step.End()
		if wait := t - time.Since(r.start); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-r.stop:
				return
			}
		}
		r.metrics.observe(step, time.Since(r.start)-t)
		r.metrics.publish(r.engine)
		for i := range step.Emitted {
			e := &step.Emitted[i]
			s := e.Request.Tag.(*stream)
			if e.Finish != sim.NotFinished {
				r.load.Add(-1)
			}
			s.push(&e.Token, e.Finish)
		}
	}
}

// shut refuses further events and fails what is inside.
func (r *replica) shut() {
	r.mu.Lock()
	r.closed = true
	inbox := r.inbox
	r.inbox = nil
	r.mu.Unlock()
	for _, e := range inbox {
		if e.admit != nil {
			e.admit.fail()
		}
		if e.reset != nil {
			e.reset <- false
		}
	}
	// Requests inside the engine learn of the end by the stop channel.
}

// stream is one request on its way from the engine to its handler.
type stream struct {
	req     sim.Request
	arrived time.Duration
	last    time.Duration // end of the step of its last token; the run goroutine's own

	mu     sync.Mutex
	tokens []sim.Token // not yet taken
	finish sim.Finish
	failed bool
	wake   chan struct{}
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

func (s *stream) push(t *sim.Token, f sim.Finish) {
	s.mu.Lock()
	if t != nil {
		s.tokens = append(s.tokens, *t)
	}
	s.finish = f
	s.mu.Unlock()
	s.signal()
}

func (s *stream) fail() {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.signal()
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take appends the tokens that came since the last call to dst. A slow reader
// gets several at once, as it does from vLLM.
func (s *stream) take(dst []sim.Token) (tokens []sim.Token, f sim.Finish, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.tokens...)
	s.tokens = s.tokens[:0]
	return dst, s.finish, s.failed
}
