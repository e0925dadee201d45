package analysis

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

const ms = time.Millisecond

// turn returns the only turn of session seq, due at at and never sent.
func turn(seq int64, at time.Duration, outcome record.Outcome) *record.Record {
	rec := record.New(&plan.Session{Seq: seq}, &plan.Turn{OutputTokens: -1})
	rec.Scheduled, rec.Outcome, rec.LastTurn = at, outcome, true
	return rec
}

// sent marks a turn as sent at once and ended at done.
func sent(rec *record.Record, done time.Duration) *record.Record {
	at := rec.Scheduled
	rec.Released, rec.Admitted, rec.Connected, rec.Sent, rec.Written = at, at, at, at, at
	rec.Done = done
	return rec
}

// reply returns an ok turn whose output events come at the given times after it
// is due, one token each.
func reply(seq int64, at time.Duration, events ...time.Duration) *record.Record {
	rec := sent(turn(seq, at, record.OK), record.Unset)
	rec.Streamed, rec.TokenSource, rec.StampSource = true, record.TokensFromUsage, "kernel"
	for _, e := range events {
		rec.Events = append(rec.Events, record.Event{At: at + e, Tokens: 1})
	}
	rec.OutputTokens = len(events)
	rec.Headers = at
	rec.FirstOutput, rec.FirstAnswer = at+events[0], at+events[0]
	rec.LastOutput = at + events[len(events)-1]
	rec.Done = rec.LastOutput
	return rec
}

func refused(seq int64, at time.Duration) *record.Record {
	rec := sent(turn(seq, at, record.Rejected), at+5*ms)
	rec.HTTPStatus = 429
	return rec
}

func window(d time.Duration) []plan.Phase {
	return []plan.Phase{{Name: "steady", Start: 0, End: d, Measured: true, Constant: true}}
}

func summarize(t testing.TB, opt Options, recs ...*record.Record) *Summary {
	t.Helper()
	s, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		s.Add(r)
	}
	sum := s.Summary()
	if _, err := json.Marshal(sum); err != nil { // NaN and infinity do not marshal
		t.Fatal(err)
	}
	if c := sum.Counts; c.OK+c.Rejected+c.HTTPError+c.StreamError+c.Empty+c.Timeout+c.ConnectError+c.Cancelled+c.Unfinished+c.Shed+c.Skipped+c.NotDue != c.Planned {
		t.Fatalf("outcomes do not sum to %d: %+v", c.Planned, c)
	}
	return sum
}

// is compares a figure that may not exist with what it must be.
func is(t *testing.T, name string, got *float64, want float64) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s is null, want %v", name, want)
	case math.Abs(*got-want) > 1e-9:
		t.Errorf("%s is %v, want %v", name, *got, want)
	}
}

func null[T any](t *testing.T, name string, got *T) {
	t.Helper()
	if got != nil {
		t.Errorf("%s is %v, want null", name, *got)
	}
}

func finding(sum *Summary, rule string) *Finding {
	for i := range sum.Findings {
		if sum.Findings[i].Rule == rule {
			return &sum.Findings[i]
		}
	}
	return nil
}

