package analysis

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

func tail(start, end time.Duration) plan.Phase {
	return plan.Phase{Name: "tail", Start: start, End: end}
}

func TestIDC(t *testing.T) {
	// Ten at once every tenth second, for 200 s, released a second late each on
	// its own: asked in bursts, delivered evenly.
	var recs []*record.Record
	for i := range int64(200) {
		at := time.Duration(i/10*10) * time.Second
		rec := reply(i, at, time.Second)
		rec.Released = at + time.Duration(i%10)*time.Second
		recs = append(recs, rec)
	}
	seeded := reply(200, 5*time.Second, time.Second)
	seeded.ID.Turn = 3 // in mid-course when the run began: not an arrival
	recs = append(recs, seeded)
	sum := summarize(t, Options{Phases: window(200 * time.Second)}, recs...)
	// In bins of 1 s: 20 bins of 10 and 180 of 0: mean 1, variance 10 - 1.
	is(t, "asked, 1 s", sum.Rates.IDC.Asked.At1, 9)
	is(t, "asked, 10 s", sum.Rates.IDC.Asked.At10, 0)
	null(t, "asked, 60 s: three bins", sum.Rates.IDC.Asked.At60)
	is(t, "delivered, 1 s", sum.Rates.IDC.Delivered.At1, 0)
	sum = summarize(t, Options{Phases: window(9 * time.Second)}, recs...)
	null(t, "nine seconds", sum.Rates.IDC.Asked.At1)
}

func TestSeries(t *testing.T) {
	sum := summarize(t, Options{Phases: window(3 * time.Second)},
		reply(0, 500*ms, time.Second, 2*time.Second), // in flight from 0.5 to 2.5 s
		reply(1, 600*ms, 100*ms),
		refused(2, 700*ms),
	)
	s := sum.Series
	want := Series{
		Second: []int64{0, 1, 2}, Offered: []int64{3, 0, 0}, Dispatched: []int64{3, 0, 0}, Completed: []int64{1, 0, 1}, Failed: []int64{1, 0, 0},
		InFlight: []float64{0.605, 1, 0.5}, Tokens: []float64{1, 1, 1},
		TTFTP50: []*float64{ptr(1.0), nil, nil}, TTFTP95: []*float64{nil, nil, nil},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%+v\nwant %+v", s, want)
	}
}

func TestSlices(t *testing.T) {
	var recs []*record.Record
	for i := range int64(8) {
		rec := reply(i, time.Duration(i)*time.Second, time.Duration(i+1)*100*ms)
		rec.AskedInput, rec.AskedOutput = []int{10, 64, 255, 256}[i%4], 20
		rec.Tenant, rec.Priority, rec.Model = []string{"", "gold", "free"}[i%3], int(i%2)-1, "same"
		recs = append(recs, rec)
	}
	recs[7].Outcome = record.Timeout
	phases := []plan.Phase{{Name: "steady", End: 6 * time.Second, Measured: true}, {Name: "peak", Start: 6 * time.Second, End: 8 * time.Second, Measured: true}}
	sum := summarize(t, Options{Phases: phases}, recs...)
	var got []string
	for _, s := range sum.Slices {
		got = append(got, fmt.Sprintf("%s=%s:%d", s.By, s.Value, s.Counts.Planned))
		if s.Latency.TTFT.All.Histogram != nil || s.Counts.Planned != s.Latency.TTFT.All.N {
			t.Errorf("%s %s: %+v", s.By, s.Value, s.Latency.TTFT.All)
		}
	}
	want := "phase=steady:6 phase=peak:2 input_tokens=0-63:2 input_tokens=64-255:4 input_tokens=256-1023:2 tenant=free:2 tenant=gold:3 priority=-1:4 priority=0:4"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}
	peak := sum.Slices[1]
	is(t, "goodput of the peak is per second of the peak", peak.SLO.GoodputRequests, 0.5)
	is(t, "its median", peak.Latency.TTFT.All.P50.Value, 0.7)

	// Live later turns: those that came back have the server's length, of those
	// that did not nobody knows one. None is lost.
	recs = nil
	for i := range int64(6) {
		rec := reply(i, 0, ms)
		rec.InputTokens = 100 << (3 * (i % 2))
		if i >= 4 {
			rec = refused(i, 0)
		}
		recs = append(recs, rec)
	}
	sum = summarize(t, Options{Phases: window(time.Second)}, recs...)
	got = nil
	for _, s := range sum.Slices {
		got = append(got, fmt.Sprintf("%s=%s:%d", s.By, s.Value, s.Counts.Planned))
	}
	want = "input_tokens=64-255:2 input_tokens=256-1023:2 input_tokens=unknown:2"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}

	recs = nil
	for i := range int64(mostSlices + 20) {
		rec := reply(i, 0, ms)
		rec.Tenant = fmt.Sprintf("t%03d", i)
		recs = append(recs, rec)
	}
	sum = summarize(t, Options{Phases: window(time.Second)}, recs...)
	if len(sum.Slices) != mostSlices || finding(sum, "slices-left-out") == nil {
		t.Errorf("%d slices", len(sum.Slices))
	}
}

