// Command trueload is a load test for LLM servers whose numbers reproduce in
// production, and which says how far each number can be trusted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// Exit codes, as docs/reference.md promises them. Where two apply, the order is
// 130, 5, 4, 1, 0.
const (
	exitOK          = 0
	exitFailed      = 1   // the SLO was missed and --fail-on slo asked for this
	exitUsage       = 2   // wrong use or wrong file
	exitInvalid     = 4   // the instrument failed
	exitNothing     = 5   // the target was not reached, or not one request was ok
	exitInterrupted = 130 // what was measured is kept and reportable
)

// cli is the command line: one field per verb, one file per verb.
type cli struct {
	Demo     demoCmd     `cmd:"" help:"See what it looks like: a simulated engine, a production-shaped run, its report. Needs nothing."`
	Run      runCmd      `cmd:"" help:"Send a workload to a server and say what its users would have felt."`
	Probe    probeCmd    `cmd:"" help:"Say what can be measured of an endpoint, and what to change where it cannot."`
	Report   reportCmd   `cmd:"" help:"Show a result again: terminal, Markdown, HTML or JSON."`
	Trace    traceCmd    `cmd:"" help:"Look into traces of production traffic."`
	Sim      simVerbs    `cmd:"" help:"Serve a simulated engine over the OpenAI API, or fit one to a run."`
	SelfTest selfTestCmd `cmd:"" name:"self-test" help:"Say how exact the instrument is on this machine, at a load."`
	Schema   schemaCmd   `cmd:"" help:"Print the experiment file's JSON Schema."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
}

// console is where a verb writes: results to out, everything else to err.
type console struct {
	ctx      context.Context
	out, err io.Writer
	terminal bool // err is a terminal
	color    bool // out is one
}

// exit is an error that is an exit code; what there was to say has been said.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	code := -1
	parser, err := kong.New(&c,
		kong.Name("trueload"),
		kong.Description("A load test for LLM servers whose numbers reproduce in production.\n\n  trueload demo                                                      see what it looks like\n  trueload probe http://localhost:8000                               what can be measured?\n  trueload run --url http://localhost:8000 --rate 4/s --for 2m       measure"),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(n int) { code = n }),
	)
	if err != nil {
		panic(err) // a wrong struct tag above
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	kctx, err := parser.Parse(args)
	if code >= 0 { // --help
		return code
	}
	if err != nil {
		fmt.Fprintf(stderr, "trueload: %v\n", err)
		fmt.Fprintf(stderr, "  hint: trueload %s--help\n", verb(err))
		return exitUsage
	}
	con := &console{ctx: ctx, out: stdout, err: stderr, terminal: isTerminal(stderr), color: isTerminal(stdout) && os.Getenv("NO_COLOR") == ""}
	err = kctx.Run(con)
	var coded exit
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return int(coded)
	}
	fmt.Fprintf(stderr, "trueload: %v\n", err)
	return exitUsage
}

// verb is the verb that the parser had recognised, with a space behind it, for
// the hint after an error.
func verb(err error) string {
	var p *kong.ParseError
	if errors.As(err, &p) && p.Context != nil {
		if cmd := p.Context.Selected(); cmd != nil {
			return strings.TrimPrefix(cmd.FullPath(), "trueload ") + " "
		}
	}
	return ""
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
