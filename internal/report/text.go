// Package report shows a Summary: Text for a terminal, Markdown for a pull
// request, HTML for a browser. It decides how a number looks (three significant
// digits, an interval beside it, a dash where there is none) and never what it
// is.
package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/unit"
)

// TextOptions says how a terminal report looks. The zero value is plain text.
type TextOptions struct {
	// Color marks verdicts and findings with ANSI colours.
	Color bool
	// Dir is the result directory, named in the last line; empty: not named.
	Dir string
}

// Text writes the summary for a terminal: verdict, attainment and goodput
// first, then latencies with their intervals, rates, and what was wrong.
func Text(w io.Writer, s *analysis.Summary, opt TextOptions) error {
	t := &text{w: bufio.NewWriter(w), color: opt.Color}
	t.verdict(s)
	if s.Counts.Planned > 0 {
		t.latency(s)
		t.load(s)
		t.tokens(s)
		t.slices(s)
		t.instrument(s)
	}
	t.findings(s.Findings)
	if opt.Dir != "" {
		t.line("")
		t.line("result: %s", opt.Dir)
	}
	return t.w.Flush()
}

type text struct {
	w     *bufio.Writer
	color bool
}

func (t *text) line(format string, args ...any) {
	fmt.Fprintf(t.w, format+"\n", args...)
}

func (t *text) head(s string) {
	t.line("")
	t.line("%s", t.paint(bold, s))
}

const (
	bold   = "1"
	red    = "31;1"
	green  = "32;1"
	yellow = "33;1"
	dim    = "2"
)

func (t *text) paint(code, s string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *text) judged(j analysis.Judgment) string {
	switch j {
	case analysis.Pass:
		return t.paint(green, "PASS")
	case analysis.Fail:
		return t.paint(red, "FAIL")
	case analysis.Inconclusive:
		return t.paint(yellow, "INCONCLUSIVE")
	}
	return "no SLO asked"
}

func (t *text) verdict(s *analysis.Summary) {
	t.line("")
	switch {
	case s.Counts.Planned == 0:
		t.line("%s   no request was planned or sent", t.paint(red, "NOTHING MEASURED"))
		return
	case s.Counts.OK == 0:
		t.line("%s   not one request was ok. SLO: %s", t.paint(red, "NOTHING OK"), t.judged(s.Verdict.SLO))
	case s.Verdict.Valid:
		t.line("%s   SLO: %s", t.paint(green, "VALID"), t.judged(s.Verdict.SLO))
	default:
		t.line("%s   the instrument failed: do not use these numbers. SLO: %s", t.paint(red, "INVALID"), t.judged(s.Verdict.SLO))
	}
	for _, r := range s.Verdict.InvalidReasons {
		t.line("  - %s", r)
	}
	for _, p := range saturated(s) {
		t.line("%s   %s", t.paint(red, "SATURATED"), p)
	}
	c := &s.Counts
	a := s.SLO.Attainment
	if a.Value != nil {
		line := fmt.Sprintf("attainment %s%s of %s", percent(a.Value), interval(a.Low, a.High, unit.Percent), judgedTurns(&s.SLO))
		if s.SLO.Target != nil {
			line += fmt.Sprintf(", asked %s", unit.Percent(*s.SLO.Target))
		}
		t.line("%s", line)
		if s.SLO.More != nil {
			t.line("  %s more turns like these would settle it", unit.Number(float64(*s.SLO.More)))
		}
	}
	if s.SLO.GoodputRequests != nil {
		t.line("goodput    %s, %s (of the turns due in the window)", unit.PerSecond(*s.SLO.GoodputRequests, "req"), perSecond(s.SLO.GoodputOutputTokens, "output tok"))
	}
	for _, o := range s.SLO.Objectives {
		name := o.Figure
		if o.Quantile != "" {
			name += " " + o.Quantile
		}
		if o.Class != "" {
			name = o.Class + " " + name
		}
		line := fmt.Sprintf("  %-16s ≤ %-8s", name, seconds(o.Limit))
		if o.Observed != nil {
			line += fmt.Sprintf(" %s: observed %s", t.judged(o.Judgment), quantile(*o.Observed))
		} else if o.Met.Value != nil {
			line += fmt.Sprintf(" met by %s%s", unit.Percent(*o.Met.Value), interval(o.Met.Low, o.Met.High, unit.Percent))
		}
		t.line("%s", line)
	}
	t.line("%s", outcomes(c))
}

// saturated says of each phase past capacity what its figures are worth.
func saturated(s *analysis.Summary) (out []string) {
	for _, p := range s.Window.Phases {
		if p.Saturated != nil && *p.Saturated {
			out = append(out, fmt.Sprintf("phase %s asks more than the target can do: in flight grew from %d to %d, and every latency is a function of the run's length",
				p.Name, *p.InFlightStart, *p.InFlightEnd))
		}
	}
	return out
}

