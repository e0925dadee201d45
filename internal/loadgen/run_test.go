package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// at closes a channel at that time of the run.
func at(d time.Duration) func(*run, *Options) {
	return func(r *run, o *Options) {
		c := make(chan struct{})
		o.Stop = c
		time.AfterFunc(d, func() { close(c) })
	}
}

var mainAndTail = []plan.Phase{{Name: "main", End: 10 * sec, Measured: true}, {Name: "tail", Start: 10 * sec, End: 600 * sec}}

func TestFirstInterrupt(t *testing.T) {
	t.Run("sending stops, what is in flight ends by itself, the rest of the plan is not due", func(t *testing.T) {
		r := virtual(t, constant(1, -1), after(1500*ms), Options{Phases: mainAndTail}, at(4200*ms))
		// Sent at 0, 1, 2, 3 and 4 s; those of 5 to 9 s are in the plan.
		r.want(t, map[string]int64{"ok": 5, "not_due": 5})
		if r.End != EndInterrupted || r.LoadEnd != 4200*ms || r.Finished != 5500*ms || !r.PlanRead {
			t.Errorf("%v at %v, finished %v, plan read: %v", r.End, r.LoadEnd, r.Finished, r.PlanRead)
		}
		whole := virtual(t, constant(1, -1), after(1500*ms), Options{Phases: mainAndTail})
		if r.PlanHash != whole.PlanHash {
			t.Error("the interrupted run's plan has another hash than the whole run's")
		}
	})
	t.Run("what does not end is cut at the drain limit", func(t *testing.T) {
		r := virtual(t, constant(1, -1), hang, Options{Phases: mainAndTail, Drain: 3 * sec}, at(4200*ms))
		r.want(t, map[string]int64{"unfinished": 5, "not_due": 5})
		if r.Finished != 7200*ms {
			t.Errorf("finished %v, want 7.2s", r.Finished)
		}
	})
	t.Run("waiting for a slot at that time is unfinished", func(t *testing.T) {
		r := virtual(t, constant(1, -1), after(1900*ms), Options{Phases: mainAndTail, MaxInFlight: 1}, at(4200*ms))
		// 0-1.9, 1.9-3.8 and 3.8-5.7 are served; 3 and 4 s wait.
		r.want(t, map[string]int64{"ok": 3, "unfinished": 2, "not_due": 5})
	})
	t.Run("later turns of a session in flight are not due", func(t *testing.T) {
		r := virtual(t, sessions(talk(0, 0, 0, sec, sec)), after(2*sec), Options{}, at(sec))
		r.want(t, map[string]int64{"ok": 1, "not_due": 2})
	})
	t.Run("a huge rest of the plan is counted up to a bound", func(t *testing.T) {
		if testing.Short() {
			t.Skip()
		}
		r := &run{}
		n := int64(0)
		synctest.Test(t, func(t *testing.T) {
			r.do(context.Background(), constant(1000, -1), after(ms), Options{}, at(99500*time.Microsecond), func(_ *run, o *Options) {
				o.Record = func(*record.Record) { n++ }
			})
		})
		if n != r.Planned {
			t.Errorf("%d records of %d turns", n, r.Planned)
		}
		if r.PlanRead || r.Outcomes[record.OK] != 100 || r.Outcomes[record.NotDue] < MaxNotDue || r.Outcomes[record.NotDue] > MaxNotDue+3000 {
			t.Errorf("plan read: %v, %v", r.PlanRead, r.outcomes())
		}
	})
}

func TestSecondInterrupt(t *testing.T) {
	r := &run{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { time.Sleep(5 * sec); cancel() }()
		r.do(ctx, constant(1, -1), hang, Options{Phases: mainAndTail}, at(4200*ms))
	})
	r.check(t)
	if r.End != EndInterrupted || r.Finished != 5*sec || r.Outcomes[record.Unfinished] != 5 {
		t.Errorf("%v, finished %v, %v", r.End, r.Finished, r.outcomes())
	}
	r = &run{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { time.Sleep(2500 * ms); cancel() }()
		r.do(ctx, constant(1, -1), hang, Options{Phases: mainAndTail})
	})
	r.check(t)
	if r.End != EndCancelled || r.Finished != 2500*ms || r.Outcomes[record.Unfinished] != 3 {
		t.Errorf("context alone: %v, finished %v, %v", r.End, r.Finished, r.outcomes())
	}
}

