package analysis

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// One turn, due at 0, against ttft 1 s, stall 500 ms and e2e 3 s.
func TestGood(t *testing.T) {
	all := []Objective{{Figure: "ttft", Limit: time.Second}, {Figure: "stall", Limit: 500 * ms}, {Figure: "e2e", Limit: 3 * time.Second}}
	hungUp := func(at time.Duration, events ...time.Duration) *record.Record {
		if len(events) == 0 {
			return sent(turn(0, 0, record.Cancelled), at)
		}
		rec := reply(0, 0, events...)
		rec.Outcome, rec.Done = record.Cancelled, at
		return rec
	}
	outcome := func(o record.Outcome, rec *record.Record) *record.Record { rec.Outcome = o; return rec }
	hidden := reply(0, 0, 100*ms, 200*ms)
	hidden.HiddenTokens = true
	uncounted := reply(0, 0, 100*ms, 200*ms)
	uncounted.Events[1].Tokens, uncounted.OutputTokens = -1, 8
	reasoningOnly := reply(0, 0, 100*ms, 200*ms)
	reasoningOnly.FirstAnswer = record.Unset
	tests := []struct {
		name       string
		rec        *record.Record
		objectives []Objective
		want       standing
		misses     []string
	}{
		{"meets all", reply(0, 0, time.Second, 1500*ms), all, met, nil},
		{"each limit, to the nanosecond", reply(0, 0, time.Second, 1500*ms, 2*time.Second, 2500*ms, 3*time.Second), all, met, nil},
		{"first output too late", reply(0, 0, time.Second+1, 1500*ms), all, missed, []string{"ttft"}},
		{"stalls and ends too late", reply(0, 0, time.Second, 3*time.Second+1), all, missed, []string{"stall", "e2e"}},
		{"one event cannot stall", reply(0, 0, time.Second), all, met, nil},
		{"fast refusal", refused(0, 0), all, missed, nil},
		{"a broken stream is a miss, whatever came", outcome(record.StreamError, reply(0, 0, 100*ms, 200*ms)), all, missed, nil},
		{"never due", turn(0, record.Unset, record.NotDue), all, apart, nil},
		{"skipped", turn(0, record.Unset, record.Skipped), all, apart, nil},

		{"no objectives: ok is good", reply(0, 0, time.Hour), nil, met, nil},
		{"objectives on the run alone: ok is good", reply(0, 0, time.Hour), []Objective{{Figure: "ttft", Quantile: stats.P99, Limit: 1}}, met, nil},

		{"TPOT of one token", reply(0, 0, 100*ms), []Objective{{Figure: "tpot", Limit: 1}}, met, nil},
		{"TPOT of hidden tokens", hidden, []Objective{{Figure: "tpot", Limit: time.Hour}}, unjudged, nil},
		{"unjudged, and missed elsewhere", hidden, []Objective{{Figure: "tpot", Limit: time.Hour}, {Figure: "ttft", Limit: 1}}, missed, []string{"ttft"}},
		{"largest ITL at its limit", reply(0, 0, 100*ms, 200*ms, 400*ms), []Objective{{Figure: "itl", Limit: 200 * ms}}, met, nil},
		{"largest ITL beyond it", reply(0, 0, 100*ms, 200*ms, 400*ms), []Objective{{Figure: "itl", Limit: 199 * ms}}, missed, []string{"itl"}},
		{"ITL of chunks without counts", uncounted, []Objective{{Figure: "itl", Limit: 1}}, unjudged, nil},
		{"ITL of one event", reply(0, 0, 100*ms), []Objective{{Figure: "itl", Limit: 1}}, met, nil},
		{"hung up with an ITL seen beyond", hungUp(1200*ms, 500*ms, 900*ms), []Objective{{Figure: "itl", Limit: 399 * ms}}, missed, []string{"itl"}},
		{"all reasoning has no answer", reasoningOnly, []Objective{{Figure: "first_answer", Limit: 1}}, met, nil},
		{"service time", reply(0, 0, 100*ms), []Objective{{Figure: "service_ttft", Limit: 99 * ms}}, missed, []string{"service_ttft"}},

		{"hung up before any output, in time", hungUp(900 * ms), all, pending, nil},
		{"hung up with ttft already missed", hungUp(1100 * ms), all, missed, []string{"ttft"}},
		{"hung up with everything late", hungUp(3100 * ms), all, missed, []string{"ttft", "e2e"}},
		{"hung up with a stall seen", hungUp(1700*ms, 500*ms, 1100*ms), all, missed, []string{"stall"}},
		{"hung up in a silence that is one", hungUp(1700*ms, 500*ms, 600*ms), all, missed, []string{"stall"}},
		{"hung up with ttft met, the rest open", hungUp(1200*ms, 500*ms, 900*ms), all, pending, nil},
		{"hung up with the only objective met", hungUp(1200*ms, 500*ms), all[:1], met, nil},
		{"hung up, nothing asked", hungUp(1200*ms, 500*ms), nil, pending, nil},
		{"hung up, TPOT is not settled", hungUp(1200*ms, 500*ms, 900*ms), []Objective{{Figure: "tpot", Limit: 1}}, pending, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(Options{SLO: SLO{Objectives: tt.objectives}})
			if err != nil {
				t.Fatal(err)
			}
			s.Add(tt.rec)
			var misses []string
			got := judge(&s.rows[0], tt.objectives, func(f string) { misses = append(misses, f) })
			if got != tt.want || !reflect.DeepEqual(misses, tt.misses) {
				t.Errorf("standing %d, misses %v; want %d, %v", got, misses, tt.want, tt.misses)
			}
		})
	}
}

