package main

import (
	"encoding/json"
	"fmt"

	"github.com/trueload/trueload/internal/trace"
)

type traceCmd struct {
	Inspect inspectCmd `cmd:"" help:"Say what the traffic in a trace is like: arrivals, lengths, prefix reuse."`
}

type inspectCmd struct {
	File   []string `arg:"" help:"Trace files: Azure, BurstGPT or vidur CSV, Mooncake JSONL; .gz and .zst too."`
	Format string   `help:"The files' format; auto looks at the first lines." default:"auto"`
	Block  int      `help:"Tokens per prefix block of the trace's hash ids; 0: the format's own." placeholder:"N"`
	JSON   bool     `help:"Print JSON on standard output."`
}

func (inspectCmd) Help() string {
	return "Example:\n\n  trueload trace inspect azure_conv_2023.csv\n  trueload trace inspect --json mooncake.jsonl | jq .prefix"
}

func (cmd inspectCmd) Run(c *console) error {
	format, err := trace.ParseFormat(cmd.Format)
	if err != nil {
		return err
	}
	for i, file := range cmd.File {
		rep, err := inspect(file, trace.Options{Format: format, BlockTokens: cmd.Block})
		if err != nil {
			return err
		}
		if cmd.JSON {
			b, err := json.MarshalIndent(rep, "", "  ")
			if err != nil {
				return err
			}
			fmt.Fprintf(c.out, "%s\n", b)
			continue
		}
		if i > 0 {
			fmt.Fprintln(c.out)
		}
		if err := rep.WriteText(c.out); err != nil {
			return err
		}
	}
	return nil
}

func inspect(file string, opt trace.Options) (*trace.Report, error) {
	r, err := trace.Open(file, opt)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return trace.Inspect(r)
}
