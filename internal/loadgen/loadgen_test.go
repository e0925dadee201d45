package loadgen

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// source is a plan.Source from a function: the n-th session, or nil at the end.
type source struct {
	at func(n int64) *plan.Session
	n  atomic.Int64 // handed out
}

func (s *source) Next() (*plan.Session, error) {
	p := s.at(s.n.Load())
	if p == nil {
		return nil, io.EOF
	}
	s.n.Add(1)
	return p, nil
}

func sessions(l ...*plan.Session) *source {
	return &source{at: func(n int64) *plan.Session {
		if n >= int64(len(l)) {
			return nil
		}
		return l[n]
	}}
}

// single is a session of one turn.
func single(seq int64, at time.Duration) *plan.Session {
	return talk(seq, at, 0)
}

// talk is a live session with a think time (the first is 0) per turn.
func talk(seq int64, at time.Duration, think ...time.Duration) *plan.Session {
	s := &plan.Session{Seq: seq, Scheduled: at}
	for i, th := range think {
		s.Turns = append(s.Turns, plan.Turn{Index: int32(i), At: plan.Unset, Think: th, InputTokens: 10, OutputTokens: 5})
	}
	return s
}

// constant is n sessions of one turn, 1/rate apart; n < 0: without end.
func constant(rate float64, n int64) *source {
	return &source{at: func(i int64) *plan.Session {
		if n >= 0 && i >= n {
			return nil
		}
		return single(i, time.Duration(float64(i)/rate*1e9))
	}}
}

// poisson is the arrivals of a Poisson process up to end.
func poisson(seed uint64, rate float64, end time.Duration) []time.Duration {
	r := rand.New(rand.NewPCG(seed, 1))
	var l []time.Duration
	for at := 0.0; ; {
		at += r.ExpFloat64() / rate
		if at >= end.Seconds() {
			return l
		}
		l = append(l, time.Duration(at*1e9))
	}
}

func singles(at []time.Duration) *source {
	return &source{at: func(n int64) *plan.Session {
		if n >= int64(len(at)) {
			return nil
		}
		return single(n, at[n])
	}}
}

// run is one load test in virtual time.
type run struct {
	now  func() time.Duration
	recs []*record.Record
	Result
	err error
}

