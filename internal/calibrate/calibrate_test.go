package calibrate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/simulate"
)

// truth is like no built-in profile: every fitted term differs from the
// default's, which the fits start from.
func truth() sim.Profile {
	p := sim.DefaultProfile()
	p.Name = "truth"
	p.Floor, p.Base, p.PerToken = 11e-3, 4e-3, 45e-6
	p.PerDecode, p.PerContext, p.PerAttended = 30e-6, 0.11e-6, 4e-9
	return p
}

// load is a plan of n single requests, whose rate goes up and down.
type load struct {
	n             int64
	low, high     float64 // requests/s
	input, output func(*rand.Rand) int
	seq           int64
	at            time.Duration
	rng           *rand.Rand
}

func (l *load) Next() (*plan.Session, error) {
	if l.seq == l.n {
		return nil, io.EOF
	}
	if l.rng == nil {
		l.rng = rand.New(rand.NewPCG(1, 2))
	}
	rate := l.low
	if l.seq*4/l.n%2 == 1 {
		rate = l.high
	}
	l.at += time.Duration(l.rng.ExpFloat64() / rate * 1e9)
	s := &plan.Session{Seq: l.seq, Scheduled: l.at, Turns: []plan.Turn{{
		At: plan.Unset, InputTokens: l.input(l.rng), OutputTokens: l.output(l.rng), Prompt: plan.Prompt{Seed: uint64(l.seq), Item: -1},
	}}}
	l.seq++
	return s, nil
}

// between draws lengths whose logarithm is uniform.
func between(low, high float64) func(*rand.Rand) int {
	return func(r *rand.Rand) int { return int(low * math.Exp(r.Float64()*math.Log(high/low))) }
}

func fixed(n int) func(*rand.Rand) int { return func(*rand.Rand) int { return n } }

// varied is a load that tells every term.
func varied() *load {
	return &load{n: 1000, low: 1, high: 6, input: between(50, 6000), output: between(20, 600)}
}

// simulated are the records of a plan that p serves.
func simulated(tb testing.TB, p sim.Profile, jitter float64, replicas int, src plan.Source) []*record.Record {
	tb.Helper()
	c, err := simulate.New(simulate.Options{Engine: sim.Config{Profile: p, Jitter: jitter}, Replicas: replicas, Router: sim.LeastLoaded})
	if err != nil {
		tb.Fatal(err)
	}
	return play(tb, c, src, loadgen.Options{})
}

func play(tb testing.TB, c *simulate.Cluster, src plan.Source, o loadgen.Options) (recs []*record.Record) {
	tb.Helper()
	o.Record = func(r *record.Record) { recs = append(recs, r) }
	if _, err := loadgen.Simulate(context.Background(), src, c, o); err != nil {
		tb.Fatal(err)
	}
	return recs
}

func from(recs []*record.Record) Records {
	return func(each func(*record.Record) error) error {
		for _, r := range recs {
			if err := each(r); err != nil {
				return err
			}
		}
		return nil
	}
}

func term(tb testing.TB, r *Result, name string) Term {
	tb.Helper()
	for _, t := range r.Terms {
		if t.Name == name {
			return t
		}
	}
	tb.Fatalf("no term %q", name)
	return Term{}
}

func show(tb testing.TB, r *Result) {
	tb.Helper()
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		tb.Fatal(err)
	}
	tb.Log("\n" + b.String())
}

