package loadgen

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// Causes that end a send's context.
var (
	errDeadline = errors.New("the request's deadline passed")
	errHangUp   = errors.New("the user hung up, as planned")
	errEnd      = errors.New("the run ended")
)

// dispatcher owns the schedule: one goroutine decides what is sent when.
type dispatcher struct {
	opt      *Options
	planEnd  time.Duration
	in       *inbox
	prep     *prepQueue
	feed     *feeder
	send     func(*turn) // begins a turn that has its slot: go work, but in virtual time
	out      *recorder
	progress *Progress
	ctx      context.Context // of every send
	workers  sync.WaitGroup

	agenda   agenda
	queue    []*turn         // due, waiting for a slot, in order
	stock    []*turn         // closed loop: prepared first turns
	waiting  []time.Duration // closed loop: clients without a session, since when
	inFlight int
	open     int // sessions accepted and not over
	// measured counts turns that are due in a measured phase and not over.
	measured     int
	latePrepared int64

	ended   bool // the load has ended; at when
	loadEnd time.Duration
	err     error // the first of the source or of Prepare
}

// load dispatches until the load ends and says why it did.
func (d *dispatcher) load(ctx context.Context) EndReason {
	for range d.opt.Clients {
		d.agenda.push(0, doReady, nil)
	}
	for {
		d.receive()
		now := d.opt.Now()
		if why := d.over(ctx, now); why != "" {
			d.ended, d.loadEnd = true, now
			return why
		}
		if d.agenda.next() <= now {
			d.act(d.agenda.pop(), now)
			continue
		}
		d.sleep(d.until(now))
	}
}

// over returns why the load ends now, or "".
func (d *dispatcher) over(ctx context.Context, now time.Duration) EndReason {
	if ctx.Err() != nil {
		return EndCancelled
	}
	select {
	case <-d.opt.Stop:
		return EndInterrupted
	default:
	}
	d.in.mu.Lock()
	taken, takenPlan, readTo, eof, err := d.in.taken, d.in.takenPlan, d.in.readTo, d.in.eof, d.in.err
	d.in.mu.Unlock()
	if d.err = errors.Join(d.err, err); d.err != nil {
		return EndError
	}
	// Whether a turn that is due before planEnd may still come up.
	more := takenPlan > 0 || !eof && readTo < d.planEnd
	if d.opt.Clients > 0 {
		more = !eof && len(d.waiting) > 0 && d.waiting[0] < d.planEnd
	}
	more = more || d.agenda.next() < d.planEnd // overdue: a client that became ready, say
	switch {
	case eof && taken == 0 && d.open == 0 && len(d.stock) == 0:
		return EndPlan
	case now < d.planEnd:
	case d.measured == 0 && !more:
		return EndMeasured
	case now-d.planEnd >= d.opt.Drain:
		return EndDrain
	}
	return ""
}

// until is when the dispatcher must look again if nothing happens before.
func (d *dispatcher) until(now time.Duration) time.Duration {
	t := d.agenda.next()
	if now < d.planEnd {
		return min(t, d.planEnd)
	}
	return min(t, d.planEnd+d.opt.Drain)
}

// sleep waits until then or for something to do in the inbox.
func (d *dispatcher) sleep(until time.Duration) {
	d.in.mu.Lock()
	if len(d.in.prepared)+len(d.in.ended) > 0 {
		d.in.mu.Unlock()
		return
	}
	d.in.until = until
	d.in.mu.Unlock()
	d.in.pacer.Wait(until)
	d.in.mu.Lock()
	d.in.until = -forever
	d.in.mu.Unlock()
}

// receive takes in what the others left.
func (d *dispatcher) receive() {
	d.in.mu.Lock()
	prepared, ended := d.in.prepared, d.in.ended
	d.in.prepared, d.in.ended = nil, nil
	for _, t := range prepared {
		if t.i == 0 {
			d.in.taken--
			if t.s.planned {
				d.in.takenPlan--
			}
		}
	}
	d.in.mu.Unlock()
	for _, t := range ended {
		d.inFlight--
		d.progress.inFlight.Add(-1)
		if !t.s.Scripted && len(t.s.Turns) > 1 {
			t.s.replies = append(t.s.replies, t.reply)
			t.reply = ""
		}
		d.close(t, t.outcome, t.done)
	}
	d.admit()
	for _, t := range prepared {
		d.accept(t)
	}
}

// accept takes a turn from the preparers.
func (d *dispatcher) accept(t *turn) {
	if d.err == nil {
		d.err = t.err
	}
	if t.i == 0 && d.opt.Clients > 0 {
		d.stock = append(d.stock, t)
		if !d.ended && len(d.waiting) > 0 {
			ready := d.waiting[0]
			d.waiting = d.waiting[1:]
			d.begin(ready)
		}
		return
	}
	if t.i == 0 {
		d.open++
		d.known(t, t.due)
		d.absolute(t.s)
	}
	if !d.ended {
		d.countLate(t, t.due)
	}
	d.agenda.push(t.due, doSend, t)
}

