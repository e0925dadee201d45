package calibrate

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/trueload/trueload/internal/unit"
)

// Text writes the result for people: the terms, then the errors.
func (r *Result) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "term\tfitted\tstandard error\tbase\t")
	for _, x := range r.Terms {
		value, stderr := x.shown(x.Value), "± "+x.shown(x.Error)
		if !x.Fitted {
			value, stderr = "—", ""
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", x.Name, value, stderr, x.shown(x.Base))
	}
	for _, x := range r.Terms {
		if !x.Fitted {
			// No tab: the line is no row of the table.
			fmt.Fprintf(t, "%s is the base's: %s\n", x.Name, x.Why)
		}
	}
	fmt.Fprintf(t, "\nobserved\tof all\tnobody else waiting\tused\t\n")
	fmt.Fprintf(t, "gaps\t%d\t%d\t%d\t\n", r.Gaps.All, r.Gaps.Clean, r.Gaps.Used)
	fmt.Fprintf(t, "times to first output\t%d\t%d\t%d\t\n", r.Firsts.All, r.Firsts.Clean, r.Firsts.Used)
	fmt.Fprintf(t, "\nheld-out requests\tmeasured\tpredicted\tmedian error\tn\t\n")
	for _, list := range []struct {
		what    string
		buckets []Bucket
	}{{"gaps, batch of", r.ByBatch}, {"gaps, mean context of", r.ByContext}, {"first outputs, prompt of", r.ByPrompt}} {
		for _, b := range list.buckets {
			fmt.Fprintf(t, "%s %s\t%s ms\t%s ms\t%s\t%d\t\n", list.what, b.span(), unit.Number(1e3*b.Measured), unit.Number(1e3*b.Predicted), percent(b.Error), b.N)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, n := range r.Notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		if _, err := fmt.Fprintf(w, "note: %s\n", n); err != nil {
			return err
		}
	}
	return nil
}

// percent does not tell errors below a hundredth of a percent apart.
func percent(x float64) string {
	if x < 1e-4 {
		return "< 0.01 %"
	}
	return unit.Percent(x)
}

// span is the whole numbers of a bucket.
func (b Bucket) span() string {
	if b.To-b.From <= 1 {
		return fmt.Sprintf("%.0f", b.From)
	}
	return fmt.Sprintf("%.0f to %.0f", b.From, b.To-1)
}

// shown is a time in the unit that the term's name ends in.
func (t Term) shown(seconds float64) string {
	suffix := t.Name[strings.LastIndexByte(t.Name, '_')+1:]
	in := map[string]float64{"ms": 1e3, "us": 1e6, "ns": 1e9}[suffix]
	return unit.Number(math.Round(seconds*in*1e4)/1e4) + " " + strings.Replace(suffix, "us", "µs", 1)
}
