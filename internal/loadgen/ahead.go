package loadgen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// inbox is where feeder, preparers and workers leave what the dispatcher is to
// know.
type inbox struct {
	pacer Pacer

	mu       sync.Mutex
	prepared []*turn
	ended    []*turn
	until    time.Duration // what the dispatcher sleeps for; -forever while it is awake

	// Of the source: sessions taken whose first turn has not been in prepared
	// yet (all, and those of the plan proper), how far it was read, and its end.
	taken, takenPlan int
	readTo           time.Duration
	eof              bool
	err              error
}

// take counts a session that was taken from the source.
func (b *inbox) take(s *session) {
	b.mu.Lock()
	b.taken++
	if s.planned {
		b.takenPlan++
	}
	b.mu.Unlock()
}

// untake undoes take for a session that nobody will prepare.
func (b *inbox) untake(s *session) {
	b.mu.Lock()
	b.taken--
	if s.planned {
		b.takenPlan--
	}
	b.mu.Unlock()
}

func (b *inbox) postPrepared(t *turn) {
	b.mu.Lock()
	b.prepared = append(b.prepared, t)
	wake := t.due < b.until || t.err != nil || t.due == plan.Unset
	b.mu.Unlock()
	if wake {
		b.pacer.Wake()
	}
}

func (b *inbox) postEnded(t *turn) {
	b.mu.Lock()
	b.ended = append(b.ended, t)
	b.mu.Unlock()
	b.pacer.Wake()
}

// feeder takes sessions from the source, no further ahead of the clock than
// Lookahead and no more of them than LookaheadTurns, and has their first turns
// prepared.
type feeder struct {
	src      plan.Source
	opt      *Options
	planEnd  time.Duration // sessions from here on are of the tail
	in       *inbox
	prep     *prepQueue
	out      *recorder
	progress *Progress
	hash     *plan.Hasher

	slots   chan struct{} // one for each first turn that is ahead
	stop    chan struct{} // closed when the load has ended
	loadEnd time.Duration // set before stop is closed

	last time.Duration // when the session taken last is scheduled
	read bool          // all of the plan was read
}

func (f *feeder) run(ctx context.Context) {
	for {
		s := f.take()
		if s == nil {
			return
		}
		if f.ahead(s) {
			continue
		}
		// The load has ended. What is left of the plan is read for the count.
		if s.planned {
			f.never(s)
		}
		if closed := f.opt.Clients > 0; closed || !s.planned {
			f.read = !closed
			return
		}
		f.rest(ctx)
		return
	}
}

// take takes the next session from the source and counts it; nil at the end.
func (f *feeder) take() *session {
	closed := f.opt.Clients > 0
	p, err := f.src.Next()
	if err == nil && !closed && p.Scheduled < f.last {
		err = fmt.Errorf("session %d is scheduled at %v, before the one ahead of it at %v: a source must be in order", p.Seq, p.Scheduled, f.last)
	}
	if err == nil && len(p.Turns) == 0 {
		err = fmt.Errorf("session %d has no turns", p.Seq)
	}
	if err != nil {
		f.end(err)
		return nil
	}
	s := &session{Session: p, left: len(p.Turns), phase: p.Phase}
	if !closed {
		f.last = p.Scheduled
		s.planned = p.Scheduled < f.planEnd
		f.readTo(p.Scheduled)
	}
	if s.planned {
		f.hash.Add(p)
		f.progress.planned.Add(int64(len(p.Turns)))
	}
	return s
}

// ahead hands the session's first turn to the preparers when it is near enough,
// or returns false when the load has ended.
func (f *feeder) ahead(s *session) bool {
	t := &turn{s: s, due: plan.Unset}
	if f.opt.Clients == 0 {
		t.due = s.Scheduled
		if d := t.due - f.opt.Lookahead - f.opt.Now(); d > 0 {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-f.stop:
				return false
			}
		}
	}
	select {
	case <-f.stop:
		return false
	default:
	}
	select {
	case f.slots <- struct{}{}:
	case <-f.stop:
		return false
	}
	f.in.take(s)
	by := t.due
	if by == plan.Unset {
		by = f.opt.Now() // of a closed loop: behind what is overdue, before what is not yet due
	}
	if !f.prep.push(t, by) { // the load ended meanwhile, and the preparers may be gone
		f.in.untake(s)
		return false
	}
	return true
}

func (f *feeder) readTo(at time.Duration) {
	f.in.mu.Lock()
	wake := f.in.readTo < f.planEnd && at >= f.planEnd
	f.in.readTo = at
	f.in.mu.Unlock()
	if wake {
		f.in.pacer.Wake()
	}
}

func (f *feeder) end(err error) {
	f.read = errors.Is(err, io.EOF)
	f.in.mu.Lock()
	f.in.eof = true
	if !f.read {
		f.in.err = fmt.Errorf("reading the plan: %w", err)
	}
	f.in.mu.Unlock()
	f.in.pacer.Wake()
}

// begun counts a session whose first turn is due now. The dispatcher calls it.
func (f *feeder) begun(t *turn) {
	if s := t.s; !s.planned {
		s.planned = true
		f.progress.planned.Add(int64(len(s.Turns)))
		if f.opt.Clients > 0 {
			p, _ := plan.PhaseAt(f.opt.Phases, t.due)
			s.phase = p.Name
			f.hash.Add(s.Session)
		}
	}
}