// atRest says how each measured phase was judged, and by what.
func atRest(s *analysis.Summary) (out []string) {
	for _, p := range s.Window.Phases {
		if !p.Measured || p.Steady == nil && p.Stable == nil {
			continue
		}
		says := func(j *bool, yes, no string) string {
			switch {
			case j == nil:
				return yes + ": not judged"
			case *j:
				return yes
			}
			return no
		}
		var tests []string
		for _, t := range p.Tests {
			p := "= " + unit.Number(t.P)
			if t.P < 0.0001 {
				p = "< 0.0001"
			}
			tests = append(tests, fmt.Sprintf("%s p %s", t.Series, p))
		}
		out = append(out, fmt.Sprintf("phase %s: %s, %s (%s)", p.Name,
			says(p.Steady, "steady", "not steady"), says(p.Stable, "stable", "SATURATED"), strings.Join(tests, ", ")))
	}
	return out
}

// judgedTurns says what attainment is a share of, and what was left out of it.
func judgedTurns(s *analysis.SLOResult) string {
	out := unit.Number(float64(s.Attainment.N)) + " offered turns"
	if s.CensoredHangUps > 0 {
		out += fmt.Sprintf(" (%s hang-ups apart)", unit.Number(float64(s.CensoredHangUps)))
	}
	if s.Unjudged > 0 {
		out += fmt.Sprintf(" (%s unjudged apart)", unit.Number(float64(s.Unjudged)))
	}
	return out
}

// offered is how many turns users would have asked.
func offered(c analysis.Counts) int64 { return c.Planned - c.Skipped - c.NotDue }

// outcomes writes every outcome that occurred, so that the parts are seen to
// sum to the whole.
func outcomes(c *analysis.Counts) string {
	var parts []string
	for _, o := range []struct {
		n    int64
		name string
	}{
		{c.OK, "ok"}, {c.Rejected, "rejected"}, {c.HTTPError, "http error"}, {c.StreamError, "stream error"},
		{c.Empty, "empty"}, {c.Timeout, "timeout"}, {c.ConnectError, "connect error"}, {c.Cancelled, "cancelled as planned"},
		{c.Unfinished, "unfinished"}, {c.Shed, "shed"}, {c.Skipped, "skipped"}, {c.NotDue, "not due"},
	} {
		if o.n > 0 || o.name == "ok" {
			parts = append(parts, fmt.Sprintf("%d %s", o.n, o.name))
		}
	}
	return fmt.Sprintf("turns      %d planned = %s", c.Planned, strings.Join(parts, " + "))
}

type latencyRow struct {
	name string
	f    *analysis.Figure
}

// waits are the figures that a user or the SLO asks about, in the order of a
// request's life.
func waits(l *analysis.Latency) []latencyRow {
	return []latencyRow{
		{"TTFT", &l.TTFT}, {"service TTFT", &l.ServiceTTFT}, {"first answer", &l.FirstAnswer},
		{"TPOT", &l.TPOT}, {"ITL", &l.ITL}, {"gap", &l.Gap}, {"stall", &l.Stall}, {"E2E", &l.E2E},
	}
}

func delays(l *analysis.Latency) []latencyRow {
	return []latencyRow{
		{"lateness", &l.Lateness}, {"cap wait", &l.CapWait}, {"connect", &l.Connect}, {"send delay", &l.SendDelay},
	}
}

func (t *text) latency(s *analysis.Summary) {
	w := s.Window
	var phases []string
	for _, p := range w.Phases {
		if p.Measured {
			phases = append(phases, p.Name)
		}
	}
	t.head(fmt.Sprintf("latency, from when each turn was due, over all offered (%s from %s on: %s; 95 %% intervals)",
		seconds(w.Measured), seconds(w.Start), strings.Join(phases, ", ")))
	head := []string{"", "n", "p50", "p90", "p99", "max"}
	t.table(append([][]string{head}, figures(waits(&s.Latency), func(f *analysis.Figure) *analysis.Distribution { return &f.All })...))
	if s.Counts.OK != offered(s.Counts) && s.Counts.OK > 0 {
		t.head("the same over the ok ones alone")
		t.table(append([][]string{head}, figures([]latencyRow{
			{"TTFT", &s.Latency.TTFT}, {"TPOT", &s.Latency.TPOT}, {"E2E", &s.Latency.E2E},
		}, func(f *analysis.Figure) *analysis.Distribution { return &f.OK })...))
	}
}

// sameAs tells a first answer that is the first output: nothing reasoned.
func sameAs(rows []latencyRow, name string, of func(*analysis.Figure) *analysis.Distribution) bool {
	if name != "first answer" {
		return false
	}
	for _, r := range rows {
		if a, b := of(r.f).P50.Value, of(rows[0].f).P50.Value; r.name == name && a != nil && b != nil {
			return *a == *b && of(r.f).N == of(rows[0].f).N
		}
	}
	return false
}

