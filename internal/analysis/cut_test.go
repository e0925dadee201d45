package analysis

import (
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// A run of 100 s that was interrupted after 10: its rates are over the ten.
func TestCut_RatesAreOverWhatThereWas(t *testing.T) {
	phases := []plan.Phase{
		{Name: "steady", Start: 0, End: 100 * time.Second, Measured: true, Constant: true},
		{Name: "more", Start: 100 * time.Second, End: 200 * time.Second, Measured: true, Constant: true},
	}
	of := func(cut time.Duration) *Summary {
		s, err := New(Options{Phases: phases})
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(19) {
			s.Add(reply(i, time.Duration(i)*500*ms, 10*ms, 20*ms))
		}
		if cut > 0 {
			s.Cut(cut)
		}
		// Under way when the load ended, and waited for: its tokens come after the window.
		s.Add(reply(19, 9500*ms, 100*ms, 900*ms))
		notDue := turn(20, record.Unset, record.NotDue)
		notDue.Phase = "more"
		s.Add(notDue)
		return s.Summary()
	}
	sum := of(10 * time.Second)
	if sum.Counts.OK != 20 || sum.Counts.NotDue != 1 || sum.Counts.Planned != 21 {
		t.Errorf("a cut changes no count: %+v", sum.Counts)
	}
	is(t, "measured", &sum.Window.Measured, 10)
	is(t, "offered", sum.Rates.Offered, 2)
	is(t, "output tokens", sum.Throughput.OutputTokens, 3.9) // 19 × 2 and 1 of the last
	is(t, "completed", sum.Rates.Completed, 1.9)
	for _, p := range sum.Window.Phases {
		if p.Name == "more" && p.End != p.Start {
			t.Errorf("a phase that never came is %v s long", p.End-p.Start)
		}
	}
	is(t, "measured, not cut", &of(0).Window.Measured, 200)
	// Interrupted in the warm-up: no window, and no rates.
	s, err := New(Options{Phases: []plan.Phase{{Name: "warm-up", End: time.Second}, {Name: "steady", Start: time.Second, End: 2 * time.Second, Measured: true}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Add(reply(0, 100*ms, 10*ms))
	s.Cut(500 * ms)
	if sum := s.Summary(); sum.Window.Measured != 0 || sum.Counts.Planned != 0 {
		t.Errorf("window %+v, counts %+v", sum.Window, sum.Counts)
	} else {
		null(t, "offered", sum.Rates.Offered)
		null(t, "throughput", sum.Throughput.OutputTokens)
	}
}
