package experiment

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/wire"
)

// Every name of the manifest is of one style, and it reads back as it was.
func TestManifestNames(t *testing.T) {
	man := Manifest{
		Tool: "trueload", Phases: []plan.Phase{{Name: "steady", Start: time.Second, End: plan.Endless, Measured: true, Rate: 1.5}},
		Simulation: &SimulationFacts{}, LoadEnd: 90 * time.Second, Prefix: &analysis.Prefix{},
		Connection: wire.Stats{Dials: 3, WitnessMax: time.Millisecond, PeerWindow: time.Second},
		Findings:   []analysis.Finding{{Rule: "x"}},
	}
	b, err := json.Marshal(man)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`"([^"]*)":`).FindAllStringSubmatch(string(b), -1) {
		if !regexp.MustCompile(`^[a-z][a-z0-9_]*$`).MatchString(name[1]) {
			t.Errorf("%q is not in snake case", name[1])
		}
	}
	var back Manifest
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(man, back); d != "" {
		t.Errorf("read back (- was, + is):\n%s", d)
	}
}
