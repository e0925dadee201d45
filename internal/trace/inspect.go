package trace

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/stats"
)

// Report says what a trace's traffic is like. What does not exist (a rate
// without times, a correlation with a constant) is nil, and null in JSON.
type Report struct {
	File   string `json:"file"`
	Rows   int64  `json:"rows"`
	Format Format `json:"format"`
	// FormatWhy is how the format was known.
	FormatWhy string `json:"format_why"`
	// Dropped counts the broken rows, DroppedRows by reason.
	Dropped     int64     `json:"dropped"`
	DroppedRows []Dropped `json:"dropped_rows"`
	// Failed counts rows of requests that got no answer; they are among Rows.
	Failed int64 `json:"failed"`
	// OutOfOrder counts rows whose time lies before their predecessor's. All
	// figures of arrivals are of the sorted times.
	OutOfOrder int64 `json:"out_of_order"`

	// Start is the date of the first arrival, where the trace has dates.
	Start *time.Time `json:"start"`
	// SpanS is the time from the first to the last arrival, in seconds.
	SpanS *float64 `json:"span_s"`
	// Rate is (n-1)/span, in requests per second.
	Rate *float64 `json:"rate"`
	// CV is the coefficient of variation of the gaps between arrivals
	// (population). 1 does not mean Poisson: see IDC.
	CV *float64 `json:"cv"`
	// IDC is the index of dispersion for counts: variance over mean of the
	// numbers of arrivals in the whole windows of so many seconds from the
	// first arrival. 1 for Poisson at every window; nil for fewer than two
	// windows.
	IDC map[string]*float64 `json:"idc"`
	// QuantumS is the step in seconds that the times were cut to; nil where
	// they do not look cut.
	QuantumS *float64 `json:"quantum_s"`
	// EmptySeconds is the share of whole seconds without an arrival.
	EmptySeconds *float64 `json:"empty_seconds"`

	Input  *LengthReport `json:"input_tokens"`
	Output *LengthReport `json:"output_tokens"`
	// Pearson and Spearman are the correlations of input and output length.
	Pearson  *float64 `json:"pearson"`
	Spearman *float64 `json:"spearman"`

	// Prefix is nil where the trace has no block ids.
	Prefix   *PrefixReport `json:"prefix"`
	Warnings []string      `json:"warnings"`

	arrivals []float64 // counts over equal parts of the span, for the picture
}

// LengthReport describes lengths in tokens; percentiles are nearest rank.
type LengthReport struct {
	Mean float64 `json:"mean"`
	P50  int     `json:"p50"`
	P90  int     `json:"p90"`
	P95  int     `json:"p95"`
	P99  int     `json:"p99"`
	Max  int     `json:"max"`

	octaves []float64 // counts by bit length, for the picture
}

// PrefixReport says how much of the prompts an earlier row, in the order of the
// file, had already brought.
type PrefixReport struct {
	BlockSize    int   `json:"block_size"`
	Blocks       int64 `json:"blocks"`
	UniqueBlocks int64 `json:"unique_blocks"`
	HitBlocks    int64 `json:"hit_blocks"`
	// The shares, 0 to 1, that a cache without limit would hit: of blocks, of
	// tokens, of full blocks; and of tokens that an engine could skip.
	BlockHit     float64 `json:"block_hit"`
	TokenHit     float64 `json:"token_hit"`
	FullBlockHit float64 `json:"full_block_hit"`
	Skippable    float64 `json:"skippable"`
	// WarmHalfTokenHit is TokenHit over the second half of the rows, which do
	// not find an empty cache.
	WarmHalfTokenHit float64 `json:"warm_half_token_hit"`
	// LRU is the block hit by capacity in blocks.
	LRU map[string]LRUReport `json:"lru"`
	// RowsWithout counts rows without block ids.
	RowsWithout int64 `json:"rows_without"`
}

// LRUReport is the hit of blocks in a cache that drops the least recently used.
type LRUReport struct {
	HitBlocks int64   `json:"hit_blocks"`
	Rate      float64 `json:"rate"`
}