// serve answers one turn of a fake server: it returns the reply.
type serve func(r *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string

// after is a server that answers each request d after it came.
func after(d time.Duration) serve {
	return func(r *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
		rec.Connected, rec.Sent, rec.Written = r.now(), r.now(), r.now()
		if !wait(ctx, d) {
			rec.Done = r.now()
			return ""
		}
		answer(r, rec)
		return fmt.Sprintf("reply %d.%d", s.Seq, turn)
	}
}

// answer makes rec an ok one whose output came all at once, now.
func answer(r *run, rec *record.Record) {
	rec.Headers, rec.FirstOutput, rec.LastOutput, rec.Done = r.now(), r.now(), r.now(), r.now()
	rec.OutputTokens, rec.Streamed, rec.Outcome = 5, true, record.OK
}

// wait waits d, or returns false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// hang is a server that accepts and never answers.
func hang(r *run, ctx context.Context, _ *plan.Session, _ int, rec *record.Record) string {
	rec.Connected, rec.Sent, rec.Written = r.now(), r.now(), r.now()
	<-ctx.Done()
	return ""
}

// virtual runs a load test in a bubble. with may change the options and start
// goroutines that end by themselves.
func virtual(t *testing.T, src plan.Source, srv serve, opt Options, with ...func(*run, *Options)) *run {
	t.Helper()
	r := &run{}
	synctest.Test(t, func(t *testing.T) { r.do(context.Background(), src, srv, opt, with...) })
	if r.err == nil {
		r.check(t)
	}
	return r
}

func (r *run) do(ctx context.Context, src plan.Source, srv serve, opt Options, with ...func(*run, *Options)) {
	start := time.Now()
	r.now = func() time.Duration { return time.Since(start) }
	opt.Now = r.now
	opt.Pacer = NewVirtualPacer(r.now)
	opt.Record = func(rec *record.Record) { r.recs = append(r.recs, rec) }
	for _, f := range with {
		f(r, &opt)
	}
	r.Result, r.err = Run(ctx, src, r.prepare(srv), opt)
}

func (r *run) prepare(srv serve) Prepare {
	return func(s *plan.Session, turn int, replies []string) (func(context.Context, *record.Record) string, error) {
		return func(ctx context.Context, rec *record.Record) string { return srv(r, ctx, s, turn, rec) }, nil
	}
}

// check holds what is true of every run.
func (r *run) check(t *testing.T) {
	t.Helper()
	var sum int64
	for _, n := range r.Outcomes {
		sum += n
	}
	if sum != r.Planned || int64(len(r.recs)) != r.Planned {
		t.Errorf("planned %d, outcomes sum to %d, %d records", r.Planned, sum, len(r.recs))
	}
	seen := map[plan.TurnID]bool{}
	for _, rec := range r.recs {
		if seen[rec.ID] {
			t.Errorf("%v recorded twice", rec.ID)
		}
		seen[rec.ID] = true
		if rec.Outcome == record.Pending {
			t.Errorf("%v is pending", rec.ID)
		}
		last, name := time.Duration(0), "start"
		for _, s := range []struct {
			name string
			at   time.Duration
		}{{"scheduled", rec.Scheduled}, {"released", rec.Released}, {"admitted", rec.Admitted}, {"connected", rec.Connected}, {"sent", rec.Sent}, {"first_output", rec.FirstOutput}, {"done", rec.Done}} {
			if s.at == record.Unset {
				continue
			}
			if s.at < last {
				t.Errorf("%v: %s %v before %s %v", rec.ID, s.name, s.at, name, last)
			}
			last, name = s.at, s.name
		}
		if rec.Admitted != record.Unset && rec.Released == record.Unset || rec.Released != record.Unset && rec.Scheduled == record.Unset {
			t.Errorf("%v: admitted %v, released %v, scheduled %v", rec.ID, rec.Admitted, rec.Released, rec.Scheduled)
		}
		if (rec.Outcome == record.OK || rec.Outcome == record.Cancelled && rec.Sent != record.Unset) && rec.Admitted == record.Unset {
			t.Errorf("%v: %v and never admitted", rec.ID, rec.Outcome)
		}
	}
}

// outcomes is the run's outcomes that occurred, by name.
func (r *run) outcomes() map[string]int64 {
	m := map[string]int64{}
	for o, n := range r.Outcomes {
		if n > 0 {
			m[record.Outcome(o).String()] = n
		}
	}
	return m
}

func (r *run) want(t *testing.T, want map[string]int64) {
	t.Helper()
	got := r.outcomes()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

// byID returns the record of a turn.
func (r *run) byID(t *testing.T, session int64, turn int32) *record.Record {
	t.Helper()
	for _, rec := range r.recs {
		if rec.ID == (plan.TurnID{Session: session, Turn: turn}) {
			return rec
		}
	}
	t.Fatalf("no record of session %d turn %d", session, turn)
	return nil
}

// quantile is the nearest rank.
func quantile(l []time.Duration, p float64) time.Duration {
	l = slices.Clone(l)
	slices.Sort(l)
	return l[max(0, int(p*float64(len(l))+0.999999)-1)]
}

func TestL1_AbsoluteTimes(t *testing.T) {
	r := virtual(t, constant(200, -1), after(5*ms), Options{Phases: []plan.Phase{
		{Name: "main", Start: 0, End: 50 * sec, Measured: true}, {Name: "tail", Start: 50 * sec, End: 200 * sec},
	}})
	n := 0
	for _, rec := range r.recs {
		if rec.Phase == "main" {
			n++
			if want := time.Duration(float64(rec.ID.Session) / 200 * 1e9); rec.Scheduled != want || rec.Released != want {
				t.Fatalf("session %d: scheduled %v, released %v, want %v", rec.ID.Session, rec.Scheduled, rec.Released, want)
			}
		}
	}
	if n != 10000 {
		t.Errorf("%d sent in 50 s at 200/s, want 10000", n)
	}
}

// freezing is a server of slots that each work for service on one request,
// first come first served, and stands still from stop to resume.
func freezing(slots int, service, stop, resume time.Duration) serve {
	var once sync.Once
	var free chan struct{}
	return func(r *run, ctx context.Context, _ *plan.Session, _ int, rec *record.Record) string {
		once.Do(func() { free = make(chan struct{}, slots) }) // inside the bubble
		rec.Connected, rec.Sent = r.now(), r.now()
		free <- struct{}{}
		if now := r.now(); now >= stop && now < resume {
			wait(ctx, resume-now)
		}
		begun := r.now()
		wait(ctx, service)
		if begun < stop && r.now() > stop {
			wait(ctx, resume-stop)
		}
		answer(r, rec)
		<-free
		return ""
	}
}

// frozenQueue is the exact sojourn times of arrivals at such a server, by
// Kiefer and Wolfowitz: request n starts when it has arrived and the slot that
// is free first is free.
func frozenQueue(at []time.Duration, slots int, service, stop, resume time.Duration) []time.Duration {
	free := make([]time.Duration, slots)
	var l []time.Duration
	for _, a := range at {
		slices.Sort(free)
		begin := max(a, free[0])
		if begin >= stop && begin < resume {
			begin = resume
		}
		end := begin + service
		if begin < stop && end > stop {
			end += resume - stop
		}
		free[0] = end
		l = append(l, end-a)
	}
	return l
}

func attainment(l []time.Duration, limit time.Duration) float64 {
	n := 0
	for _, d := range l {
		if d <= limit {
			n++
		}
	}
	return 100 * float64(n) / float64(len(l))
}

func TestL6_Freeze(t *testing.T) {
	const service, stop, resume = 500 * ms, 20 * sec, 30 * sec
	var shares []float64
	var p95s []time.Duration
	for seed := range uint64(20) {
		at := poisson(seed, 12, 120*sec)
		r := virtual(t, singles(at), freezing(8, service, stop, resume), Options{MaxInFlight: 16})
		var got []time.Duration
		for _, rec := range r.recs {
			d, ok := rec.E2E()
			if !ok {
				t.Fatalf("%v has no latency: %v", rec.ID, rec.Outcome)
			}
			got = append(got, d)
		}
		truth := frozenQueue(at, 8, service, stop, resume)
		if len(got) != len(truth) {
			t.Fatalf("seed %d: %d records of %d arrivals", seed, len(got), len(truth))
		}
		share, want := attainment(got, 2*sec), attainment(truth, 2*sec)
		if share < want-1 || share > want+1 {
			t.Errorf("seed %d: attainment %.2f %%, truth %.2f %%", seed, share, want)
		}
		p95, want95 := quantile(got, 0.95), quantile(truth, 0.95)
		if d := float64(p95-want95) / float64(want95); d < -0.03 || d > 0.03 {
			t.Errorf("seed %d: p95 %v, truth %v", seed, p95, want95)
		}
		shares, p95s = append(shares, share), append(p95s, p95)
	}
	slices.Sort(shares)
	t.Logf("medians over 20 seeds: attainment within 2 s %.1f %%, p95 %v", shares[10], quantile(p95s, 0.5).Round(ms))
	// The truth over 200 seeds: 71.6 % (5-95 %: 61.9-79.4), 9.0 s (8.1-10.1).
	if shares[10] < 66 || shares[10] > 77 {
		t.Errorf("median attainment %.1f %%, far from the known 71.6 %%", shares[10])
	}
}

func TestL7_BurstAfterStall(t *testing.T) {
	// At 500/s with a cap of 256 the server stands still from 1 s to 2 s; what
	// has gathered then goes out at once. The stamps must show it.
	r := virtual(t, constant(500, 2000), freezing(1000, 10*ms, 1*sec, 2*sec), Options{MaxInFlight: 256})
	perTenth := func(stamp func(*record.Record) time.Duration) (most int) {
		n := map[time.Duration]int{}
		for _, rec := range r.recs {
			w := stamp(rec) / (100 * ms)
			n[w]++
			most = max(most, n[w])
		}
		return most
	}
	offered := perTenth(func(rec *record.Record) time.Duration { return rec.Scheduled })
	dispatched := perTenth(func(rec *record.Record) time.Duration { return rec.Admitted })
	if offered != 50 {
		t.Errorf("offered at most %d in 100 ms, want 50", offered)
	}
	if dispatched < 250 {
		t.Errorf("dispatched at most %d in 100 ms; the burst of the stall is at least 250", dispatched)
	}
	var wait time.Duration
	for _, rec := range r.recs {
		if late, _ := rec.Lateness(); late != 0 {
			t.Fatalf("%v: lateness %v; waiting at the cap is not the instrument's fault", rec.ID, late)
		}
		w, _ := rec.CapWait()
		wait = max(wait, w)
	}
	if wait < 400*ms {
		t.Errorf("longest cap wait %v", wait)
	}
	r.want(t, map[string]int64{"ok": 2000})
}

func TestL8_NoHiddenCap(t *testing.T) {
	for _, n := range []int64{128, 2000} {
		var mu sync.Mutex
		open, most := 0, 0
		inner := after(10 * sec)
		r := virtual(t, constant(1000, n), func(r *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			reply := inner(r, ctx, s, turn, rec)
			mu.Lock()
			open--
			mu.Unlock()
			return reply
		}, Options{})
		if int64(most) != n {
			t.Errorf("%d held open at once, want %d", most, n)
		}
		r.want(t, map[string]int64{"ok": n})
	}
}

func TestL9_CapAccounts(t *testing.T) {
	phases := []plan.Phase{{Name: "main", End: 10 * sec, Measured: true}, {Name: "tail", Start: 10 * sec, End: 60 * sec}}
	t.Run("queue", func(t *testing.T) {
		r := virtual(t, constant(2, -1), after(3*sec), Options{MaxInFlight: 1, Phases: phases, Drain: 5 * sec})
		main := map[record.Outcome]int{}
		for _, rec := range r.recs {
			if rec.Phase == "main" {
				main[rec.Outcome]++
			}
		}
		// Served 0-3, 3-6, 6-9, 9-12, and from 12 on until 15, when the drain ends.
		if main[record.OK]+main[record.Unfinished] != 20 || main[record.OK] < 4 || main[record.OK] > 5 {
			t.Errorf("main phase: %v, want 20 in all, 4 or 5 of them ok", main)
		}
		if r.End != EndDrain || r.LoadEnd != 15*sec {
			t.Errorf("ended by %v at %v, want by the drain limit at 15s", r.End, r.LoadEnd)
		}
	})
	t.Run("shed", func(t *testing.T) {
		r := virtual(t, constant(2, -1), after(2999*ms), Options{MaxInFlight: 1, Shed: true, Phases: phases, Drain: 5 * sec})
		main := map[record.Outcome]int{}
		for _, rec := range r.recs {
			if rec.Phase == "main" {
				main[rec.Outcome]++
			}
		}
		// The slot is free at 0, 3, 6 and 9 s (just before, so that it is no tie).
		if main[record.OK] != 4 || main[record.Shed] != 16 {
			t.Errorf("main phase: %v, want 4 ok and 16 shed", main)
		}
	})
}

func TestL12_NeverAnswers(t *testing.T) {
	phases := []plan.Phase{{Name: "main", End: 10 * sec, Measured: true}, {Name: "tail", Start: 10 * sec, End: 600 * sec}}
	t.Run("ends at its deadlines", func(t *testing.T) {
		r := virtual(t, constant(2, -1), hang, Options{Phases: phases, Timeout: 5 * sec})
		n := 0
		for _, rec := range r.recs {
			if rec.Phase == "main" {
				n++
				if rec.Outcome != record.Timeout || rec.Done != rec.Scheduled+5*sec {
					t.Errorf("%v: %v, done %v after scheduled", rec.ID, rec.Outcome, rec.Done-rec.Scheduled)
				}
			}
		}
		if n != 20 || r.End != EndMeasured || r.LoadEnd != 14500*ms {
			t.Errorf("%d turns, ended by %v at %v, want 20 and 14.5s", n, r.End, r.LoadEnd)
		}
	})
	t.Run("ends at the drain limit, unfinished is what was in flight", func(t *testing.T) {
		r := virtual(t, constant(2, -1), hang, Options{Phases: phases, Drain: 7 * sec})
		n := 0
		for _, rec := range r.recs {
			if rec.Outcome != record.Unfinished {
				t.Errorf("%v: %v", rec.ID, rec.Outcome)
			}
			if rec.Phase == "main" {
				n++
			}
		}
		if n != 20 || r.End != EndDrain || r.LoadEnd != 17*sec || r.Finished != 17*sec {
			t.Errorf("%d unfinished, ended by %v at %v, finished %v", n, r.End, r.LoadEnd, r.Finished)
		}
	})
	t.Run("without phases the plan's end waits for the deadlines", func(t *testing.T) {
		r := virtual(t, constant(2, 10), hang, Options{Timeout: 5 * sec})
		r.want(t, map[string]int64{"timeout": 10})
		if r.End != EndPlan {
			t.Errorf("ended by %v", r.End)
		}
	})
}

func TestL13_ConstantLateness(t *testing.T) {
	// The machine is slow to prepare: every request is ready 3 s after it is due.
	r := &run{}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r.now = func() time.Duration { return time.Since(start) }
		srv := r.prepare(after(100 * ms))
		r.Result, r.err = Run(context.Background(), constant(10, 50), func(s *plan.Session, turn int, replies []string) (func(context.Context, *record.Record) string, error) {
			time.Sleep(s.Scheduled + 3*sec - r.now())
			return srv(s, turn, replies)
		}, Options{Now: r.now, Pacer: NewVirtualPacer(r.now), Preparers: 100, Record: func(rec *record.Record) { r.recs = append(r.recs, rec) }})
	})
	r.check(t)
	for _, rec := range r.recs {
		late, _ := rec.Lateness()
		ttft, _ := rec.TTFT()
		if late != 3*sec || ttft != 3100*ms {
			t.Errorf("%v: lateness %v, TTFT %v, want 3s and 3.1s", rec.ID, late, ttft)
		}
	}
	if r.LatePrepared != 50 {
		t.Errorf("%d prepared late, want 50", r.LatePrepared)
	}
}

