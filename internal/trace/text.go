package trace

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the report for a terminal.
func (rep *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
	row("file", rep.File)
	row("format", fmt.Sprintf("%s (%s)", rep.Format, rep.FormatWhy))
	row("rows", fmt.Sprintf("%d read, %d dropped, %d failed", rep.Rows, rep.Dropped, rep.Failed))
	for _, d := range rep.DroppedRows {
		row("", fmt.Sprintf("%d: %s, at %s", d.Rows, d.Reason, strings.Join(d.First, ", ")))
	}
	if rep.SpanS != nil {
		if rep.Start != nil {
			row("start", rep.Start.Format(time.RFC3339Nano))
		}
		row("span", time.Duration(*rep.SpanS*1e9).Round(time.Millisecond).String())
		row("rate", number(rep.Rate)+"/s")
		row("CV of gaps", number(rep.CV))
		var idc []string
		for _, s := range idcWindows {
			idc = append(idc, fmt.Sprintf("%s at %d s", number(rep.IDC[strconv.Itoa(s)]), s))
		}
		row("IDC", strings.Join(idc, ", "))
		if rep.arrivals != nil {
			row("arrivals", spark(rep.arrivals))
		}
	}
	t.Flush()
	fmt.Fprintln(&b)

	t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "tokens\tmean\tp50\tp90\tp95\tp99\tmax\t  by powers of two")
	for _, l := range []struct {
		name string
		*LengthReport
	}{{"input", rep.Input}, {"output", rep.Output}} {
		fmt.Fprintf(t, "%s\t%.1f\t%d\t%d\t%d\t%d\t%d\t  %s\n", l.name, l.Mean, l.P50, l.P90, l.P95, l.P99, l.Max, spark(l.octaves))
	}
	t.Flush()
	fmt.Fprintf(&b, "input and output length: Pearson %s, Spearman %s\n", number(rep.Pearson), number(rep.Spearman))

	if p := rep.Prefix; p != nil {
		fmt.Fprintf(&b, "\nprefix reuse, blocks of %d tokens: %d blocks, %d different\n", p.BlockSize, p.Blocks, p.UniqueBlocks)
		t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		row = func(cells ...string) { fmt.Fprintln(t, "  "+strings.Join(cells, "\t")) }
		row("infinite cache", fmt.Sprintf("%.1f %% of blocks, %.1f %% of tokens, %.1f %% of full blocks; an engine can skip %.1f %% of tokens",
			100*p.BlockHit, 100*p.TokenHit, 100*p.FullBlockHit, 100*p.Skippable))
		row("second half of rows", fmt.Sprintf("%.1f %% of tokens", 100*p.WarmHalfTokenHit))
		for _, c := range lruCapacities {
			row(fmt.Sprintf("LRU of %d blocks", c), fmt.Sprintf("%.1f %% of blocks", 100*p.LRU[strconv.Itoa(c)].Rate))
		}
		t.Flush()
	}
	if len(rep.Warnings) > 0 {
		fmt.Fprintln(&b)
		for _, s := range rep.Warnings {
			fmt.Fprintln(&b, "warning:", s)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func number(v *float64) string {
	if v == nil {
		return "—"
	}
	return strconv.FormatFloat(*v, 'g', 4, 64)
}

// spark draws values as bars, an empty one as a space and the largest as a full
// block.
func spark(values []float64) string {
	const bars = "▁▂▃▄▅▆▇█"
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		if v == 0 {
			b.WriteByte(' ')
			continue
		}
		i := int(math.Ceil(v/top*8)) - 1
		b.WriteString(bars[3*i : 3*i+3]) // each bar is three bytes
	}
	return b.String()
}