// The terms come out as they went in, and held-out requests as they were.
func TestFit_FindsTheTruth(t *testing.T) {
	want := truth()
	runs := map[float64][]*record.Record{} // by jitter
	for _, c := range []struct {
		name      string
		jitter    float64
		tolerance float64 // of the terms, relative
		heldOut   float64 // median error of any bucket of 30 or more
		base      sim.Profile
		outliers  bool
	}{
		{"no jitter", 0, 0.005, 0.002, sim.DefaultProfile(), false},
		{"3 % jitter", 0.03, 0.05, 0.035, sim.DefaultProfile(), false},
		{"from a profile of measured points", 0.03, 0.05, 0.035, sim.Profiles()[1], false},
		{"one gap in twenty is a stall", 0.03, 0.05, 0.035, sim.DefaultProfile(), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if runs[c.jitter] == nil {
				runs[c.jitter] = simulated(t, want, c.jitter, 1, varied())
			}
			recs := runs[c.jitter]
			if c.outliers { // the last case, since it changes the records
				stall(recs)
			}
			base := c.base
			base.MaxBatchedTokens = want.MaxBatchedTokens
			r, err := Fit(from(recs), base, Options{})
			if err != nil {
				t.Fatal(err)
			}
			show(t, r)
			if len(r.Terms) != nTerms {
				t.Fatalf("%d terms", len(r.Terms))
			}
			// What the base's host and head time are wrong by, the floors make up for.
			shift := want.Host + want.HeadBase + want.DecodeBase - r.Profile.Host - r.Profile.HeadBase - r.Profile.DecodeBase
			for i, got := range r.Terms {
				truth := *terms[i].of(&want)
				if i == floorTerm || i == baseTerm {
					truth += shift
				}
				d := math.Abs(got.Value - truth)
				if !got.Fitted || d > max(c.tolerance*truth, 3*got.Error) {
					t.Errorf("%s is %.5g ± %.2g (fitted: %v %s), the truth is %.5g", got.Name, got.Value, got.Error, got.Fitted, got.Why, truth)
				}
				if c.jitter > 0 && !(got.Error > 0 && got.Error < 0.06*truth) {
					t.Errorf("%s has a standard error of %.2g", got.Name, got.Error)
				}
			}
			if len(r.ByBatch) < 3 || len(r.ByContext) < 3 || len(r.ByPrompt) < 3 {
				t.Errorf("%d, %d and %d buckets", len(r.ByBatch), len(r.ByContext), len(r.ByPrompt))
			}
			if r.Gaps.Clean <= r.Gaps.Used || r.Gaps.All <= r.Gaps.Clean || r.Firsts.Used < 250 {
				t.Errorf("gaps %+v, first outputs %+v", r.Gaps, r.Firsts)
			}
			for _, list := range [][]Bucket{r.ByBatch, r.ByContext, r.ByPrompt} {
				for _, b := range list {
					if b.N >= 30 && !(b.Error <= c.heldOut) {
						t.Errorf("held-out requests of %v to %v: median error %.2f %% of %d", b.From, b.To, 100*b.Error, b.N)
					}
				}
			}
			if !r.Simulated || r.Profile.Basis != sim.Scaled {
				t.Errorf("a fit to simulated records calls itself %q", r.Profile.Basis)
			}
		})
	}
}

// stall delays one event in twenty by 200 ms, without the ones behind it.
func stall(recs []*record.Record) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, r := range recs {
		for i := 1; i+1 < len(r.Events); i++ {
			if rng.IntN(20) == 0 {
				r.Events[i].At = min(r.Events[i].At+200*time.Millisecond, r.Events[i+1].At)
			}
		}
	}
}