func TestDeadlinesAndHangUps(t *testing.T) {
	turn := func(timeout, hangUp time.Duration) *plan.Session {
		s := talk(0, sec, 0, 0)
		s.Turns[0].Timeout, s.Turns[0].HangUp = timeout, hangUp
		return s
	}
	for _, c := range []struct {
		name          string
		timeout, hang time.Duration // of the turn
		serve         serve
		want          record.Outcome
		done          time.Duration
		next          record.Outcome
	}{
		{"the run's own deadline", 0, 0, hang, record.Timeout, 11 * sec, record.Skipped},
		{"the turn's deadline is nearer", 2 * sec, 0, hang, record.Timeout, 3 * sec, record.Skipped},
		{"the turn's deadline is farther", 20 * sec, 0, hang, record.Timeout, 21 * sec, record.Skipped},
		{"the user hangs up, and does not go on", 0, 2 * sec, hang, record.Cancelled, 3 * sec, record.Skipped},
		{"the deadline comes before the hang-up", sec, 2 * sec, hang, record.Timeout, 2 * sec, record.Skipped},
		{"finished before the hang-up", 0, 2 * sec, after(1999 * ms), record.OK, 2999 * ms, record.OK},
		{"an answer just inside the deadline", 2 * sec, 0, after(1999 * ms), record.OK, 2999 * ms, record.OK},
		{"an answer just outside", 2 * sec, 0, after(2001 * ms), record.Timeout, 3 * sec, record.Skipped},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := virtual(t, sessions(turn(c.timeout, c.hang)), c.serve, Options{Timeout: 10 * sec})
			rec, next := r.byID(t, 0, 0), r.byID(t, 0, 1)
			if rec.Outcome != c.want || rec.Done != c.done {
				t.Errorf("%v, done %v; want %v, %v", rec.Outcome, rec.Done, c.want, c.done)
			}
			if next.Outcome != c.next {
				t.Errorf("next turn: %v, want %v", next.Outcome, c.next)
			}
			if next.Outcome == record.Skipped && (next.Scheduled != record.Unset || !next.LastTurn) {
				t.Errorf("skipped turn: scheduled %v, last %v", next.Scheduled, next.LastTurn)
			}
		})
	}
}

func TestDeadlineRunsInTheCapQueue(t *testing.T) {
	l := []*plan.Session{single(0, 0), single(1, sec), single(2, sec), single(3, 2*sec)}
	l[2].Turns[0].HangUp = 2 * sec
	l[3].Turns[0].Timeout = 60 * sec
	r := virtual(t, sessions(l...), func(r *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
		return after(9*sec)(r, ctx, s, turn, rec)
	}, Options{MaxInFlight: 1, Timeout: 5 * sec}, func(_ *run, _ *Options) { l[0].Turns[0].Timeout = 60 * sec })
	for i, want := range []struct {
		o        record.Outcome
		admitted time.Duration
		done     time.Duration
	}{
		{record.OK, 0, 9 * sec},
		{record.Timeout, record.Unset, 6 * sec},
		{record.Cancelled, record.Unset, 3 * sec},
		{record.OK, 9 * sec, 18 * sec},
	} {
		if rec := r.byID(t, int64(i), 0); rec.Outcome != want.o || rec.Admitted != want.admitted || rec.Done != want.done || rec.Released != rec.Scheduled {
			t.Errorf("%d: %v, admitted %v, done %v; want %v", i, rec.Outcome, rec.Admitted, rec.Done, want)
		}
	}
}

// script is a scripted session with an absolute time per turn.
func script(seq int64, at ...time.Duration) *plan.Session {
	s := talk(seq, at[0], make([]time.Duration, len(at))...)
	s.Scripted = true
	for i := range at {
		s.Turns[i].At = at[i]
	}
	return s
}

