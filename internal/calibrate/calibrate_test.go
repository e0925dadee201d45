package calibrate

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/rand/v2"
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
	return &load{n: 1200, low: 1, high: 6, input: between(50, 6000), output: between(20, 600)}
}

// simulated are the records of a plan that p serves.
func simulated(tb testing.TB, p sim.Profile, jitter float64, replicas int, src plan.Source) []*record.Record {
	tb.Helper()
	c, err := simulate.New(simulate.Options{Engine: sim.Config{Profile: p, Jitter: jitter}, Replicas: replicas, Router: sim.LeastLoaded})
	if err != nil {
		tb.Fatal(err)
	}
	var recs []*record.Record
	if _, err := loadgen.Simulate(context.Background(), src, c, loadgen.Options{Record: func(r *record.Record) { recs = append(recs, r) }}); err != nil {
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
			recs := simulated(t, want, c.jitter, 1, varied())
			if c.outliers {
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
				if !got.Fitted || math.Abs(got.Value/truth-1) > c.tolerance {
					t.Errorf("%s is %.5g ± %.2g (fitted: %v %s), the truth is %.5g", got.Name, got.Value, got.Error, got.Fitted, got.Why, truth)
				}
				if c.jitter > 0 && !(got.Error > 0 && got.Error < 0.05*truth) {
					t.Errorf("%s has a standard error of %.2g", got.Name, got.Error)
				}
				if d := math.Abs(got.Value - truth); c.jitter > 0 && !c.outliers && d > 5*got.Error {
					t.Errorf("%s is %.1f standard errors from the truth", got.Name, d/got.Error)
				}
			}
			if len(r.ByBatch) < 3 || len(r.ByContext) < 3 || len(r.ByPrompt) < 3 {
				t.Errorf("%d, %d and %d buckets", len(r.ByBatch), len(r.ByContext), len(r.ByPrompt))
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