func TestA1_FailuresCountAgainstAttainment(t *testing.T) {
	var recs []*record.Record
	for i := range int64(50) {
		recs = append(recs, reply(2*i, time.Duration(i)*time.Second, 200*ms, 300*ms), refused(2*i+1, time.Duration(i)*time.Second))
	}
	slo := SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Second}}, Attainment: 0.99}
	sum := summarize(t, Options{Phases: window(50 * time.Second), SLO: slo}, recs...)
	is(t, "attainment", sum.SLO.Attainment.Value, 0.5)
	if sum.SLO.Attainment.N != 100 || sum.SLO.Good != 50 {
		t.Errorf("%d good of %d, want 50 of 100", sum.SLO.Good, sum.SLO.Attainment.N)
	}
	if sum.SLO.Judgment != Fail || sum.Verdict.SLO != Fail {
		t.Errorf("verdict %s, %s; want fail", sum.SLO.Judgment, sum.Verdict.SLO)
	}
	if !reflect.DeepEqual(sum.SLO.Violations.ByOutcome, map[string]int64{"rejected": 50}) || len(sum.SLO.Violations.ByObjective) != 0 {
		t.Errorf("violations %+v", sum.SLO.Violations)
	}
	is(t, "goodput", sum.SLO.GoodputRequests, 1)
	is(t, "goodput tokens", sum.SLO.GoodputOutputTokens, 2)
	is(t, "median of all", sum.Latency.TTFT.All.P50.Value, 0.2)
	if q := sum.Latency.TTFT.All.P90; !q.Censored || q.High != nil || *q.Value != 0.2 {
		t.Errorf("p90 of all is a rejected one: censored, at least the longest that came back; got %+v", q)
	}
	is(t, "p90 of ok", sum.Latency.TTFT.OK.P90.Value, 0.2)
	null(t, "mean of all", sum.Latency.TTFT.All.Mean)
	is(t, "mean of ok", sum.Latency.TTFT.OK.Mean, 0.2)
}

func TestA2_ATurnBelongsToThePhaseOfItsDueTime(t *testing.T) {
	phases := []plan.Phase{
		{Name: "warm-up", Start: 0, End: 10 * time.Second},
		{Name: "steady", Start: 10 * time.Second, End: 20 * time.Second, Measured: true},
		{Name: "tail", Start: 20 * time.Second, End: 30 * time.Second},
	}
	sum := summarize(t, Options{Phases: phases},
		reply(0, 0, 11*time.Second),             // overlaps the window, belongs to the warm-up
		reply(1, 10*time.Second, time.Second),   // the first moment of the window
		reply(2, 20*time.Second-1, 5*ms),        // the last
		reply(3, 20*time.Second, time.Second),   // the tail
		reply(4, 19*time.Second, 8*time.Second), // ends after it
	)
	if sum.Counts.Planned != 3 || sum.Counts.OK != 3 {
		t.Errorf("counts %+v, want 3", sum.Counts)
	}
	if len(sum.Window.Phases) != 3 || sum.Window.Start != 10 || sum.Window.End != 20 {
		t.Errorf("window %+v", sum.Window)
	}
	is(t, "longest", sum.Latency.E2E.All.Max, 8)
	// Throughput is by what happened inside: the warm-up's one ended in the
	// window, the one due at 19 s and the last one did not.
	is(t, "requests per second", sum.Throughput.Requests, 2.0/10)
	is(t, "completed", sum.Rates.Completed, 2.0/10)
	is(t, "offered", sum.Rates.Offered, 3.0/10)
	if got := sum.Series.Offered[0]; got != 1 {
		t.Errorf("the series holds the warm-up too: %d", got)
	}
}

func TestA3_WarmUpTakesItsTimeAlong(t *testing.T) {
	var recs []*record.Record
	for i := range int64(10) {
		rec := reply(i, time.Duration(i)*time.Second, 100*ms, 200*ms, 300*ms, 400*ms, 500*ms, 600*ms, 700*ms, 800*ms, 900*ms, 999*ms)
		for j := range rec.Events {
			rec.Events[j].Tokens = 10
		}
		rec.OutputTokens, rec.InputTokens = 100, 40
		recs = append(recs, rec)
	}
	whole := summarize(t, Options{Phases: window(10 * time.Second)}, recs...)
	cut := summarize(t, Options{Phases: []plan.Phase{
		{Name: "warm-up", End: time.Second},
		{Name: "steady", Start: time.Second, End: 9 * time.Second, Measured: true},
		{Name: "tail", Start: 9 * time.Second, End: 10 * time.Second},
	}}, recs...)
	for name, sum := range map[string]*Summary{"whole": whole, "cut": cut} {
		is(t, name+" output", sum.Throughput.OutputTokens, 100)
		is(t, name+" input", sum.Throughput.InputTokens, 40)
		is(t, name+" total", sum.Throughput.TotalTokens, 140)
		is(t, name+" requests", sum.Throughput.Requests, 1)
	}
	// With the tokens of a request known in total only, the same.
	for _, rec := range recs {
		for j := range rec.Events {
			rec.Events[j].Tokens = -1
		}
	}
	is(t, "spread evenly", summarize(t, Options{Phases: window(10 * time.Second)}, recs...).Throughput.OutputTokens, 100)
}