func TestStrictAndLive(t *testing.T) {
	t.Run("live: the previous turn's end plus think time, with its reply", func(t *testing.T) {
		var replies []string
		r := &run{}
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			r.now = func() time.Duration { return time.Since(start) }
			srv := r.prepare(after(sec))
			var when []time.Duration
			r.Result, r.err = Run(context.Background(), sessions(talk(0, sec, 0, 10*sec, 3*sec)), func(s *plan.Session, turn int, have []string) (func(context.Context, *record.Record) string, error) {
				replies = append(replies, strings.Join(have, "|"))
				when = append(when, r.now())
				return srv(s, turn, have)
			}, Options{Now: r.now, Pacer: NewVirtualPacer(r.now), Record: func(rec *record.Record) { r.recs = append(r.recs, rec) }})
			// Prepared in think time, two seconds ahead and no sooner.
			if want := []time.Duration{0, 10 * sec, 14 * sec}; !slices.Equal(when, want) {
				t.Errorf("prepared at %v, want %v", when, want)
			}
		})
		r.check(t)
		for i, want := range []time.Duration{sec, 12 * sec, 16 * sec} {
			if rec := r.byID(t, 0, int32(i)); rec.Scheduled != want || rec.Released != want {
				t.Errorf("turn %d scheduled %v, released %v, want %v", i, rec.Scheduled, rec.Released, want)
			}
		}
		if want := []string{"", "reply 0.0", "reply 0.0|reply 0.1"}; !slices.Equal(replies, want) {
			t.Errorf("replies %q, want %q", replies, want)
		}
	})
	t.Run("strict: every turn at its own time, whatever is in flight", func(t *testing.T) {
		r := virtual(t, sessions(script(0, sec, 2*sec, 20*sec)), after(5*sec), Options{})
		for i, want := range []time.Duration{sec, 2 * sec, 20 * sec} {
			if rec := r.byID(t, 0, int32(i)); rec.Scheduled != want || rec.Sent != want || rec.Outcome != record.OK {
				t.Errorf("turn %d: %v, scheduled %v, sent %v, want %v", i, rec.Outcome, rec.Scheduled, rec.Sent, want)
			}
		}
	})
	t.Run("strict: a turn that failed before makes later ones skipped", func(t *testing.T) {
		r := virtual(t, sessions(script(0, sec, 2*sec, 20*sec)), hang, Options{Timeout: 3 * sec})
		r.want(t, map[string]int64{"timeout": 2, "skipped": 1})
	})
	t.Run("live with times of a trace: no sooner than its reply", func(t *testing.T) {
		s := script(0, sec, 2*sec, 20*sec)
		s.Scripted = false
		r := virtual(t, sessions(s), after(5*sec), Options{})
		for i, want := range []time.Duration{sec, 6 * sec, 20 * sec} {
			if rec := r.byID(t, 0, int32(i)); rec.Scheduled != want {
				t.Errorf("turn %d scheduled %v, want %v", i, rec.Scheduled, want)
			}
		}
	})
}

