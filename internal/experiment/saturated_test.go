package experiment

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/simulate"
)

// One engine of 16 places that needs a second or two for a request: below what it
// can do the run is at rest, above it saturated, with a cap in front of it too.
func TestPastCapacityIsSaturated(t *testing.T) {
	const file = `
target: {url: http://sim, timeout: 10m}
seed: 5
workload:
  classes:
    - name: chat
      text: {random: words}
      input_tokens: {lognormal: {p50: 300, p99: 3000}, max: 6000}
      output_tokens: {lognormal: {p50: 100, p99: 800}, max: 1500}
      session: {turns: {geometric: {mean: 3}}, think: {exponential: {mean: 3s}}}
load:
  rate: %s
  phases: [{name: warm-up, for: 60s, measured: false}, {name: steady, for: 300s}]
`
	for _, c := range []struct {
		rate      string
		saturated bool
	}{{"1/s", false}, {"2/s", false}, {"12/s", true}, {"12/s\n  max_in_flight: 24", true}} {
		res, _ := onPaper(t, fmt.Sprintf(file, c.rate), simulate.Options{Engine: sim.Config{MaxSeqs: 16}})
		w := res.Summary.Window
		if w.Saturated == nil || *w.Saturated != c.saturated {
			t.Errorf("%s: saturated %v, %+v", c.rate, w.Saturated, w.Phases[1].Tests)
		}
		if !c.saturated && (w.Steady == nil || !*w.Steady) {
			t.Errorf("%s: not steady, %+v", c.rate, w.Phases[1].Tests)
		}
		said := false
		for _, f := range res.Summary.Findings {
			said = said || f.Rule == "saturated" && f.Severity == analysis.Error && strings.Contains(f.Message, "phase steady")
		}
		if said != c.saturated {
			t.Errorf("%s: the finding is there: %v", c.rate, said)
		}
	}
}