func TestSpread(t *testing.T) {
	event := func(tokens ...int32) (e []record.Event) {
		for i, n := range tokens {
			e = append(e, record.Event{At: time.Duration(i+1) * time.Second, Tokens: n})
		}
		return e
	}
	tests := []struct {
		name string
		rec  record.Record
		want []float64 // tokens at 1 s, 2 s, ...
	}{
		{"by their own counts", record.Record{Events: event(3, 1), OutputTokens: 4}, []float64{3, 1}},
		{"only the total known", record.Record{Events: event(-1, -1, -1, -1), OutputTokens: 6}, []float64{1.5, 1.5, 1.5, 1.5}},
		{"hidden reasoning in the total", record.Record{Events: event(1, 3), OutputTokens: 40}, []float64{10, 30}},
		{"no total, counts on events", record.Record{Events: event(1, 3), OutputTokens: -1}, []float64{1, 3}},
		{"nothing known", record.Record{Events: event(-1, -1), OutputTokens: -1}, []float64{1, 1}},
		{"counts of nothing", record.Record{Events: event(0, 0), OutputTokens: 5}, []float64{2.5, 2.5}},
		{"not streamed", record.Record{OutputTokens: 7, LastOutput: record.Unset, FirstOutput: record.Unset, Done: time.Second}, []float64{7}},
		{"never ended", record.Record{OutputTokens: 7, LastOutput: record.Unset, FirstOutput: record.Unset, Done: record.Unset}, nil},
		{"a third each", record.Record{Events: event(-1, -1, -1), OutputTokens: 1}, []float64{0.333333, 0.333334, 0.333333}},
	}
	for _, tt := range tests {
		var got []float64
		spread(&tt.rec, func(at time.Duration, n int64) {
			if at != time.Duration(len(got)+1)*time.Second {
				t.Errorf("%s: event at %v", tt.name, at)
			}
			got = append(got, float64(n)/micro)
		})
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestA4_P99Of200IsUnsupported(t *testing.T) {
	var recs []*record.Record
	for i := range int64(200) {
		recs = append(recs, reply(i, time.Duration(i)*100*ms, time.Duration(i+1)*ms)) // 1 to 200 ms
	}
	opt := Options{Phases: window(20 * time.Second), Batches: 2}
	d := summarize(t, opt, recs...).Latency.TTFT.All
	for name, q := range map[string]struct {
		got  Quantile
		want float64
	}{"p50": {d.P50, 0.1}, "p90": {d.P90, 0.18}, "p95": {d.P95, 0.19}, "p99": {d.P99, 0.198}, "p999": {d.P999, 0.2}} {
		is(t, name, q.got.Value, q.want)
	}
	is(t, "mean", d.Mean, 0.1005)
	is(t, "max", d.Max, 0.2)
	if d.N != 200 {
		t.Errorf("n %d", d.N)
	}

	// The same values in an order without a trend, so that each is worth one.
	rng := rand.New(rand.NewPCG(1, 1))
	independent := func(n int) *Summary {
		var recs []*record.Record
		for i := range int64(n) {
			// One beyond the p90 in every ten: no batch holds more than another.
			wait := time.Duration(1+rng.IntN(90)) * ms
			if i%10 == 9 {
				wait = time.Duration(100+rng.IntN(50)) * ms
			}
			recs = append(recs, reply(i, time.Duration(i)*100*ms, wait))
		}
		return summarize(t, Options{Phases: window(time.Duration(n) * 100 * ms)}, recs...)
	}
	sum := independent(200)
	is(t, "n_effective", sum.Latency.TTFT.All.NEffective, 200)
	if q := sum.Latency.TTFT.All.P99; q.High != nil || q.Low == nil || q.More == nil || *q.More != 168 {
		t.Errorf("p99 of 200: %+v; want no upper end and 168 more", q)
	}
	if f := finding(sum, "p99-unsupported"); f == nil || !strings.Contains(f.Remedy, "168 more") {
		t.Errorf("finding %+v", f)
	}
	if q := independent(400).Latency.TTFT.All.P99; q.High == nil || q.More != nil {
		t.Errorf("p99 of 400: %+v; want an upper end", q)
	}
}

func TestA5_AllFail(t *testing.T) {
	var recs []*record.Record
	for i := range int64(10) {
		rec := sent(turn(i, time.Duration(i)*time.Second, record.Rejected), time.Duration(i)*time.Second+5*ms)
		rec.HTTPStatus = 503
		recs = append(recs, rec)
	}
	slo := SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Second}, {Figure: "tpot", Quantile: stats.P99, Limit: time.Second}}, Attainment: 0.99}
	sum := summarize(t, Options{Phases: window(10 * time.Second), SLO: slo}, recs...)
	if sum.Counts.Planned != 10 || sum.Counts.Rejected != 10 {
		t.Errorf("counts %+v", sum.Counts)
	}
	for name, d := range map[string]Distribution{"ttft": sum.Latency.TTFT.All, "e2e": sum.Latency.E2E.All, "first_answer": sum.Latency.FirstAnswer.All} {
		if d.N != 10 || d.Missing != 10 || !d.P50.Censored {
			t.Errorf("%s: %+v; want ten missing, censored", name, d)
		}
		null(t, name+" p50", d.P50.Value)
		null(t, name+" p99 high", d.P99.High)
		null(t, name+" mean", d.Mean)
		null(t, name+" max", d.Max)
	}
	for name, d := range map[string]Distribution{"ok": sum.Latency.TTFT.OK, "tpot": sum.Latency.TPOT.All, "gap": sum.Latency.Gap.All} {
		if d.N != 0 || d.P50.Value != nil || d.P50.Censored {
			t.Errorf("%s: %+v; want nothing", name, d)
		}
	}
	is(t, "attainment", sum.SLO.Attainment.Value, 0)
	is(t, "errors", sum.SLO.ErrorShare, 1)
	is(t, "rejected", sum.Rates.Rejected, 1)
	is(t, "lateness", sum.Latency.Lateness.All.P99.Value, 0)
	if sum.Verdict.SLO != Fail || !sum.Verdict.Valid || finding(sum, "nothing-ok") == nil {
		t.Errorf("verdict %+v, findings %+v", sum.Verdict, sum.Findings)
	}
	empty := summarize(t, Options{SLO: slo})
	if empty.Counts.Planned != 0 || empty.SLO.Attainment.Value != nil || empty.Throughput.Requests != nil {
		t.Errorf("a run of nothing: %+v", empty)
	}
}

