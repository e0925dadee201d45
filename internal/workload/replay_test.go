package workload

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
)

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func replayOf(t testing.TB, options string) *Workload {
	t.Helper()
	return build(t, "workload: {trace: {file: "+options+"}}\n")
}

// Rows 0, 1, 2, 9 and 11 ms apart, unsorted, with 7-digit fractions; the same
// with a zone.
func TestL11_OffsetsAreExact(t *testing.T) {
	for name, rows := range map[string]string{
		"7 digits": `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9901600,4,1
2023-11-16 18:17:03.9999600,2,1
2023-11-16 18:17:04.0009600,3,1
2023-11-16 18:17:04.0119600,5,1
2023-11-16 18:17:04.0029600,4,1
2023-11-16 18:17:04.0229600,6,1
`,
		"ISO 8601": `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16T18:17:03.9901600Z,4,1
2023-11-16T18:17:03.9999600Z,2,1
2023-11-16T18:17:04.0009600Z,3,1
2023-11-16T18:17:04.0119600Z,5,1
2023-11-16T18:17:04.0029600Z,4,1
2023-11-16T18:17:04.0229600Z,6,1
`,
	} {
		got := read(t, replayOf(t, write(t, "a.csv", rows)), 0)
		if len(got) != 6 {
			t.Fatalf("%s: %d sessions of 6 rows", name, len(got))
		}
		want := []time.Duration{0, 9_800_000, 10_800_000, 12_800_000, 21_800_000, 32_800_000}
		for i, s := range got {
			if s.Scheduled != want[i] || s.Turns[0].At != want[i] {
				t.Errorf("%s: row %d is due at %v (%v), want %v", name, i, s.Scheduled, s.Turns[0].At, want[i])
			}
		}
	}
}

