package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/report"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/simulate"
	"github.com/trueload/trueload/internal/spec"
)

type runCmd struct {
	File string `arg:"" optional:"" help:"The experiment file; without one, flags say it all."`

	URL         string   `name:"url" group:"What" help:"The server, or the router before several." placeholder:"http://localhost:8000"`
	API         string   `name:"api" group:"What" help:"openai-chat or openai-completions." placeholder:"NAME"`
	Model       string   `group:"What" help:"The served model; without it, the only one that /v1/models names." placeholder:"NAME"`
	Input       string   `group:"What" help:"Tokens of each prompt: 512, or p50=120,p99=2048, mean=..,sd=.., min=..,max=.., trace=FILE." placeholder:"TOKENS"`
	Output      string   `group:"What" help:"Tokens of each answer, in the same forms." placeholder:"TOKENS"`
	Text        string   `group:"What" help:"words, token_ids, sharegpt=FILE or jsonl=FILE." placeholder:"TEXT"`
	Rate        string   `group:"How much" help:"Sessions a second, open loop: 12/s, 90/min." placeholder:"12/s"`
	Closed      string   `group:"How much" help:"Closed loop of so many clients, instead of a rate." placeholder:"N"`
	For         string   `group:"How much" help:"How long is measured." placeholder:"5m"`
	Requests    string   `group:"How much" help:"How many requests are measured, instead of a time." placeholder:"N"`
	WarmUp      string   `group:"How much" help:"How long the load is on before it is measured; 0s: no warm-up." placeholder:"1m"`
	MaxInFlight string   `group:"How much" help:"Cap on requests under way; what waits is charged to the request." placeholder:"N"`
	SLO         string   `name:"slo" group:"Judgement" help:"ttft=1s,tpot=100ms,e2e=30s,attainment=99%." placeholder:"OBJECTIVES"`
	FailOn      string   `group:"Judgement" help:"slo: exit with 1 where the SLO is missed (inconclusive is no miss); none: do not." enum:"none,slo" default:"none" placeholder:"slo"`
	Seed        string   `group:"Plan" help:"Draws the whole plan." placeholder:"N"`
	Salt        string   `group:"Plan" help:"Stands first in every prompt, so that no earlier run's cache helps; without it, a new one." placeholder:"TEXT"`
	Name        string   `group:"Plan" help:"Names the result." placeholder:"NAME"`
	Set         []string `group:"Plan" help:"Sets any key of the file: --set target.timeout=60s." placeholder:"KEY=VALUE" sep:"none"`
	Simulate    bool     `group:"Simulation" help:"Send nothing: simulated engines answer in virtual time, as fast as they can be computed. target.url has no meaning."`
	SimProfile  string   `group:"Simulation" help:"The GPU and model they behave like; trueload sim --profile list shows them all." default:"h100-llama3-8b" placeholder:"NAME"`
	SimPolicy   string   `group:"Simulation" help:"Whose scheduler and cache they have: vllm or sglang." enum:"vllm,sglang" default:"vllm" placeholder:"NAME"`
	SimReplicas int      `group:"Simulation" help:"How many engines stand behind the router." default:"1" placeholder:"N"`
	SimRouter   string   `group:"Simulation" help:"How requests are spread over them: round-robin, least-loaded, prefix-aware or session-pinned." enum:"round-robin,least-loaded,prefix-aware,session-pinned" default:"round-robin" placeholder:"NAME"`
	Out         string   `group:"Output" help:"The result directory; it must not hold a result." placeholder:"DIR"`
	JSON        bool     `name:"json" group:"Output" help:"summary.json on standard output, everything else on standard error."`
	Quiet       bool     `group:"Output" help:"No progress and no report."`
}

func (runCmd) Help() string {
	return `Examples:

  trueload run --url http://localhost:8000 --rate 4/s --for 2m
  trueload run --url http://localhost:8000 --rate 12/s --for 5m \
      --input p50=120,p99=2048 --output p50=180,p99=1500 --slo ttft=1s,tpot=100ms,attainment=99%
  trueload run chat.yaml --set load.rate=20/s --json > summary.json
  trueload run chat.yaml --simulate --sim-replicas 8 --sim-router least-loaded

Ctrl-C stops sending and waits for what is under way; a second one stops now.
Either way what was measured is kept.

Exit codes: 0 done, 1 SLO missed (--fail-on slo), 2 wrong use, 4 the run is
invalid, 5 nothing could be measured, 130 interrupted.`
}

func (cmd runCmd) Run(c *console) error {
	exp, err := cmd.experiment()
	if err != nil {
		return err
	}
	opt := experiment.Options{Dir: cmd.Out}
	switch {
	case !cmd.Simulate && (cmd.SimProfile != "h100-llama3-8b" || cmd.SimPolicy != "vllm" || cmd.SimReplicas != 1 || cmd.SimRouter != "round-robin"):
		return errors.New("--sim-profile, --sim-policy, --sim-replicas and --sim-router describe simulated engines\n  hint: add --simulate, or leave them out")
	case cmd.Simulate:
		if opt.Simulate, err = cmd.simulation(exp); err != nil {
			return err
		}
	}
	return execute(c, exp, opt, cmd.showing())
}