func TestA6_ErrorsOfWhatThePlanDidNotCancel(t *testing.T) {
	broken := sent(turn(2, 2*time.Second, record.HTTPError), 3*time.Second)
	left := sent(turn(3, 3*time.Second, record.Cancelled), 4*time.Second)
	sum := summarize(t, Options{Phases: window(10 * time.Second)}, reply(0, 0, 100*ms), reply(1, time.Second, 100*ms), broken, left)
	is(t, "error share", sum.SLO.ErrorShare, 1.0/3)
	is(t, "attainment", sum.SLO.Attainment.Value, 2.0/3)
	if sum.SLO.CensoredHangUps != 1 || sum.SLO.Attainment.N != 3 {
		t.Errorf("slo %+v", sum.SLO)
	}
	if f := finding(sum, "errors"); f == nil || !strings.Contains(f.Message, "33.33 %") {
		t.Errorf("finding %+v", f)
	}
	if sum.Verdict.SLO != NoVerdict {
		t.Errorf("nothing was asked, verdict %s", sum.Verdict.SLO)
	}
}

func TestA12_AskedAndDeliveredLengths(t *testing.T) {
	run := func(input, output int) *Summary {
		var recs []*record.Record
		for i := range int64(10) {
			rec := reply(i, time.Duration(i)*time.Second, 100*ms, 200*ms)
			rec.AskedInput, rec.InputTokens, rec.AskedOutput, rec.OutputTokens = 8000, input, 100, output
			recs = append(recs, rec)
		}
		return summarize(t, Options{Phases: window(10 * time.Second)}, recs...)
	}
	sum := run(7373, 100)
	is(t, "asked", sum.Tokens.Input.Asked.Mean, 8000)
	is(t, "delivered", sum.Tokens.Input.Delivered.Mean, 7373)
	if *sum.Tokens.Input.Delivered.P99 != 7373 || sum.Tokens.Input.Delivered.Total != 73730 || sum.Tokens.Output.Asked.N != 10 {
		t.Errorf("tokens %+v", sum.Tokens)
	}
	if f := finding(sum, "input-length"); f == nil || !strings.Contains(f.Message, "-7.8 %") {
		t.Errorf("finding %+v", f)
	}
	if f := finding(sum, "output-length"); f != nil {
		t.Errorf("outputs agree: %+v", f)
	}
	for _, edge := range []struct {
		input, output         int
		wantInput, wantOutput bool
	}{{7840, 98, false, false}, {7839, 98, true, false}, {8160, 97, false, true}, {8161, 103, true, true}} {
		sum := run(edge.input, edge.output)
		if got := finding(sum, "input-length") != nil; got != edge.wantInput {
			t.Errorf("input %d: finding %v", edge.input, got)
		}
		if got := finding(sum, "output-length") != nil; got != edge.wantOutput {
			t.Errorf("output %d: finding %v", edge.output, got)
		}
	}
}

