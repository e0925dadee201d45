package sim

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestProfileFile(t *testing.T) {
	for _, p := range Profiles() {
		var b bytes.Buffer
		if err := WriteProfile(&b, p); err != nil {
			t.Fatal(err)
		}
		got, err := ReadProfile(&b, p.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != p.Name || got.Basis != p.Basis || got.Source != p.Source || got.Blocks != p.Blocks || got.MaxSeqs != p.MaxSeqs {
			t.Errorf("%s: read back as %+v", p.Name, got)
		}
		for _, b := range []Batch{
			{Tokens: 1, Decodes: 1, Context: 100, Sampled: 1},
			{Tokens: 700, Prefills: 2, PrefillTokens: 600, Attended: 200_000, Decodes: 100, Context: 100_000, Sampled: 101},
			{Tokens: 8192, Prefills: 1, PrefillTokens: 8192, Attended: 8192 * 4096, Sampled: 1},
		} {
			if want, got := p.StepTime(b), got.StepTime(b); math.Abs(float64(want-got)) > 1 {
				t.Errorf("%s: a step takes %v after reading it back, %v before", p.Name, got, want)
			}
		}
	}
	const good = `{"name": "mine", "basis": "measured", "floor_ms": 5, "max_batched_tokens": 2048, "max_seqs": 64, "blocks": 1000}`
	p, err := ReadProfile(strings.NewReader(good), "f")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.StepTime(Batch{Tokens: 3}).Seconds(); got != 5e-3 {
		t.Errorf("a step takes %v s, want 0.005", got)
	}
	mustNew(t, Config{Profile: p})
	for _, tc := range []struct{ name, from, to, want string }{
		{"no JSON", `{"name"`, `{name`, "f: 1:2: invalid character"},
		{"a key of another kind", `"floor_ms"`, `"floor"`, `unknown field "floor"`},
		{"a word for a number", `5`, `"5"`, "f: 1:"},
		{"two objects", `}`, `} {}`, "more than one"},
		{"no name", `"mine"`, `""`, "name: missing"},
		{"no honest basis", `"measured"`, `"sure"`, `basis: "sure": say "measured"`},
		{"a negative time", `5`, `-5`, "floor_ms: -5"},
		{"seconds given as milliseconds", `5`, `5000`, "floor_ms: 5000: must be 0 to a second"},
		{"steps without a time", `"floor_ms": 5`, `"host_ms": 5`, "a step takes no time"},
		{"no blocks", `1000`, `1`, "blocks: 1: must be at least 2"},
		{"no places", `64`, `0`, "max_seqs: 0"},
		{"one point", `"floor_ms": 5`, `"points_ms": [[1, 5]]`, "one point"},
		{"points out of order", `"floor_ms": 5`, `"points_ms": [[64, 5], [1, 6]]`, "points_ms[1]: tokens must grow"},
		{"half a token", `"floor_ms": 5`, `"points_ms": [[1.5, 5], [2, 6]]`, "points_ms[0]"},
	} {
		_, err := ReadProfile(strings.NewReader(strings.Replace(good, tc.from, tc.to, 1)), "f")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
		}
	}
	if _, err := ReadProfile(strings.NewReader(strings.Repeat(" ", maxProfileFile+1)), "f"); err == nil || !strings.Contains(err.Error(), "no engine profile") {
		t.Errorf("a file without end: %v", err)
	}
}

// Whatever is read makes an engine whose steps take time.
func FuzzReadProfile(f *testing.F) {
	for _, p := range Profiles() {
		var b bytes.Buffer
		if err := WriteProfile(&b, p); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte(`{"name":"x","basis":"invented","points_ms":[[1,1],[2,2]],"max_batched_tokens":1,"max_seqs":1,"blocks":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadProfile(bytes.NewReader(b), "f")
		if err != nil {
			return
		}
		last := p.StepTime(Batch{Tokens: 1, Sampled: 1})
		for _, n := range []int{2, 100, 10_000} {
			d := p.StepTime(Batch{Tokens: n, Sampled: 1})
			if d < last || d < 0 {
				t.Fatalf("%d tokens take %v, fewer took %v", n, d, last)
			}
			last = d
		}
	})
}
