package trace

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/stats"
)

func TestWarnings(t *testing.T) {
	poisson := func(n int, perSecond float64) string {
		rng := rand.New(rand.NewPCG(1, 2))
		var b strings.Builder
		b.WriteString("arrived_at,num_prefill_tokens,num_decode_tokens\n")
		at := 0.0
		for range n {
			at += rng.ExpFloat64() / perSecond
			fmt.Fprintf(&b, "%.6f,%d,%d\n", at, 1+rng.IntN(100), 1+rng.IntN(100))
		}
		return b.String()
	}
	report := func(t *testing.T, text string) *Report {
		r, err := NewReader(strings.NewReader(text), "f", Options{})
		if err != nil {
			t.Fatal(err)
		}
		rep, err := Inspect(r)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	file := func(t *testing.T, name string) *Report { return inspectFile(t, filepath.Join(traces, name), Options{}) }
	for _, c := range []struct {
		name string
		rep  func(*testing.T) *Report
		want []string // one warning for each, in this order, and no other
	}{
		{"an hour of Poisson has none", func(t *testing.T) *Report { return report(t, poisson(7200, 2)) }, nil},
		{"on and off", func(t *testing.T) *Report { return file(t, "azure_code_2023.csv") }, []string{"on and off: 77 %", "300 s (2 windows)"}},
		{"cut times, and no on and off because of them", func(t *testing.T) *Report { return file(t, "mooncake_conversation.jsonl") },
			[]string{"times are cut to about 3 s", "no IDC over 300 s", "60 s (5 windows)", "fewer rows reuse less (token hit 0.216"}},
		{"a failed row", func(t *testing.T) *Report { return file(t, "burstgpt_1.csv") }, []string{"1 row (3.3 %) of failed requests", "fewer than 10 windows"}},
		{"no times", func(t *testing.T) *Report { return file(t, "sharegpt_lengths.csv") }, []string{"lengths only"}},
		{"a row out of order and a broken one", func(t *testing.T) *Report { return report(t, poisson(7200, 2)+"1.5,1,1\n9,x,1\n") },
			[]string{"1 of 7202 rows could not be read", "1 row before its predecessor"}},
		{"later turns, unknown keys, ids too many, rows without ids", func(t *testing.T) *Report {
			return report(t, `{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1,2],"colour":"red"}`+"\n"+
				`{"session_id":"a","delay":5,"input_length":5,"output_length":1,"colour":"blue","size":3}`)
		}, []string{"1 row without a time", "no IDC over 1, 10, 60, 300 s", "fewer rows reuse less", "1 row without block ids", "1 row with one block id more", `"colour" is not known and was ignored in 2 rows`, `"size" is not known and was ignored in 1 row`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.rep(t).Warnings
			if len(got) != len(c.want) {
				t.Errorf("%d warnings, want %d", len(got), len(c.want))
			}
			for i, w := range c.want {
				if i >= len(got) || !strings.Contains(got[i], w) {
					t.Errorf("no warning %d with %q in %q", i, w, got)
				}
			}
			if got == nil {
				t.Error("warnings are null in JSON")
			}
		})
	}
}

func TestInspectOfAlmostNothing(t *testing.T) {
	const head = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
	r, err := NewReader(strings.NewReader(head), "f", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(r); err == nil || !strings.Contains(err.Error(), "no row") {
		t.Error(err)
	}
	for _, text := range []string{head + "3,5,7\n", head + "3,5,7\n3,5,7\n"} {
		r, err := NewReader(strings.NewReader(text), "f", Options{})
		if err != nil {
			t.Fatal(err)
		}
		rep, err := Inspect(r)
		if err != nil {
			t.Fatal(err)
		}
		m := asJSON(t, rep)
		for _, k := range []string{"rate", "cv", "pearson", "spearman", "prefix", "quantum_s"} {
			if m[k] != nil {
				t.Errorf("%s is %v, want null", k, m[k])
			}
		}
		if at(m, "idc", "1") != nil || at(m, "span_s") != 0.0 || at(m, "input_tokens", "p99") != 5.0 {
			t.Errorf("%v", m)
		}
	}
}

// Ranks and quantiles by counting are those by sorting.
func TestRanksAgainstSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var c column[int32]
	var values []float64
	for range 2 * partLen {
		v := int32(rng.ExpFloat64() * 300)
		c.add(v)
		values = append(values, float64(v))
	}
	ranks := make([]float64, c.n)
	rep := describe(c, ranks)
	sorted := slices.Sorted(slices.Values(values))
	for i, v := range values {
		first, _ := slices.BinarySearch(sorted, v)
		after, _ := slices.BinarySearch(sorted, v+1)
		// Equal values share the mean of the ranks first+1 to after.
		if want := float64(first+1+after) / 2; ranks[i] != want {
			t.Fatalf("value %d: rank %v, want %v", i, ranks[i], want)
		}
	}
	for _, q := range []struct {
		p   stats.Permille
		got int
	}{{500, rep.P50}, {900, rep.P90}, {950, rep.P95}, {990, rep.P99}, {1000, rep.Max}} {
		if want, _ := (stats.Sorted[float64]{Values: sorted}).Quantile(q.p); q.got != int(want) {
			t.Errorf("quantile %d: %d, want %v", q.p, q.got, want)
		}
	}
}

// Counting the parts of a long column is counting all of it.
func TestIDCOverParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var c column[time.Duration]
	var all []time.Duration
	now := time.Hour
	for range 3*partLen + 17 {
		now += time.Duration(rng.ExpFloat64() * 1e7)
		c.add(now)
		all = append(all, now)
	}
	var rep Report
	rep.inspectArrivals(c, make([]float64, c.n))
	for _, w := range []int{1, 10, 60} {
		want := stats.Dispersion(stats.BinCounts(all, all[0], all[len(all)-1], time.Duration(w)*time.Second))
		if got := rep.IDC[fmt.Sprint(w)]; got == nil || *got != want {
			t.Errorf("IDC at %d s: %v, want %v", w, got, want)
		}
	}
}