// 8 tokens in 2 chunks: without counts ITL is unknown, with 4 on each it is gap/4.
func TestS5_ChunksAreNotTokens(t *testing.T) {
	rec := reply(0, 0, 200*ms, 600*ms)
	rec.OutputTokens = 8
	rec.Events[0].Tokens, rec.Events[1].Tokens = -1, -1
	sum := summarize(t, Options{Phases: window(time.Second)}, rec)
	if gap, itl := sum.Latency.Gap.All, sum.Latency.ITL.All; gap.N != 1 || itl.N != 0 || itl.Undefined != 1 || itl.P50.Value != nil {
		t.Errorf("gap %+v itl %+v", gap, itl)
	}
	is(t, "gap", sum.Latency.Gap.All.Mean, 0.4)
	is(t, "tokens per second", sum.Throughput.OutputTokens, 8)
	rec.Events[0].Tokens, rec.Events[1].Tokens = 4, 4
	sum = summarize(t, Options{Phases: window(time.Second)}, rec)
	if itl := sum.Latency.ITL.All; itl.N != 4 || itl.NEffective != nil || itl.P99.Low != nil {
		t.Errorf("itl %+v; want four values and no interval", itl)
	}
	is(t, "itl", sum.Latency.ITL.All.Mean, 0.1)
	is(t, "tpot", sum.Latency.TPOT.All.P50.Value, 0.1) // 0.4 s / (8 - 4)
	is(t, "stall", sum.Latency.Stall.All.P50.Value, 0.4)
}

func TestS6_FirstChunkOf8Tokens(t *testing.T) {
	rec := reply(0, 0, 200*ms, 300*ms, 400*ms)
	rec.Events[0].Tokens, rec.OutputTokens = 8, 10
	sum := summarize(t, Options{Phases: window(time.Second)}, rec)
	is(t, "tpot", sum.Latency.TPOT.OK.P50.Value, 0.1) // 0.2 s / (10 - 8)
}

