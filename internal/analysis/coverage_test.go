package analysis

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// The queue of these tests: Poisson arrivals, 8 servers, exponential service of
// mean 1 s. Its waiting time has a closed form, so that the true quantile is
// known:
//
//	P(W > t) = C e^{-(8-a)t},  a the offered load in servers,  C Erlang's second formula
//
// (Erlang 1917; Kleinrock, Queueing Systems I, 3.5).
const servers = 8

func erlangC(a float64) float64 {
	term, sum := 1.0, 0.0
	for k := range servers {
		sum += term
		term *= a / float64(k+1)
	}
	last := term * servers / (servers - a) // a^c/c! * c/(c-a)
	return last / (sum + last)
}

func waitQuantile(load, p float64) time.Duration {
	a := load * servers
	return time.Duration(math.Log(erlangC(a)/(1-p)) / (servers - a) * 1e9)
}

// queue returns n successive turns of the queue in its stationary state: due at
// their arrival, first output when their service begins.
func queue(rng *rand.Rand, load float64, n int) (recs []*record.Record, end time.Duration) {
	var free [servers]float64 // when each server is done
	at, start := 0.0, 0.0
	warm := 2000 // at 95 % load the queue forgets its start in some 400 services
	for i := -warm; i < n; i++ {
		at += rng.ExpFloat64() / (load * servers)
		k := 0
		for j := range free {
			if free[j] < free[k] {
				k = j
			}
		}
		begin := max(at, free[k])
		free[k] = begin + rng.ExpFloat64()
		if i < 0 {
			start = at
			continue
		}
		recs = append(recs, reply(int64(i), time.Duration((at-start)*1e9), time.Duration((begin-at)*1e9)))
	}
	return recs, time.Duration((at - start) * 1e9)
}

func TestQueueHasItsTrueQuantile(t *testing.T) {
	if c := erlangC(4); math.Abs(c-0.0590) > 0.0001 { // 8 servers at half load, of tables
		t.Errorf("Erlang C of 8 servers and load 4 is %v", c)
	}
	rng := rand.New(rand.NewPCG(11, 11))
	recs, _ := queue(rng, 0.7, 200_000)
	limit, over := waitQuantile(0.7, 0.9), 0
	for _, r := range recs {
		if d, _ := r.TTFT(); d > limit {
			over++
		}
	}
	if share := float64(over) / 200_000; math.Abs(share-0.1) > 0.01 {
		t.Errorf("%v of the waits lie beyond the true p90", share)
	}
}

// tally is how often intervals cover the truth, and gates at exactly the limit
// pass.
type tally struct{ quantile, naive, falsePass, runs int }

func cover(t testing.TB, seed uint64, load float64, n, runs int, p stats.Permille) (c tally, eff float64) {
	rng := rand.New(rand.NewPCG(seed, 12))
	truth := waitQuantile(load, p.Share())
	for range runs {
		recs, end := queue(rng, load, n)
		slo := SLO{Objectives: []Objective{{Figure: "ttft", Quantile: p, Limit: truth}}}
		s, err := New(Options{Phases: []plan.Phase{{Name: "steady", End: end + 1, Measured: true}}, SLO: slo})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			s.Add(r)
		}
		s.settle()
		rows := make([]*row, len(s.rows))
		for i := range s.rows {
			rows[i] = &s.rows[i]
		}
		v := s.view(rows, s.window())
		o := v.objectives()[0]
		eff += *o.Met.NEffective / float64(runs)
		c.runs++
		inside := func(q Quantile) bool {
			return (q.Low == nil || *q.Low <= truth.Seconds()) && (q.High == nil || truth.Seconds() <= *q.High)
		}
		if inside(*o.Observed) {
			c.quantile++
		}
		if inside(v.quantile(&ttft, p, float64(n))) {
			c.naive++
		}
		if o.Judgment == Pass {
			c.falsePass++
		}
	}
	return c, eff
}

