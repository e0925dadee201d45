package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/unit"
)

//go:embed report.html.tmpl
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"quantile": quantile, "seconds": seconds, "secondsOr": secondsOr, "number": number, "percent": percent, "count": count,
	"saturated": saturated, "atRest": atRest,
	"n":        func(n int64) string { return unit.Number(float64(n)) },
	"offered":  func(c analysis.Counts) string { return unit.Number(float64(offered(c))) },
	"judged":   func(r analysis.SLOResult) string { return judgedTurns(&r) },
	"outcomes": func(c analysis.Counts) string { return outcomes(&c) },
	"ends":     func(low, high *float64) string { return interval(low, high, unit.Percent) },
	"upper": func(j analysis.Judgment) string {
		return map[analysis.Judgment]string{analysis.Pass: "PASS", analysis.Fail: "FAIL", analysis.Inconclusive: "INCONCLUSIVE", analysis.NoVerdict: "no SLO asked"}[j]
	},
}).Parse(page))

// HTML writes the summary as one page that needs nothing else: no script, no
// file beside it, no network.
func HTML(w io.Writer, s *analysis.Summary) error {
	type row struct {
		Name string
		D    analysis.Distribution
	}
	rows := func(from []latencyRow, ok bool) (out []row) {
		for _, r := range from {
			d := r.f.All
			if ok {
				d = r.f.OK
			}
			if d.N > 0 {
				out = append(out, row{r.name, d})
			}
		}
		return out
	}
	var charts []template.HTML
	for _, c := range []*chart{latencyChart(s), ttftChart(s), rateChart(s), flightChart(s), tokenChart(s)} {
		if svg := c.svg(); svg != "" {
			charts = append(charts, template.HTML(fmt.Sprintf("<figure><figcaption>%s</figcaption>%s</figure>", template.HTMLEscapeString(c.title), svg)))
		}
	}
	by := map[string]int{}
	for _, sl := range s.Slices {
		by[sl.By]++
	}
	var slices []analysis.Slice
	for _, sl := range s.Slices {
		if by[sl.By] > 1 {
			slices = append(slices, sl)
		}
	}
	return pageTemplate.Execute(w, map[string]any{
		"S":   s,
		"All": rows(waits(&s.Latency), false), "OK": rows(waits(&s.Latency), true), "Delays": rows(delays(&s.Latency), false),
		"AllOK":  s.Counts.OK == offered(s.Counts),
		"Charts": charts, "Slices": slices,
	})
}

func secondsTick(x float64) string { return seconds(x) }
func plainTick(x float64) string   { return unit.Number(x) }

// latencyChart draws how many of the offered turns had been served by x: a turn
// that never came back keeps the curve below 100 %.
func latencyChart(s *analysis.Summary) *chart {
	c := &chart{title: "served within", xLabel: "since the turn was due", yLabel: "share of offered turns", logX: true, yMax: 1, xTick: secondsTick, yTick: unit.Percent}
	for _, f := range []struct {
		name string
		d    analysis.Distribution
	}{{"TTFT", s.Latency.TTFT.All}, {"E2E", s.Latency.E2E.All}} {
		if f.d.Histogram == nil || f.d.N == 0 {
			continue
		}
		l := line{name: f.name}
		sum := int64(0)
		for i, n := range f.d.Histogram.Count {
			sum += n
			l.x = append(l.x, f.d.Histogram.Upper[i])
			l.y = append(l.y, float64(sum)/float64(f.d.N))
		}
		c.lines = append(c.lines, l)
	}
	for _, o := range s.SLO.Objectives {
		if o.Class == "" && o.Quantile == "" && (o.Figure == "ttft" || o.Figure == "e2e") {
			c.marks = append(c.marks, mark{o.Limit, o.Figure + " limit"})
		}
	}
	return c
}

// overTime begins a chart over the seconds of the run.
func overTime(s *analysis.Summary, title, yLabel string, tick func(float64) string) *chart {
	c := &chart{title: title, xLabel: "seconds of the run", yLabel: yLabel, xTick: plainTick, yTick: tick, zeroX: true}
	for _, p := range s.Window.Phases {
		c.bands = append(c.bands, band{p.Start, p.End, p.Name, p.Measured})
	}
	return c
}

// second makes a line of one value a second.
func second[T int64 | float64](s *analysis.Summary, name string, v []T) line {
	l := line{name: name, step: true}
	for i, x := range v {
		l.x = append(l.x, float64(s.Series.Second[i]))
		l.y = append(l.y, float64(x))
	}
	return l
}

func optional(s *analysis.Summary, name string, v []*float64) line {
	l := line{name: name}
	for i, x := range v {
		y := math.NaN()
		if x != nil {
			y = *x
		}
		l.x, l.y = append(l.x, float64(s.Series.Second[i])), append(l.y, y)
	}
	return l
}

func ttftChart(s *analysis.Summary) *chart {
	c := overTime(s, "TTFT of the turns due in each second (a gap: one did not come back)", "", secondsTick)
	c.lines = []line{optional(s, "p50", s.Series.TTFTP50), optional(s, "p95", s.Series.TTFTP95)}
	return c
}

func rateChart(s *analysis.Summary) *chart {
	c := overTime(s, "turns per second", "", plainTick)
	c.lines = []line{second(s, "offered", s.Series.Offered), second(s, "dispatched", s.Series.Dispatched), second(s, "completed", s.Series.Completed), second(s, "failed", s.Series.Failed)}
	return c
}

func flightChart(s *analysis.Summary) *chart {
	c := overTime(s, "requests in flight", "", plainTick)
	c.lines = []line{second(s, "in flight", s.Series.InFlight)}
	return c
}

func tokenChart(s *analysis.Summary) *chart {
	c := overTime(s, "output tokens per second", "", plainTick)
	c.lines = []line{second(s, "tokens", s.Series.Tokens)}
	return c
}