// rest reads what the load's end left of the plan, to record it.
func (f *feeder) rest(ctx context.Context) {
	for n := 0; n < MaxNotDue && ctx.Err() == nil; {
		p, err := f.src.Next()
		if err != nil {
			f.end(err)
			return
		}
		if p.Scheduled >= f.planEnd {
			f.read = true
			return
		}
		f.hash.Add(p)
		f.progress.planned.Add(int64(len(p.Turns)))
		f.never(&session{Session: p, phase: p.Phase})
		n += len(p.Turns)
	}
}

// never records every turn of a session that was not begun.
func (f *feeder) never(s *session) {
	for i := range s.Turns {
		t := &turn{s: s, i: i, due: plan.Unset}
		if i == 0 {
			t.due = s.Scheduled
		} else if s.strict(i) {
			t.due = s.Turns[i].At
		}
		f.out.putSlowly(t.newRecord(f.opt.Phases, notSent(t, f.loadEnd)))
	}
}

// notSent is the outcome of a turn that the end of the load found unsent.
func notSent(t *turn, loadEnd time.Duration) record.Outcome {
	switch {
	case t.s.failed:
		return record.Skipped
	case t.due != plan.Unset && t.due <= loadEnd:
		return record.Unfinished
	}
	return record.NotDue
}

// newRecord returns the turn's record with what the plan says of it.
func (t *turn) newRecord(phases []plan.Phase, o record.Outcome) *record.Record {
	r := record.New(t.s.Session, t.plan())
	r.Outcome = o
	r.Scheduled = t.due
	// A turn that never got a due time goes with its session.
	r.Phase = t.s.phase
	if t.due != plan.Unset {
		p, _ := plan.PhaseAt(phases, t.due)
		r.Phase = p.Name
	}
	r.LastTurn = t.i == len(t.s.Turns)-1
	r.AskedInput = t.s.AskedInput(t.i)
	return r
}

// prepQueue holds the turns to prepare, the one due first in front.
type prepQueue struct {
	mu     sync.Mutex
	more   sync.Cond
	turns  agenda
	closed bool
}

func newPrepQueue() *prepQueue {
	q := &prepQueue{}
	q.more.L = &q.mu
	return q
}

// push adds a turn, to be prepared before those of a later time by; false where
// the queue is closed.
func (q *prepQueue) push(t *turn, by time.Duration) bool {
	q.mu.Lock()
	open := !q.closed
	if open {
		q.turns.push(by, doPrepare, t)
	}
	q.mu.Unlock()
	q.more.Signal()
	return open
}

// pop returns the next turn, whether it is still to be prepared, and whether
// there is one at all. It waits for one until the queue is closed and empty.
func (q *prepQueue) pop() (t *turn, prepare, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.turns.items) == 0 {
		if q.closed {
			return nil, false, false
		}
		q.more.Wait()
	}
	return q.turns.pop().t, !q.closed, true
}

func (q *prepQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Broadcast()
}

// prepareAll is a preparer: it takes turns from the queue until that is closed
// and empty. What it takes after the close goes back unprepared.
func prepareAll(q *prepQueue, prepare Prepare, now func() time.Duration, in *inbox) {
	for {
		t, wanted, ok := q.pop()
		if !ok {
			return
		}
		if wanted {
			t.send, t.err = prepare(t.s.Session, t.i, t.s.replies[:min(t.i, len(t.s.replies))])
			t.ready = now()
		}
		in.postPrepared(t)
	}
}

// recorder hands records to Options.Record from one goroutine. A sink that
// blocks delays nobody: the queue grows meanwhile.
type recorder struct {
	sink     func(*record.Record)
	direct   bool // no goroutine runs: records are handed out as they come
	progress *Progress
	outcomes [record.NotDue + 1]int64

	mu     sync.Mutex
	change sync.Cond
	queue  []*record.Record
	closed bool
}

func newRecorder(sink func(*record.Record), p *Progress) *recorder {
	r := &recorder{sink: sink, progress: p}
	r.change.L = &r.mu
	return r
}

func (r *recorder) put(rec *record.Record) {
	if r.direct {
		r.hand(rec)
		return
	}
	r.mu.Lock()
	r.queue = append(r.queue, rec)
	r.mu.Unlock()
	r.change.Broadcast()
}

// putSlowly waits while the sink is far behind; only for those who delay no turn.
func (r *recorder) putSlowly(rec *record.Record) {
	r.mu.Lock()
	for len(r.queue) > 1<<14 {
		r.change.Wait()
	}
	r.mu.Unlock()
	r.put(rec)
}

func (r *recorder) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.change.Broadcast()
}

func (r *recorder) run() {
	var batch []*record.Record
	for {
		r.mu.Lock()
		for len(r.queue) == 0 && !r.closed {
			r.change.Wait()
		}
		batch, r.queue = r.queue, batch[:0]
		r.mu.Unlock()
		r.change.Broadcast()
		if len(batch) == 0 {
			return
		}
		for _, rec := range batch {
			r.hand(rec)
		}
		clear(batch)
	}
}

func (r *recorder) hand(rec *record.Record) {
	r.progress.ended(rec)
	r.outcomes[rec.Outcome]++
	if r.sink != nil {
		r.sink(rec)
	}
}
