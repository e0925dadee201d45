package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/report"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/store"
)

type reportCmd struct {
	Dir    []string `arg:"" help:"Result directories."`
	Format string   `help:"text, markdown, html or json." enum:"text,markdown,html,json" default:"text"`
	JSON   bool     `name:"json" help:"The same as --format json."`
	SLO    string   `name:"slo" help:"Judge by another SLO than the run's: ttft=1s,attainment=99%." placeholder:"OBJECTIVES"`
}

func (reportCmd) Help() string {
	return "Examples:\n\n  trueload report trueload-demo\n  trueload report trueload-demo --format html > demo.html\n  trueload report trueload-demo --slo ttft=300ms,attainment=99%\n\nA run that was cut short (kill -9, a full disk) is summarised from what was kept,\nand its summary is written beside it."
}

func (cmd reportCmd) Run(c *console) error {
	var slo *spec.SLO
	if cmd.SLO != "" {
		exp := spec.New()
		if err := (spec.Flags{SLO: cmd.SLO}).Apply(exp); err != nil {
			return err
		}
		slo = &exp.SLO
	}
	for i, dir := range cmd.Dir {
		s, err := summaryOf(c, dir, slo)
		if err != nil {
			return err
		}
		if i > 0 && cmd.Format == "text" {
			fmt.Fprintln(c.out)
		}
		if err := cmd.write(c, s, dir); err != nil {
			return err
		}
	}
	return nil
}

func (cmd reportCmd) write(c *console, s *analysis.Summary, dir string) error {
	format := cmd.Format
	if cmd.JSON {
		format = "json"
	}
	write := map[string]func(io.Writer, *analysis.Summary) error{
		"markdown": report.Markdown, "html": report.HTML, "json": report.JSON,
		"text": func(w io.Writer, s *analysis.Summary) error {
			return report.Text(w, s, report.TextOptions{Color: c.color, Dir: dir})
		},
	}[format]
	return write(c.out, s)
}

// summaryOf reads a result's summary, or makes it again where the run was cut
// short or another SLO is asked.
func summaryOf(c *console, dir string, slo *spec.SLO) (*analysis.Summary, error) {
	res, err := store.Open(dir)
	if err != nil {
		return nil, err
	}
	if slo == nil && !res.CutShort {
		b, err := res.ReadFile(store.SummaryName)
		if err == nil {
			var s analysis.Summary
			if err := json.Unmarshal(b, &s); err != nil {
				return nil, fmt.Errorf("%s/%s: %w", dir, store.SummaryName, err)
			}
			if s.Schema != analysis.Schema {
				return nil, fmt.Errorf("%s/%s has schema %q, this version reads %q", dir, store.SummaryName, s.Schema, analysis.Schema)
			}
			return &s, nil
		}
		if !os.IsNotExist(err) {
			return nil, err
		}
	}
	s, err := experiment.Summarize(res, slo)
	if err != nil {
		return nil, err
	}
	if slo == nil {
		if err := experiment.WriteSummary(res, s); err != nil {
			fmt.Fprintf(c.err, "trueload: the summary is shown and not kept: %v\n", err)
		}
	}
	return s, nil
}