// simulation says which engines answer. Their steps vary as those of trueload
// sim do, and are drawn from the plan's seed.
func (cmd runCmd) simulation(exp *spec.Experiment) (*simulate.Options, error) {
	profile, err := profileOf(cmd.SimProfile)
	if err != nil {
		return nil, fmt.Errorf("--sim-profile: %w", err)
	}
	if cmd.SimReplicas < 1 {
		return nil, errors.New("--sim-replicas: must be at least 1")
	}
	router, err := sim.ParseRouting(cmd.SimRouter)
	if err != nil {
		return nil, fmt.Errorf("--sim-router: %w", err)
	}
	return &simulate.Options{
		Engine: sim.Config{Profile: profile, Policy: sim.Policy(cmd.SimPolicy), Jitter: simJitter}, Replicas: cmd.SimReplicas, Router: router,
		TemplateTokens: simTemplate, Seed: exp.Seed,
	}, nil
}

// experiment reads the file, if there is one, and lays the flags over it.
func (cmd runCmd) experiment() (*spec.Experiment, error) {
	exp := spec.New()
	if cmd.File != "" {
		// Faults of form come back from Finish, together with what the flags add.
		opened, err := spec.Open(cmd.File)
		if opened == nil {
			return nil, err
		}
		exp = opened
	}
	flags := spec.Flags{
		URL: cmd.URL, API: cmd.API, Model: cmd.Model, Rate: cmd.Rate, For: cmd.For, Requests: cmd.Requests, WarmUp: cmd.WarmUp,
		Input: cmd.Input, Output: cmd.Output, Text: cmd.Text, Closed: cmd.Closed, MaxInFlight: cmd.MaxInFlight,
		SLO: cmd.SLO, Seed: cmd.Seed, Salt: cmd.Salt, Name: cmd.Name,
	}
	if err := flags.Apply(exp); err != nil {
		return nil, err
	}
	if err := setKeys(exp, cmd.Set); err != nil {
		return nil, err
	}
	if cmd.Simulate { // nothing is sent, so that neither an address nor a key is needed
		exp.Target.URL, exp.Target.Headers = simulatedURL, nil
	}
	if err := exp.Finish(); err != nil {
		return nil, err
	}
	return exp, nil
}

// simulatedURL stands in the place of target.url in a simulated result.
const simulatedURL = "http://simulated.invalid"

// setKeys applies every --set.
func setKeys(exp *spec.Experiment, set []string) error {
	for _, kv := range set {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return fmt.Errorf("--set %s: has no value\n  hint: write --set load.rate=12/s", kv)
		}
		if err := exp.Set(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (cmd runCmd) showing() showing {
	return showing{json: cmd.JSON, quiet: cmd.Quiet, failOnSLO: cmd.FailOn == "slo"}
}

// showing says what of a run is shown, and which verdict is a failure.
type showing struct {
	json, quiet, failOnSLO bool
}

// execute runs an experiment, shows its summary, and gives the exit code.
func execute(c *console, exp *spec.Experiment, opt experiment.Options, show showing) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stop := make(chan struct{})
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM) // what CI and containers send
	defer signal.Stop(interrupts)
	go func() {
		select {
		case <-interrupts:
			fmt.Fprintln(c.err, "\ninterrupted: no more is sent, waiting for what is under way (Ctrl-C again: stop now)")
			close(stop)
		case <-ctx.Done():
			return
		}
		select {
		case <-interrupts:
			cancel()
		case <-ctx.Done():
		}
	}()
	opt.Version, opt.Stop, opt.Log, opt.Terminal = version, stop, c.err, c.terminal
	if show.quiet {
		opt.Log = io.Discard
	}
	res, err := experiment.Run(ctx, exp, opt)
	if err != nil {
		return err
	}
	if show.json {
		err = report.JSON(c.out, res.Summary)
	} else if !show.quiet {
		err = report.Text(c.out, res.Summary, report.TextOptions{Color: c.color, Dir: res.Dir})
	}
	if err != nil {
		return err
	}
	return verdict(res, show.failOnSLO)
}

// verdict is the exit code of a run: 130 before 5 before 4 before 1 before 0.
func verdict(res *experiment.Result, failOnSLO bool) error {
	switch {
	case res.End == loadgen.EndInterrupted || res.End == loadgen.EndCancelled:
		return exit(exitInterrupted)
	case res.Nothing():
		return exit(exitNothing)
	case !res.Summary.Verdict.Valid:
		return exit(exitInvalid)
	case failOnSLO && res.Summary.Verdict.SLO == analysis.Fail:
		return exit(exitFailed)
	}
	return nil
}
