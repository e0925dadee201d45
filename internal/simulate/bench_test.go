package simulate

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
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
	n             int64 // how many; 0: no end
	rng           *rand.Rand
	at            time.Duration
	seq           int64
}

func (p *poisson) Next() (*plan.Session, error) {
	if p.n > 0 && p.seq == p.n {
		return nil, io.EOF
	}
	if p.rng == nil {
		p.rng = rand.New(rand.NewPCG(1, 1))
	}
	p.at += time.Duration(p.rng.ExpFloat64() / p.rate * 1e9)
	s := &plan.Session{Seq: p.seq, Scheduled: p.at, Turns: []plan.Turn{{
		At: plan.Unset, InputTokens: p.input, OutputTokens: 1 + p.rng.IntN(2*p.output), Prompt: plan.Prompt{Seed: p.rng.Uint64(), Item: -1},
	}}}
	p.seq++
	return s, nil
}

// run simulates and returns the records.
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

func bench(b *testing.B, o Options, rate float64, input, output, n int) {
	var planned int64
	var took, simulated time.Duration
	var steps, tokens int64
	for b.Loop() {
		began := time.Now()
		_, res, c := run(b, &poisson{rate: rate, input: input, output: output, n: int64(n)}, o, loadgen.Options{Record: func(*record.Record) {}})
		took += time.Since(began)
		planned += res.Planned
		simulated += res.Finished
		steps += c.Counters().Steps
		tokens += c.Counters().GenerationTokens
	}
	b.ReportMetric(float64(planned)/took.Seconds(), "requests/s")
	b.ReportMetric(simulated.Seconds()/took.Seconds(), "×real")
	b.ReportMetric(float64(took.Nanoseconds())/float64(steps), "ns/step")
	b.ReportMetric(float64(took.Nanoseconds())/float64(tokens), "ns/token")
}

// An 8B model on an H100, asked for more than it can do: the batch is full.
func BenchmarkSaturated(b *testing.B) {
	bench(b, Options{Chat: true, TemplateTokens: 10}, 100, 1000, 200, 20_000)
}

// Ten requests a second against one such engine.
func BenchmarkTenASecond(b *testing.B) {
	bench(b, Options{Chat: true, TemplateTokens: 10}, 10, 1000, 200, 10_000)
}

// Ten requests a second over fifty replicas: nearly empty batches.
func BenchmarkFiftyReplicas(b *testing.B) {
	bench(b, Options{Chat: true, TemplateTokens: 10, Replicas: 50}, 10, 1000, 200, 10_000)
}

var _ = runtime.NumCPU
var _ sim.Config