func TestS7_AllTokensInOneChunk(t *testing.T) {
	rec := reply(0, 0, 200*ms)
	rec.Events[0].Tokens, rec.OutputTokens = 100, 100
	slo := SLO{Objectives: []Objective{{Figure: "tpot", Limit: 10 * ms}}}
	sum := summarize(t, Options{Phases: window(time.Second), SLO: slo}, rec)
	if d := sum.Latency.TPOT.OK; d.N != 0 || d.Undefined != 1 || d.P50.Value != nil || d.Mean != nil {
		t.Errorf("tpot %+v; want undefined and counted", d)
	}
	if sum.SLO.Unjudged != 1 || sum.SLO.Attainment.N != 0 || finding(sum, "unjudged") == nil || finding(sum, "tpot-undefined") == nil {
		t.Errorf("slo %+v findings %+v", sum.SLO, sum.Findings)
	}
	rec.Events[0].Tokens, rec.OutputTokens = 1, 1
	sum = summarize(t, Options{Phases: window(time.Second), SLO: slo}, rec)
	if sum.SLO.Good != 1 || sum.SLO.Unjudged != 0 {
		t.Errorf("a reply of one token has no TPOT and meets it: %+v", sum.SLO)
	}
}

func TestS9_EarlyStop(t *testing.T) {
	rec := reply(0, 0, 100*ms, 200*ms)
	rec.AskedOutput, rec.OutputTokens = 256, 40
	sum := summarize(t, Options{Phases: window(time.Second)}, rec)
	if *sum.Tokens.Output.Delivered.Max != 40 || *sum.Tokens.Output.Asked.Max != 256 {
		t.Errorf("tokens %+v", sum.Tokens.Output)
	}
	if f := finding(sum, "output-short"); f == nil || !strings.Contains(f.Message, "216 of 256") {
		t.Errorf("finding %+v", f)
	}
}

// Cap 1, two a second, three seconds of service, ten seconds: all is accounted for.
func TestL9_NothingIsDropped(t *testing.T) {
	var queue, shed []*record.Record
	for i := range int64(20) {
		at := time.Duration(i) * 500 * ms
		if i%6 == 0 {
			shed = append(shed, reply(i, at, 3*time.Second))
		} else {
			rec := turn(i, at, record.Shed)
			rec.Released, rec.Done = at, at
			shed = append(shed, rec)
		}
		start := time.Duration(i) * 3 * time.Second
		rec := turn(i, at, record.Unfinished)
		rec.Released = at
		if start < 10*time.Second {
			rec = reply(i, at, start-at+3*time.Second)
			rec.Admitted, rec.Connected, rec.Sent = start, start, start
		}
		queue = append(queue, rec)
	}
	opt := Options{Phases: window(10 * time.Second), Facts: Facts{Planned: Planned{Sessions: 20, Turns: 20}}}
	sum := summarize(t, opt, shed...)
	if sum.Counts.Planned != 20 || sum.Attempts.Sent != 4 || sum.Counts.Shed != 16 || sum.Counts.Unfinished != 0 {
		t.Errorf("shed: %+v, sent %d", sum.Counts, sum.Attempts.Sent)
	}
	is(t, "shed: attainment", sum.SLO.Attainment.Value, 0.2)
	is(t, "shed: dispatched", sum.Rates.Dispatched, 0.4)
	is(t, "shed: offered", sum.Rates.Offered, 2)
	sum = summarize(t, opt, queue...)
	if sum.Counts.Planned != 20 || sum.Attempts.Sent != 4 || sum.Counts.Unfinished != 16 {
		t.Errorf("queue: %+v, sent %d", sum.Counts, sum.Attempts.Sent)
	}
	is(t, "queue: longest cap wait", sum.Latency.CapWait.All.Max, 7.5) // the fourth: due at 1.5 s, admitted at 9 s
	is(t, "queue: lateness", sum.Latency.Lateness.All.Max, 0)
	is(t, "queue: send delay", sum.Latency.SendDelay.All.Max, 7.5)
	is(t, "queue: service", sum.Latency.ServiceTTFT.All.Max, 3)
	is(t, "queue: longest seen", sum.Latency.TTFT.OK.Max, 10.5)
	if !sum.Verdict.Valid || finding(sum, "cap-reached") == nil {
		t.Errorf("a cap is the plan's choice: %+v", sum.Verdict)
	}
}