// Requests that queue together fail together: intervals that take them as
// independent miss the truth most of the time, those on batches do not.
func TestIntervalsCoverCorrelatedWaits(t *testing.T) {
	c, eff := cover(t, 1, 0.85, 7200, 40, stats.P90)
	t.Logf("85 %% load, p90 of 7,200: batches cover %d of %d, taken as independent %d; worth %.0f", c.quantile, c.runs, c.naive, eff)
	// 95 % of 40 is 38; fewer than 34 happens once in a hundred at 94 %.
	if c.quantile < 33 {
		t.Errorf("batches cover %d of %d", c.quantile, c.runs)
	}
	if c.naive > 20 {
		t.Errorf("without batches %d of %d are covered: the data are not correlated", c.naive, c.runs)
	}
	if eff > 7200/5 {
		t.Errorf("7,200 correlated requests are taken to be worth %.0f", eff)
	}
}

// The larger study, of the loads that the contract names. At 95 % load the queue
// remembers some 100 s: 7,200 requests (16 min) are too few for 20 independent
// batches, and 20,000 barely do.
func TestCoverageStudy(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds")
	}
	for _, tt := range []struct {
		load    float64
		p       stats.Permille
		n, runs int
		covered float64 // at least
		passes  float64 // false ones, at most; the aim is 0.04 and 3 standard errors are allowed
	}{
		{0.70, stats.P90, 7200, 80, 0.90, 0.08},
		{0.70, stats.P99, 7200, 50, 0.90, 0.08},
		{0.85, stats.P90, 7200, 80, 0.88, 0.10},
		{0.85, stats.P99, 7200, 50, 0.88, 0.10},
		{0.95, stats.P90, 20000, 30, 0.75, 0.25},
	} {
		c, eff := cover(t, 2, tt.load, tt.n, tt.runs, tt.p)
		share := func(n int) float64 { return float64(n) / float64(c.runs) }
		t.Logf("load %v p%d n %d: covered %.3f, as independent %.3f, false passes %.3f, worth %.0f",
			tt.load, tt.p, tt.n, share(c.quantile), share(c.naive), share(c.falsePass), eff)
		if share(c.quantile) < tt.covered || share(c.falsePass) > tt.passes {
			t.Errorf("load %v p%d: covered %v, false passes %v", tt.load, tt.p, share(c.quantile), share(c.falsePass))
		}
	}
}

// A gate on p99 with independent misses: it passes a server at the very limit no
// more often than stated, and one with half as many misses about as often as the
// exact binomial says (a little less, for the design effect is estimated).
func TestA7_IndependentMisses(t *testing.T) {
	const n, gates = 3000, 300
	limit := time.Second
	passes := func(seed uint64, rate float64) (share float64, fails int) {
		rng := rand.New(rand.NewPCG(seed, 13))
		slo := SLO{Objectives: []Objective{{Figure: "ttft", Quantile: stats.P99, Limit: limit}}}
		for range gates {
			s, err := New(Options{Phases: window(n * 100 * ms), SLO: slo})
			if err != nil {
				t.Fatal(err)
			}
			rows := make([]*row, n)
			s.intern("")
			for i := range rows {
				at := time.Duration(i) * 100 * ms
				wait := time.Duration(rng.Int64N(int64(limit)))
				if rng.Float64() < rate {
					wait += limit
				}
				rows[i] = &row{outcome: record.OK, scheduled: at, ttft: wait}
			}
			switch s.view(rows, s.window()).objectives()[0].Judgment {
			case Pass:
				share += 1.0 / gates
			case Fail:
				fails++
			}
		}
		return share, fails
	}
	// Of 3,000, 19 misses are the most that pass: P(Bin(3000, 0.01) <= 19) = 0.02 and
	// P(Bin(3000, 0.005) <= 19) = 0.88.
	if share, _ := passes(1, 0.01); share > 0.04 {
		t.Errorf("a server at the limit passes %v of the time", share)
	}
	share, fails := passes(2, 0.005)
	if share < 0.65 || share > 0.92 || fails > 0 {
		t.Errorf("half the misses: passes %v of the time, fails %d times", share, fails)
	}
	t.Logf("half the misses: passes %v of the time", share)
}