// figures makes table rows, leaving out what has no value, what never was above
// zero, and a first answer that repeats TTFT.
func figures(rows []latencyRow, of func(*analysis.Figure) *analysis.Distribution) [][]string {
	var out [][]string
	for _, r := range rows {
		d := of(r.f)
		if d.N == 0 || d.Max != nil && *d.Max == 0 || sameAs(rows, r.name, of) {
			continue
		}
		out = append(out, []string{r.name, unit.Number(float64(d.N)), quantile(d.P50), quantile(d.P90), quantile(d.P99), secondsOr(d.Max)})
	}
	return out
}

func (t *text) load(s *analysis.Summary) {
	r := s.Rates
	t.head("load")
	t.table([][]string{
		{"per second", "offered", "dispatched", "completed", "rejected", "failed"},
		{"turns", number(r.Offered), number(r.Dispatched), number(r.Completed), number(r.Rejected), number(r.Failed)},
		{"sessions", number(r.Sessions.Offered), number(r.Sessions.Dispatched), number(r.Sessions.Completed), number(r.Sessions.Rejected), number(r.Sessions.Failed)},
	})
	t.line("dispersion of arrivals, asked and delivered: 1 s %s %s, 10 s %s %s, 60 s %s %s",
		number(r.IDC.Asked.At1), number(r.IDC.Delivered.At1), number(r.IDC.Asked.At10), number(r.IDC.Delivered.At10),
		number(r.IDC.Asked.At60), number(r.IDC.Delivered.At60))
	for _, p := range atRest(s) {
		t.line("%s", p)
	}
	if a := s.Attempts; a.Reconnects > 0 || a.Retries > 0 {
		t.line("reconnects %d, retries %d", a.Reconnects, a.Retries)
	}
	if ss := s.Attempts.Sessions; ss.Planned > 0 && ss.Planned != s.Counts.Planned {
		t.line("sessions %d planned, %d complete, %d all good: %s%s of %d that could be judged", ss.Planned, ss.Complete, ss.AllGood,
			percent(ss.Attainment.Value), interval(ss.Attainment.Low, ss.Attainment.High, unit.Percent), ss.Attainment.N)
	}
}

