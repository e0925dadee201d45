package analysis

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// Whatever a broken file holds, there is a summary, its outcomes sum, and no
// figure is NaN or infinite.
func TestAnyRecordsGiveASummary(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 21))
	stamp := func() time.Duration {
		switch p := rng.IntN(4000); {
		case p == 0: // rare, for ten days of seconds take their time
			return time.Duration(rng.Int64N(math.MaxInt64))
		case p < 400:
			return -time.Duration(rng.Int64N(int64(time.Hour)))
		case p < 1000:
			return record.Unset
		}
		return time.Duration(rng.Int64N(int64(20 * time.Second)))
	}
	for range 300 {
		var recs []*record.Record
		for range rng.IntN(30) {
			rec := &record.Record{
				Outcome:   record.Outcome(rng.IntN(len(record.Outcomes) + 1)),
				Class:     fmt.Sprint(rng.IntN(3)),
				Scheduled: stamp(), Released: stamp(), Admitted: stamp(), Connected: stamp(), Sent: stamp(), FirstOutput: stamp(), FirstAnswer: stamp(), LastOutput: stamp(), Done: stamp(),
				OutputTokens: rng.IntN(5) - 1, InputTokens: rng.IntN(5) - 1, AskedInput: rng.IntN(5) - 1, AskedOutput: rng.IntN(5) - 1,
				Streamed: rng.IntN(2) == 0, LastTurn: rng.IntN(2) == 0, Phase: []string{"", "steady", "none"}[rng.IntN(3)],
			}
			rec.ID.Session, rec.ID.Turn = rng.Int64N(10), int32(rng.IntN(3))
			for range rng.IntN(4) {
				rec.Events = append(rec.Events, record.Event{At: time.Duration(rng.Int64N(int64(20 * time.Second))), Tokens: int32(rng.IntN(4) - 1)})
			}
			recs = append(recs, rec)
		}
		slo := SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Second}, {Figure: "e2e", Quantile: stats.P90, Limit: time.Second}, {Figure: "tpot", Limit: 1}, {Figure: "stall", Limit: 1}}, Attainment: 0.9}
		opt := Options{SLO: slo}
		if rng.IntN(2) == 0 {
			opt.Phases = append(window(10*time.Second), tail(10*time.Second, 20*time.Second))
		}
		summarize(t, opt, recs...)
	}
}

// What a run of ten million turns costs in memory: its rows, and nothing per event.
func TestRowIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(row{}); size > 176 {
		t.Errorf("a row takes %d bytes", size)
	}
}

func BenchmarkSummary(b *testing.B) {
	const n = 100_000
	rng := rand.New(rand.NewPCG(31, 31))
	recs := make([]*record.Record, n)
	for i := range recs {
		recs[i] = reply(int64(i), time.Duration(i)*ms, time.Duration(1+rng.IntN(900))*ms, time.Second, 2*time.Second)
		recs[i].Class, recs[i].AskedOutput, recs[i].AskedInput = []string{"chat", "rag"}[i%2], rng.IntN(1000), rng.IntN(4000)
	}
	b.ResetTimer()
	for b.Loop() {
		s, err := New(Options{Phases: window(n * ms)})
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range recs {
			s.Add(r)
		}
		if _, err := json.Marshal(s.Summary()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/turn")
}