func TestTail(t *testing.T) {
	// 1 request/s of 15 s each: the measured ones end at 24 s, and up to then
	// the load is kept up; what is then in flight is cut.
	r := virtual(t, constant(1, -1), after(15*sec), Options{Phases: mainAndTail})
	if r.End != EndMeasured || r.LoadEnd != 24*sec {
		t.Errorf("ended by %v at %v, want by the measured ones at 24s", r.End, r.LoadEnd)
	}
	n := map[string]map[record.Outcome]int{"main": {}, "tail": {}}
	for _, rec := range r.recs {
		n[rec.Phase][rec.Outcome]++
	}
	if n["main"][record.OK] != 10 || len(n["main"]) != 1 {
		t.Errorf("main: %v", n["main"])
	}
	if sent := n["tail"][record.Unfinished]; sent < 14 || sent > 15 || len(n["tail"]) != 1 {
		t.Errorf("tail: %v; the load is to go on from 10 to 24 s", n["tail"])
	}
	t.Run("a later turn past the end is not due", func(t *testing.T) {
		r := virtual(t, sessions(talk(0, 0, 0, 5*sec), talk(1, 9*sec, 0, 5*sec), talk(2, 9*sec, 0, 50*sec), single(3, 500*sec)), after(sec), Options{Phases: mainAndTail})
		r.want(t, map[string]int64{"ok": 4, "not_due": 2})
		if rec := r.byID(t, 2, 1); rec.Outcome != record.NotDue || rec.Scheduled != 60*sec || rec.Phase != "tail" {
			t.Errorf("%v, scheduled %v, phase %q", rec.Outcome, rec.Scheduled, rec.Phase)
		}
	})
	t.Run("a later turn inside the window is waited for", func(t *testing.T) {
		r := virtual(t, sessions(talk(0, 0, 0, 8900*ms), single(1, 500*sec)), after(sec), Options{Phases: mainAndTail})
		r.want(t, map[string]int64{"ok": 2})
		if r.LoadEnd != 10900*ms {
			t.Errorf("ended %v, want 10.9s", r.LoadEnd)
		}
	})
}

func TestClosedLoop(t *testing.T) {
	endless := &source{at: func(n int64) *plan.Session {
		s := talk(n, plan.Unset, 0, 2*sec)
		if n >= 3 {
			s.Turns[0].Think = sec
		}
		return s
	}}
	r := virtual(t, endless, after(sec), Options{Clients: 3, Phases: mainAndTail, Drain: 30 * sec})
	// A session takes 1 s, thinks 2 s, takes 1 s; after a second of thought the
	// next one starts: at 0, 5 and 10 s.
	starts := map[time.Duration]int{}
	for _, rec := range r.recs {
		if rec.ID.Turn == 0 {
			starts[rec.Scheduled]++
		}
		if late, ok := rec.Lateness(); ok && late != 0 {
			t.Errorf("%v late by %v", rec.ID, late)
		}
	}
	if starts[0] != 3 || starts[5*sec] != 3 {
		t.Errorf("sessions started at %v, want 3 at 0s, 3 at 5s", starts)
	}
	if r.End != EndMeasured || r.LoadEnd != 10*sec {
		t.Errorf("ended by %v at %v", r.End, r.LoadEnd)
	}
	if r.Outcomes[record.OK] != 12 {
		t.Errorf("%v, want 12 ok", r.outcomes())
	}
	t.Run("a plan that ends", func(t *testing.T) {
		src := &source{at: func(n int64) *plan.Session {
			if n == 7 {
				return nil
			}
			return talk(n, plan.Unset, 0)
		}}
		r := virtual(t, src, after(sec), Options{Clients: 3})
		r.want(t, map[string]int64{"ok": 7})
		if r.End != EndPlan || r.Finished != 3*sec {
			t.Errorf("%v, finished %v, want plan at 3s", r.End, r.Finished)
		}
	})
	t.Run("a client that waits for its session at the window's end still gets it", func(t *testing.T) {
		slow := sourceFunc(func(n int64) (*plan.Session, error) {
			time.Sleep(6 * sec)
			return talk(n, plan.Unset, 0), nil
		})
		// Sessions come at 6, 12 and 18 s, for clients ready at 0, 0 and 6 s.
		r := virtual(t, slow, after(ms), Options{Clients: 2, Phases: mainAndTail})
		for i, want := range []time.Duration{0, 0, 6*sec + ms} {
			if rec := r.byID(t, int64(i), 0); rec.Scheduled != want || rec.Outcome != record.OK || rec.Released != time.Duration(i+1)*6*sec {
				t.Errorf("session %d: %v, scheduled %v, released %v, want %v", i, rec.Outcome, rec.Scheduled, rec.Released, want)
			}
		}
		if r.LoadEnd != 18*sec+ms {
			t.Errorf("ended %v", r.LoadEnd)
		}
	})
	t.Run("a failure ends the session, not the client", func(t *testing.T) {
		r := virtual(t, &source{at: func(n int64) *plan.Session {
			if n == 4 {
				return nil
			}
			return talk(n, plan.Unset, 0, 0, 0)
		}}, hang, Options{Clients: 2, Timeout: sec})
		r.want(t, map[string]int64{"timeout": 4, "skipped": 8})
	})
}

