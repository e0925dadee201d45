package simulate

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
)

// poisson is an endless plan of single requests at a rate.
type poisson struct {
	rate          float64
	input, output int
	fixed         bool // outputs are output tokens long, not 1 to twice as many
	n             int64
	seed          uint64
	rng           *rand.Rand
	at            time.Duration
	seq           int64
}

func (p *poisson) Next() (*plan.Session, error) {
	if p.n > 0 && p.seq == p.n {
		return nil, io.EOF
	}
	if p.rng == nil {
		p.rng = rand.New(rand.NewPCG(p.seed, 6))
	}
	p.at += time.Duration(p.rng.ExpFloat64() / p.rate * 1e9)
	output := p.output
	if !p.fixed {
		output = 1 + p.rng.IntN(2*p.output)
	}
	s := single(p.seq, p.at, p.input, output)
	p.seq++
	return s, nil
}

func single(seq int64, at time.Duration, input, output int) *plan.Session {
	return &plan.Session{Seq: seq, Scheduled: at, Turns: []plan.Turn{{
		At: plan.Unset, InputTokens: input, OutputTokens: output, Prompt: plan.Prompt{Seed: uint64(seq), Item: -1},
	}}}
}

// list is a plan of its sessions.
type list []*plan.Session

func (l *list) Next() (*plan.Session, error) {
	if len(*l) == 0 {
		return nil, io.EOF
	}
	s := (*l)[0]
	*l = (*l)[1:]
	return s, nil
}

// run simulates and returns the records, in the order they came.
func run(tb testing.TB, src plan.Source, o Options, lo loadgen.Options) ([]*record.Record, loadgen.Result, *Cluster) {
	tb.Helper()
	c, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	var recs []*record.Record
	if lo.Record == nil {
		lo.Record = func(r *record.Record) { recs = append(recs, r) }
	}
	res, err := loadgen.Simulate(context.Background(), src, c, lo)
	if err != nil {
		tb.Fatal(err)
	}
	var sum int64
	for _, n := range res.Outcomes {
		sum += n
	}
	if sum != res.Planned {
		tb.Errorf("planned %d, outcomes sum to %d", res.Planned, sum)
	}
	return recs, res, c
}

// places is an engine of n slots, each of which gives a token every 5 ms.
func places(n int) sim.Config {
	return sim.Config{
		Profile:       sim.Profile{Name: "places", Floor: 5e-3, MaxBatchedTokens: 8192, MaxSeqs: n, Blocks: 1000},
		NoPrefixCache: true,
	}
}

// The freeze test as it is stated: Poisson 12/s for 120 s, a cap of 16, a server
// of 8 slots of 0.5 s that freezes from 20 s to 30 s. Every arrival counts from
// its due time.
func TestL6_Freeze(t *testing.T) {
	e := places(8)
	e.FreezeAt, e.FreezeFor = 20*time.Second, 10*time.Second
	phases := []plan.Phase{{Name: "main", End: 120 * time.Second, Measured: true}, {Name: "tail", Start: 120 * time.Second, End: 240 * time.Second}}
	var within, p95 []float64
	const seeds = 200
	for seed := range uint64(seeds) {
		recs, _, _ := run(t, &poisson{rate: 12, input: 1, output: 100, fixed: true, seed: seed}, Options{Engine: e}, loadgen.Options{Phases: phases, MaxInFlight: 16})
		var took []time.Duration
		for _, r := range recs {
			if r.Phase != "main" {
				continue
			}
			d, ok := r.E2E()
			if !ok || r.Outcome != record.OK {
				t.Fatalf("%v: %v", r.ID, r.Outcome)
			}
			took = append(took, d)
		}
		slices.Sort(took)
		n, _ := slices.BinarySearch(took, 2*time.Second+1)
		within = append(within, 100*float64(n)/float64(len(took)))
		p95 = append(p95, took[(len(took)*95+99)/100-1].Seconds())
	}
	slices.Sort(within)
	slices.Sort(p95)
	t.Logf("within 2 s: median %.1f %% (5-95 %%: %.1f-%.1f); p95: median %.2f s (%.1f-%.1f)", within[100], within[10], within[189], p95[100], p95[10], p95[189])
	// The truth over 200 seeds: 71.6 % (61.9-79.4) and 9.0 s (8.1-10.1). A step
	// quantises a slot's 0.5 s by 5 ms.
	if within[100] < 69.5 || within[100] > 73.5 || within[10] < 57 || within[189] > 84 {
		t.Errorf("within 2 s: median %.1f %% (%.1f-%.1f), the truth is 71.6 (61.9-79.4)", within[100], within[10], within[189])
	}
	if p95[100] < 8.8 || p95[100] > 9.3 {
		t.Errorf("p95: median %.2f s, the truth is 9.0 s", p95[100])
	}
}