func TestL13_ConstantLatenessIsLate(t *testing.T) {
	var recs []*record.Record
	for i := range int64(20) {
		rec := reply(i, time.Duration(i)*time.Second, 3200*ms)
		rec.Released += 3 * time.Second
		rec.Admitted, rec.Connected, rec.Sent = rec.Released, rec.Released, rec.Released
		recs = append(recs, rec)
	}
	sum := summarize(t, Options{Phases: window(20 * time.Second)}, recs...)
	for name, q := range map[string]*float64{
		"p50": sum.Generator.LatenessP50, "p99": sum.Generator.LatenessP99, "max": sum.Generator.LatenessMax,
		"latency": sum.Latency.Lateness.All.P50.Value,
	} {
		is(t, "lateness "+name, q, 3)
	}
	is(t, "what the user waited", sum.Latency.TTFT.All.P50.Value, 3.2)
	is(t, "what the server took", sum.Latency.ServiceTTFT.All.P50.Value, 0.2)
	if sum.Verdict.Valid || len(sum.Verdict.InvalidReasons) != 1 {
		t.Errorf("verdict %+v; want invalid, by lateness", sum.Verdict)
	}
}

func TestMissingAreBounds(t *testing.T) {
	timeout := func(seq int64, wait time.Duration) *record.Record {
		return sent(turn(seq, 0, record.Timeout), wait)
	}
	sum := summarize(t, Options{Phases: window(time.Minute)},
		reply(0, 0, time.Second), reply(1, 0, 2*time.Second), refused(2, 0),
		timeout(3, 30*time.Second), turn(4, 20*time.Second, record.Unfinished), timeout(5, 40*time.Second))
	d := sum.Latency.TTFT.All
	// In order: 1, 2, the refused one (no bound of its own), 20 s (unfinished: to
	// the last stamp, 40 s), 30 s, 40 s.
	if d.N != 6 || d.Missing != 4 {
		t.Fatalf("%+v", d)
	}
	if q := d.P50; !q.Censored || *q.Value != 2 { // 3rd
		t.Errorf("p50 %+v; want at least 2 s", q)
	}
	if q := d.P90; !q.Censored || *q.Value != 40 { // 6th
		t.Errorf("p90 %+v; want at least 40 s", q)
	}
	if d.P90.More != nil {
		t.Error("two thirds are missing: no number of requests gives a p90 an upper end")
	}
	is(t, "ok", sum.Latency.TTFT.OK.P90.Value, 2)
	// A stream that broke after its first output has a TTFT and no end.
	broken := reply(0, 0, time.Second, 2*time.Second)
	broken.Outcome = record.StreamError
	sum = summarize(t, Options{Phases: window(time.Minute)}, broken)
	is(t, "ttft of a broken stream", sum.Latency.TTFT.All.P50.Value, 1)
	if d := sum.Latency.E2E.All; d.Missing != 1 || d.P50.Value != nil {
		t.Errorf("e2e of a broken stream %+v", d)
	}
}

func TestOrderOfRecordsLeavesNoTrace(t *testing.T) {
	recs, opt := mixedRun()
	first, _ := json.Marshal(summarize(t, opt, recs...))
	rng := rand.New(rand.NewPCG(2, 2))
	for range 3 {
		rng.Shuffle(len(recs), func(i, j int) { recs[i], recs[j] = recs[j], recs[i] })
		again, _ := json.Marshal(summarize(t, opt, recs...))
		if !bytes.Equal(first, again) {
			t.Fatal("the same records give other bytes")
		}
	}
}