var (
	idcWindows    = []int{1, 10, 60, 300}               // seconds
	lruCapacities = []int{1_000, 5_000, 10_000, 50_000} // blocks
)

// Inspect reads a trace to its end. It holds each row's time and lengths (16
// bytes, 20 with block ids) and the ids met, but no rows.
func Inspect(r *Reader) (*Report, error) {
	var (
		at            column[time.Duration]
		input, output column[int32]
		hit           column[int32] // tokens; only where there are block ids
		untimed       int64
		last          = unset
		infinite      = plan.NewBlockCache(0)
		lru           []*plan.BlockCache
		rep           = &Report{File: r.info.Path, Format: r.info.Format, FormatWhy: r.info.Why, DroppedRows: []Dropped{}, Warnings: []string{}}
	)
	for _, c := range lruCapacities {
		lru = append(lru, plan.NewBlockCache(c))
	}
	for {
		row, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		input.add(int32(row.Input))
		output.add(int32(row.Output))
		if row.Failed {
			rep.Failed++
		}
		switch {
		case row.At != unset:
			if row.At < last {
				rep.OutOfOrder++
			}
			last = row.At
			at.add(row.At)
		case r.info.Timed:
			untimed++
		}
		if b := r.info.BlockTokens; len(row.Blocks) > 0 {
			k := infinite.Add(row.Blocks, row.Input, b)
			for hit.n < input.n-1 {
				hit.add(0)
			}
			hit.add(int32(min(int64(k)*int64(b), int64(row.Input))))
			for _, c := range lru {
				c.Add(row.Blocks, row.Input, b)
			}
		}
	}
	rep.Rows = int64(input.n)
	if rep.Rows == 0 {
		return nil, fmt.Errorf("%s: there is no row to read in it", r.info.Path)
	}
	for _, d := range r.Dropped() {
		rep.Dropped += d.Rows
		rep.DroppedRows = append(rep.DroppedRows, d)
	}

	if rep.OutOfOrder > 0 {
		sorted := slices.AppendSeq(make([]time.Duration, 0, at.n), at.all())
		slices.Sort(sorted)
		at = column[time.Duration]{n: len(sorted), parts: [][]time.Duration{sorted}}
	}
	if !r.info.Zero.IsZero() && at.n > 0 {
		start := r.info.Zero.Add(at.parts[0][0])
		rep.Start = &start
	}
	// One pair of buffers serves all that wants floating point: at millions of
	// rows they are most of the memory.
	x := make([]float64, input.n)
	rep.inspectArrivals(at, x)
	at = column[time.Duration]{}
	y := make([]float64, input.n)
	rep.inspectLengths(input, output, x, y)
	if n := infinite.Reuse().Requests; n > 0 {
		u := infinite.Reuse()
		rep.Prefix = &PrefixReport{
			BlockSize: r.info.BlockTokens, Blocks: u.Blocks, UniqueBlocks: int64(infinite.Len()), HitBlocks: u.HitBlocks,
			BlockHit: u.BlockHit(), TokenHit: u.TokenHit(), FullBlockHit: u.FullBlockHit(), Skippable: u.Skippable(),
			LRU: map[string]LRUReport{}, RowsWithout: rep.Rows - n,
		}
		for i, c := range lru {
			rep.Prefix.LRU[strconv.Itoa(lruCapacities[i])] = LRUReport{c.Reuse().HitBlocks, c.Reuse().BlockHit()}
		}
		var hits, tokens int64
		for i := input.n / 2; i < hit.n; i++ {
			hits += int64(hit.at(i))
			tokens += int64(input.at(i))
		}
		if tokens > 0 {
			rep.Prefix.WarmHalfTokenHit = float64(hits) / float64(tokens)
		}
	}
	rep.warn(r, untimed)
	return rep, nil
}

// column is a long list that grows without being copied, which would take twice
// the memory at the end.
type column[T any] struct {
	n     int
	parts [][]T // of partLen each, but the last; or a single one
}

