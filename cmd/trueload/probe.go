package main

import (
	"encoding/json"
	"fmt"

	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/spec"
)

type probeCmd struct {
	URL   string   `arg:"" name:"url" help:"The endpoint, such as http://localhost:8000."`
	API   string   `name:"api" help:"openai-chat or openai-completions." placeholder:"NAME"`
	Model string   `help:"The served model; without it, the only one that /v1/models names." placeholder:"NAME"`
	Set   []string `help:"Sets any key of an experiment file's target: --set target.headers.Authorization='Bearer $${API_KEY}'." placeholder:"KEY=VALUE" sep:"none"`
	JSON  bool     `name:"json" help:"Print JSON on standard output."`
}

func (probeCmd) Help() string {
	return "Sends a handful of short prompts.\n\nExample:\n\n  trueload probe http://localhost:8000"
}

func (cmd probeCmd) Run(c *console) error {
	exp := spec.New()
	// A probe sends no load; the rate only makes the experiment whole.
	if err := (spec.Flags{URL: cmd.URL, API: cmd.API, Model: cmd.Model, Rate: "1/s"}).Apply(exp); err != nil {
		return err
	}
	if err := setKeys(exp, cmd.Set); err != nil {
		return err
	}
	if err := exp.Finish(); err != nil {
		return err
	}
	if c.terminal {
		fmt.Fprintf(c.err, "probing %s with a few short prompts\n", cmd.URL)
	}
	r, err := experiment.Probe(c.ctx, exp, experiment.Options{})
	if err != nil {
		return err
	}
	if cmd.JSON {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%s\n", b)
	} else if err := experiment.WriteProbe(c.out, r); err != nil {
		return err
	}
	if !r.Answered {
		return exit(exitNothing)
	}
	return nil
}