// Cap 1, 2/s, 3 s of service, 10 s: whatever the cap does, planned is sent +
// shed + unfinished.
func TestL9_CapAccounts(t *testing.T) {
	phases := []plan.Phase{{Name: "main", End: 10 * time.Second, Measured: true}, {Name: "tail", Start: 10 * time.Second, End: 60 * time.Second}}
	constant := func() plan.Source {
		l := &list{}
		for i := range int64(120) {
			*l = append(*l, single(i, time.Duration(i)*500*time.Millisecond, 10, 599)) // 2.995 s, so that nothing ties
		}
		return l
	}
	for _, c := range []struct {
		name string
		shed bool
		want map[record.Outcome]int
	}{
		// Served from 0, 2.995, 5.99, 8.985, 11.98 to 14.975, and cut at 15.
		{"queue", false, map[record.Outcome]int{record.OK: 5, record.Unfinished: 15}},
		// The slot is free for those due at 0, 3, 6 and 9 s.
		{"shed", true, map[record.Outcome]int{record.OK: 4, record.Shed: 16}},
	} {
		t.Run(c.name, func(t *testing.T) {
			recs, _, _ := run(t, constant(), Options{Engine: places(8)}, loadgen.Options{MaxInFlight: 1, Shed: c.shed, Phases: phases, Drain: 5 * time.Second})
			got := map[record.Outcome]int{}
			for _, r := range recs {
				if r.Phase == "main" {
					got[r.Outcome]++
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("main phase: %v, want %v", got, c.want)
			}
		})
	}
}

// A client that is refused at once asks at once: the run must come to its end.
func TestARefusingServerEndsAClosedLoop(t *testing.T) {
	phases := []plan.Phase{{Name: "main", End: 2 * time.Second, Measured: true}, {Name: "tail", Start: 2 * time.Second, End: 60 * time.Second}}
	for _, c := range []struct {
		name          string
		input, status int
		outcome       record.Outcome
		queue         int
	}{
		{"prompts longer than the model takes", 17_000, 400, record.HTTPError, 0},
		{"a full queue", 100, 429, record.Rejected, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			_, res, _ := run(t, closed(c.input, 2000), Options{Engine: places(1), MaxQueue: c.queue}, loadgen.Options{
				Phases: phases, Clients: 4, Timeout: time.Second, Drain: 3 * time.Second,
				Record: func(r *record.Record) {
					if r.Outcome == c.outcome {
						if n++; r.HTTPStatus != c.status || r.Done-r.Sent != refusal || r.Error == "" {
							t.Fatalf("%v: status %d after %v: %q", r.ID, r.HTTPStatus, r.Done-r.Sent, r.Error)
						}
					}
				},
			})
			if n < 2000 || n > 10_000 {
				t.Errorf("%d refusals (%v), want about 2 to 4 clients' for 2 s, one a millisecond", n, res.Outcomes)
			}
		})
	}
}

type closedPlan struct {
	input, output int
	n             int64
}

func closed(input, output int) plan.Source { return &closedPlan{input: input, output: output} }

func (p *closedPlan) Next() (*plan.Session, error) {
	s := single(p.n, plan.Unset, p.input, p.output)
	p.n++
	return s, nil
}

// Whatever the replicas, routers and caps: the same plan and seed give the same
// records in the same order.
func TestSameSeedSameRecords(t *testing.T) {
	for _, r := range []sim.Routing{sim.RoundRobin, sim.LeastLoaded, sim.PrefixAware, sim.SessionPinned} {
		once := func(seed uint64) []*record.Record {
			recs, _, _ := run(t, &poisson{rate: 40, input: 500, output: 100, n: 2000}, Options{
				Replicas: 5, Router: r, Engine: sim.Config{Jitter: 0.1}, Seed: seed, Chat: true,
			}, loadgen.Options{Timeout: 4 * time.Second, MaxInFlight: 200})
			return recs
		}
		if !reflect.DeepEqual(once(1), once(1)) {
			t.Errorf("%v: two runs differ", r)
		}
		if reflect.DeepEqual(once(1), once(2)) {
			t.Errorf("%v: another seed of the engines, the same records", r)
		}
	}
}