func TestClassOverridesKeyByKey(t *testing.T) {
	slo := SLO{
		Objectives: []Objective{{Figure: "ttft", Limit: 100 * ms}, {Figure: "e2e", Limit: time.Second}, {Figure: "tpot", Quantile: stats.P50, Limit: 50 * ms}},
		Classes:    map[string][]Objective{"rag": {{Figure: "ttft", Limit: 500 * ms}, {Figure: "tpot", Limit: 300 * ms}}},
	}
	chat, rag := reply(0, 0, 200*ms, 400*ms), reply(1, 0, 200*ms, 400*ms)
	chat.Class, rag.Class = "chat", "rag"
	sum := summarize(t, Options{Phases: window(time.Second), SLO: slo}, chat, rag)
	if sum.SLO.Good != 1 || !reflect.DeepEqual(sum.SLO.Violations.ByObjective, map[string]int64{"ttft": 1}) {
		t.Errorf("good %d, violations %+v", sum.SLO.Good, sum.SLO.Violations)
	}
	type line struct {
		figure, quantile, class string
		n                       int64
		met                     float64
	}
	var got []line
	for _, o := range sum.SLO.Objectives {
		got = append(got, line{o.Figure, o.Quantile, o.Class, o.Met.N, *o.Met.Value})
	}
	want := []line{{"ttft", "", "", 1, 0}, {"e2e", "", "", 2, 1}, {"tpot", "p50", "", 1, 0}, {"ttft", "", "rag", 1, 1}, {"tpot", "", "rag", 1, 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("objectives %v\nwant       %v", got, want)
	}
	is(t, "observed", sum.SLO.Objectives[2].Observed.Value, 0.2)
	if len(sum.Slices) != 2 || sum.Slices[0].Value != "chat" || sum.Slices[0].SLO.Good != 0 || sum.Slices[1].SLO.Good != 1 {
		t.Errorf("slices %+v", sum.Slices)
	}
}

// quietRun is n turns of which every 1/share-th misses a TTFT of 1 s, evenly, so
// that each turn is worth one.
func quietRun(n, misses int) []*record.Record {
	var recs []*record.Record
	for i := range n {
		wait := 100 * ms
		if i*misses/n != (i+1)*misses/n {
			wait = 2 * time.Second
		}
		recs = append(recs, reply(int64(i), time.Duration(i)*100*ms, wait))
	}
	return recs
}

func TestGate(t *testing.T) {
	each := SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Second}}, Attainment: 0.99}
	p99 := SLO{Objectives: []Objective{{Figure: "ttft", Quantile: stats.P99, Limit: time.Second}}}
	tests := []struct {
		name      string
		n, misses int
		want      Judgment
		more      int64 // 0: not said
	}{
		// The contract's sizes: the first at which 99 % can be claimed.
		{"none of 368", 368, 0, Pass, 0},
		{"none of 367", 367, 0, Inconclusive, 1},
		{"none of 200", 200, 0, Inconclusive, 168},
		{"1 of 555", 555, 1, Pass, 0},
		{"1 of 554", 554, 1, Inconclusive, -1},
		{"5 of 1,164", 1164, 5, Pass, 0},
		{"5 of 1,163", 1163, 5, Inconclusive, -1},
		{"10 of 1,835", 1835, 10, Pass, 0},
		{"a tenth", 500, 50, Fail, 0},
		{"the limit itself", 1000, 10, Inconclusive, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			recs := quietRun(tt.n, tt.misses)
			for name, slo := range map[string]SLO{"attainment": each, "p99": p99} {
				sum := summarize(t, Options{Phases: window(time.Duration(tt.n) * 100 * ms), SLO: slo}, recs...)
				more := sum.SLO.More
				if name == "p99" {
					more = sum.SLO.Objectives[0].More
					// The quantile's interval says the same as the share's.
					if q := sum.SLO.Objectives[0].Observed; (tt.want == Pass) != (q.High != nil && *q.High <= 1) {
						t.Errorf("p99: interval %+v and verdict %s", q, tt.want)
					}
				}
				if sum.Verdict.SLO != tt.want {
					t.Errorf("%s: %s, want %s", name, sum.Verdict.SLO, tt.want)
				}
				switch {
				case tt.more == 0 && more != nil:
					t.Errorf("%s: %d more, want none named", name, *more)
				case tt.more > 0 && (more == nil || *more != tt.more), tt.more < 0 && (more == nil || *more < 1):
					t.Errorf("%s: more %v, want %d", name, more, tt.more)
				}
			}
		})
	}
}

