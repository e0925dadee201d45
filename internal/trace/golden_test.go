package trace

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

const traces = "../../testdata/traces"

func inspectFile(t *testing.T, path string, o Options) *Report {
	t.Helper()
	r, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rep, err := Inspect(r)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// asJSON is the report as a program sees it.
func asJSON(t *testing.T, rep *Report) map[string]any {
	t.Helper()
	b, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// at follows keys into nested objects.
func at(m map[string]any, keys ...string) any {
	var v any = m
	for _, k := range keys {
		o, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = o[k]
	}
	return v
}

func sum(l *LengthReport, rows int64) float64 { return math.Round(l.Mean * float64(rows)) }

func TestGolden(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(traces, "GOLDEN.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]map[string]any
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	// Where each golden value stands in the report.
	places := []struct{ golden, report []string }{
		{[]string{"arrivals", "span_s"}, []string{"span_s"}},
		{[]string{"arrivals", "rate_nm1"}, []string{"rate"}},
		{[]string{"arrivals", "cv_pop"}, []string{"cv"}},
		{[]string{"arrivals", "IDC1s"}, []string{"idc", "1"}},
		{[]string{"arrivals", "IDC10s"}, []string{"idc", "10"}},
		{[]string{"arrivals", "IDC60s"}, []string{"idc", "60"}},
		{[]string{"arrivals", "iat_neg"}, []string{"out_of_order"}},
		{[]string{"corr", "pearson"}, []string{"pearson"}},
		{[]string{"corr", "spearman"}, []string{"spearman"}},
		{[]string{"failed_rows(response=0)"}, []string{"failed"}},
		{[]string{"prefix_hit_infinite_B512", "blocks"}, []string{"prefix", "blocks"}},
		{[]string{"prefix_hit_infinite_B512", "uniq"}, []string{"prefix", "unique_blocks"}},
		{[]string{"prefix_hit_infinite_B512", "prefix_hit_blocks"}, []string{"prefix", "hit_blocks"}},
		{[]string{"prefix_hit_infinite_B512", "block_hit"}, []string{"prefix", "block_hit"}},
		{[]string{"prefix_hit_infinite_B512", "token_hit"}, []string{"prefix", "token_hit"}},
		{[]string{"prefix_hit_infinite_B512", "full_block_hit"}, []string{"prefix", "full_block_hit"}},
	}
	for _, k := range []string{"n", "mean", "p50", "p90", "p95", "p99", "max"} {
		to := k
		for _, side := range []string{"input", "output"} {
			if k == "n" {
				places = append(places, struct{ golden, report []string }{[]string{side, k}, []string{"rows"}})
				continue
			}
			places = append(places, struct{ golden, report []string }{[]string{side, k}, []string{side + "_tokens", to}})
		}
	}
	for _, c := range lruCapacities {
		c := fmt.Sprint(c)
		for _, k := range []string{"hit_blocks", "rate"} {
			places = append(places, struct{ golden, report []string }{[]string{"lru", c, k}, []string{"prefix", "lru", c, k}})
		}
	}
	for _, c := range []struct {
		file   string
		format Format
		values int // how many golden values there are to hold
	}{
		{"azure_code_2023.csv", Azure, 25}, {"azure_conv_2023.csv", Azure, 25},
		{"mooncake_conversation.jsonl", Mooncake, 39}, {"mooncake_synthetic.jsonl", Mooncake, 39},
		{"mooncake_arxiv.jsonl", Mooncake, 14}, {"burstgpt_1.csv", BurstGPT, 26}, {"sharegpt_lengths.csv", Lengths, 18},
	} {
		t.Run(c.file, func(t *testing.T) {
			rep := inspectFile(t, filepath.Join(traces, c.file), Options{})
			if rep.Format != c.format {
				t.Errorf("format %s, want %s", rep.Format, c.format)
			}
			got, want, held := asJSON(t, rep), golden[c.file], 0
			for _, p := range places {
				w, ok := at(want, p.golden...).(float64)
				if !ok {
					continue
				}
				held++
				g, ok := at(got, p.report...).(float64)
				// GOLDEN.json rounds: to 4 digits after the point for IDC and
				// means, to 6 for the rest.
				tol := 0.51e-6
				if k := p.golden[len(p.golden)-1]; k == "mean" || len(k) > 3 && k[:3] == "IDC" {
					tol = 0.51e-4
				}
				if !ok || math.Abs(g-w) > tol {
					t.Errorf("%v: %v, want %v", p.report, at(got, p.report...), w)
				}
			}
			for _, s := range []struct {
				key string
				l   *LengthReport
			}{{"sum_input", rep.Input}, {"sum_output", rep.Output}} {
				if w, ok := want[s.key].(float64); ok {
					held++
					if g := sum(s.l, rep.Rows); g != w {
						t.Errorf("%s: %v, want %v", s.key, g, w)
					}
				}
			}
			if held != c.values {
				t.Errorf("%d golden values held, want %d", held, c.values)
			}
			if c.format == Lengths {
				for _, k := range []string{"span_s", "rate", "cv", "prefix"} {
					if v, ok := got[k]; !ok || v != nil {
						t.Errorf("%s: %v, want null", k, v)
					}
				}
			}
		})
	}
}