// A hung-up request leaves its engine; what was delivered by then stays.
func TestHangUpFreesTheEngine(t *testing.T) {
	l := &list{}
	for i := range int64(50) {
		s := single(i, time.Duration(i)*time.Millisecond, 100, 1000)
		s.Turns[0].HangUp = 203 * time.Millisecond
		*l = append(*l, s)
	}
	// One more, long after: it finds the engine empty, and the run's end later.
	*l = append(*l, single(50, 10*time.Second, 100, 10))
	recs, res, c := run(t, l, Options{Engine: places(2)}, loadgen.Options{})
	if res.Outcomes[record.Cancelled] != 50 || res.Outcomes[record.OK] != 1 {
		t.Fatalf("%v", res.Outcomes)
	}
	for _, r := range c.replicas {
		if r.load != 0 || r.queued != 0 || !r.engine.Idle() || r.engine.KVUsage() != 0 {
			t.Errorf("load %d, queued %d, idle %v, KV %v", r.load, r.queued, r.engine.Idle(), r.engine.KVUsage())
		}
	}
	got, none := 0, 0
	for _, r := range recs[:50] {
		if r.Done-r.Scheduled != 203*time.Millisecond {
			t.Errorf("%v hung up after %v", r.ID, r.Done-r.Scheduled)
		}
		if len(r.Events) > 0 {
			got++
			if r.OutputTokens != len(r.Events) || r.LastOutput > r.Done || r.FirstOutput != r.Events[0].At {
				t.Errorf("%v: %d tokens, %d events", r.ID, r.OutputTokens, len(r.Events))
			}
		} else {
			none++
		}
	}
	if got == 0 || none == 0 {
		t.Errorf("%d got something, %d nothing: the test shows neither", got, none)
	}
}

// Tokens that leave together are one event.
func TestTokensOfOneStepAreOneEvent(t *testing.T) {
	e := places(8)
	e.OutputInterval = 4
	recs, _, _ := run(t, &list{single(0, 0, 10, 10)}, Options{Engine: e}, loadgen.Options{})
	var got []record.Event
	for _, n := range []int32{1, 4, 4, 1} { // the first at once, the last with the end
		got = append(got, record.Event{Tokens: n})
	}
	for i, at := range []time.Duration{5, 25, 45, 50} {
		got[i].At = at * time.Millisecond
	}
	if r := recs[0]; !reflect.DeepEqual(r.Events, got) || r.OutputTokens != 10 {
		t.Errorf("%+v, want %+v", r.Events, got)
	}
}

// What the texts share, the token ids share, and nothing else.
func TestPromptsShareWhatTextsShare(t *testing.T) {
	turn := func(i int32, seed uint64, in, out int) plan.Turn {
		return plan.Turn{Index: i, InputTokens: in, OutputTokens: out, Prompt: plan.Prompt{Seed: seed, Item: -1}}
	}
	with := func(f func(*plan.Session)) *plan.Session {
		s := &plan.Session{Seq: 1, Turns: []plan.Turn{turn(0, 11, 200, 30), turn(1, 12, 40, 20), turn(2, 13, 60, 10)}}
		if f != nil {
			f(s)
		}
		return s
	}
	p := &prompts{chat: true, preface: 10}
	common := func(a, b []sim.Token) int {
		n := 0
		for n < len(a) && n < len(b) && a[n] == b[n] {
			n++
		}
		return n
	}
	base := with(nil)
	first, second, third := p.of(base, 0), p.of(base, 1), p.of(base, 2)
	if len(first) != 200 {
		t.Errorf("the first prompt has %d tokens, the plan says 200", len(first))
	}
	if len(second) != 200+30+40 || len(third) != 200+30+40+20+60 {
		t.Errorf("the later prompts have %d and %d tokens, want as many as all turns and answers", len(second), len(third))
	}
	// All of the first prompt and the answer to it come again.
	answer := append(slices.Clone(first), outputs(base, 0)...)
	if n := common(answer, second); n != 230 {
		t.Errorf("the second prompt repeats %d tokens of the first and its answer, want all 230", n)
	}
	if n := common(append(slices.Clone(second), outputs(base, 1)...), third); n != len(second)+20 {
		t.Errorf("the third prompt repeats %d tokens of the second and its answer, want %d", n, len(second)+20)
	}
	if n := common(first, p.of(with(func(s *plan.Session) { s.Seq = 2 }), 0)); n != 13 {
		t.Errorf("two sessions share %d tokens, want the template's 13", n)
	}
	prefix := func(seq int64, id uint64) []sim.Token {
		return p.of(with(func(s *plan.Session) {
			s.Seq = seq
			s.Turns[0].Prompt.PrefixID, s.Turns[0].Prompt.PrefixTokens = id, 100
		}), 0)
	}
	if n := common(prefix(1, 7), prefix(2, 7)); n != 10+3+100+1+3 {
		t.Errorf("two sessions of one prefix share %d tokens", n)
	}
	if n := common(prefix(1, 7), prefix(1, 8)); n != 13 {
		t.Errorf("two prefixes share %d tokens", n)
	}
	blocks := func(seq int64, ids ...uint64) []sim.Token {
		return p.of(with(func(s *plan.Session) {
			s.Seq = seq
			s.Turns[0].Prompt.Blocks, s.Turns[0].Prompt.BlockTokens = ids, 64
		}), 0)
	}
	if a, b := blocks(1, 5, 6, 7, 8), blocks(2, 5, 6, 9, 8); common(a, b) != 13+128 || len(a) != 200 || len(b) != 200 {
		t.Errorf("two of four blocks make %d common tokens of %d and %d", common(a, b), len(a), len(b))
	}
	scripted := with(func(s *plan.Session) { s.Scripted = true })
	if n := common(p.of(scripted, 0), p.of(scripted, 1)); n != 200 {
		t.Errorf("a scripted second turn repeats %d tokens of the first, want 200", n)
	}
	// Of a session seeded in mid-course, the history is the same whoever plays it.
	carried := with(func(s *plan.Session) { s.Scripted, s.History, s.Turns = true, s.Turns[:1], s.Turns[1:] })
	if !slices.Equal(p.of(carried, 0), p.of(scripted, 1)) {
		t.Error("a carried session's first prompt is not the scripted one's second")
	}
}