func TestLookaheadIsBounded(t *testing.T) {
	for _, c := range []struct {
		name  string
		rate  float64
		turns int
		ahead int64 // sessions held ahead of their time
	}{
		{"by time", 100, 0, 200},
		{"by count", 10000, 100, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := constant(c.rate, 10_000_000)
			r := &run{}
			var read int64
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				go func() { time.Sleep(5 * sec); read = src.n.Load(); cancel() }()
				r.do(ctx, src, after(ms), Options{LookaheadTurns: c.turns})
			})
			r.check(t)
			// One is in hand besides, and one falls due at 5 s.
			due := int64(5 * c.rate)
			if read < due+c.ahead/2 || read > due+c.ahead+2 || src.n.Load() > read+10 {
				t.Errorf("%d sessions read in 5 s and %d in the end, want %d and %d ahead", read, src.n.Load(), due, c.ahead)
			}
		})
	}
}

func TestErrorsEndTheRun(t *testing.T) {
	bad := errors.New("line 7: no such column")
	t.Run("of the source", func(t *testing.T) {
		r := virtual(t, sourceFunc(func(n int64) (*plan.Session, error) {
			if n == 3 {
				return nil, bad
			}
			return single(n, time.Duration(n)*sec), nil
		}), after(ms), Options{})
		if !errors.Is(r.err, bad) || r.End != EndError || r.PlanRead {
			t.Errorf("%v, %v, plan read: %v", r.err, r.End, r.PlanRead)
		}
		r.check(t)
	})
	t.Run("out of order", func(t *testing.T) {
		r := virtual(t, sessions(single(0, 2*sec), single(1, sec)), after(ms), Options{})
		if r.err == nil || !strings.Contains(r.err.Error(), "session 1") {
			t.Errorf("%v", r.err)
		}
	})
	t.Run("of preparing", func(t *testing.T) {
		r := &run{}
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			r.now = func() time.Duration { return time.Since(start) }
			srv := r.prepare(after(10 * ms))
			r.Result, r.err = Run(context.Background(), constant(1, 10), func(s *plan.Session, turn int, replies []string) (func(context.Context, *record.Record) string, error) {
				if s.Seq == 4 {
					return nil, bad
				}
				return srv(s, turn, replies)
			}, Options{Now: r.now, Pacer: NewVirtualPacer(r.now), Record: func(rec *record.Record) { r.recs = append(r.recs, rec) }})
		})
		r.check(t)
		if !errors.Is(r.err, bad) || r.Outcomes[record.OK] == 0 || r.Planned != 10 {
			t.Errorf("%v, %v", r.err, r.outcomes())
		}
	})
	if _, err := Run(context.Background(), constant(1, 1), nil, Options{Clients: -1}); err == nil {
		t.Error("negative option accepted")
	}
}

// sourceFunc is a source from a function that may fail.
func sourceFunc(f func(n int64) (*plan.Session, error)) plan.Source { return &funcSource{f, 0} }

type funcSource struct {
	f func(n int64) (*plan.Session, error)
	n int64
}

func (s *funcSource) Next() (*plan.Session, error) { s.n++; return s.f(s.n - 1) }

func TestVirtualHourIsRepeatable(t *testing.T) {
	if testing.Short() {
		t.Skip("36,000 requests, twice")
	}
	hour := func() []time.Duration {
		r := virtual(t, singles(poisson(7, 10, time.Hour)), freezing(8, 500*ms, 600*sec, 610*sec), Options{MaxInFlight: 64})
		var q []time.Duration
		var l []time.Duration
		for _, rec := range r.recs {
			d, _ := rec.TTFT()
			l = append(l, d)
		}
		for _, p := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 1} {
			q = append(q, quantile(l, p))
		}
		return append(q, time.Duration(len(l)))
	}
	one, two := hour(), hour()
	if !reflect.DeepEqual(one, two) {
		t.Errorf("two runs of one plan differ:\n%v\n%v", one, two)
	}
	t.Logf("TTFT quantiles of an hour: %v", one)
}

