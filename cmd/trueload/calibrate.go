package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/trueload/trueload/internal/calibrate"
	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/store"
)

// simVerbs are what can be done with simulated engines; without a verb, serve.
type simVerbs struct {
	Serve     simCmd       `cmd:"" default:"withargs" help:"Serve a simulated engine over the OpenAI API (the default)."`
	Calibrate calibrateCmd `cmd:"" help:"Fit an engine profile to a run against a real server."`
}

func (simVerbs) Help() string {
	return "Without a verb it serves, with the flags of trueload sim serve:\n\n  trueload sim --replicas 4 --router prefix-aware\n  trueload sim serve --help\n  trueload sim calibrate results/chat -o mine.json"
}

type calibrateCmd struct {
	Dir      string `arg:"" name:"result" help:"The result directory of a run."`
	Output   string `short:"o" help:"Write the profile to this file, for --profile and --sim-profile. It must not exist." placeholder:"FILE.json"`
	Base     string `help:"Where the terms come from that the run cannot tell, and the batch and cache sizes: a profile's name or JSON file." default:"h100-llama3-8b" placeholder:"NAME"`
	Tokens   int    `name:"max-batched-tokens" help:"Tokens in one step of the run's engine, by which long prompts are cut; 0: the base's." placeholder:"N"`
	Replicas int    `help:"Engines behind the run's target; 0: one, or as many as a simulated run says." placeholder:"N"`
}

func (calibrateCmd) Help() string {
	return "Example:\n\n  trueload sim calibrate results/chat -o mine.json\n  trueload sim --profile mine.json\n\nThe gaps between output events tell what a decode step costs by batch and context,\nthe times to first output what a prompt costs. Half of the sessions are fitted;\nthe errors are those on the other half. A run that tells much has one engine, varies\nin rate and in prompt length, and is never so loaded that somebody always waits.\nTerms that the run cannot tell stay the base's, and are named."
}

func (cmd calibrateCmd) Run(c *console) error {
	base, err := profileOf(cmd.Base)
	if err != nil {
		return fmt.Errorf("--base: %w", err)
	}
	if cmd.Tokens < 0 {
		return errors.New("--max-batched-tokens: must not be negative")
	}
	base.MaxBatchedTokens = cmp.Or(cmd.Tokens, base.MaxBatchedTokens)
	if cmd.Output != "" && !strings.HasSuffix(cmd.Output, ".json") {
		return fmt.Errorf("--output: %s: profiles are read from files whose name ends in .json", cmd.Output)
	}
	if cmd.Replicas < 0 {
		return errors.New("--replicas: must be at least 1")
	}
	res, err := store.Open(cmd.Dir)
	if err != nil {
		return err
	}
	var man experiment.Manifest
	if err := res.ReadJSON(store.ManifestName, &man); err != nil {
		return err
	}
	if cmd.Replicas == 0 && man.Simulation != nil {
		cmd.Replicas = man.Simulation.Replicas
	}
	fit, err := calibrate.Fit(res.Records, base, calibrate.Options{Replicas: cmd.Replicas})
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.Dir, err)
	}
	if res.Lost > 0 {
		fit.Notes = append(fit.Notes, fmt.Sprintf("%d bytes of the journal could not be read: what they hold is missing", res.Lost))
	}
	if err := fit.Text(c.out); err != nil {
		return err
	}
	if cmd.Output == "" {
		return nil
	}
	p := fit.Profile
	p.Name = "fitted-" + cmp.Or(man.Name, man.ID, "run")
	p.Model = cmp.Or(man.Target.Model, "unknown")
	p.GPU = cmp.Or(man.Labels["gpu"], "unknown")
	p.Source = fit.Source(base.Name, cmp.Or(man.ID, "without id"))
	if err := writeProfile(cmd.Output, p); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	fmt.Fprintf(c.err, "%s (%s): serve it with trueload sim --profile %[1]s\n", cmd.Output, p.Basis)
	return nil
}

// writeProfile makes the file, and leaves one that is there alone.
func writeProfile(name string, p sim.Profile) error {
	var b bytes.Buffer
	if err := sim.WriteProfile(&b, p); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: remove it, or name another file", name)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}