// mixedRun is a run of 300 sessions of one to three turns, with every outcome.
func mixedRun() ([]*record.Record, Options) {
	rng := rand.New(rand.NewPCG(3, 3))
	var recs []*record.Record
	for i := range int64(300) {
		at := time.Duration(rng.Int64N(int64(60 * time.Second)))
		turns := 1 + rng.IntN(3)
		for k := range turns {
			rec := reply(i, at, time.Duration(1+rng.IntN(900))*ms, time.Second, time.Duration(1001+rng.IntN(900))*ms)
			rec.ID.Turn, rec.LastTurn = int32(k), k == turns-1
			rec.Class, rec.Tenant, rec.Priority = []string{"chat", "rag"}[i%2], []string{"", "gold", "free"}[i%3], int(i%2)
			rec.AskedOutput, rec.AskedInput, rec.InputTokens = 1+rng.IntN(500), 100+rng.IntN(2000), 100
			rec.Events[1].Tokens = -1
			rec.Events[2].Width = int32(rng.IntN(3000))
			if o := record.Outcomes[rng.IntN(len(record.Outcomes))]; rng.IntN(4) == 0 && o != record.OK {
				rec.Outcome = o
				if !o.Offered() {
					rec.Scheduled = record.Unset
				}
				if rng.IntN(2) == 0 || !o.Offered() {
					rec.Events, rec.FirstOutput, rec.FirstAnswer, rec.LastOutput, rec.OutputTokens = nil, record.Unset, record.Unset, record.Unset, -1
				}
			}
			recs = append(recs, rec)
			at += 4 * time.Second
		}
	}
	return recs, Options{
		Phases: []plan.Phase{{Name: "warm-up", End: 10 * time.Second}, {Name: "steady", Start: 10 * time.Second, End: 40 * time.Second, Measured: true}, {Name: "peak", Start: 40 * time.Second, End: 50 * time.Second, Measured: true}, {Name: "tail", Start: 50 * time.Second, End: 70 * time.Second}},
		SLO: SLO{
			Objectives: []Objective{{Figure: "ttft", Limit: 500 * ms}, {Figure: "tpot", Quantile: stats.P99, Limit: 900 * ms}},
			Classes:    map[string][]Objective{"rag": {{Figure: "ttft", Limit: 800 * ms}, {Figure: "e2e", Limit: 1800 * ms}}},
			Attainment: 0.9,
		},
		Facts: Facts{Run: RunFacts{ID: "r1", Name: "mixed", Seed: 3}},
	}
}

// The names of the JSON are promised.
func TestNames(t *testing.T) {
	recs, opt := mixedRun()
	b, err := json.Marshal(summarize(t, opt, recs...))
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for path, names := range map[string]string{
		"":                     "schema run verdict window counts attempts rates latency tokens throughput slo prefix slices series replicas generator findings",
		"run":                  "id name started_at plan_hash seed salt synthetic not_reproduced",
		"verdict":              "valid invalid_reasons slo",
		"window":               "start_s end_s phases",
		"counts":               "planned ok rejected http_error stream_error empty timeout connect_error cancelled unfinished shed skipped not_due",
		"attempts":             "sent reconnects retries sessions",
		"attempts/sessions":    "planned complete all_good",
		"rates":                "offered dispatched completed rejected failed sessions idc",
		"rates/idc/asked":      "1 10 60",
		"latency":              "ttft_s service_ttft_s first_answer_s tpot_s itl_s gap_s stall_s e2e_s lateness_s cap_wait_s connect_s send_delay_s",
		"latency/ttft_s":       "all ok",
		"latency/itl_s/ok":     "n n_effective mean p50 p90 p95 p99 p999 max histogram",
		"latency/e2e_s/ok/p99": "value low high censored",
		"tokens":               "input output reasoning cached source",
		"tokens/input":         "asked delivered",
		"throughput":           "output_tokens input_tokens total_tokens requests",
		"slo":                  "objectives attainment goodput_requests goodput_output_tokens violations",
		"slo/attainment":       "value low high n",
		"slo/violations":       "by_objective by_outcome",
		"generator":            "cpu_share steal throttled gc_pause_max_s lateness_p99_s stamp_source stamp_width_p50_s stamp_width_p99_s stamp_width_p999_s multi_event_reads retransmits open_files events_per_s limits_hit",
		"series":               "t_s offered dispatched completed failed in_flight tokens ttft_p50_s ttft_p95_s",
	} {
		at := doc
		for part := range strings.SplitSeq(path, "/") {
			if part != "" {
				at, _ = at[part].(map[string]any)
			}
		}
		for name := range strings.FieldsSeq(names) {
			if _, ok := at[name]; !ok {
				t.Errorf("%s has no %q", path, name)
			}
		}
	}
	if doc["schema"] != Schema {
		t.Errorf("schema %v", doc["schema"])
	}
}
