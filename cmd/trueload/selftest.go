package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/experiment"
)

type selfTestCmd struct {
	URL     string        `name:"url" help:"A truth server that runs already (trueload sim --paced); without it, one is started as a process of its own." placeholder:"URL"`
	Streams int           `help:"Streams open at once." default:"500"`
	Rate    float64       `help:"Requests a second, instead of --streams." placeholder:"N"`
	Tokens  int           `help:"Events in each stream." default:"200"`
	TTFT    time.Duration `name:"ttft" help:"From a request to its first event." default:"100ms"`
	Gap     time.Duration `help:"From event to event." default:"20ms"`
	For     time.Duration `help:"How long is measured." default:"10s"`
}

func (selfTestCmd) Help() string {
	return "Drives a server whose truth is known (it stamps every event as it sends it) and\nprints how far this machine's readings are from it at the load asked for.\n\nExamples:\n\n  trueload self-test\n  trueload self-test --streams 1000 --tokens 500\n  trueload self-test --rate 2000 --tokens 11 --gap 10ms"
}

func (cmd selfTestCmd) Run(c *console) error {
	url := cmd.URL
	if url == "" {
		ctx, stop := context.WithCancel(c.ctx)
		defer stop()
		server, started, err := cmd.start(ctx)
		if err != nil {
			return err
		}
		defer func() {
			server.Process.Signal(os.Interrupt)
			server.Wait()
		}()
		url = started
	}
	fmt.Fprintf(c.err, "truth server at %s: %d streams of %d events, one every %v\n", url, cmd.Streams, cmd.Tokens, cmd.Gap)
	rep, err := experiment.MeasureTruth(c.ctx, experiment.TruthLoad{
		URL: url, TTFT: cmd.TTFT, Gap: cmd.Gap, Streams: cmd.Streams, Tokens: cmd.Tokens, Rate: cmd.Rate, For: cmd.For,
	})
	if err != nil {
		return err
	}
	if err := rep.Write(c.out); err != nil {
		return err
	}
	if len(rep.Misfits()) > 0 {
		return exit(exitInvalid)
	}
	return nil
}

// start runs a truth server as a child process and waits for its address.
func (cmd selfTestCmd) start(ctx context.Context) (*exec.Cmd, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	server := exec.CommandContext(ctx, self, "sim", "--paced", "--addr", "127.0.0.1:0", "--ttft", cmd.TTFT.String(), "--gap", cmd.Gap.String())
	server.Stdout = os.Stderr
	said, err := server.StderrPipe()
	if err != nil {
		return nil, "", err
	}
	if err := server.Start(); err != nil {
		return nil, "", err
	}
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if _, rest, ok := strings.Cut(lines.Text(), " at http://"); ok {
			addr, _, _ := strings.Cut(rest, " ")
			return server, "http://" + addr, nil
		}
	}
	server.Process.Kill()
	return nil, "", errors.Join(errors.New("the truth server did not start"), server.Wait())
}
