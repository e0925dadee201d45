package experiment

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/unit"
	"github.com/trueload/trueload/internal/workload"
)

// show writes the progress of a run to w until done is closed: one line that is
// rewritten on a terminal, a plain line every ten seconds elsewhere.
func show(w io.Writer, terminal bool, now func() time.Duration, phases []plan.Phase, p *loadgen.Progress, done <-chan struct{}) {
	every := 10 * time.Second
	if terminal {
		every = 250 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last loadgen.Snapshot
	var lastAt time.Duration
	for {
		select {
		case <-done:
			if terminal {
				fmt.Fprint(w, "\r\x1b[K")
			}
			return
		case <-tick.C:
			s, t := p.Snapshot(), now()
			line := progressLine(t, phases, s, last, t-lastAt)
			if terminal {
				fmt.Fprint(w, "\r\x1b[K"+line)
			} else {
				fmt.Fprintln(w, line)
			}
			// Rates over a quarter of a second jump about: look back two seconds.
			if t-lastAt >= 2*time.Second {
				last, lastAt = s, t
			}
		}
	}
}

// progressLine is one look at a run; over is the time since last.
func progressLine(t time.Duration, phases []plan.Phase, s, last loadgen.Snapshot, over time.Duration) string {
	var b strings.Builder
	name, end := "draining", time.Duration(0)
	if ph, ok := plan.PhaseAt(phases, t); ok {
		name, end = ph.Name, ph.End
	}
	fmt.Fprintf(&b, "%s", clock(t))
	if end > 0 && end != plan.Endless && name != workload.TailName {
		fmt.Fprintf(&b, "/%s", clock(end))
	}
	fmt.Fprintf(&b, " %s  %s offered  %d in flight", name, unit.Number(float64(s.Due)), s.InFlight)
	if s.Waiting > 0 {
		fmt.Fprintf(&b, "  %d waiting for a slot", s.Waiting)
	}
	fmt.Fprintf(&b, "  %s ok", unit.Number(float64(s.Outcomes[record.OK])))
	if f := s.Failed(); f > 0 {
		fmt.Fprintf(&b, "  %s FAILED", unit.Number(float64(f)))
	}
	if s.TTFTs > 0 {
		fmt.Fprintf(&b, "  TTFT p50 %s p95 %s", unit.Duration(s.TTFT50), unit.Duration(s.TTFT95))
	}
	if over > 0 {
		fmt.Fprintf(&b, "  %s", unit.PerSecond(float64(s.OutputTokens-last.OutputTokens)/over.Seconds(), "tok"))
	}
	return b.String()
}

// clock writes a time as 4:05 or 1:04:05.
func clock(t time.Duration) string {
	s := int(max(t, 0).Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