// The standard errors are what the terms are off by, over ten runs.
func TestFit_StandardErrorsAreTrue(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const runs = 10
	want := truth()
	sum := 0.0
	for seed := range uint64(runs) {
		l := varied()
		l.n, l.rng = 500, rand.New(rand.NewPCG(seed, 9))
		c, err := simulate.New(simulate.Options{Engine: sim.Config{Profile: want, Jitter: 0.03}, Seed: 100 * seed})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Fit(from(play(t, c, l, loadgen.Options{})), sim.DefaultProfile(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range r.Terms {
			if !got.Fitted {
				t.Errorf("seed %d: %s: %s", seed, got.Name, got.Why)
			}
			z := (got.Value - *terms[i].of(&want)) / got.Error
			sum += z * z
		}
	}
	rms := math.Sqrt(sum / float64(runs*nTerms))
	t.Logf("the terms are %.2f standard errors off (root mean square)", rms)
	if rms < 0.6 || rms > 1.6 {
		t.Errorf("the terms are %.2f standard errors off (root mean square), want about 1", rms)
	}
}

// A batch that is always the same tells nothing of what a request in it costs,
// nor prompts that all wait together of what a prompt does.
func TestFit_ConstantBatch(t *testing.T) {
	c, err := simulate.New(simulate.Options{Engine: sim.Config{Profile: truth(), Jitter: 0.03}})
	if err != nil {
		t.Fatal(err)
	}
	l := &load{n: 240, low: 1, high: 1, input: fixed(500), output: fixed(200)}
	recs := play(t, c, closed{l}, loadgen.Options{Clients: 8, Phases: []plan.Phase{{Name: "main", End: time.Hour, Measured: true}}})
	base := sim.DefaultProfile()
	base.PerDecode = 7e-6
	r, err := Fit(from(recs), base, Options{})
	if err != nil {
		t.Fatal(err)
	}
	show(t, r)
	for i, name := range []string{"per_decode_us", "per_token_us", "base_ms", "per_attended_ns"} {
		got := term(t, r, name)
		if got.Fitted || got.Why == "" || !math.IsNaN(got.Error) {
			t.Errorf("%+v is said to be fitted", got)
		}
		if want := []float64{7e-6, base.PerToken, base.Base, base.PerAttended}[i]; got.Value != want {
			t.Errorf("%s is %v, want the base's %v", name, got.Value, want)
		}
	}
	if got := term(t, r, "per_context_us"); !got.Fitted || math.Abs(got.Value-0.11e-6) > 3*got.Error || got.Error > 0.15*0.11e-6 {
		t.Errorf("%+v, the truth is 0.11 µs", got)
	}
	for _, b := range r.ByBatch {
		if b.N > 100 && b.Error > 0.03 {
			t.Errorf("held-out gaps are %.1f %% off at a batch of %v", 100*b.Error, b.From)
		}
	}
	if s := r.Source("h100", "x-1"); !strings.Contains(s, "simulated run x-1") || !strings.Contains(s, "per_decode_us, per_token_us, base_ms, per_attended_ns as in h100") {
		t.Errorf("source: %s", s)
	}
}

// Several replicas mix their batches, as far as the records go.
func TestFit_Replicas(t *testing.T) {
	l := varied()
	l.low, l.high = 4, 12
	want := truth()
	r, err := Fit(from(simulated(t, want, 0.03, 3, l)), sim.DefaultProfile(), Options{Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	show(t, r)
	if got := term(t, r, "floor_ms"); math.Abs(got.Value/want.Floor-1) > 0.05 {
		t.Errorf("%+v", got)
	}
	if got := term(t, r, "per_token_us"); math.Abs(got.Value/want.PerToken-1) > 0.1 {
		t.Errorf("%+v", got)
	}
	for _, b := range slices.Concat(r.ByBatch, r.ByContext) {
		if b.N > 100 && b.Error > 0.06 {
			t.Errorf("held-out gaps of %v are %.1f %% off", b.From, 100*b.Error)
		}
	}
	if !strings.Contains(strings.Join(r.Notes, " "), "1/3 of the others") {
		t.Errorf("notes: %q", r.Notes)
	}
}

// Prompts that are cached in part cost what is not, and tokens that leave
// together are as many steps.
func TestFit_CachedPromptsAndMergedTokens(t *testing.T) {
	want := truth()
	for _, c := range []struct {
		name     string
		interval int
		turns    int
	}{{"later turns find their history cached", 1, 3}, {"four tokens in an event", 4, 1}} {
		t.Run(c.name, func(t *testing.T) {
			cl, err := simulate.New(simulate.Options{Engine: sim.Config{Profile: want, OutputInterval: c.interval}})
			if err != nil {
				t.Fatal(err)
			}
			l := varied()
			l.low, l.high = l.low/float64(c.turns), l.high/float64(c.turns)
			recs := play(t, cl, &talks{l, c.turns}, loadgen.Options{})
			r, err := Fit(from(recs), sim.DefaultProfile(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			show(t, r)
			for i, got := range r.Terms {
				if truth := *terms[i].of(&want); !got.Fitted || math.Abs(got.Value/truth-1) > 0.05 {
					t.Errorf("%s is %.5g ± %.2g (fitted: %v %s), the truth is %.5g", got.Name, got.Value, got.Error, got.Fitted, got.Why, truth)
				}
			}
		})
	}
}

// talks makes sessions of several turns of a load.
type talks struct {
	*load
	turns int
}

func (l *talks) Next() (*plan.Session, error) {
	s, err := l.load.Next()
	if err != nil {
		return nil, err
	}
	for i := 1; i < l.turns; i++ {
		t := s.Turns[0]
		t.Index, t.Think = int32(i), time.Second
		t.InputTokens, t.Prompt.Seed = l.input(l.rng)/2, uint64(i)
		s.Turns = append(s.Turns, t)
	}
	return s, nil
}

// closed leaves it to the clients when a session is due.
type closed struct{ *load }

func (l closed) Next() (*plan.Session, error) {
	s, err := l.load.Next()
	if err == nil {
		s.Scheduled = plan.Unset
	}
	return s, err
}

// What cannot be fitted is refused, with what to do.
func TestFit_Refuses(t *testing.T) {
	good := func() []*record.Record {
		return simulated(t, truth(), 0, 1, &load{n: 20, low: 1, high: 1, input: fixed(100), output: fixed(40)})
	}
	broken := errors.New("page 3 is torn")
	for _, c := range []struct {
		name, want string
		records    Records
		options    Options
	}{
		{"an empty result", "no request that was sent", from(nil), Options{}},
		{"a result that cannot be read", "page 3 is torn", func(func(*record.Record) error) error { return broken }, Options{}},
		{"nothing was sent", "no request that was sent", changed(good(), func(r *record.Record) { r.Sent = record.Unset }), Options{}},
		{"answers came whole", "no request has two output events", changed(good(), func(r *record.Record) { r.Streamed, r.Events = false, r.Events[:1] }), Options{}},
		{"events out of order", "session 0, turn 0: its output events are not in the order of time", changed(good(), func(r *record.Record) { r.Events[3].At = r.Events[1].At - 1 }), Options{}},
		{"an answer before its question", "session 0, turn 0: its first output lies before it was sent", changed(good(), func(r *record.Record) { r.Sent = r.FirstOutput + 1 }), Options{}},
		{"too few gaps", "a fit needs 50", from(good()[:2]), Options{}},
		{"somebody always waits", "at a lower rate", from(simulated(t, truth(), 0, 1, &load{n: 300, low: 1e4, high: 1e4, input: fixed(8000), output: fixed(5)})), Options{}},
		{"negative replicas", "must be at least 1", from(good()), Options{Replicas: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Fit(c.records, sim.DefaultProfile(), c.options); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// Whatever stands in the records: an error, or a profile that can be read back.
func TestFit_OddRecords(t *testing.T) {
	pick := func(rng *rand.Rand, list ...int) int { return list[rng.IntN(len(list))] }
	fits := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 5))
		recs := simulated(t, truth(), 0, 1, &load{n: 30, low: 0.2, high: 5, input: between(10, 2000), output: between(5, 60)})
		for _, r := range recs {
			if len(r.Events) == 0 || rng.IntN(4) > 0 {
				continue
			}
			switch i := rng.IntN(len(r.Events)); rng.IntN(7) {
			case 0:
				r.InputTokens = pick(rng, -1, 0, 1<<31)
			case 1:
				r.CachedTokens = pick(rng, -1, 1<<31)
			case 2:
				r.Events[i].Tokens = int32(pick(rng, -1, 0, 1<<31-1))
			case 3:
				r.LastOutput, r.Outcome = record.Unset, record.Timeout
			case 4:
				r.Done, r.Outcome = record.Unset, record.Unfinished
			case 5:
				r.FirstOutput = r.Sent
			case 6:
				for k := range r.Events {
					r.Events[k].At = r.Events[0].At + time.Duration(k)
				}
			}
		}
		r, err := Fit(from(recs), sim.DefaultProfile(), Options{Replicas: pick(rng, 1, 2, 1000)})
		if err != nil {
			continue
		}
		fits++
		var b bytes.Buffer
		r.Profile.Name = "odd"
		if err := errors.Join(sim.WriteProfile(&b, r.Profile), r.Text(io.Discard)); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if _, err := sim.ReadProfile(&b, "odd.json"); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	if fits < 12 {
		t.Errorf("only %d of 40 were fitted: the test shows little", fits)
	}
}

func changed(recs []*record.Record, f func(*record.Record)) Records {
	for _, r := range recs {
		f(r)
	}
	return from(recs)
}

// Of a long run a part of the gaps is looked at; they weigh as the steps they
// come from.
func TestObserve_LooksAtAPart(t *testing.T) {
	recs := simulated(t, truth(), 0, 1, &load{n: 300, low: 1, high: 6, input: between(50, 2000), output: between(20, 600)})
	weigh := func(most int) (n int, steps float64, notes string) {
		h, err := read(from(recs))
		if err != nil {
			t.Fatal(err)
		}
		gaps, _ := h.observe(1, most)
		for _, g := range gaps {
			steps += g.share
		}
		return len(gaps), steps, strings.Join(h.notes, " ")
	}
	all, steps, note := weigh(1 << 30)
	if note != "" || steps > float64(all) {
		t.Errorf("%d gaps of %.0f steps: %q", all, steps, note)
	}
	n, part, note := weigh(all / 3)
	if !strings.Contains(note, "one gap in ") || n < all/6 || n > all/3 || part > float64(n) || part < steps/6 {
		t.Errorf("%d of %d gaps, %.0f of %.0f steps: %q", n, all, part, steps, note)
	}
}