func TestValidity(t *testing.T) {
	// A hundred turns with a service TTFT of 500 ms and gaps of 200 ms: lateness
	// may be 5 ms, stamp intervals 10 ms.
	run := func(change func(i int, rec *record.Record)) []*record.Record {
		var recs []*record.Record
		for i := range 100 {
			rec := reply(int64(i), time.Duration(i)*100*ms, 500*ms, 700*ms)
			change(i, rec)
			recs = append(recs, rec)
		}
		return recs
	}
	late := func(by time.Duration) func(int, *record.Record) {
		return func(_ int, rec *record.Record) { rec.Released += by }
	}
	wide := func(us int32) func(int, *record.Record) {
		return func(_ int, rec *record.Record) { rec.Events[0].Width, rec.Events[1].Width = us, us }
	}
	same := func(int, *record.Record) {}
	tests := []struct {
		name   string
		recs   []*record.Record
		opt    Options
		reason string // part of it; empty: valid
	}{
		{"quiet", run(same), Options{}, ""},
		{"late by its limit", run(late(5 * ms)), Options{}, ""},
		{"late by more", run(late(5*ms + 1)), Options{}, "late"},
		{"one in a hundred late", run(func(i int, r *record.Record) { late(time.Duration(1-min(i, 1))*time.Second)(i, r) }), Options{}, ""},
		{"two in a hundred late", run(func(i int, r *record.Record) { late(time.Duration(2-min(i, 2))*time.Second)(i, r) }), Options{}, "late"},
		{"another limit", run(late(5*ms + 1)), Options{Limits: Limits{Lateness: 6 * ms}}, ""},
		{"stamps as wide as they may be", run(wide(9900)), Options{}, ""},
		{"stamps wider", run(wide(10200)), Options{}, "stamp interval"},
		{"a resource ran out", run(same), Options{Facts: Facts{Generator: Generator{LimitsHit: []string{"ports: 28,000 of 28,231 in use"}}}}, "ports"},
		{"all there", run(same), Options{Facts: Facts{Planned: Planned{Sessions: 100, Turns: 100}}}, ""},
		{"records missing", run(same), Options{Facts: Facts{Planned: Planned{Turns: 101}}}, "missing"},
		{"other sessions", run(same), Options{Facts: Facts{Planned: Planned{Sessions: 90}}}, "not the planned ones"},
		{"a session never released", run(func(i int, r *record.Record) {
			if i == 50 {
				*r = *turn(50, r.Scheduled, record.Unfinished)
			}
		}), Options{}, "never released"},
		{"in flight when the run was killed", run(func(i int, r *record.Record) {
			if i >= 90 {
				*r = *turn(int64(i), r.Scheduled, record.Unfinished)
			}
		}), Options{CutShort: true}, ""},
		{"cap wait and connecting are no fault of the instrument", run(func(_ int, r *record.Record) {
			r.Admitted += 10 * time.Second
			r.Connected += 20 * time.Second
		}), Options{}, ""},
		{"a server that fails is none either", run(func(_ int, r *record.Record) { r.Outcome = record.HTTPError }), Options{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.opt.Phases = window(10 * time.Second)
			tt.opt.SLO = SLO{Objectives: []Objective{{Figure: "ttft", Limit: time.Hour}}, Attainment: 0.5}
			sum := summarize(t, tt.opt, tt.recs...)
			reasons := strings.Join(sum.Verdict.InvalidReasons, "; ")
			if sum.Verdict.Valid != (tt.reason == "") || !strings.Contains(reasons, tt.reason) {
				t.Errorf("valid %v: %s; want %q", sum.Verdict.Valid, reasons, tt.reason)
			}
			if !sum.Verdict.Valid && sum.Verdict.SLO == Pass {
				t.Error("an invalid run passes a gate")
			}
		})
	}
}