// A public trace comes out as it went in: every row, its time and its lengths.
func TestReplayIsExact(t *testing.T) {
	w := replayOf(t, traces+"mooncake_conversation.jsonl")
	raw, err := os.ReadFile(traces + "mooncake_conversation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	got := read(t, w, 0)
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(got) != len(lines) {
		t.Fatalf("%d sessions of %d rows", len(got), len(lines))
	}
	for i, line := range lines {
		var row struct {
			Timestamp int64
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		s, turn := got[i], got[i].Turns[0]
		if s.Scheduled != time.Duration(row.Timestamp)*time.Millisecond || turn.At != s.Scheduled || !s.Scripted {
			t.Fatalf("row %d at %d ms is due at %v", i, row.Timestamp, s.Scheduled)
		}
		if turn.InputTokens != row.Input || turn.OutputTokens != row.Output {
			t.Fatalf("row %d: %d and %d tokens, want %d and %d", i, turn.InputTokens, turn.OutputTokens, row.Input, row.Output)
		}
		if turn.Prompt.BlockTokens != 512 || fmt.Sprint(turn.Prompt.Blocks) != fmt.Sprint(row.Blocks) {
			t.Fatalf("row %d: blocks %v of %d", i, turn.Prompt.Blocks, turn.Prompt.BlockTokens)
		}
	}
	if p := w.Phases()[0]; !p.Measured || p.End != got[len(got)-1].Scheduled+1 {
		t.Errorf("phases %+v", w.Phases())
	}
	if notes := strings.Join(w.Facts().Notes, "\n"); !strings.Contains(notes, "cut to about") {
		t.Errorf("nothing is said of the 3 s steps: %q", notes)
	}
}

// Ids of 512 tokens read as 16: the prompts would be 32 times too short.
func TestC3_BlocksMustCoverThePrompt(t *testing.T) {
	e := experiment(t, "workload: {trace: {file: "+traces+"mooncake_conversation.jsonl, block: 16}}\n")
	_, err := New(e, "")
	if err == nil || !strings.Contains(err.Error(), "mooncake_conversation.jsonl:1") {
		t.Errorf("error %v, want one that names the row", err)
	}
}

func TestReplayOptions(t *testing.T) {
	const file = traces + "azure_conv_2023.csv"
	plain := read(t, replayOf(t, file), 0)
	span := plain[len(plain)-1].Scheduled

	if got := read(t, replayOf(t, file+", rows: {first: 300s}"), 0); got[len(got)-1].Scheduled >= 300*time.Second || plain[len(got)].Scheduled < 300*time.Second {
		t.Errorf("first 300 s: %d rows, the last at %v", len(got), got[len(got)-1].Scheduled)
	}
	if got := read(t, replayOf(t, file+", rows: {count: 100}"), 0); len(got) != 100 || got[99].Scheduled != plain[99].Scheduled {
		t.Errorf("first 100 rows: %d", len(got))
	}
	fast := read(t, replayOf(t, file+", speed: 2"), 0)
	if d := fast[len(fast)-1].Scheduled - span/2; d > 1 || d < -1 {
		t.Errorf("at twice the speed the last row is at %v, want %v", fast[len(fast)-1].Scheduled, span/2)
	}
	// Spread over 3 s: no row moves by more, order is kept, the dispersion of
	// the counts of single seconds falls to that of scattered arrivals.
	spread := read(t, replayOf(t, traces+"mooncake_conversation.jsonl, spread: 3s"), 0)
	distinct := map[time.Duration]bool{}
	for i, s := range spread {
		distinct[s.Scheduled] = true
		if i > 0 && s.Scheduled < spread[i-1].Scheduled {
			t.Fatal("spread rows are out of order")
		}
	}
	if len(distinct) < len(spread)*99/100 {
		t.Errorf("%d times of %d rows differ after the spread", len(distinct), len(spread))
	}
}

func TestReplayRepeats(t *testing.T) {
	w := build(t, `
workload: {trace: {file: `+traces+`mooncake_conversation.jsonl, rows: {count: 100}, repeat: true}}
load: {drain: 5s, phases: [{name: warm-up, requests: 50, measured: false}, {name: m, for: 200s}]}
`)
	got := read(t, w, 0)
	n := map[string]int{}
	for _, s := range got {
		n[s.Phase]++
	}
	// Rows of one time come together: the phase ends with the 50th, and those
	// at its very time are in the phase too.
	at := got[49].Scheduled
	if w.Phases()[0].End != at+1 {
		t.Errorf("the warm-up ends at %v, the 50th row is at %v", w.Phases()[0].End, at)
	}
	if len(got) < 400 {
		t.Fatalf("%d rows in 200 s of a trace of 100 rows in 30 s", len(got))
	}
	period := got[100].Scheduled - got[0].Scheduled
	if period <= got[99].Scheduled || got[250].Scheduled != 2*period+got[50].Scheduled {
		t.Errorf("rounds are %v long", period)
	}
	first, second := got[0].Turns[0].Prompt, got[100].Turns[0].Prompt
	if len(first.Blocks) != len(second.Blocks) || first.Blocks[0] == second.Blocks[0] || first.Seed == second.Seed {
		t.Error("the second round sends the first one's prompts again")
	}
	// Inside a round what is shared stays shared.
	if got[1].Turns[0].Prompt.Blocks[0] != first.Blocks[0] || got[101].Turns[0].Prompt.Blocks[0] != second.Blocks[0] {
		t.Error("the second round shares other blocks than the first")
	}
}

// Rows of one session become turns that add what the prompt grew by; strict
// replay keeps every row's own time, live replay the pauses.
func TestC4_SessionsOfATrace(t *testing.T) {
	const rows = `{"timestamp": 0, "input_length": 100, "output_length": 50, "session_id": "a"}
{"timestamp": 1000, "input_length": 10, "output_length": 5, "session_id": "b"}
{"timestamp": 20000, "input_length": 180, "output_length": 40, "session_id": "a"}
{"timestamp": 21000, "input_length": 9, "output_length": 5, "session_id": "b"}
`
	file := write(t, "s.jsonl", rows)
	got := read(t, replayOf(t, file), 0)
	if len(got) != 3 || len(got[0].Turns) != 2 {
		t.Fatalf("%d sessions, the first of %d turns; want 3: one of two turns, and two rows that hold no history", len(got), len(got[0].Turns))
	}
	if turn := got[0].Turns[1]; turn.InputTokens != 30 || turn.At != 20*time.Second {
		t.Errorf("the second turn adds %d tokens at %v, want 30 at 20 s", turn.InputTokens, turn.At)
	}
	live := read(t, replayOf(t, file+", history: live"), 0)
	// 20 s less the nominal answer of 50 tokens: 0.5 s + 50 × 20 ms.
	if turn := live[0].Turns[1]; live[0].Scripted || turn.At != plan.Unset || turn.Think != 18500*time.Millisecond {
		t.Errorf("live: %+v", turn)
	}
	// Rows that say their blocks share by ids: each is a prompt of its own and
	// nothing is appended again.
	const blocks = `{"timestamp": 0, "input_length": 1000, "output_length": 50, "session_id": "a", "hash_ids": [1, 2]}
{"timestamp": 1000, "input_length": 1500, "output_length": 50, "session_id": "a", "hash_ids": [1, 2, 3]}
`
	got = read(t, replayOf(t, write(t, "b.jsonl", blocks)), 0)
	if len(got) != 2 || got[1].Turns[0].InputTokens != 1500 || len(got[1].Turns[0].Prompt.Blocks) != 3 {
		t.Errorf("rows with blocks: %d sessions", len(got))
	}
}

// A trace's lengths with other arrivals: rows stay pairs.
func TestJointLengths(t *testing.T) {
	w := build(t, `
workload: {classes: [{name: a, lengths: {joint: {trace: `+traces+`mooncake_synthetic.jsonl}}}]}
load: {arrivals: {gamma: {cv: 2}}, rate: 20/s, phases: [{name: m, for: 500s}]}
`)
	var x, y []float64
	rows := map[[2]int]bool{}
	for _, s := range read(t, replayOf(t, traces+"mooncake_synthetic.jsonl"), 0) {
		rows[[2]int{s.Turns[0].InputTokens, s.Turns[0].OutputTokens}] = true
	}
	for _, s := range read(t, w, 0) {
		p := [2]int{s.Turns[0].InputTokens, s.Turns[0].OutputTokens}
		if !rows[p] {
			t.Fatalf("%v is no row of the trace", p)
		}
		x, y = append(x, float64(p[0])), append(y, float64(p[1]))
	}
	// The trace's own Pearson correlation is -0.3473.
	if r := pearson(x, y); math.Abs(r+0.3473) > 0.03 {
		t.Errorf("correlation of input and output %.4f, want -0.3473", r)
	}
	if f := w.Facts().Files; len(f) != 1 || f[0].Rows != 1000 || f[0].Used != 1000 {
		t.Errorf("files: %+v", f)
	}
}

func pearson(x, y []float64) float64 {
	var mx, my, xy, xx, yy float64
	for i := range x {
		mx += x[i] / float64(len(x))
		my += y[i] / float64(len(x))
	}
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
		yy += (y[i] - my) * (y[i] - my)
	}
	return xy / math.Sqrt(xx*yy)
}

func TestTraceAtAnotherRate(t *testing.T) {
	w := build(t, `
workload: {trace: {file: `+traces+`azure_conv_2023.csv}}
load: {arrivals: constant, rate: 10/s, phases: [{name: m, for: 60s}]}
`)
	got := read(t, w, 0)
	if d := got[1].Scheduled - got[0].Scheduled; d != 100*time.Millisecond || got[1].Turns[0].At != got[1].Scheduled {
		t.Errorf("rows are %v apart, want 100 ms", d)
	}
}

func TestTracesThatCannotBeReplayed(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no times", "workload: {trace: {file: " + traces + "sharegpt_lengths.csv}}\n", "have no time"},
		{"too few rows for a phase", "workload: {trace: {file: " + traces + "burstgpt_1.csv}}\nload: {phases: [{name: m, requests: 1000}]}\n", "not as many rows"},
		{"too few rows for a rate", "workload: {trace: {file: " + traces + "burstgpt_1.csv}}\nload: {rate: 10/s, phases: [{name: m, for: 1000s}]}\n", "repeat: true"},
	} {
		if _, err := New(experiment(t, c.text), ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
