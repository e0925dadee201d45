package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/spec"
)

//go:embed demo.yaml
var demoFile []byte

type demoCmd struct {
	For   time.Duration `help:"How long is measured." default:"40s"`
	Out   string        `help:"The result directory; it must not hold a result." placeholder:"DIR"`
	JSON  bool          `name:"json" help:"summary.json on standard output."`
	Quiet bool          `help:"No progress and no report."`
}

func (demoCmd) Help() string {
	return "Starts a simulated engine (two replicas behind a router, step times of an H100\nwith an 8B model) on a free loopback port, sends it chat sessions and retrieval\nrequests, and shows what their users felt.\n\nExamples:\n\n  trueload demo\n  trueload demo --for 2m --out first-look"
}

func (cmd demoCmd) Run(c *console) error {
	if cmd.For <= 0 {
		return errors.New("--for: must be above 0s")
	}
	srv, err := simCmd{Replicas: 2, Profile: "h100-llama3-8b", Model: "sim", Router: "least-loaded", Jitter: 0.03, Seed: 1}.server()
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		srv.Close()
		return err
	}
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	go serve(ctx, srv, ln)

	exp, err := spec.Parse("demo.yaml", demoFile)
	if err != nil {
		return err
	}
	for key, value := range map[string]string{
		"target.url": "http://" + ln.Addr().String(), "load.phases.1.for": cmd.For.String(),
	} {
		if err := exp.Set(key, value); err != nil {
			return err
		}
	}
	if err := exp.Finish(); err != nil {
		return err
	}
	fmt.Fprintf(c.err, "simulated engine: two replicas behind a router at http://%s\n", ln.Addr())
	return execute(c, exp, experiment.Options{Dir: cmd.Out, Simulated: true}, showing{json: cmd.JSON, quiet: cmd.Quiet})
}