func TestProgress(t *testing.T) {
	var p Progress
	var mid Snapshot
	virtual(t, constant(1, 10), after(2500*ms), Options{Progress: &p}, func(r *run, o *Options) {
		go func() { time.Sleep(4200 * ms); mid = p.Snapshot() }()
	})
	if mid.Due != 5 || mid.InFlight != 3 || mid.Outcomes[record.OK] != 2 || mid.TTFT50 != 2500*ms || mid.TTFTs != 2 || mid.OutputTokens != 10 {
		t.Errorf("after 4.2 s: %+v", mid)
	}
	if end := p.Snapshot(); end.Outcomes[record.OK] != 10 || end.Planned != 10 || end.InFlight != 0 || end.Failed() != 0 {
		t.Errorf("in the end: %+v", end)
	}
}

// TestAnyPlan runs random plans against random servers under random options:
// whatever happens, check's sums and orders hold.
func TestAnyPlan(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 60
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 99))
			dur := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
			some := func(most time.Duration) time.Duration {
				if r.IntN(2) == 0 {
					return 0
				}
				return 1 + dur(most)
			}
			opt := Options{
				Timeout: some(8 * sec), MaxInFlight: r.IntN(2) * (1 + r.IntN(5)), Shed: r.IntN(2) == 0,
				Lookahead: some(5 * sec), LookaheadTurns: r.IntN(5), Preparers: 1 + r.IntN(3), Drain: 1 + dur(20*sec),
			}
			if r.IntN(2) == 0 {
				opt.Phases = []plan.Phase{{Name: "warm", End: 5 * sec}, {Name: "main", Start: 5 * sec, End: 15 * sec, Measured: true}, {Name: "tail", Start: 15 * sec, End: 90 * sec}}
			} else if opt.Timeout == 0 {
				opt.Timeout = 30 * sec // nothing else would end it
			}
			closed := r.IntN(4) == 0
			if closed {
				opt.Clients = 1 + r.IntN(5)
			}
			var l []*plan.Session
			due0 := time.Duration(0)
			for i := range int64(r.IntN(60)) {
				due0 += dur(800 * ms)
				s := talk(i, due0, make([]time.Duration, 1+r.IntN(4))...)
				s.Scripted = r.IntN(2) == 0
				due := due0
				for k := range s.Turns {
					s.Turns[k].Timeout, s.Turns[k].HangUp = some(10*sec), some(20*sec)
					if k > 0 {
						s.Turns[k].Think = some(10 * sec)
						if due += dur(5 * sec); r.IntN(2) == 0 && !closed {
							s.Turns[k].At = due
						}
					}
				}
				if closed {
					s.Scheduled = plan.Unset
				}
				l = append(l, s)
			}
			srv := func(run *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
				r := rand.New(rand.NewPCG(seed, uint64(s.Seq*100+int64(turn))))
				switch r.IntN(8) {
				case 0:
					return hang(run, ctx, s, turn, rec)
				case 1:
					rec.Outcome, rec.Done = record.ConnectError, run.now()
					return ""
				case 2:
					rec.Outcome = record.Rejected // and no stamp at all
					return ""
				}
				return after(time.Duration(1+r.Int64N(int64(3*sec))))(run, ctx, s, turn, rec)
			}
			var with []func(*run, *Options)
			if r.IntN(4) == 0 {
				with = append(with, at(dur(30*sec)))
			}
			got := &run{}
			cancel := time.Duration(0)
			if r.IntN(5) == 0 {
				cancel = dur(30 * sec)
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(context.Background())
				defer stop()
				if cancel > 0 {
					time.AfterFunc(cancel, stop)
				}
				got.do(ctx, sessions(l...), srv, opt, with...)
			})
			if got.err != nil {
				t.Fatal(got.err)
			}
			got.check(t)
			// Each turn of a session before the end of the last measured phase.
			seen := map[plan.TurnID]bool{}
			for _, rec := range got.recs {
				seen[rec.ID] = true
			}
			for _, s := range l {
				for _, turn := range s.Turns {
					if id := (plan.TurnID{Session: s.Seq, Turn: turn.Index}); !closed && got.PlanRead && s.Scheduled < planEnd(opt.Phases) && !seen[id] {
						t.Errorf("%v has no record", id)
					}
				}
			}
			if !got.PlanRead && cancel == 0 {
				t.Error("the plan was not read to its end")
			}
			if got.End == EndPlan && got.Planned != turnsOf(l) {
				t.Errorf("planned %d of %d turns", got.Planned, turnsOf(l))
			}
		})
	}
}

