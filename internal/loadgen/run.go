package loadgen

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/plan"
)

// withDefaults returns o with every zero that means something else filled in.
func (o Options) withDefaults() (Options, error) {
	if o.Drain == 0 {
		o.Drain = DefaultDrain
	}
	if o.Lookahead == 0 {
		o.Lookahead = DefaultLookahead
	}
	if o.LookaheadTurns == 0 {
		o.LookaheadTurns = DefaultLookaheadTurns
	}
	if o.Preparers == 0 {
		o.Preparers = min(4, runtime.GOMAXPROCS(0))
	}
	if o.Clients < 0 || o.MaxInFlight < 0 || o.Preparers < 0 || o.LookaheadTurns < 0 ||
		o.Timeout < 0 || o.Drain < 0 || o.Lookahead < 0 {
		return o, errors.New("loadgen: an option is negative")
	}
	for i, p := range o.Phases {
		if p.End < p.Start || i > 0 && p.Start < o.Phases[i-1].End {
			return o, fmt.Errorf("loadgen: phase %q, %v to %v, overlaps the one before it or ends before it starts", p.Name, p.Start, p.End)
		}
	}
	if o.Clients > 0 {
		// One session at hand for each client; the clock bounds nothing here.
		o.LookaheadTurns = min(o.LookaheadTurns, o.Clients)
	}
	if o.Progress == nil {
		o.Progress = &Progress{}
	}
	if o.Now == nil {
		start := time.Now().Add(LeadIn)
		o.Now = func() time.Duration { return time.Since(start) }
	}
	if o.Pacer == nil {
		o.Pacer = NewPacer(o.Now)
	}
	return o, nil
}

// planEnd is the end of the last measured phase (where none is, of the last
// phase), from which on sessions only keep the load up; forever without phases.
func planEnd(phases []plan.Phase) time.Duration {
	end := forever
	for i := len(phases) - 1; i >= 0; i-- {
		if phases[i].Measured {
			return phases[i].End
		}
		end = phases[len(phases)-1].End
	}
	return end
}

// Run sends the plan and returns when every turn has ended and every record was
// handed out. The Result is whole also where there is an error, which is the
// source's, Prepare's, or of the options.
//
//   - A first turn is due when its session is scheduled; a later one when the
//     one before it is done plus its think time. One with an At of its own is
//     due then: in a scripted session whatever is still in flight, in a live
//     one no earlier than the reply it carries.
//   - A turn is released when its worker runs, so that the machine's own delays
//     are in its lateness; so is the time by which it was prepared too late.
//   - Deadlines and hang-ups count from the due time, also while a turn waits
//     for a slot. A request that finished before its hang-up is what it is.
//   - After a turn that was anything but ok, or was hung up, what is left of
//     its session is skipped (in strict replay, what is not due by then).
//   - When the load ends, what is due and unsent, or in flight and cut, is
//     unfinished; what is due later is not_due. After Stop, requests in flight
//     may end by themselves until Drain has passed.
func Run(ctx context.Context, src plan.Source, prepare Prepare, opt Options) (Result, error) {
	o, err := opt.withDefaults()
	if err != nil {
		return Result{}, err
	}
	defer o.Pacer.Close()
	sendCtx, cut := context.WithCancelCause(ctx)
	defer cut(errEnd)

	in := &inbox{pacer: o.Pacer, until: -forever, readTo: plan.Unset}
	prep, out := newPrepQueue(), newRecorder(o.Record, o.Progress)
	feed := &feeder{
		src: src, opt: &o, planEnd: planEnd(o.Phases), in: in, prep: prep, out: out,
		progress: o.Progress, hash: plan.NewHasher(),
		slots: make(chan struct{}, o.LookaheadTurns), stop: make(chan struct{}), last: plan.Unset,
	}
	d := &dispatcher{
		opt: &o, planEnd: feed.planEnd, in: in, prep: prep, feed: feed, out: out,
		progress: o.Progress, ctx: sendCtx,
	}
	d.send = d.startWorker

	var helpers, recording, watching sync.WaitGroup
	helpers.Go(func() { feed.run(ctx) })
	for range o.Preparers {
		helpers.Go(func() { prepareAll(prep, prepare, o.Now, in) })
	}
	recording.Go(out.run)
	finished := make(chan struct{})
	watching.Go(func() {
		for stop := o.Stop; ; {
			select {
			case <-stop:
				stop = nil
			case <-ctx.Done():
				o.Pacer.Wake()
				return
			case <-finished:
				return
			}
			o.Pacer.Wake()
		}
	})

	res := Result{End: d.load(ctx), LoadEnd: d.loadEnd}
	drain := time.Duration(0)
	if res.End == EndInterrupted || res.End == EndError {
		drain = o.Drain
	}
	d.wind(drain, cut, &helpers)
	res.Finished = o.Now()
	close(finished)
	watching.Wait()
	out.close()
	recording.Wait()
	d.sumUp(&res)
	return res, d.err
}

// sumUp fills in what was counted.
func (d *dispatcher) sumUp(res *Result) {
	res.Planned = d.progress.planned.Load()
	res.Outcomes = d.out.outcomes
	res.LatePrepared = d.latePrepared
	res.PlanHash = d.feed.hash.Sum()
	res.PlanRead = d.feed.read || d.opt.Clients > 0
}
