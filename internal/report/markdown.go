package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/unit"
)

// Markdown writes the summary for a pull request or a wiki: the verdict, the
// latencies with their intervals, and the findings.
func Markdown(w io.Writer, s *analysis.Summary) error {
	b := bufio.NewWriter(w)
	name := s.Run.Name
	if name == "" {
		name = s.Run.ID
	}
	valid := "valid"
	switch {
	case s.Counts.Planned == 0:
		valid = "**nothing measured**"
	case s.Counts.OK == 0:
		valid = "**nothing ok**"
	case !s.Verdict.Valid:
		valid = "**INVALID**: " + strings.Join(s.Verdict.InvalidReasons, "; ")
	}
	fmt.Fprintf(b, "### %s\n\nrun %s, SLO **%s**", cell(name), valid, s.Verdict.SLO)
	if a := s.SLO.Attainment; a.Value != nil {
		fmt.Fprintf(b, ", attainment %s%s", percent(a.Value), interval(a.Low, a.High, unit.Percent))
	}
	if s.SLO.GoodputRequests != nil {
		fmt.Fprintf(b, ", goodput %s", unit.PerSecond(*s.SLO.GoodputRequests, "req"))
	}
	fmt.Fprintf(b, "  \n%s", outcomes(&s.Counts))
	for _, p := range saturated(s) {
		fmt.Fprintf(b, "  \n**SATURATED**: %s", cell(p))
	}
	for _, p := range atRest(s) {
		fmt.Fprintf(b, "  \n%s", cell(p))
	}
	fmt.Fprint(b, "\n\n")
	fmt.Fprint(b, "| all offered, from when due | n | p50 | p90 | p95 | p99 | max |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, r := range waits(&s.Latency) {
		d := r.f.All
		if d.N > 0 {
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.name, unit.Number(float64(d.N)), quantile(d.P50), quantile(d.P90), quantile(d.P95), quantile(d.P99), secondsOr(d.Max))
		}
	}
	fmt.Fprintf(b, "\nthroughput %s, %s\n", perSecond(s.Throughput.OutputTokens, "output tok"), perSecond(s.Throughput.Requests, "req"))
	if len(s.Findings) > 0 {
		fmt.Fprint(b, "\n")
		for _, f := range s.Findings {
			fmt.Fprintf(b, "- **%s** %s: %s", f.Severity, f.Rule, cell(f.Message))
			if f.Remedy != "" {
				fmt.Fprintf(b, " (%s)", cell(f.Remedy))
			}
			fmt.Fprint(b, "\n")
		}
	}
	return b.Flush()
}

// cell keeps text from breaking out of a table or starting markup.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "`", "'").Replace(s)
}
