package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is one drawing: lines over a common axis. It renders to SVG with no
// script, so a report opens offline and prints.
type chart struct {
	title          string
	xLabel, yLabel string
	logX           bool
	lines          []line
	bands          []band // stretches of x, such as phases
	marks          []mark // vertical limits
	yMax           float64
	xTick, yTick   func(float64) string
	zeroX          bool // the x axis begins at 0
}

// line is one series; NaN breaks it.
type line struct {
	name string
	x, y []float64
	step bool // each value holds until the next
}

type band struct {
	from, to float64
	name     string
	strong   bool // measured
}

type mark struct {
	x    float64
	name string
}

const (
	chartW, chartH         = 720.0, 230.0
	padL, padR, padT, padB = 58.0, 14.0, 26.0, 34.0
)

// svg draws the chart; empty where there is nothing to draw.
func (c *chart) svg() string {
	x0, x1, y1 := math.Inf(1), math.Inf(-1), c.yMax
	for _, l := range c.lines {
		for i := range l.x {
			if math.IsNaN(l.y[i]) || c.logX && l.x[i] <= 0 {
				continue
			}
			x0, x1, y1 = min(x0, l.x[i]), max(x1, l.x[i]), max(y1, l.y[i])
		}
	}
	if x0 > x1 {
		return ""
	}
	for _, m := range c.marks {
		x0, x1 = min(x0, m.x), max(x1, m.x)
	}
	if c.zeroX {
		x0 = 0
	}
	if y1 <= 0 {
		y1 = 1
	}
	if x1 <= x0 {
		x1 = x0 + 1
		if c.logX {
			x1 = x0 * 10
		}
	}
	fx := func(x float64) float64 {
		a := (x - x0) / (x1 - x0)
		if c.logX {
			a = math.Log(x/x0) / math.Log(x1/x0)
		}
		return padL + a*(chartW-padL-padR)
	}
	fy := func(y float64) float64 { return chartH - padB - y/y1*(chartH-padT-padB) }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartW, chartH, html.EscapeString(c.title))
	for _, s := range c.bands {
		from, to := max(s.from, x0), min(s.to, x1)
		if to <= from {
			continue
		}
		class := "band"
		if s.strong {
			class = "band strong"
		}
		fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%g" width="%.1f" height="%g"/>`, class, fx(from), padT, fx(to)-fx(from), chartH-padT-padB)
		if fx(to)-fx(from) > 40 {
			fmt.Fprintf(&b, `<text class="band" x="%.1f" y="%g">%s</text>`, fx(from)+4, padT+11, html.EscapeString(s.name))
		}
	}
	for _, y := range ticks(0, y1, 4) {
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="y" x="%g" y="%.1f">%s</text>`,
			padL, chartW-padR, fy(y), fy(y), padL-6, fy(y)+3.5, html.EscapeString(c.yTick(y)))
	}
	xs := ticks(x0, x1, 8)
	if c.logX {
		xs = decades(x0, x1)
	}
	for _, x := range xs {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text class="x" x="%.1f" y="%g">%s</text>`,
			fx(x), fx(x), padT, chartH-padB, fx(x), chartH-padB+13, html.EscapeString(c.xTick(x)))
	}
	for _, m := range c.marks {
		fmt.Fprintf(&b, `<line class="mark" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text class="mark" x="%.1f" y="%g">%s</text>`,
			fx(m.x), fx(m.x), padT, chartH-padB, fx(m.x)-4, chartH-padB-6, html.EscapeString(m.name))
	}
	for i, l := range c.lines {
		fmt.Fprintf(&b, `<path class="l%d" d="%s"/>`, i, path(l, c.logX, fx, fy))
	}
	at := padL
	for i, l := range c.lines {
		fmt.Fprintf(&b, `<line class="l%d" x1="%.1f" x2="%.1f" y1="11" y2="11"/><text class="key" x="%.1f" y="15">%s</text>`, i, at, at+16, at+21, html.EscapeString(l.name))
		at += 21 + 6.6*float64(len(l.name)) + 22
	}
	fmt.Fprintf(&b, `<text class="label" x="%g" y="%g">%s</text>`, chartW-padR, chartH-4, html.EscapeString(c.xLabel))
	fmt.Fprintf(&b, `<text class="label" x="%g" y="15">%s</text></svg>`, chartW-padR, html.EscapeString(c.yLabel))
	return b.String()
}

func path(l line, logX bool, fx, fy func(float64) float64) string {
	var b strings.Builder
	pen := false
	var last float64
	for i := range l.x {
		if math.IsNaN(l.y[i]) || logX && l.x[i] <= 0 {
			pen = false
			continue
		}
		switch {
		case !pen:
			fmt.Fprintf(&b, "M%.1f %.1f", fx(l.x[i]), fy(l.y[i]))
		case l.step:
			fmt.Fprintf(&b, "L%.1f %.1fL%.1f %.1f", fx(l.x[i]), fy(last), fx(l.x[i]), fy(l.y[i]))
		default:
			fmt.Fprintf(&b, "L%.1f %.1f", fx(l.x[i]), fy(l.y[i]))
		}
		pen, last = true, l.y[i]
	}
	return b.String()
}

// ticks are about n round numbers from lo to hi: steps of 1, 2 or 5 times a
// power of ten.
func ticks(lo, hi float64, n int) []float64 {
	raw := (hi - lo) / float64(n)
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * unit
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*unit {
			step = m * unit
			break
		}
	}
	var out []float64
	for i := math.Ceil(lo/step-1e-9) + 0; i*step <= hi*(1+1e-9); i++ {
		out = append(out, i*step)
	}
	return out
}

// decades are 1, 2 and 5 times the powers of ten between lo and hi; the powers
// alone where that is enough.
func decades(lo, hi float64) []float64 {
	steps := []float64{1, 2, 5}
	if hi/lo > 1e3 {
		steps = steps[:1]
	}
	var out []float64
	for e := math.Floor(math.Log10(lo)); e <= math.Log10(hi); e++ {
		for _, m := range steps {
			if v := m * math.Pow(10, e); v >= lo*(1-1e-9) && v <= hi*(1+1e-9) {
				out = append(out, v)
			}
		}
	}
	return out
}