func turnsOf(l []*plan.Session) (n int64) {
	for _, s := range l {
		n += int64(len(s.Turns))
	}
	return n
}

func TestDeadlineCountsFromScheduledAfterAWait(t *testing.T) {
	// Due at 1 s, in its slot from 3 s: it has 3 s left of its five.
	r := virtual(t, sessions(single(0, 0), single(1, sec)), func(r *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
		return after([]time.Duration{3 * sec, 4 * sec}[s.Seq])(r, ctx, s, turn, rec)
	}, Options{MaxInFlight: 1, Timeout: 5 * sec})
	if rec := r.byID(t, 1, 0); rec.Outcome != record.Timeout || rec.Admitted != 3*sec || rec.Done != 6*sec {
		t.Errorf("%v, admitted %v, done %v; want timeout, 3s, 6s", rec.Outcome, rec.Admitted, rec.Done)
	}
}

func TestSlowSourceIsLateNotThinned(t *testing.T) {
	// The source takes 1.5 s for each session of 1/s: the window is over when
	// two thirds of it are out. The rest is sent nevertheless, and late.
	slow := sourceFunc(func(n int64) (*plan.Session, error) {
		time.Sleep(1500 * ms)
		return single(n, time.Duration(n)*sec), nil
	})
	r := virtual(t, slow, after(ms), Options{Phases: mainAndTail})
	n := 0
	for _, rec := range r.recs {
		if rec.Phase == "main" && rec.Outcome == record.OK {
			n++
			want := time.Duration(rec.ID.Session+1) * 1500 * ms
			if late, _ := rec.Lateness(); late != want-rec.Scheduled {
				t.Errorf("%v late by %v, want %v", rec.ID, late, want-rec.Scheduled)
			}
		}
	}
	if n != 10 || r.LatePrepared < 10 {
		t.Errorf("%d of 10 sent, %d counted as prepared late", n, r.LatePrepared)
	}
}

func TestRecordSinkDelaysNoTurn(t *testing.T) {
	r := virtual(t, constant(10, 100), after(100*ms), Options{}, func(r *run, o *Options) {
		o.Record = func(rec *record.Record) {
			time.Sleep(300 * ms)
			r.recs = append(r.recs, rec)
		}
	})
	for _, rec := range r.recs {
		if late, _ := rec.Lateness(); late != 0 {
			t.Fatalf("%v late by %v", rec.ID, late)
		}
	}
	r.want(t, map[string]int64{"ok": 100})
}

func TestPhaseIsOfTheScheduledTime(t *testing.T) {
	// A2: due in the warm-up, done in the window: it belongs to the warm-up.
	phases := []plan.Phase{{Name: "warm", End: 10 * sec}, {Name: "main", Start: 10 * sec, End: 20 * sec, Measured: true}, {Name: "tail", Start: 20 * sec, End: 60 * sec}}
	r := virtual(t, sessions(single(0, 9999*ms), talk(1, 9999*ms, 0, 0), single(2, 10*sec)), after(5*sec), Options{Phases: phases})
	for _, c := range []struct {
		session int64
		turn    int32
		phase   string
	}{{0, 0, "warm"}, {1, 0, "warm"}, {1, 1, "main"}, {2, 0, "main"}} {
		if got := r.byID(t, c.session, c.turn).Phase; got != c.phase {
			t.Errorf("session %d turn %d is of %q, want %q", c.session, c.turn, got, c.phase)
		}
	}
}
