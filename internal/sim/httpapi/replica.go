package httpapi

import (
	"iter"
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
	faults *faults
	traced bool // streams keep the times of their tokens
	stop   <-chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	inbox   []event
	closed  bool
	killed  chan struct{} // not nil: a restart was ordered; closed when it is done
	wake    chan struct{} // an event came
	fault   chan struct{} // a fault came or went
	life    atomic.Pointer[life]
	metrics *metrics
}

// life is a replica between two restarts.
type life struct {
	born   time.Duration // before it, nothing answers
	gone   chan struct{} // closed at its end
	load   atomic.Int64  // requests inside, waiting or running
	queued atomic.Int64  // of these, not yet scheduled
}

type event struct {
	at     time.Duration
	admit  *stream
	abort  *stream
	failed bool // with abort: by an error of the engine's own
	reset  chan<- bool
}

func newReplica(i int, e *sim.Engine, start time.Time, faults *faults, traced bool, stop <-chan struct{}) *replica {
	r := &replica{
		index: i, engine: e, size: e.Config(), start: start, faults: faults, traced: traced, stop: stop,
		done: make(chan struct{}), wake: make(chan struct{}, 1), fault: make(chan struct{}, 1), metrics: newMetrics(e.Config(), start),
	}
	r.life.Store(&life{gone: make(chan struct{})})
	return r
}

// up tells whether the replica answers, or is down for a restart.
func (r *replica) up() bool { return time.Since(r.start) >= r.life.Load().born }

// post leaves an event with the time of now. It reports false once the replica
// has stopped.
func (r *replica) post(e event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.postLocked(e)
}

func (r *replica) postLocked(e event) bool {
	if r.closed {
		return false
	}
	e.at = time.Since(r.start)
	if e.admit != nil {
		e.admit.arrived = e.at
	}
	r.inbox = append(r.inbox, e)
	signal(r.wake)
	return true
}

// signal wakes the one that reads c; signals do not add up.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// submit hands s to the engine. It reports false where the queue is full.
func (r *replica) submit(s *stream, maxQueue int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.life.Load()
	s.life, s.traced = l, r.traced
	if maxQueue > 0 && l.queued.Load() >= int64(maxQueue) {
		return false
	}
	if r.closed || time.Since(r.start) < l.born {
		s.fail()
		return true
	}
	l.queued.Add(1)
	l.load.Add(1)
	return r.postLocked(event{admit: s})
}

func (r *replica) abort(s *stream, failed bool) { r.post(event{abort: s, failed: failed}) }

func (r *replica) reset() bool {
	ok := make(chan bool, 1)
	return r.post(event{reset: ok}) && <-ok
}

// disturb makes run look at the faults again.
func (r *replica) disturb() { signal(r.fault) }

// kill ends the replica's life; the next one answers after the time down.
func (r *replica) kill(down time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	old := r.life.Load()
	r.life.Store(&life{born: time.Since(r.start) + down, gone: make(chan struct{})})
	close(old.gone)
	r.dropInbox()
	if r.killed == nil {
		r.killed = make(chan struct{})
	}
	signal(r.fault)
}

// revived waits until the engine of a replica just killed has been replaced.
func (r *replica) revived() {
	r.mu.Lock()
	killed := r.killed
	r.mu.Unlock()
	if killed == nil {
		return
	}
	select {
	case <-killed:
	case <-r.done:
	}
}

// revive replaces the engine where a restart was ordered. The new one has
// another seed, an empty cache and nothing counted.
func (r *replica) revive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed == nil {
		return false
	}
	c := r.size
	c.Seed = r.engine.Config().Seed + 1<<32
	e, err := sim.New(c)
	if err != nil {
		panic(err) // the same sizes were good before
	}
	r.engine = e
	r.metrics.reset(r.start.Add(r.life.Load().born))
	close(r.killed)
	r.killed = nil
	return true
}