func (t *text) tokens(s *analysis.Summary) {
	p := s.Throughput
	t.head("tokens")
	t.line("throughput %s, %s, %s", perSecond(p.OutputTokens, "output tok"), perSecond(p.InputTokens, "input tok"), perSecond(p.Requests, "req"))
	rows := [][]string{{"per ok turn", "asked of", "mean", "p50", "p99", "delivered by", "mean", "p50", "p99"}}
	for _, f := range []struct {
		name string
		f    *analysis.TokenFigure
	}{{"input", &s.Tokens.Input}, {"output", &s.Tokens.Output}, {"reasoning", &s.Tokens.Reasoning}, {"cached", &s.Tokens.Cached}} {
		if f.f.Delivered == nil || f.f.Delivered.N == 0 {
			continue
		}
		row := []string{f.name}
		for _, d := range []*analysis.TokenDistribution{f.f.Asked, f.f.Delivered} {
			if d == nil || d.N == 0 {
				row = append(row, none, none, none, none)
				continue
			}
			row = append(row, unit.Number(float64(d.N)), number(d.Mean), count(d.P50), count(d.P99))
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		t.table(rows)
	}
	if src := s.Tokens.Source; len(src) > 0 {
		var names []string
		for n := range src {
			names = append(names, n)
		}
		sort.Strings(names)
		for i, n := range names {
			names[i] = fmt.Sprintf("%s (%d)", n, src[n])
		}
		t.line("output counted by %s", strings.Join(names, ", "))
	}
	if x := s.Prefix; x != nil {
		t.line("prefix reuse, share of prompt tokens: planned %s (infinite cache), observed %s (usage); template floor %s tokens; cache at the start: %s",
			percent(x.PlannedInfinite), percent(x.ObservedUsage), count(x.TemplateFloorTokens), x.CacheState)
	}
}

func (t *text) slices(s *analysis.Summary) {
	by := map[string]int{}
	for _, sl := range s.Slices {
		by[sl.By]++
	}
	var rows [][]string
	for _, sl := range s.Slices {
		if by[sl.By] < 2 {
			continue
		}
		rows = append(rows, []string{
			sl.By + " " + sl.Value, fmt.Sprint(offered(sl.Counts)),
			percent(sl.SLO.Attainment.Value), quantile(sl.Latency.TTFT.All.P50), quantile(sl.Latency.TTFT.All.P99),
			quantile(sl.Latency.TPOT.All.P50), quantile(sl.Latency.E2E.All.P50),
		})
	}
	if len(rows) > 0 {
		t.head("slices")
		t.table(append([][]string{{"", "offered", "attained", "TTFT p50", "p99", "TPOT p50", "E2E p50"}}, rows...))
	}
}

func (t *text) instrument(s *analysis.Summary) {
	g := s.Generator
	t.head("the instrument")
	rows := [][]string{{"", "n", "p50", "p90", "p99", "max"}}
	t.table(append(rows, figures(delays(&s.Latency), func(f *analysis.Figure) *analysis.Distribution { return &f.All })...))
	stamp := g.StampSource
	if stamp == "" {
		stamp = "none"
	}
	t.line("stamps: %s; interval p50 %s, p99 %s, p99.9 %s; reads of several events %s of %s; refused kernel times %d",
		stamp, secondsOr(g.StampWidthP50), secondsOr(g.StampWidthP99), secondsOr(g.StampWidthP999),
		unit.Number(float64(g.MultiEventReads)), unit.Number(float64(g.Reads)), g.RefusedStamps)
	t.line("limits of validity: lateness p99 ≤ %s, stamp interval p99 ≤ %s", seconds(s.Verdict.Limits.LatenessP99), seconds(s.Verdict.Limits.StampWidthP99))
	var own []string
	if g.CPUShare != nil {
		own = append(own, "CPU "+percent(g.CPUShare))
	}
	if g.GCPauseMax != nil {
		own = append(own, "longest GC pause "+secondsOr(g.GCPauseMax))
	}
	if g.EventsPerSecond != nil {
		own = append(own, unit.PerSecond(*g.EventsPerSecond, "event"))
	}
	if g.Retransmits != nil && *g.Retransmits > 0 {
		own = append(own, fmt.Sprintf("%d TCP retransmits", *g.Retransmits))
	}
	for _, l := range g.LimitsHit {
		own = append(own, "limit hit: "+l)
	}
	if len(own) > 0 {
		t.line("%s", strings.Join(own, ", "))
	}
}

func (t *text) findings(fs []analysis.Finding) {
	if len(fs) == 0 {
		t.head("findings: none")
		return
	}
	t.head("findings")
	for _, f := range fs {
		code := dim
		switch f.Severity {
		case analysis.Error:
			code = red
		case analysis.Warning:
			code = yellow
		}
		t.line("%s %s: %s", t.paint(code, fmt.Sprintf("%-7s", f.Severity)), f.Rule, f.Message)
		if f.Remedy != "" {
			t.line("        → %s", f.Remedy)
		}
	}
}

// table writes rows under aligned columns: the first flush left, the others
// flush right.
func (t *text) table(rows [][]string) {
	widths := map[int]int{}
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i == 0 {
				b.WriteString("  " + c + pad)
			} else {
				b.WriteString("   " + pad + c)
			}
		}
		t.line("%s", strings.TrimRight(b.String(), " "))
	}
}

const none = "—"

func seconds(s float64) string {
	if s == 0 {
		return "0"
	}
	return unit.Duration(time.Duration(math.Round(s * 1e9)))
}

func secondsOr(s *float64) string {
	if s == nil {
		return none
	}
	return seconds(*s)
}

func number(x *float64) string {
	if x == nil {
		return none
	}
	return unit.Number(*x)
}

func count(n *int64) string {
	if n == nil {
		return none
	}
	return unit.Number(float64(*n))
}

func percent(x *float64) string {
	if x == nil {
		return none
	}
	return unit.Percent(*x)
}

func perSecond(x *float64, thing string) string {
	if x == nil {
		return none + " " + thing + "/s"
	}
	return unit.PerSecond(*x, thing)
}

// interval writes " [low, high]"; an end that does not exist is a dash, and
// nothing is written where neither does.
func interval(low, high *float64, show func(float64) string) string {
	if low == nil && high == nil {
		return ""
	}
	end := func(x *float64) string {
		if x == nil {
			return none
		}
		return show(*x)
	}
	return " [" + end(low) + ", " + end(high) + "]"
}

// quantile writes a value with its interval, all in the value's unit; ">" marks
// a lower bound.
func quantile(q analysis.Quantile) string {
	if q.Value == nil {
		return none
	}
	v := seconds(*q.Value)
	_, name, ok := strings.Cut(v, " ")
	scale := map[string]float64{"ns": 1e9, "µs": 1e6, "ms": 1e3, "s": 1}[name]
	show := func(x float64) string {
		if x*scale >= 999.5 { // Number would go on in thousands
			return strconv.FormatFloat(math.Round(x*scale), 'f', -1, 64)
		}
		return unit.Number(x * scale)
	}
	if !ok || scale == 0 { // 2m30s
		show = seconds
	}
	if q.Censored {
		v = "> " + v
	}
	return v + interval(q.Low, q.High, show)
}