// outputs is the engine's answer to turn i.
func outputs(s *plan.Session, i int) []sim.Token {
	f := reply(s, &s.Turns[i])
	var out []sim.Token
	for k := range s.Turns[i].OutputTokens {
		out = append(out, f(k))
	}
	return out
}

// A million turns in sessions: what is in memory at once is what is in flight.
func TestAMillionTurns(t *testing.T) {
	turns := int64(1_000_000)
	if testing.Short() {
		turns = 50_000
	}
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most, n := uint64(0), int64(0)
	began := time.Now()
	_, res, c := run(t, &talks{n: turns / 4}, Options{Replicas: 4, Router: sim.LeastLoaded, Chat: true, TemplateTokens: 10}, loadgen.Options{
		Timeout: 120 * time.Second,
		Record: func(*record.Record) {
			if n++; n%(turns/10) == 0 {
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			}
		},
	})
	if res.Planned != turns || res.Outcomes[record.OK] != turns {
		t.Errorf("planned %d: %v", res.Planned, res.Outcomes)
	}
	t.Logf("%d turns, %v of traffic in %v, %d steps; at most %d MB in use", turns, res.Finished.Round(time.Second), time.Since(began).Round(time.Millisecond), c.Counters().Steps, (most-before.HeapAlloc)>>20)
	if most-before.HeapAlloc > 64<<20 {
		t.Errorf("%d MB are in use", (most-before.HeapAlloc)>>20)
	}
}

// talks are sessions of four short turns, 5 a second.
type talks struct{ n, seq int64 }

func (p *talks) Next() (*plan.Session, error) {
	if p.seq == p.n {
		return nil, io.EOF
	}
	s := single(p.seq, time.Duration(p.seq)*200*time.Millisecond, 100, 20)
	for i := range int32(3) {
		t := s.Turns[0]
		t.Index, t.Think, t.InputTokens, t.Prompt.Seed = i+1, 5*time.Second, 30, uint64(i)
		s.Turns = append(s.Turns, t)
	}
	p.seq++
	return s, nil
}

func bench(b *testing.B, o Options, rate float64, input, output, n int) {
	var planned int64
	var took, simulated time.Duration
	var steps int64
	o.Chat, o.TemplateTokens = true, 10
	for b.Loop() {
		began := time.Now()
		_, res, c := run(b, &poisson{rate: rate, input: input, output: output, n: int64(n)}, o, loadgen.Options{Record: func(*record.Record) {}})
		took += time.Since(began)
		planned += res.Planned
		simulated += res.Finished
		steps += c.Counters().Steps
	}
	b.ReportMetric(float64(planned)/took.Seconds(), "requests/s")
	b.ReportMetric(simulated.Seconds()/took.Seconds(), "×realtime")
	b.ReportMetric(float64(took.Nanoseconds())/float64(steps), "ns/step")
}

func BenchmarkCluster(b *testing.B) {
	for _, c := range []struct {
		replicas int
		rate     float64
	}{{1, 100}, {1, 10}, {50, 10}, {50, 500}} {
		b.Run(fmt.Sprintf("replicas=%d/rate=%v", c.replicas, c.rate), func(b *testing.B) {
			// Prompts of 1,000 tokens and answers of 200 on average, the default
			// profile: one engine can do about 25 a second.
			bench(b, Options{Replicas: c.replicas, Router: sim.LeastLoaded}, c.rate, 1000, 200, 20_000)
		})
	}
}
