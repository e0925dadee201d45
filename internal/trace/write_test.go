package trace

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func writeAll(t *testing.T, rows []Row, blockTokens int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, blockTokens)
	for _, r := range rows {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What is written is read back as it was.
func TestC5_RoundTrip(t *testing.T) {
	roundTrip := func(t *testing.T, rows []Row, blockTokens int) {
		t.Helper()
		text := writeAll(t, rows, blockTokens)
		got, r := read(t, string(text), Options{})
		if len(r.Dropped()) > 0 || len(got) != len(rows) {
			t.Fatalf("%d rows of %d, dropped %+v", len(got), len(rows), r.Dropped())
		}
		for i := range rows {
			want := rows[i]
			want.Line = i + 1
			if !reflect.DeepEqual(got[i], want) {
				t.Fatalf("got  %+v\nwant %+v\nfrom %s", got[i], want, bytes.Split(text, []byte("\n"))[i])
			}
		}
		rep, err := NewReader(bytes.NewReader(text), "f", Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range must(Inspect(rep)).Warnings {
			if strings.Contains(w, "not known") {
				t.Error(w)
			}
		}
	}
	for _, f := range []string{"azure_code_2023.csv", "azure_lmm_2025.csv", "burstgpt_1.csv", "burstgpt_3.csv", "mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"} {
		t.Run(f, func(t *testing.T) {
			rows, _, _, err := load(filepath.Join(traces, f), Options{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, rows, 0)
		})
	}
	for _, block := range []int{1, 16, 512, 1000} {
		rng := rand.New(rand.NewPCG(1, uint64(block)))
		var rows []Row
		for range 500 {
			r := Row{At: time.Duration(rng.Int64N(2*mostOffset) - mostOffset), Delay: unset, Input: rng.IntN(80 * block), Output: rng.IntN(1 << 31), Failed: rng.IntN(5) == 0, Images: rng.IntN(3)}
			if rng.IntN(2) == 0 {
				r.At = time.Duration(rng.Int64N(1e12)).Round(time.Duration([]int{1, 1e3, 1e5, 1e6, 1e9}[rng.IntN(5)]))
			}
			if rng.IntN(2) == 0 {
				r.Session = []string{"a", "b\"\\\n", "ä\u2028<>", "}{,:"}[rng.IntN(4)]
				r.Delay = time.Duration(rng.Int64N(1e12))
				if rng.IntN(2) == 0 {
					r.At = unset
				}
			}
			if rng.IntN(3) == 0 {
				r.Model = "m/1"
			}
			if rng.IntN(2) == 0 {
				for range (r.Input + block - 1) / block {
					r.Blocks = append(r.Blocks, rng.Uint64()>>rng.IntN(64))
				}
			}
			rows = append(rows, r)
		}
		roundTrip(t, rows, block)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The golden trace, written again, keeps its figures.
func TestC5_FiguresSurvive(t *testing.T) {
	path := filepath.Join(traces, "mooncake_conversation.jsonl")
	rows, _, _, err := load(path, Options{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(t.TempDir(), "again.jsonl")
	if err := os.WriteFile(again, writeAll(t, rows, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	want, got := inspectFile(t, path, Options{}), inspectFile(t, again, Options{})
	want.File, want.FormatWhy = got.File, got.FormatWhy
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestWriteRefusesWhatReadWould(t *testing.T) {
	good := Row{At: 0, Delay: unset, Input: 513, Output: 1, Blocks: []uint64{1, 2}}
	for _, c := range []struct {
		name   string
		change func(*Row)
		ok     bool
	}{
		{"a good row", func(*Row) {}, true},
		{"too few blocks", func(r *Row) { r.Input = 1025 }, false},
		{"too many blocks", func(r *Row) { r.Input = 512 }, false},
		{"a length below zero", func(r *Row) { r.Output = -1 }, false},
		{"no time and no session", func(r *Row) { r.At = unset }, false},
		{"no time, a session", func(r *Row) { r.At = unset; r.Session = "s" }, true},
		{"a delay below zero", func(r *Row) { r.Delay = -1 }, false},
		{"a time past all bounds", func(r *Row) { r.At = mostOffset + 1 }, false},
	} {
		r := good
		c.change(&r)
		if err := NewWriter(&bytes.Buffer{}, 0).Write(r); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestBlockSizeInTheTrace(t *testing.T) {
	const rows = `{"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2], "block_size": 16}` + "\n" +
		`{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1], "block_size": 16}` + "\n"
	_, r := read(t, rows, Options{})
	if got := r.Info().BlockTokens; got != 16 {
		t.Errorf("blocks of %d, want 16", got)
	}
	for _, c := range []struct {
		text string
		o    Options
	}{{rows, Options{BlockTokens: 32}}, {rows + `{"timestamp": 0, "input_length": 1, "output_length": 1, "block_size": 32}`, Options{}}} {
		r, err := NewReader(strings.NewReader(c.text), "f", c.o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(r); err == nil || !strings.Contains(err.Error(), "block_size is") {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
