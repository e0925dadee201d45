package trace

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fuzzReader holds what must be true of any bytes: no panic, rows in range, and
// every line that is not blank either a row or counted.
func fuzzReader(f *testing.F, o Options, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(strings.NewReader(string(b)), "f", o)
		if err != nil {
			return
		}
		defer r.Close()
		line, rows := 0, int64(0)
		for {
			row, err := r.Next()
			if err != nil {
				if err != io.EOF && r.good != rows {
					t.Fatalf("%d rows handed out, %d counted", rows, r.good)
				}
				if _, again := r.Next(); !errors.Is(again, err) {
					t.Fatalf("%v, and then %v", err, again)
				}
				break
			}
			rows++
			if row.Line <= line || row.Input < 0 || row.Output < 0 || row.Images < 0 {
				t.Fatalf("after line %d: %+v", line, row)
			}
			if n := len(row.Blocks); n > 0 && (n*r.Info().BlockTokens < row.Input || (n-1)*r.Info().BlockTokens >= row.Input) {
				t.Fatalf("%d blocks of %d for %d tokens", n, r.Info().BlockTokens, row.Input)
			}
			line = row.Line
		}
		var dropped int64
		for _, d := range r.Dropped() {
			dropped += d.Rows
		}
		if dropped != r.bad {
			t.Fatalf("%d dropped by reason, %d in all", dropped, r.bad)
		}
		again, err := NewReader(strings.NewReader(string(b)), "f", o)
		if err != nil {
			t.Fatal(err)
		}
		rep, err := Inspect(again)
		if err != nil {
			return
		}
		if rep.Rows != rows || rep.Dropped != dropped {
			t.Fatalf("inspected %d rows and %d dropped, read %d and %d", rep.Rows, rep.Dropped, rows, dropped)
		}
		if _, err := json.Marshal(rep); err != nil {
			t.Fatal(err)
		}
		if err := rep.WriteText(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}

// head is the first lines of an excerpt.
func head(f *testing.F, name string, lines int) string {
	b, err := os.ReadFile(filepath.Join(traces, name))
	if err != nil {
		f.Fatal(err)
	}
	s := strings.SplitAfter(string(b), "\n")
	return strings.Join(s[:min(lines, len(s))], "")
}

func FuzzAzure(f *testing.F) {
	fuzzReader(f, Options{}, head(f, "azure_code_2023.csv", 5), head(f, "azure_code_2024.csv", 5), head(f, "azure_lmm_2025.csv", 5))
}

func FuzzBurstGPT(f *testing.F) {
	fuzzReader(f, Options{}, head(f, "burstgpt_1.csv", 5), head(f, "burstgpt_3.csv", 5))
}

func FuzzMooncake(f *testing.F) {
	fuzzReader(f, Options{}, head(f, "mooncake_arxiv.jsonl", 3), `{"session_id":"a","delay":1.5,"input_length":3,"output_length":1,"hash_ids":[-1]}`,
		`{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 3, "output_length": 1, "hash_ids": [0]}`)
}

func FuzzLengths(f *testing.F) {
	fuzzReader(f, Options{}, head(f, "sharegpt_lengths.csv", 5), "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,374,44\n1e3,\"1\",2\n")
}
