package loadgen

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// virtualServer answers each call in a time of its own, or never, or badly.
type virtualServer struct {
	fate func(c *Call) (time.Duration, record.Outcome) // Pending: never
	open calls                                         // cut: when it answers
	n    int64
}

func (s *virtualServer) Send(now time.Duration, c *Call) {
	c.Record.Connected, c.Record.Sent, c.Record.Written = now, now, now
	d, o := s.fate(c)
	if o == record.Pending {
		return
	}
	mine := &Call{Record: c.Record, State: c, cut: now + d, n: s.n}
	s.n++
	c.State = mine
	c.Record.Priority = int(o)
	heap.Push(&s.open, mine)
}

func (s *virtualServer) Cut(_ time.Duration, c *Call) {
	if mine, ok := c.State.(*Call); ok {
		heap.Remove(&s.open, mine.place)
	}
	c.Record.Priority = 0
}

func (s *virtualServer) Next() (time.Duration, bool) {
	if len(s.open) == 0 {
		return 0, false
	}
	return s.open[0].cut, true
}

func (s *virtualServer) Advance(ended []*Call) []*Call {
	mine := heap.Pop(&s.open).(*Call)
	rec, at := mine.Record, mine.cut
	rec.Outcome, rec.Done, rec.Priority = record.Outcome(rec.Priority), at, 0
	if rec.Outcome == record.OK {
		rec.Headers, rec.FirstOutput, rec.LastOutput = at, at, at
		rec.OutputTokens, rec.Streamed = 5, true
	}
	return append(ended, mine.State.(*Call))
}

// Random plans under random options, once against a server in a bubble and once
// simulated: the same records, to the nanosecond.
func TestSimulateIsRun(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 50
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			some := func(most time.Duration) time.Duration {
				if r.IntN(2) == 0 {
					return 0
				}
				return 1 + time.Duration(r.Int64N(int64(most)))
			}
			opt := Options{Timeout: some(8 * sec), MaxInFlight: r.IntN(2) * (1 + r.IntN(5)), Shed: r.IntN(2) == 0, Drain: 1 + some(20*sec)}
			if r.IntN(2) == 0 {
				opt.Phases = []plan.Phase{{Name: "warm", End: 5 * sec}, {Name: "main", Start: 5 * sec, End: 15 * sec, Measured: true}, {Name: "tail", Start: 15 * sec, End: 90 * sec}}
			} else if opt.Timeout == 0 {
				opt.Timeout = 30 * sec // nothing else would end it
			}
			if r.IntN(4) == 0 {
				opt.Clients = 1 + r.IntN(5)
			}
			plans := func() (l []*plan.Session) {
				r := rand.New(rand.NewPCG(seed, 8))
				// No two things happen at the same instant: which of them comes
				// first in a real run is nobody's to say.
				some := func(most time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(most))) }
				at := time.Duration(0)
				for i := range int64(r.IntN(60)) {
					at += some(800 * ms)
					s := talk(i, at, make([]time.Duration, 1+r.IntN(4))...)
					s.Scripted = r.IntN(2) == 0
					due := at
					for k := range s.Turns {
						s.Turns[k].Timeout, s.Turns[k].HangUp = some(10*sec)*time.Duration(r.IntN(2)), some(20*sec)*time.Duration(r.IntN(2))
						if k > 0 {
							s.Turns[k].Think = some(10 * sec)
							if due += some(5 * sec); r.IntN(2) == 0 && opt.Clients == 0 {
								s.Turns[k].At = due
							}
						}
					}
					if opt.Clients > 0 {
						s.Scheduled = plan.Unset
						s.Turns[0].Think = some(sec)
					}
					l = append(l, s)
				}
				return l
			}
			fate := func(s *plan.Session, turn int) (time.Duration, record.Outcome) {
				r := rand.New(rand.NewPCG(seed, uint64(s.Seq*100+int64(turn))))
				d := time.Duration(1 + r.Int64N(int64(3*sec)))
				switch r.IntN(8) {
				case 0:
					return 0, record.Pending
				case 1:
					return d, record.ConnectError
				case 2:
					return d, record.Rejected
				}
				return d, record.OK
			}
			real := virtual(t, sessions(plans()...), func(run *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
				rec.Connected, rec.Sent, rec.Written = run.now(), run.now(), run.now()
				d, o := fate(s, turn)
				switch {
				case o == record.Pending:
					<-ctx.Done()
				case !wait(ctx, d):
				case o == record.OK:
					answer(run, rec)
				default:
					rec.Outcome = o
				}
				rec.Done = run.now()
				return ""
			}, opt)

			sim := &run{}
			opt.Record = func(rec *record.Record) { sim.recs = append(sim.recs, rec) }
			srv := &virtualServer{fate: func(c *Call) (time.Duration, record.Outcome) { return fate(c.Session, c.Turn) }}
			sim.Result, sim.err = Simulate(t.Context(), sessions(plans()...), srv, opt)
			if sim.err != nil {
				t.Fatal(sim.err)
			}
			sim.check(t)
			for _, r := range []*run{real, sim} {
				slices.SortFunc(r.recs, func(a, b *record.Record) int {
					return int(a.ID.Session-b.ID.Session)*100 + int(a.ID.Turn-b.ID.Turn)
				})
			}
			if d := cmp.Diff(real.Result, sim.Result); d != "" {
				t.Errorf("results differ (-run +simulated):\n%s", d)
			}
			if d := cmp.Diff(real.recs, sim.recs); d != "" {
				t.Errorf("records differ (-run +simulated):\n%s", d)
			}
		})
	}
}

// An interrupt ends a simulated run as it ends a real one, and says what of the
// plan was not sent.
func TestSimulateIsInterrupted(t *testing.T) {
	stop := make(chan struct{})
	n := 0
	r := &run{}
	r.Result, r.err = Simulate(t.Context(), constant(10, 1000), &virtualServer{fate: func(*Call) (time.Duration, record.Outcome) {
		if n++; n == 100 {
			close(stop)
		}
		return 3 * sec, record.OK
	}}, Options{Stop: stop, Record: func(rec *record.Record) { r.recs = append(r.recs, rec) }})
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.check(t)
	if r.End != EndInterrupted || !r.PlanRead {
		t.Errorf("ended by %q, plan read: %v", r.End, r.PlanRead)
	}
	r.want(t, map[string]int64{"not_due": 900, "ok": 100})
}