func TestAttainmentInterval(t *testing.T) {
	// 5 of 10, each worth one: the usual table.
	var recs []*record.Record
	for i := range int64(10) {
		wait := 100 * ms
		if i%2 == 1 {
			wait = 2 * time.Second
		}
		recs = append(recs, reply(i, time.Duration(i)*time.Second, wait))
	}
	slo := SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Second}}, Attainment: 0.5}
	sum := summarize(t, Options{Phases: window(10 * time.Second), SLO: slo, Batches: 5}, recs...)
	a := sum.SLO.Attainment
	is(t, "n_effective", a.NEffective, 10)
	if math.Abs(*a.Low-0.187086) > 1e-6 || math.Abs(*a.High-0.812914) > 1e-6 {
		t.Errorf("%v to %v", *a.Low, *a.High)
	}
	// Three blocks of two miss whole and two do not: p = 3/5, deviations 0.8 and
	// -1.2, squares 4.8; V = 5/4*4.8/100, over 0.24/10: 2.5; times (t(4)/z)^2
	// = 2.0067, since 4*2.5 is beyond chi-square's 9.488.
	for i, rec := range recs {
		wait := 100 * ms
		if i/2%2 == 0 {
			wait = 2 * time.Second
		}
		recs[i] = reply(rec.ID.Session, rec.Scheduled, wait)
	}
	sum = summarize(t, Options{Phases: window(10 * time.Second), SLO: slo, Batches: 5}, recs...)
	for name, n := range map[string]*float64{"attainment": sum.SLO.Attainment.NEffective, "latency": sum.Latency.TTFT.All.NEffective} {
		if math.Abs(*n-10/2.5/2.0067) > 1e-3 {
			t.Errorf("n_effective of %s in blocks is %v", name, *n)
		}
	}
	// Blocks that grow worse and worse are no independent evidence.
	recs = nil
	for i := range int64(2000) {
		recs = append(recs, reply(i, time.Duration(i)*100*ms, time.Duration(i)*ms))
	}
	slo.Objectives[0].Limit = 3 * time.Second
	sum = summarize(t, Options{Phases: window(200 * time.Second), SLO: slo}, recs...)
	if !sum.Latency.TTFT.All.BlocksAlike || sum.Verdict.SLO != Inconclusive || finding(sum, "blocks-alike") == nil {
		t.Errorf("a trend passes: %s, %+v", sum.Verdict.SLO, sum.SLO.Attainment)
	}
}

func TestSessionAttainment(t *testing.T) {
	turns := func(seq int64, at time.Duration, outcomes ...record.Outcome) (recs []*record.Record) {
		for i, o := range outcomes {
			rec := reply(seq, at+time.Duration(i)*2*time.Second, 100*ms)
			rec.Outcome = o
			if !o.Offered() {
				rec = turn(seq, record.Unset, o)
			}
			rec.ID.Turn, rec.LastTurn = int32(i), i == len(outcomes)-1
			recs = append(recs, rec)
		}
		return recs
	}
	var recs []*record.Record
	recs = append(recs, turns(0, 0, record.OK, record.OK)...)                             // good
	recs = append(recs, turns(1, 0, record.Rejected, record.Skipped)...)                  // a miss
	recs = append(recs, turns(2, 0, record.OK, record.NotDue)...)                         // unknown
	recs = append(recs, turns(3, 9*time.Second, record.OK, record.OK)...)                 // its second turn lies in the tail
	recs = append(recs, turns(4, 11*time.Second, record.OK)...)                           // not of the window
	recs = append(recs, turns(5, 0, record.OK, record.Cancelled)...)                      // unknown
	recs = append(recs, turns(6, 0, record.HTTPError, record.Skipped, record.Skipped)...) // a miss
	opt := Options{Phases: append(window(10*time.Second), tail(10*time.Second, 20*time.Second))}
	sum := summarize(t, opt, recs...)
	ses := sum.Attempts.Sessions
	if ses.Planned != 6 || ses.Complete != 2 || ses.AllGood != 2 || ses.Attainment.N != 4 {
		t.Errorf("sessions %+v", ses)
	}
	is(t, "session attainment", ses.Attainment.Value, 0.5)
	// Turns: skipped ones are not offered.
	if sum.Counts.Planned != 12 || sum.Counts.Skipped != 3 || sum.Counts.NotDue != 1 {
		t.Errorf("counts %+v", sum.Counts)
	}
	is(t, "attainment", sum.SLO.Attainment.Value, 5.0/7)
	is(t, "turns offered", sum.Rates.Offered, 0.8)
	is(t, "sessions offered", sum.Rates.Sessions.Offered, 0.6)
	if finding(sum, "two-rates") == nil {
		t.Error("sessions and turns differ and no one says so")
	}
	is(t, "sessions completed", sum.Rates.Sessions.Completed, 0.1) // the one that ends in the tail does not
	is(t, "sessions rejected", sum.Rates.Sessions.Rejected, 0.1)
	is(t, "sessions failed", sum.Rates.Sessions.Failed, 0.1)
}