// countLate counts the turn where it was not ready when due. A reply's next turn
// without think time never is; it is prepared in much less than a millisecond,
// unless the machine is short of something.
func (d *dispatcher) countLate(t *turn, due time.Duration) {
	if t.ready > due+time.Millisecond {
		d.latePrepared++
	}
}

// begin gives a client that was free then its next session from the stock. The
// client thinks before it begins.
func (d *dispatcher) begin(free time.Duration) {
	t := d.stock[0]
	d.stock[0] = nil
	d.stock = d.stock[1:]
	d.open++
	due := free + t.plan().Think
	d.known(t, due)
	d.absolute(t.s)
	d.countLate(t, due)
	d.agenda.push(due, doSend, t)
}

// absolute enters the turns of s that have a time of their own.
func (d *dispatcher) absolute(s *session) {
	for i := range s.Turns {
		if s.strict(i) {
			t := &turn{s: s, i: i}
			d.known(t, s.Turns[i].At)
			d.agenda.push(t.due-d.opt.Lookahead, doPrepare, t)
		}
	}
}

// known notes when a turn is due.
func (d *dispatcher) known(t *turn, due time.Duration) {
	t.due = due
	if d.isMeasured(due) {
		d.measured++
	}
}

func (d *dispatcher) isMeasured(due time.Duration) bool {
	if len(d.opt.Phases) == 0 {
		return true
	}
	p, _ := plan.PhaseAt(d.opt.Phases, due)
	return p.Measured
}

func (d *dispatcher) act(it item, now time.Duration) {
	t := it.t
	switch it.do {
	case doReady:
		if len(d.stock) > 0 {
			d.begin(it.at)
		} else {
			d.waiting = append(d.waiting, it.at)
		}
	case doPrepare:
		d.prep.push(t, t.due)
	case doSend:
		d.due(t, now)
	case doExpire:
		if !t.begun && !t.over {
			d.progress.waiting.Add(-1)
			d.expire(t, now)
		}
	}
}

// due sends a turn whose time has come, or lets it wait for a slot.
func (d *dispatcher) due(t *turn, now time.Duration) {
	if t.i == 0 {
		<-d.feed.slots
		d.feed.begun(t)
	}
	if t.s.failed {
		d.drop(t)
		return
	}
	d.progress.due.Add(1)
	switch limit, _ := d.limit(t); {
	case limit > 0 && now-t.due >= limit:
		t.rec = t.newRecord(d.opt.Phases, record.Pending)
		t.rec.Released = now
		d.expire(t, now)
	case d.opt.MaxInFlight == 0 || d.inFlight < d.opt.MaxInFlight:
		d.start(t)
	case d.opt.Shed:
		t.rec = t.newRecord(d.opt.Phases, record.Shed)
		t.rec.Released = now
		d.finish(t, now)
	default:
		t.rec = t.newRecord(d.opt.Phases, record.Pending)
		t.rec.Released = now
		d.queue = append(d.queue, t)
		d.progress.waiting.Add(1)
		if limit > 0 {
			d.agenda.push(t.due+limit, doExpire, t)
		}
	}
}

// limit is how long after its due time the turn is given up, and why; 0: never.
func (d *dispatcher) limit(t *turn) (time.Duration, error) {
	p := t.plan()
	l, why := d.opt.Timeout, errDeadline
	if p.Timeout > 0 {
		l = p.Timeout
	}
	if p.HangUp > 0 && (l == 0 || p.HangUp < l) {
		l, why = p.HangUp, errHangUp
	}
	return l, why
}

// admit gives free slots to those who wait, in order.
func (d *dispatcher) admit() {
	for len(d.queue) > 0 && (d.ended || d.inFlight < d.opt.MaxInFlight) {
		t := d.queue[0]
		d.queue[0] = nil
		d.queue = d.queue[1:]
		if t.over {
			continue // it expired here
		}
		d.progress.waiting.Add(-1)
		if d.ended {
			d.drop(t)
			continue
		}
		now := d.opt.Now()
		if limit, _ := d.limit(t); limit > 0 && now-t.due >= limit {
			d.expire(t, now)
			continue
		}
		d.start(t)
	}
}

func (d *dispatcher) start(t *turn) {
	t.begun = true
	d.inFlight++
	d.progress.inFlight.Add(1)
	d.send(t)
}

func (d *dispatcher) startWorker(t *turn) {
	d.workers.Add(1)
	go d.work(t)
}