// take hands the engine the events of up to t. It returns the time of the first
// event that is left, or false.
func (r *replica) take(t time.Duration) (next time.Duration, more bool) {
	r.mu.Lock()
	if r.killed != nil { // what is in the inbox is for the next engine
		r.mu.Unlock()
		return 0, false
	}
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
				e.admit.left()
				e.admit.fail()
			}
		case e.abort != nil:
			// An engine knows the requests of its own life alone.
			if e.abort.life == r.life.Load() && r.engine.Abort(&e.abort.req) {
				e.abort.left()
				r.metrics.aborted(&e.abort.req, e.failed)
				e.abort.push(nil, sim.FinishedAbort, 0)
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

// run steps the engine until stop.
func (r *replica) run() {
	defer close(r.done)
	defer r.shut()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var t time.Duration
	for {
		if r.revive() {
			t = time.Since(r.start)
		}
		next, more := r.take(t)
		if r.engine.Idle() {
			if more {
				t = next
				continue
			}
			select {
			case <-r.wake:
				continue
			case <-r.fault:
				continue
			case <-r.stop:
				return
			}
		}
		step := r.engine.Step(t)
		for _, q := range step.Scheduled {
			q.Tag.(*stream).life.queued.Add(-1)
		}
		end, ok := r.await(timer, t, step.Duration)
		if !ok {
			select {
			case <-r.stop:
				return
			default:
				continue // it was killed
			}
		}
		if end != step.End() {
			stretch(step, end)
		}
		t = end
		r.metrics.observe(step, time.Since(r.start)-t)
		r.metrics.publish(r.engine)
		for event := range events(step) {
			s := event[0].Request.Tag.(*stream)
			finish := event[len(event)-1].Finish
			if finish != sim.NotFinished {
				s.life.load.Add(-1)
			}
			s.push(event, finish, t)
		}
	}
}

// events are what leaves in a step: the tokens of one request each.
func events(step *sim.Step) iter.Seq[[]sim.Emitted] {
	return func(yield func([]sim.Emitted) bool) {
		for rest := step.Emitted; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].Request == rest[0].Request {
				n++
			}
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
	}
}

// await sleeps until a step of length d that began at start is done, and
// returns when that was; faults may come and go meanwhile. It reports false
// where the replica was killed or stopped.
func (r *replica) await(timer *time.Timer, start, d time.Duration) (end time.Duration, ok bool) {
	for {
		end = r.faults.end(r.index, start, d)
		r.mu.Lock()
		killed := r.killed != nil
		r.mu.Unlock()
		if killed {
			return 0, false
		}
		wait := end - time.Since(r.start)
		if wait <= 0 {
			return end, true
		}
		timer.Reset(min(wait, time.Hour))
		select {
		case <-timer.C:
		case <-r.fault:
		case <-r.stop:
			return 0, false
		}
	}
}

// stretch makes a step end at another time than the engine, which knows no
// faults, has planned.
func stretch(step *sim.Step, end time.Duration) {
	step.Duration = end - step.Start
	for i := range step.Emitted {
		e := &step.Emitted[i]
		e.Request.Life.LastToken = end
		if e.Index == 0 {
			e.Request.Life.FirstToken = end
		}
	}
}

// shut refuses further events and fails what is inside.
func (r *replica) shut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	close(r.life.Load().gone)
	r.dropInbox()
}

// dropInbox forgets what the engine has not seen. Requests learn of their end
// by their life's.
func (r *replica) dropInbox() {
	for _, e := range r.inbox {
		if e.reset != nil {
			e.reset <- false
		}
	}
	r.inbox = nil
}

// stream is one request on its way from the engine to its handler.
type stream struct {
	req     sim.Request
	life    *life
	arrived time.Duration
	last    time.Duration // end of the step of its last token; the run goroutine's own
	traced  bool

	mu     sync.Mutex
	tokens []sim.Token     // not yet taken
	ends   []time.Duration // of the step of each token, where traced
	finish sim.Finish
	failed bool
	wake   chan struct{}
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

// left counts a request out that did not finish by itself.
func (s *stream) left() {
	s.life.load.Add(-1)
	if s.req.Life.Scheduled == sim.Unset {
		s.life.queued.Add(-1)
	}
}

// push adds the tokens of an event, or none, that left the engine at end.
func (s *stream) push(event []sim.Emitted, f sim.Finish, end time.Duration) {
	s.mu.Lock()
	for i := range event {
		s.tokens = append(s.tokens, event[i].Token)
		if s.traced {
			s.ends = append(s.ends, end)
		}
	}
	s.finish = f
	s.mu.Unlock()
	signal(s.wake)
}

func (s *stream) fail() {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	signal(s.wake)
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