func TestOptionsAreChecked(t *testing.T) {
	bad := map[string]Options{
		"gaps are not independent": {SLO: SLO{Objectives: []Objective{{Figure: "gap", Limit: 1}}}},
		"no limit":                 {SLO: SLO{Objectives: []Objective{{Figure: "ttft"}}}},
		"pooled ITL":               {SLO: SLO{Objectives: []Objective{{Figure: "itl", Quantile: stats.P99, Limit: 1}}}},
		"a class":                  {SLO: SLO{Classes: map[string][]Objective{"a": {{Figure: "lateness", Limit: 1}}}}},
		"a quantile above 1":       {SLO: SLO{Objectives: []Objective{{Figure: "ttft", Limit: 1, Quantile: 1000}}}},
		"attainment in percent":    {SLO: SLO{Attainment: 99}},
		"not a number":             {SLO: SLO{Attainment: math.NaN()}},
		"one batch":                {Batches: 1},
		"phases overlap":           {Phases: append(window(2*time.Second), tail(time.Second, 3*time.Second))},
	}
	for name, opt := range bad {
		if _, err := New(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The end of the run cuts off what is in flight in the tail: that is no miss of
// the session it belongs to. In the window it is one.
func TestASessionCutInTheTailIsNoMiss(t *testing.T) {
	opt := Options{Phases: append(window(10*time.Second), tail(10*time.Second, 20*time.Second))}
	two := func(seq int64, second time.Duration) []*record.Record {
		a, b := reply(seq, time.Second, 100*ms), turn(seq, second, record.Unfinished)
		a.LastTurn, b.LastTurn, b.ID.Turn, b.Done = false, true, 1, 20*time.Second
		return []*record.Record{a, b}
	}
	ses := summarize(t, opt, append(two(0, 12*time.Second), two(1, 5*time.Second)...)...).Attempts.Sessions
	if ses.Planned != 2 || ses.AllGood != 0 || ses.Attainment.N != 1 {
		t.Errorf("%+v: want one session judged of two", ses)
	}
	is(t, "session attainment", ses.Attainment.Value, 0)
}

// A user who hangs up as planned before a limit has passed is no miss of it; one
// who waited past it is.
func TestHangUpsAndTheShareThatMetAnObjective(t *testing.T) {
	hung := func(seq int64, after time.Duration) *record.Record {
		r := turn(seq, 0, record.Cancelled)
		r.HangUpPlanned, r.HangUpAfter, r.Done = true, after, after
		return r
	}
	opt := Options{Phases: window(10 * time.Second), SLO: SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Second}, {Figure: "ttft", Quantile: 500, Limit: time.Second}}}}
	sum := summarize(t, opt, reply(0, 0, 100*ms), hung(1, 500*ms), hung(2, 2*time.Second))
	each, run := sum.SLO.Objectives[0], sum.SLO.Objectives[1]
	if each.Met.N != 2 {
		t.Errorf("judged on %d requests, want 2: %+v", each.Met.N, each)
	}
	is(t, "met", each.Met.Value, 0.5)
	// The run's quantile is over all offered: who did not come back is longest.
	if run.Met.N != 3 || run.Observed == nil || !run.Observed.Censored {
		t.Errorf("%+v", run)
	}
}

// One straggler among few is no verdict on the instrument; two are.
func TestLatenessOfFew(t *testing.T) {
	few := func(late ...time.Duration) *Summary {
		var recs []*record.Record
		for i := range 30 {
			r := reply(int64(i), time.Duration(i)*100*ms, 100*ms)
			r.Released = r.Scheduled
			if i < len(late) {
				r.Released += late[i]
			}
			recs = append(recs, r)
		}
		return summarize(t, Options{Phases: window(10 * time.Second)}, recs...)
	}
	if s := few(5 * ms); !s.Verdict.Valid {
		t.Errorf("one of thirty was late: %v", s.Verdict.InvalidReasons)
	}
	if s := few(5*ms, 5*ms); s.Verdict.Valid {
		t.Error("two of thirty were late, and the run is valid")
	}
}