// admitted returns the record of a turn that is sent now.
func (d *dispatcher) admitted(t *turn, now time.Duration) *record.Record {
	if t.rec == nil {
		t.rec = t.newRecord(d.opt.Phases, record.Pending)
		t.rec.Released = now
	}
	t.rec.Admitted = now
	return t.rec
}

// work is a worker: it sends one turn.
func (d *dispatcher) work(t *turn) {
	defer d.workers.Done()
	now := d.opt.Now()
	rec := d.admitted(t, now)
	ctx := d.ctx
	if limit, why := d.limit(t); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(d.ctx, t.due+limit-now, why)
		defer cancel()
	}
	t.reply = t.send(ctx, rec)
	t.send = nil
	d.sent(t, context.Cause(ctx))
}

// sent takes in a turn whose sending has ended; cause is what ended it early.
func (d *dispatcher) sent(t *turn, cause error) {
	rec := t.rec
	if rec.Done == record.Unset {
		rec.Done = d.opt.Now()
	}
	if rec.Outcome == record.Pending {
		switch cause {
		case errDeadline:
			rec.Outcome = record.Timeout
		case errHangUp:
			rec.Outcome = record.Cancelled
		case nil:
			rec.Outcome, rec.Error = record.StreamError, "the request ended without an outcome"
		default:
			rec.Outcome = record.Unfinished
		}
	}
	t.outcome, t.done, t.rec = rec.Outcome, rec.Done, nil
	d.in.postEnded(t)
	d.out.put(rec)
}

// expire ends a due turn that was not sent before its deadline or hang-up.
func (d *dispatcher) expire(t *turn, now time.Duration) {
	t.rec.Outcome = record.Timeout
	if _, why := d.limit(t); why == errHangUp {
		t.rec.Outcome = record.Cancelled
	}
	d.finish(t, now)
}

// drop ends a turn that will not be sent: skipped, or left over by the load's end.
func (d *dispatcher) drop(t *turn) {
	if !t.s.planned {
		t.over = true // of the tail, or of the stock, and never begun: no part of the plan
		return
	}
	o := notSent(t, d.loadEnd)
	if t.rec == nil {
		t.rec = t.newRecord(d.opt.Phases, o)
	}
	t.rec.Outcome = o
	d.finish(t, record.Unset)
}

// finish hands out the record of a turn that was not sent.
func (d *dispatcher) finish(t *turn, done time.Duration) {
	rec := t.rec
	rec.Done = done
	t.rec, t.send = nil, nil
	if done == record.Unset {
		done = d.opt.Now()
	}
	d.out.put(rec)
	d.close(t, rec.Outcome, done)
}

// close follows a turn's outcome up: what becomes of the next turn, and of the
// client when the session is over.
func (d *dispatcher) close(t *turn, o record.Outcome, done time.Duration) {
	t.over = true
	if t.due != plan.Unset && d.isMeasured(t.due) {
		d.measured--
	}
	s := t.s
	switch o {
	case record.OK, record.Unfinished, record.NotDue:
	default:
		// A user who got no answer, or hung up, does not go on.
		s.failed = true
	}
	s.left--
	if next := t.i + 1; next < len(s.Turns) && !s.strict(next) {
		n := &turn{s: s, i: next, due: plan.Unset}
		if s.failed || d.ended && o != record.OK {
			d.drop(n)
		} else {
			p := n.plan()
			due := done + p.Think
			if p.At != plan.Unset {
				due = max(p.At, done) // a live reply is part of what it sends
			}
			d.known(n, due)
			if d.ended {
				d.drop(n)
			} else if at := due - d.opt.Lookahead; at > d.opt.Now() {
				d.agenda.push(at, doPrepare, n)
			} else {
				d.prep.push(n, due)
			}
		}
	}
	if s.left == 0 {
		d.open--
		s.left = -1 // once
		if d.opt.Clients > 0 && !d.ended {
			d.agenda.push(done, doReady, nil)
		}
	}
}

// wind ends the load: nothing more is sent, and what is in flight is waited for
// up to limit, then cut. It returns when every worker, and everyone else who
// holds a turn, has handed it back.
func (d *dispatcher) wind(limit time.Duration, cut context.CancelCauseFunc, others *sync.WaitGroup) {
	d.feed.loadEnd = d.loadEnd
	close(d.feed.stop)
	d.prep.close()
	d.admit() // the queue: due, and not sent
	end := d.loadEnd + limit
	for d.inFlight > 0 {
		if d.opt.Now() >= end {
			cut(errEnd)
			end = forever
		}
		d.sleep(end)
		d.receive()
	}
	d.workers.Wait()
	others.Wait()
	d.receive()
	for len(d.agenda.items) > 0 {
		if it := d.agenda.pop(); (it.do == doPrepare || it.do == doSend) && !it.t.over {
			d.drop(it.t)
		}
	}
}
