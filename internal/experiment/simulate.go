package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/simulate"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/workload"
)

// SimulationFacts say what answered a simulated run.
type SimulationFacts struct {
	Profile  string    `json:"profile"`
	GPU      string    `json:"gpu"`
	Model    string    `json:"model"`
	Basis    sim.Basis `json:"basis"`  // how far the profile may be believed
	Source   string    `json:"source"` // of its numbers
	Policy   string    `json:"policy"` // whose scheduler and cache
	Replicas int       `json:"replicas"`
	Router   string    `json:"router"`
	MaxQueue int       `json:"max_queue"` // waiting requests of a replica before it refuses; 0: no limit
	Jitter   float64   `json:"jitter"`
	MadeAt   time.Time `json:"made_at"` // when it was computed, wall clock
}

// newEngines makes the engines of a simulated run.
func newEngines(exp *spec.Experiment, work *workload.Workload, o simulate.Options) (*simulate.Cluster, error) {
	o.Chat = exp.Target.API == "" || exp.Target.API == "openai-chat"
	o.Whole = !exp.Target.Stream
	if o.Model = exp.Target.Model; o.Model == "" {
		o.Model = "sim"
	}
	o.WarmUp = map[string]bool{}
	for _, p := range work.Phases() {
		if p.Measured {
			break
		}
		o.WarmUp[p.Name] = true
	}
	return simulate.New(o)
}

// simulated makes the manifest that of a simulated run. Virtual time begins at
// the epoch, and nothing in the summary says when or where it was computed: the
// same experiment and seed give the same summary, byte for byte.
func (m *Manifest) simulated(exp *spec.Experiment, engines *simulate.Cluster) {
	o := engines.Options()
	p := o.Engine.Profile
	m.Simulated = true
	m.Simulation = &SimulationFacts{
		Profile: p.Name, GPU: p.GPU, Model: p.Model, Basis: p.Basis, Source: p.Source, Policy: string(o.Engine.Policy), Replicas: o.Replicas,
		Router: o.Router.String(), MaxQueue: o.MaxQueue, Jitter: o.Engine.Jitter, MadeAt: m.StartedAt,
	}
	m.Salt = exp.Salt
	m.StartedAt = time.Unix(0, 0).UTC()
	m.ID = fmt.Sprintf("simulated-%d", exp.Seed)
	if exp.Name != "" {
		m.ID = "simulated-" + exp.Name + fmt.Sprintf("-%d", exp.Seed)
	}
	m.NotReproduced = append(m.NotReproduced, "the engine and the network: the answers are a simulated "+p.Name+"'s")
	first, later := engines.TemplateTokens()
	m.Target = TargetFacts{
		API: exp.Target.API, Model: o.Model, Dialect: "simulated", EngineVersion: "trueload-sim",
		MaxModelLen: o.Engine.MaxModelLen, CacheSalts: true, TemplateTokens: first, LaterTokens: later,
	}
}

// simulate lets the engines answer the plan.
func (in *sending) simulate(ctx context.Context) loadgen.Result {
	in.found.reached = true
	f := in.man.Simulation
	in.found.add("simulated", analysis.Note,
		fmt.Sprintf("nothing was sent: every figure is computed, for %d × %s (%s, %s; step times %s), %s", f.Replicas, f.Profile, f.GPU, f.Model, f.Basis, f.Router),
		"hold it against a measurement of one real engine before relying on it; manifest.json says where the step times come from")
	for i := range in.exp.Workload.Classes {
		if c := &in.exp.Workload.Classes[i]; c.Text.ShareGPT != "" || c.Text.JSONL != "" {
			in.found.add("simulated-text", analysis.Note, fmt.Sprintf("class %s: nobody counted the tokens of its texts: prompts have the length that the plan guesses, 4 bytes a token", c.Name), "")
		}
	}
	for _, f := range in.found.findings {
		in.say("%s: %s", f.Severity, f.Message)
	}
	in.say("%s", announce(in.exp, in.work, in.man, in.out.Dir()))
	began := time.Now()
	sent, err := in.send(ctx)
	if err != nil {
		in.found.add("run-error", analysis.Error, err.Error(), "what was simulated before it is kept")
	}
	in.found.floored(in.engines.Floored(), in.man.Target.TemplateTokens)
	took := time.Since(began).Seconds()
	in.say("simulated %s in %.1f s: %.0f times real time", clock(sent.Finished), took, sent.Finished.Seconds()/max(took, 1e-9))
	return sent
}