// A later turn without think time can only be prepared when it is due. That is
// told where it takes longer than a hand-over does.
func TestLatePreparedIsMoreThanAMillisecond(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		want  int64
	}{{ms, 0}, {2 * ms, 2}} {
		r := &run{}
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			r.now = func() time.Duration { return time.Since(start) - LeadIn }
			srv := r.prepare(after(100 * ms))
			r.Result, r.err = Run(context.Background(), sessions(talk(0, 0, 0, 0, 0, sec)), func(s *plan.Session, turn int, replies []string) (func(context.Context, *record.Record) string, error) {
				time.Sleep(c.takes)
				return srv(s, turn, replies)
			}, Options{Now: r.now, Pacer: NewVirtualPacer(r.now), Record: func(rec *record.Record) { r.recs = append(r.recs, rec) }})
		})
		r.check(t)
		if r.LatePrepared != c.want {
			t.Errorf("prepared in %v: %d turns late, want %d", c.takes, r.LatePrepared, c.want)
		}
	}
}

func TestL14_ThinkTimeHoldsNoSlot(t *testing.T) {
	// Cap 4. Four sessions that think for 30 s between turns of 1 s, and 4
	// requests a second of 0.5 s beside them: two slots are busy in the middle.
	var l []*plan.Session
	for i := range int64(4) {
		l = append(l, talk(i, time.Duration(i)*100*ms, 0, 30*sec, 30*sec, 30*sec, 30*sec))
	}
	for i := range int64(400) {
		l = append(l, single(4+i, sec+time.Duration(i)*250*ms))
	}
	r := virtual(t, sessions(l...), func(r *run, ctx context.Context, s *plan.Session, turn int, rec *record.Record) string {
		if len(s.Turns) > 1 {
			return after(sec)(r, ctx, s, turn, rec)
		}
		return after(500*ms)(r, ctx, s, turn, rec)
	}, Options{MaxInFlight: 4})
	r.want(t, map[string]int64{"ok": 420})
	for _, rec := range r.recs {
		if w, _ := rec.CapWait(); w > 2*sec {
			t.Errorf("%v waited %v for a slot", rec.ID, w)
		}
	}
	// Served in time: the last short request is done soon after it is due.
	if last := r.byID(t, 403, 0); last.Done > last.Scheduled+2*sec {
		t.Errorf("the last request, due %v, was done %v", last.Scheduled, last.Done)
	}
}

// What comes to a closed queue is refused, not lost: the preparers may be gone.
func TestAClosedQueueTakesNothing(t *testing.T) {
	q := newPrepQueue()
	if !q.push(&turn{}, 0) {
		t.Error("an open queue refused a turn")
	}
	q.close()
	if q.push(&turn{}, 0) {
		t.Error("a closed queue took a turn")
	}
	if _, wanted, ok := q.pop(); !ok || wanted {
		t.Error("what was in it before goes back unprepared")
	}
	if _, _, ok := q.pop(); ok {
		t.Error("something came out that was refused")
	}
}