const partLen = 1 << 16

func (c *column[T]) add(v T) {
	if c.n%partLen == 0 {
		c.parts = append(c.parts, make([]T, 0, partLen))
	}
	last := len(c.parts) - 1
	c.parts[last] = append(c.parts[last], v)
	c.n++
}

func (c *column[T]) at(i int) T {
	if len(c.parts) == 1 {
		return c.parts[0][i]
	}
	return c.parts[i/partLen][i%partLen]
}

func (c *column[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, p := range c.parts {
			for _, v := range p {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// figure is v, or nil where there is none.
func figure(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// pictureWidth is how many parts the span is cut into for the picture.
const pictureWidth = 60

// inspectArrivals takes sorted times; buf has room for one value a row.
func (rep *Report) inspectArrivals(at column[time.Duration], buf []float64) {
	rep.IDC = map[string]*float64{}
	for _, w := range idcWindows {
		rep.IDC[strconv.Itoa(w)] = nil
	}
	if at.n == 0 {
		return
	}
	first, last := at.at(0), at.at(at.n-1)
	span := last - first
	rep.SpanS = figure(span.Seconds())
	rep.Rate = figure(float64(at.n-1) / span.Seconds())
	gaps, previous := buf[:0], first
	for t := range at.all() {
		gaps = append(gaps, (t - previous).Seconds())
		previous = t
	}
	rep.CV = figure(stats.CV(gaps[1:]))
	if q := quantum(at.all()); q > 0 {
		rep.QuantumS = figure(q.Seconds())
	}
	for _, w := range idcWindows {
		// A few rows may span a year, and so many bins would say nothing.
		width := time.Duration(w) * time.Second
		if span/width < 2 || span/width > time.Duration(minBins+binsPerRow*at.n) {
			continue
		}
		counts := make([]int64, span/width)
		for _, part := range at.parts {
			bin := int((part[0] - first) / width) // of the part's first time
			start := first + time.Duration(bin)*width
			end := min(part[len(part)-1]+width, first+time.Duration(len(counts))*width)
			for i, c := range stats.BinCounts(part, start, end, width) {
				counts[bin+i] += c
			}
		}
		rep.IDC[strconv.Itoa(w)] = figure(stats.Dispersion(counts))
		if w == 1 {
			empty := 0
			for _, c := range counts {
				if c == 0 {
					empty++
				}
			}
			rep.EmptySeconds = figure(float64(empty) / float64(len(counts)))
		}
	}
	if span > 0 {
		rep.arrivals = make([]float64, pictureWidth)
		for t := range at.all() {
			rep.arrivals[stats.Batch(t-first, span, pictureWidth)]++
		}
	}
}

// The bins of an IDC are 8 bytes each; these keep them in proportion to the rows.
const (
	minBins    = 1 << 20
	binsPerRow = 16
)

// inspectLengths needs x and y as room for one value a row.
func (rep *Report) inspectLengths(input, output column[int32], x, y []float64) {
	for i := range x {
		x[i], y[i] = float64(input.at(i)), float64(output.at(i))
	}
	rep.Pearson = figure(stats.Pearson(x, y))
	rep.Input = describe(input, x)
	rep.Output = describe(output, y)
	rep.Spearman = figure(stats.Pearson(x, y)) // of the ranks, by now
}

// describe returns the figures of lengths and writes each one's rank, ties at
// the middle of theirs, over ranks. Lengths repeat, so counting them is much
// quicker than sorting, and needs no second copy.
func describe(lengths column[int32], ranks []float64) *LengthReport {
	counts := map[int32]int{}
	var sum int64
	for v := range lengths.all() {
		counts[v]++
		sum += int64(v)
	}
	values := slices.Sorted(maps.Keys(counts))
	n := lengths.n
	rep := &LengthReport{Mean: float64(sum) / float64(n), Max: int(values[len(values)-1])}
	rep.octaves = make([]float64, bits.Len32(uint32(rep.Max))+1)
	quantiles := []struct {
		p  stats.Permille
		to *int
	}{{500, &rep.P50}, {900, &rep.P90}, {950, &rep.P95}, {990, &rep.P99}}
	rank := make(map[int32]float64, len(values))
	below := 0
	for _, v := range values {
		c := counts[v]
		rank[v] = float64(below) + float64(c+1)/2
		below += c
		for len(quantiles) > 0 && quantiles[0].p.Rank(n) <= below {
			*quantiles[0].to = int(v)
			quantiles = quantiles[1:]
		}
		rep.octaves[bits.Len32(uint32(v))] += float64(c)
	}
	for i := range ranks {
		ranks[i] = rank[lengths.at(i)]
	}
	return rep
}

// warn adds what a reader of the figures should know.
func (rep *Report) warn(r *Reader, untimed int64) {
	say := func(format string, args ...any) {
		rep.Warnings = append(rep.Warnings, fmt.Sprintf(format, args...))
	}
	rows := func(n int64) string {
		if n == 1 {
			return "1 row"
		}
		return fmt.Sprintf("%d rows", n)
	}
	if rep.Dropped > 0 {
		say("%d of %d rows could not be read and take no part", rep.Dropped, rep.Dropped+rep.Rows)
	}
	if !r.info.Timed {
		say("the trace has lengths only: when to send must come from somewhere else")
	}
	if untimed > 0 {
		say("%s without a time of its own (a later turn of a session); arrivals are those of the other %d", rows(untimed), rep.Rows-untimed)
	}
	if rep.OutOfOrder > 0 {
		say("%s before its predecessor in time; a replay sorts them, rows of one time in the order of the file", rows(rep.OutOfOrder))
	}
	if rep.Failed > 0 {
		say("%s (%.2g %%) of failed requests: nobody knows how long the answers would have been", rows(rep.Failed), 100*float64(rep.Failed)/float64(rep.Rows))
	}
	if rep.QuantumS != nil {
		say("times are cut to about %.4g s, so CV, and IDC below a few such steps, are the clock's and not the traffic's; a replay as recorded sends in bursts, one that spreads draws a time inside each step, and must say so", *rep.QuantumS)
	} else if rep.EmptySeconds != nil && rep.Rate != nil {
		// A Poisson stream leaves exp(-rate) of its seconds empty.
		if poisson := math.Exp(-*rep.Rate); *rep.EmptySeconds > 0.2+poisson {
			say("on and off: %.0f %% of seconds are empty, where steady traffic of this rate leaves %.2g %%; no renewal process (gamma, Weibull) makes such traffic: replay the times, or use mmpp", 100**rep.EmptySeconds, 100*poisson)
		}
	}
	if rep.SpanS != nil {
		var missing, few []string
		for _, w := range idcWindows {
			switch bins := int(*rep.SpanS) / w; {
			case rep.IDC[strconv.Itoa(w)] == nil:
				missing = append(missing, strconv.Itoa(w))
			case bins < 10:
				few = append(few, fmt.Sprintf("%d s (%d windows)", w, bins))
			}
		}
		if missing != nil {
			say("the span of %.4g s has no IDC over %s s", *rep.SpanS, strings.Join(missing, ", "))
		}
		if few != nil {
			say("IDC rests on fewer than 10 windows at %s", strings.Join(few, ", "))
		}
	}
	if p := rep.Prefix; p != nil {
		say("prefix reuse is of these rows from an empty cache: fewer rows reuse less (token hit %.3f over all rows, %.3f over their second half), and requests that overlap cannot share before the first prefill ends", p.TokenHit, p.WarmHalfTokenHit)
		if p.RowsWithout > 0 {
			say("%s without block ids, not in the prefix figures", rows(p.RowsWithout))
		}
	}
	if r.surplus > 0 {
		say("%s with one block id more than the length needs; the id was left out", rows(r.surplus))
	}
	for _, key := range slices.Sorted(maps.Keys(r.unknown)) {
		say("the key %q is not known and was ignored in %s", key, rows(r.unknown[key]))
	}
}
