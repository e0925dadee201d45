package loadgen

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// A Server answers the requests of a simulated run. It lives in virtual time,
// which it is told with every call and which never goes back, and is called
// from one goroutine.
type Server interface {
	// Send hands over a request at now. The server fills its record's stamps
	// from Connected on and, when the answer ends, its Outcome and Done.
	Send(now time.Duration, c *Call)
	// Cut tells that the sender of an open call went away at now. What the
	// record still lacks of the answer so far is filled in; Outcome is left.
	Cut(now time.Duration, c *Call)
	// Next is when the server next does something by itself; false: not before
	// it is sent more. It may lie at the time of the last call, not before.
	Next() (at time.Duration, ok bool)
	// Advance does what is due at Next and appends the calls that this ended.
	Advance(ended []*Call) []*Call
}

// A Call is one request of a simulated run on its way.
type Call struct {
	Session *plan.Session
	Turn    int // index into Session.Turns
	Record  *record.Record
	// State is the server's own.
	State any

	t     *turn
	cut   time.Duration // its deadline or hang-up; forever: none
	cause error         // which of the two
	n     int64         // in order of sending
	place int           // in the heap of open calls
}

// Simulate is Run in virtual time: the same schedule, cap, deadlines, phases
// and outcomes, by the same code, with server in the place of the network. There
// are no goroutines, sockets or waits: the time jumps from one event to the next,
// so that a day passes as fast as it can be computed, and the same plan and
// server give the same records in the same order.
//
// Everything takes no time but what the server says: a turn is released,
// admitted and sent when it is due or has its slot. Of what falls on the same
// instant, turns that are due come first, then the server, then deadlines. Now,
// Pacer, Lookahead, LookaheadTurns and Preparers have no meaning; Record is
// called from the caller's goroutine.
func Simulate(ctx context.Context, src plan.Source, server Server, opt Options) (Result, error) {
	v := &simulation{server: server}
	opt.Now, opt.Pacer = func() time.Duration { return v.now }, v
	opt.Lookahead, opt.LookaheadTurns, opt.Preparers = 0, 0, 0
	o, err := opt.withDefaults()
	if err != nil {
		return Result{}, err
	}
	if o.Clients == 0 {
		o.LookaheadTurns = 1 // the next session's time must be known, no more
	}
	in := &inbox{pacer: v, until: -forever, readTo: plan.Unset}
	prep, out := newPrepQueue(), newRecorder(o.Record, o.Progress)
	out.direct = true
	feed := &feeder{
		src: src, opt: &o, planEnd: planEnd(o.Phases), in: in, prep: prep, out: out,
		progress: o.Progress, hash: plan.NewHasher(),
		slots: make(chan struct{}, o.LookaheadTurns), stop: make(chan struct{}), last: plan.Unset,
	}
	v.d = &dispatcher{
		opt: &o, planEnd: feed.planEnd, in: in, prep: prep, feed: feed, out: out,
		progress: o.Progress, ctx: ctx, send: v.send,
	}

	res := Result{End: v.d.load(ctx), LoadEnd: v.d.loadEnd}
	drain := time.Duration(0)
	if res.End == EndInterrupted || res.End == EndError {
		drain = o.Drain
	}
	v.prepare()
	v.d.wind(drain, v.cutAll, &sync.WaitGroup{})
	switch {
	case o.Clients > 0 || v.over:
	case in.readTo >= feed.planEnd:
		feed.read = true
	default:
		feed.rest(ctx)
	}
	res.Finished = v.now
	v.d.sumUp(&res)
	return res, v.d.err
}

// simulation is the clock and the pacer of a simulated run: instead of sleeping to
// a time, it lets happen what happens until then.
type simulation struct {
	d      *dispatcher
	server Server
	now    time.Duration
	over   bool // the source is at its end
	open   calls
	sent   int64
	ended  []*Call
}

// Wait implements Pacer. It returns early when the dispatcher has something to
// take in.
func (v *simulation) Wait(until time.Duration) {
	defer func() { v.d.progress.at.Store(int64(v.now)) }()
	if v.prepare() || v.feed() {
		return
	}
	for {
		at, ok := v.server.Next()
		if !ok {
			at = forever
		}
		cut := forever
		if len(v.open) > 0 {
			cut = v.open[0].cut
		}
		next := min(at, cut)
		if next >= until {
			if until == forever {
				panic("loadgen: calls are open, and the simulated server does nothing more")
			}
			v.now = max(v.now, until)
			return
		}
		v.now = max(v.now, next)
		if at > cut {
			c := v.open[0]
			v.hangUp(c, c.cause)
			return
		}
		v.ended = v.server.Advance(v.ended[:0])
		for _, c := range v.ended {
			heap.Remove(&v.open, c.place)
			v.d.sent(c.t, nil)
		}
		if len(v.ended) > 0 {
			clear(v.ended)
			return
		}
	}
}

// Wake and Close implement Pacer.
func (v *simulation) Wake()  {}
func (v *simulation) Close() {}

// prepare hands back what was to be prepared: nothing is to be done for it.
func (v *simulation) prepare() (any bool) {
	for len(v.d.prep.turns.items) > 0 {
		t, _, _ := v.d.prep.pop()
		t.ready = v.now
		v.d.in.postPrepared(t)
		any = true
	}
	return any
}

// feed takes sessions from the source until the next one's time is known, or
// every client has one at hand.
func (v *simulation) feed() (any bool) {
	f := v.d.feed
	for !v.over && !v.d.ended && len(f.slots) < cap(f.slots) {
		any = true
		s := f.take()
		if s == nil {
			v.over = true
			break
		}
		f.slots <- struct{}{}
		t := &turn{s: s, due: plan.Unset, ready: v.now}
		if f.opt.Clients == 0 {
			t.due = s.Scheduled
		}
		f.in.take(s)
		f.in.postPrepared(t)
	}
	return any
}

// send sends a turn that has its slot.
func (v *simulation) send(t *turn) {
	c := &Call{Session: t.s.Session, Turn: t.i, Record: v.d.admitted(t, v.now), t: t, cut: forever, n: v.sent}
	v.sent++
	if limit, why := v.d.limit(t); limit > 0 {
		c.cut, c.cause = t.due+limit, why
	}
	heap.Push(&v.open, c)
	v.server.Send(v.now, c)
}

// hangUp ends an open call.
func (v *simulation) hangUp(c *Call, cause error) {
	heap.Remove(&v.open, c.place)
	c.Record.Done = v.now
	v.server.Cut(v.now, c)
	v.d.sent(c.t, cause)
}

// cutAll ends every open call, in the order of their sending.
func (v *simulation) cutAll(cause error) {
	calls := slices.Clone(v.open)
	slices.SortFunc(calls, func(a, b *Call) int { return cmp.Compare(a.n, b.n) })
	for _, c := range calls {
		v.hangUp(c, cause)
	}
}

// calls is a heap of open calls, the one whose time runs out first in front.
type calls []*Call

func (h calls) Len() int { return len(h) }
func (h calls) Less(i, j int) bool {
	return h[i].cut < h[j].cut || h[i].cut == h[j].cut && h[i].n < h[j].n
}
func (h calls) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *calls) Push(x any) {
	c := x.(*Call)
	c.place = len(*h)
	*h = append(*h, c)
}
func (h *calls) Pop() any {
	n := len(*h) - 1
	c := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return c
}