func TestTextReport(t *testing.T) {
	var b bytes.Buffer
	if err := inspectFile(t, filepath.Join(traces, "mooncake_conversation.jsonl"), Options{}).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"rows        1000 read, 0 dropped, 0 failed\n",
		"IDC         7.083 at 1 s, 2.195 at 10 s, 1.864 at 60 s, — at 300 s\n",
		"tokens     mean   p50    p90    p95    p99     max  by powers of two\n",
		"input  13732.9  8429  28845  45721  88258  121924            ▄▄▄▇█▇▂▂\n",
		"LRU of 10000 blocks  17.3 % of blocks\n",
		"warning: times are cut to about 3 s",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// azureRows is a file of n rows in Azure's form, made while it is read.
type azureRows struct {
	n, made int
	buf     []byte
	rng     *rand.Rand
	at      time.Time
}

func newAzureRows(n int) *azureRows {
	return &azureRows{n: n, rng: rand.New(rand.NewPCG(1, 2)), at: time.Date(2024, 5, 10, 0, 0, 0, 0, time.UTC), buf: []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n")}
}

func (a *azureRows) Read(p []byte) (int, error) {
	for len(a.buf) < len(p) && a.made < a.n {
		a.at = a.at.Add(time.Duration(a.rng.ExpFloat64() * 36e6))
		a.buf = a.at.AppendFormat(a.buf, "2006-01-02 15:04:05.000000-07:00")
		a.buf = strconv.AppendInt(append(a.buf, ','), 1+a.rng.Int64N(8000), 10)
		a.buf = strconv.AppendInt(append(a.buf, ','), 1+int64(a.rng.ExpFloat64()*30), 10)
		a.buf = append(a.buf, '\n')
		a.made++
	}
	if len(a.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.buf)
	a.buf = append(a.buf[:0], a.buf[n:]...)
	return n, nil
}

func TestARowCostsNoAllocation(t *testing.T) {
	// Making the rows allocates, so they are made first.
	var b bytes.Buffer
	if _, err := io.Copy(&b, newAzureRows(5000)); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(&b, "f", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(3000, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a row", n)
	}
}

// A trace of millions of rows is inspected in a few times the 16 bytes a row
// that its figures need.
func TestInspectMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("reads a million rows")
	}
	const rows = 1_000_000
	r, err := NewReader(newAzureRows(rows), "f", Options{})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Inspect(r); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// All that was ever allocated is above what was held at once: 16 bytes in
	// columns and 16 in buffers.
	if got := float64(after.TotalAlloc-before.TotalAlloc) / rows; got > 48 {
		t.Errorf("%.0f bytes allocated a row", got)
	}
}

func BenchmarkInspect(b *testing.B) {
	var file bytes.Buffer
	io.Copy(&file, newAzureRows(500_000))
	b.SetBytes(int64(file.Len()))
	b.ReportAllocs()
	for b.Loop() {
		r, err := NewReader(bytes.NewReader(file.Bytes()), "f", Options{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Inspect(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadMooncake(b *testing.B) {
	rows, _, _, err := load(filepath.Join(traces, "mooncake_conversation.jsonl"), Options{}, 0)
	if err != nil {
		b.Fatal(err)
	}
	var file bytes.Buffer
	w := NewWriter(&file, 0)
	for _, r := range rows {
		w.Write(r)
	}
	w.Flush()
	b.SetBytes(int64(file.Len()))
	b.ReportAllocs()
	for b.Loop() {
		r, err := NewReader(bytes.NewReader(file.Bytes()), "f", Options{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := readAll(r); err != nil {
			b.Fatal(err)
		}
	}
}