func TestStampQuality(t *testing.T) {
	a, b := reply(0, 0, 100*ms, 200*ms), reply(1, 0, 100*ms, 200*ms)
	a.Events[1].Width = 100
	a.Reads, a.MultiEventReads, a.RefusedStamps = 2, 1, 1
	b.StampSource, b.Reads, b.Reconnects, b.Retries = "read", 2, 1, 2
	sum := summarize(t, Options{Phases: window(time.Second), Facts: Facts{Generator: Generator{CPUShare: ptr(0.25)}}}, a, b)
	g := sum.Generator
	if g.StampSource != "mixed" || g.Reads != 4 || g.MultiEventReads != 1 || g.RefusedStamps != 1 || finding(sum, "mixed-stamps") == nil {
		t.Errorf("%+v", g)
	}
	is(t, "median width", g.StampWidthP50, 0)
	if w := *g.StampWidthP99; w < 0.0000992 || w > 0.0001008 {
		t.Errorf("width p99 %v, want 100 us within 0.8 %%", w)
	}
	is(t, "events per second", g.EventsPerSecond, 4)
	is(t, "what the caller knows", g.CPUShare, 0.25)
	if sum.Attempts.Reconnects != 1 || sum.Attempts.Retries != 2 || sum.Attempts.Sent != 2 {
		t.Errorf("%+v", sum.Attempts)
	}
}

func TestShortWindow(t *testing.T) {
	run := func(longest time.Duration) *Summary {
		return summarize(t, Options{Phases: window(10 * time.Second)}, reply(0, 0, longest), reply(1, 0, 100*ms))
	}
	if f := finding(run(2*time.Second), "short-window"); f != nil {
		t.Errorf("five times the longest will do: %+v", f)
	}
	if f := finding(run(2*time.Second+ms), "short-window"); f == nil {
		t.Error("just more than a fifth of the window is too long")
	}
	if f := finding(run(3*time.Second), "short-window"); f == nil || !strings.Contains(f.Remedy, "15 s") {
		t.Errorf("%+v", f)
	}
}

func TestWindowOfSeveralPhases(t *testing.T) {
	phases := []plan.Phase{
		{Name: "one", End: 10 * time.Second, Measured: true}, {Name: "pause", Start: 10 * time.Second, End: 20 * time.Second},
		{Name: "two", Start: 20 * time.Second, End: 30 * time.Second, Measured: true},
	}
	s, err := New(Options{Phases: phases})
	if err != nil {
		t.Fatal(err)
	}
	w := s.window()
	for at, want := range map[time.Duration]time.Duration{0: 0, 5 * time.Second: 5 * time.Second, 15 * time.Second: 10 * time.Second, 25 * time.Second: 15 * time.Second, time.Hour: 20 * time.Second} {
		if got := w.at(at); got != want {
			t.Errorf("%v is %v of measured time, want %v", at, got, want)
		}
	}
	sum := summarize(t, Options{Phases: phases}, reply(0, 5*time.Second, ms), reply(1, 15*time.Second, ms), reply(2, 25*time.Second, ms))
	if sum.Counts.Planned != 2 || sum.Window.Measured != 20 || sum.Window.End != 30 {
		t.Errorf("%+v %+v", sum.Counts, sum.Window)
	}
	is(t, "rate", sum.Rates.Offered, 0.1)
}

// Facts that come when the run has ended take the place of the options'.
func TestKnow(t *testing.T) {
	s, err := New(Options{Phases: window(time.Second), Facts: Facts{Run: RunFacts{ID: "early"}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Add(reply(0, 0, ms))
	s.Know(Facts{Run: RunFacts{ID: "late"}, Planned: Planned{Turns: 2}, Replicas: []Replica{{Name: "a"}}})
	sum := s.Summary()
	if sum.Run.ID != "late" || sum.Verdict.Valid || len(sum.Replicas) != 1 {
		t.Errorf("%+v %+v", sum.Run, sum.Verdict)
	}
}
