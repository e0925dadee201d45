package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// run is a summary of 200 turns of known times: turn i is due at i·100 ms, its
// first output comes 50 + i ms later; every tenth fails.
func run(t *testing.T) *analysis.Summary {
	t.Helper()
	sum, err := analysis.New(analysis.Options{
		Phases: []plan.Phase{
			{Name: "warm-up", End: 5 * time.Second},
			{Name: "steady", Start: 5 * time.Second, End: 20 * time.Second, Measured: true, Constant: true, Rate: 10},
		},
		SLO: analysis.SLO{
			Objectives: []analysis.Objective{{Figure: "ttft", Limit: 200 * time.Millisecond}, {Figure: "tpot", Quantile: 990, Limit: 30 * time.Millisecond}},
			Attainment: 0.95,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		at := time.Duration(i) * 100 * time.Millisecond
		s := &plan.Session{Seq: int64(i), Scheduled: at, Class: []string{"chat", "rag"}[i%2], Turns: []plan.Turn{{OutputTokens: 5}}}
		r := record.New(s, &s.Turns[0])
		r.Phase = map[bool]string{true: "warm-up", false: "steady"}[i < 50]
		r.Scheduled, r.Released, r.Admitted, r.Connected, r.Sent = at, at+20*time.Microsecond, at+20*time.Microsecond, at+time.Millisecond, at+time.Millisecond
		r.LastTurn, r.Streamed, r.AskedInput, r.StampSource = true, true, 100, "kernel"
		if i%10 == 9 {
			r.Outcome, r.HTTPStatus, r.Done, r.Error = record.Rejected, 429, at+3*time.Millisecond, "busy <script>"
		} else {
			first := at + time.Duration(50+i)*time.Millisecond
			for k := range 5 {
				r.Events = append(r.Events, record.Event{At: first + time.Duration(k)*20*time.Millisecond, Tokens: 1})
			}
			r.Outcome, r.FirstOutput, r.FirstAnswer, r.LastOutput, r.Done = record.OK, first, first, first+80*time.Millisecond, first+81*time.Millisecond
			r.InputTokens, r.OutputTokens, r.TokenSource, r.Reads = 100, 5, record.TokensFromUsage, 5
		}
		sum.Add(r)
	}
	sum.Know(analysis.Facts{Run: analysis.RunFacts{ID: "20260102-030405-abcd", Name: `<b>"name"</b>`, StartedAt: "2026-01-02T03:04:05Z", PlanHash: "0123456789abcdef", Seed: 42}})
	return sum.Summary()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func render(t *testing.T, write func(io.Writer, *analysis.Summary) error, s *analysis.Summary) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func plainText(w io.Writer, s *analysis.Summary) error {
	return Text(w, s, TextOptions{Dir: "results/x"})
}

func TestForms(t *testing.T) {
	s := run(t)
	golden(t, "run.txt", render(t, plainText, s))
	golden(t, "run.md", render(t, Markdown, s))
}

// A run in which nothing came back has no figures, and no form may fail on that.
func TestFormsOfNothing(t *testing.T) {
	sum, err := analysis.New(analysis.Options{Phases: []plan.Phase{{Name: "steady", End: time.Second, Measured: true}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*analysis.Summary{sum.Summary(), {}} {
		for _, write := range []func(io.Writer, *analysis.Summary) error{plainText, Markdown, HTML, JSON, FindingsJSON} {
			if b := render(t, write, s); bytes.Contains(b, []byte("NaN")) {
				t.Errorf("NaN in\n%s", b)
			}
		}
	}
}

// What makes every latency mean something else is said before any of them.
func TestSaturatedIsSaidUnderTheVerdict(t *testing.T) {
	s := run(t)
	yes, no, from, to := true, false, int64(3), int64(4711)
	p := &s.Window.Phases[1]
	p.Saturated, p.Stable, p.InFlightStart, p.InFlightEnd = &yes, &no, &from, &to
	lines := strings.Split(string(render(t, plainText, s)), "\n")
	if !strings.HasPrefix(lines[1], "VALID") || !strings.HasPrefix(lines[2], "SATURATED") || !strings.Contains(lines[2], "from 3 to 4711") {
		t.Errorf("%q", lines[:4])
	}
	for _, write := range []func(io.Writer, *analysis.Summary) error{Markdown, HTML} {
		if b := string(render(t, write, s)); !strings.Contains(b, "from 3 to 4711") || strings.Index(b, "from 3 to 4711") > strings.Index(b, "TPOT") {
			t.Error("not said, or not first")
		}
	}
}

func TestColorMarksOnlyWhenAsked(t *testing.T) {
	s := run(t)
	var b bytes.Buffer
	if err := Text(&b, s, TextOptions{Color: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\x1b[") || strings.Contains(string(render(t, plainText, s)), "\x1b") {
		t.Error("colour where none was asked, or none where it was")
	}
}

// The page is one file without scripts or outside references, and what comes
// from outside is escaped.
func TestHTMLStandsAlone(t *testing.T) {
	page := string(render(t, HTML, run(t)))
	for _, bad := range []string{"<script", "http://", "https://", "<link", "src=", `<b>"name"`} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if !strings.Contains(page, "&lt;b&gt;") {
		t.Error("the run's name is missing")
	}
	if n := strings.Count(page, "<svg"); n != 5 {
		t.Errorf("%d charts, want 5", n)
	}
	for rest := page; ; {
		_, after, ok := strings.Cut(rest, "<svg")
		if !ok {
			break
		}
		body, tail, _ := strings.Cut(after, "</svg>")
		rest = tail
		if err := wellFormed("<svg" + body + "</svg>"); err != nil {
			t.Errorf("a chart is not well formed: %v", err)
		}
	}
}

func wellFormed(s string) error {
	for d := xml.NewDecoder(strings.NewReader(s)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestJSONReadsBack(t *testing.T) {
	s := run(t)
	var back analysis.Summary
	if err := json.Unmarshal(render(t, JSON, s), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(s.Counts, back.Counts); d != "" {
		t.Error(d)
	}
	// The 90th percentile of TTFT over 150 offered turns of which 15 did not
	// come back: the 135th smallest of 135, turn 198's 248 ms.
	if q := back.Latency.TTFT.All.P90; q.Value == nil || math.Abs(*q.Value-0.248) > 1e-12 || q.Censored {
		t.Errorf("TTFT p90 %+v, want 0.248", q)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		lo, hi float64
		n      int
		want   []float64
	}{
		{0, 1, 4, []float64{0, 0.5, 1}},
		{0, 10, 4, []float64{0, 5, 10}},
		{0, 35, 8, []float64{0, 5, 10, 15, 20, 25, 30, 35}},
	} {
		if d := cmp.Diff(c.want, ticks(c.lo, c.hi, c.n)); d != "" {
			t.Errorf("ticks(%v, %v, %d):\n%s", c.lo, c.hi, c.n, d)
		}
	}
	if d := cmp.Diff([]float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}, decades(0.01, 1), cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-12 })); d != "" {
		t.Error(d)
	}
}

// A cap that lets go after a stall sends a burst: the report must show what was
// dispatched beside what was offered, second by second.
func TestL7_DispatchedBesideOffered(t *testing.T) {
	sum, err := analysis.New(analysis.Options{Phases: []plan.Phase{{Name: "steady", End: 10 * time.Second, Measured: true}}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // 10/s offered; nothing goes out from 3 s to 6 s, and then all that waited at once
		at := time.Duration(i) * 100 * time.Millisecond
		s := &plan.Session{Seq: int64(i), Scheduled: at, Turns: []plan.Turn{{OutputTokens: 1}}}
		r := record.New(s, &s.Turns[0])
		out := at
		if at >= 3*time.Second && at < 6*time.Second {
			out = 6 * time.Second
		}
		r.Phase, r.Outcome, r.LastTurn, r.Streamed = "steady", record.OK, true, true
		r.Scheduled, r.Released, r.Admitted, r.Connected, r.Sent = at, at, out, out, out
		r.FirstOutput, r.FirstAnswer, r.LastOutput, r.Done = out+time.Millisecond, out+time.Millisecond, out+time.Millisecond, out+time.Millisecond
		r.Events = []record.Event{{At: out + time.Millisecond, Tokens: 1}}
		sum.Add(r)
	}
	s := sum.Summary()
	if d := cmp.Diff([]int64{10, 10, 10, 0, 0, 0, 40, 10, 10, 10}, s.Series.Dispatched[:10]); d != "" {
		t.Errorf("dispatched:\n%s", d)
	}
	c := rateChart(s)
	if len(c.lines) != 4 || c.lines[0].name != "offered" || c.lines[1].name != "dispatched" || c.lines[1].y[6] != 40 || c.lines[0].y[6] != 10 {
		t.Errorf("the chart does not show the burst: %+v", c.lines)
	}
	if !strings.Contains(string(render(t, HTML, s)), ">dispatched<") {
		t.Error("the page does not name the line")
	}
}
