package analysis

import (
	"cmp"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// view is a set of turns looked at together, the whole window or a slice of it,
// over the measured time they can lie in.
type view struct {
	s    *Summarizer
	rows []*row
	span span
}

func (s *Summarizer) view(rows []*row, w span) *view { return &view{s, rows, w} }

// where is a view of some of the rows.
func (v *view) where(keep func(*row) bool) *view {
	w := &view{s: v.s, span: v.span}
	for _, r := range v.rows {
		if keep(r) {
			w.rows = append(w.rows, r)
		}
	}
	return w
}

// batch is the block of the view's time that a turn is due in.
func (v *view) batch(r *row) int {
	return stats.Batch(v.span.at(r.scheduled), v.span.length, v.s.opt.Batches)
}

func (v *view) counts() Counts {
	var n [record.NotDue + 1]int64
	for _, r := range v.rows {
		n[r.outcome]++
	}
	return Counts{
		Planned: int64(len(v.rows)), OK: n[record.OK], Rejected: n[record.Rejected], HTTPError: n[record.HTTPError],
		StreamError: n[record.StreamError], Empty: n[record.Empty], Timeout: n[record.Timeout], ConnectError: n[record.ConnectError],
		Cancelled: n[record.Cancelled], Unfinished: n[record.Unfinished], Shed: n[record.Shed], Skipped: n[record.Skipped], NotDue: n[record.NotDue],
	}
}

// latency works out the figures of each request. Pooled ones (ITL, gap) are
// the Summarizer's.
func (v *view) latency(histograms bool) Latency {
	var l Latency
	for _, f := range []struct {
		*figure
		to *Figure
	}{
		{&ttft, &l.TTFT}, {&serviceTTFT, &l.ServiceTTFT}, {&firstAnswer, &l.FirstAnswer}, {&tpot, &l.TPOT}, {&stall, &l.Stall}, {&e2e, &l.E2E},
		{&lateness, &l.Lateness}, {&capWait, &l.CapWait}, {&connect, &l.Connect}, {&sendDelay, &l.SendDelay},
	} {
		*f.to = v.figure(f.figure, v.s.limit(f.name), histograms)
	}
	return l
}

// limit returns the limit that a figure has for a row's class: that of each
// request before those of the run, or 0 where there is none.
func (s *Summarizer) limit(figure string) func(*row) time.Duration {
	byClass := map[int32]time.Duration{}
	return func(r *row) time.Duration {
		limit, ok := byClass[r.class]
		if !ok {
			for _, o := range s.objectives(r) {
				if o.Figure == figure && (limit == 0 || o.Quantile == 0) {
					limit = o.Limit
				}
			}
			byClass[r.class] = limit
		}
		return limit
	}
}

// value is one turn's figure: v where it came back, a lower bound where not.
type value struct {
	v        time.Duration
	batch    int32
	over, ok bool // beyond the limit; of a turn that was ok
}

// sample is one figure over a set of turns, ascending.
type sample struct {
	values    []value
	gone      []value
	undefined int64
}

func (v *view) figure(f *figure, limit func(*row) time.Duration, histogram bool) Figure {
	var all, ok sample
	all.values = make([]value, 0, len(v.rows))
	for _, r := range v.rows {
		if !r.offered() {
			continue
		}
		d, has := f.value(r)
		most := limit(r)
		switch x := (value{v: d, batch: int32(v.batch(r)), ok: r.outcome == record.OK}); has {
		case exists:
			x.over = most > 0 && d > most
			all.values = append(all.values, x)
		case gone:
			x.v, x.over = r.bound(v.s.end), most > 0
			all.gone = append(all.gone, x)
		case undefined:
			all.undefined++
			if x.ok {
				ok.undefined++
			}
		}
	}
	all.sort()
	out := Figure{All: all.distribution(v.s.opt.Batches, histogram)}
	// The order holds, so the ok ones need no sorting; they take the place of all.
	ok.values = all.values[:0]
	for _, x := range all.values {
		if x.ok {
			ok.values = append(ok.values, x)
		}
	}
	out.OK = ok.distribution(v.s.opt.Batches, histogram)
	return out
}

func (s *sample) sort() {
	up := func(a, b value) int { return cmp.Compare(a.v, b.v) }
	slices.SortFunc(s.values, up)
	slices.SortFunc(s.gone, up)
}

func (s *sample) n() int { return len(s.values) + len(s.gone) }

// bound returns the time that the value of a rank is known to be at least:
// itself, or, where it did not come back, the longest that did and what it is
// known to have waited (the shortest bound for the first of them, and so on),
// whichever is longer. false where nothing is known.
func (s *sample) bound(rank int) (d time.Duration, known bool) {
	if rank < 1 || rank > s.n() {
		return 0, false
	}
	if rank <= len(s.values) {
		return s.values[rank-1].v, true
	}
	d = s.gone[rank-len(s.values)-1].v
	if len(s.values) > 0 {
		return max(d, s.values[len(s.values)-1].v), true
	}
	return d, d > 0
}

// effective is how many independent values the sample is worth: n over the
// larger of two design effects over the window's batches, of the values beyond
// the limit and of those beyond the sample's own p90 (measurement contract,
// section 5). alike is set where neighbouring batches are not independent in
// either.
func (s *sample) effective(batches int) (eff float64, alike bool) {
	sizes, overLimit, overP90 := make([]int, batches), make([]int, batches), make([]int, batches)
	p90 := stats.P90.Rank(s.n())
	add := func(x value, beyond bool) {
		sizes[x.batch]++
		if x.over {
			overLimit[x.batch]++
		}
		if beyond {
			overP90[x.batch]++
		}
	}
	for _, x := range s.values {
		add(x, p90 <= len(s.values) && x.v > s.values[p90-1].v)
	}
	for _, x := range s.gone {
		add(x, true)
	}
	limit, limitAlike := stats.DesignEffect(overLimit, sizes)
	own, ownAlike := stats.DesignEffect(overP90, sizes)
	return float64(s.n()) / max(limit, own), limitAlike || ownAlike
}

func (s *sample) distribution(batches int, histogram bool) Distribution {
	d := Distribution{N: int64(s.n()), Missing: int64(len(s.gone)), Undefined: s.undefined}
	if s.n() == 0 {
		return d
	}
	eff, alike := s.effective(batches)
	d.NEffective, d.BlocksAlike = &eff, alike
	for _, q := range []struct {
		p  stats.Permille
		to *Quantile
	}{{stats.P50, &d.P50}, {stats.P90, &d.P90}, {stats.P95, &d.P95}, {stats.P99, &d.P99}, {stats.P999, &d.P999}} {
		*q.to = s.quantile(q.p, eff)
	}
	if len(s.gone) == 0 {
		sum := 0.0
		for _, x := range s.values {
			sum += float64(x.v)
		}
		d.Mean = ptr(sum / float64(s.n()) / 1e9)
		d.Max = ptr(s.values[len(s.values)-1].v.Seconds())
	}
	if histogram && len(s.values) > 0 {
		var h stats.Histogram
		for _, x := range s.values {
			h.Add(int64(x.v))
		}
		d.Histogram = histogramOf(&h)
	}
	return d
}

func (s *sample) quantile(p stats.Permille, eff float64) Quantile {
	rank := p.Rank(s.n())
	q := Quantile{Censored: rank > len(s.values)}
	seconds := func(rank int) *float64 {
		if d, ok := s.bound(rank); ok {
			return ptr(d.Seconds())
		}
		return nil
	}
	q.Value = seconds(rank)
	low, high := stats.QuantileRanks(s.n(), eff, p, stats.TwoSided95)
	q.Low = seconds(low)
	if high >= 1 && high <= len(s.values) {
		q.High = seconds(high)
		return q
	}
	if more, ok := stats.MoreForHigh(s.n(), len(s.gone), eff, p, stats.TwoSided95); ok {
		q.More = ptr(int64(max(more, 1)))
	}
	return q
}

// distribution of pooled values: quantiles from the histogram, within 0.8 %,
// and no intervals, for successive gaps of one stream are not independent.
func (p *pooledFigure) distribution() Distribution {
	d := Distribution{N: p.h.N(), Undefined: p.undefined}
	mean, ok := p.h.Mean()
	if !ok {
		return d
	}
	d.Mean = ptr(mean / 1e9)
	d.Max = ptr(time.Duration(p.h.Max()).Seconds())
	d.P50, d.P90, d.P95 = pooledQuantile(&p.h, stats.P50), pooledQuantile(&p.h, stats.P90), pooledQuantile(&p.h, stats.P95)
	d.P99, d.P999 = pooledQuantile(&p.h, stats.P99), pooledQuantile(&p.h, stats.P999)
	d.Histogram = histogramOf(&p.h)
	return d
}

func pooledQuantile(h *stats.Histogram, p stats.Permille) Quantile {
	if v, ok := h.Quantile(p); ok {
		return Quantile{Value: ptr(time.Duration(v).Seconds())}
	}
	return Quantile{}
}

func histogramOf(h *stats.Histogram) *Histogram {
	out := &Histogram{}
	for b := range h.Buckets() {
		out.Lower = append(out.Lower, time.Duration(b.Low).Seconds())
		out.Upper = append(out.Upper, time.Duration(b.High).Seconds())
		out.Count = append(out.Count, b.Count)
	}
	return out
}

// share is k of n with its interval, n and k being worth eff/n of themselves.
func share(k, n int, eff float64) Share {
	s := Share{N: int64(n)}
	if n == 0 {
		return s
	}
	s.NEffective = &eff
	s.Value = ptr(float64(k) / float64(n))
	low, high := stats.ClopperPearson(float64(k)*eff/float64(n), eff, stats.TwoSided95)
	s.Low, s.High = &low, &high
	return s
}

// trials counts successes and failures by batch.
type trials struct{ misses, sizes []int }

func newTrials(batches int) trials { return trials{make([]int, batches), make([]int, batches)} }

func (t *trials) add(batch int, miss bool) {
	t.sizes[batch]++
	if miss {
		t.misses[batch]++
	}
}

// met is the share of trials that did not miss. latencies are what the trials
// stand on: where those are worth less, so are these.
func (t *trials) met(latencies ...*Distribution) (s Share, k int) {
	n, misses := 0, 0
	for j := range t.sizes {
		n += t.sizes[j]
		misses += t.misses[j]
	}
	effect, alike := stats.DesignEffect(t.misses, t.sizes)
	worth := 1 / effect
	for _, d := range latencies {
		if d.N > 0 {
			worth = min(worth, *d.NEffective/float64(d.N))
			alike = alike || d.BlocksAlike
		}
	}
	k = n - misses
	s = share(k, n, float64(n)*worth)
	s.BlocksAlike = alike
	return s, k
}

// slo judges the view. lat is its latency, whose design effects count too.
func (v *view) slo(lat *Latency) SLOResult {
	s := v.s
	out := SLOResult{
		Objectives: []ObjectiveResult{}, Judgment: NoVerdict,
		Violations: Violations{ByObjective: map[string]int64{}, ByOutcome: map[string]int64{}},
	}
	attained := newTrials(s.opt.Batches)
	var goodTokens, offered, ok, cancelled int64
	for _, r := range v.rows {
		if !r.offered() {
			continue
		}
		offered++
		switch r.outcome {
		case record.OK:
			ok++
		case record.Cancelled:
			cancelled++
		}
		switch r.standing {
		case met:
			out.Good++
			goodTokens += int64(max(r.output, 0))
			attained.add(v.batch(r), false)
		case missed:
			attained.add(v.batch(r), true)
			if r.outcome != record.OK && r.outcome != record.Cancelled {
				out.Violations.ByOutcome[r.outcome.String()]++
			}
			judge(r, s.objectives(r), func(figure string) { out.Violations.ByObjective[figure]++ })
		case unjudged:
			out.Unjudged++
		case pending:
			out.CensoredHangUps++
		}
	}
	share, k := attained.met(v.basis(lat)...)
	out.Attainment = share
	if target := s.opt.SLO.Attainment; target > 0 {
		out.Target = &target
		out.Judgment = judgeShare(&out.Attainment, target)
		if a := out.Attainment; out.Judgment == Inconclusive && a.N > 0 {
			if more, ok := stats.MoreToSettle(k, int(a.N), *a.NEffective, target, stats.TwoSided95); ok && more > 0 {
				out.More = ptr(int64(more))
			}
		}
	}
	out.ErrorShare = ratio(offered-ok-cancelled, offered-cancelled)
	out.GoodputRequests = v.span.perSecond(float64(out.Good))
	out.GoodputOutputTokens = v.span.perSecond(float64(goodTokens))
	out.Objectives = append(out.Objectives, v.objectives()...)
	return out
}

// basis is the latencies that attainment stands on: those with an objective of
// each request, or the TTFT where there is none.
func (v *view) basis(lat *Latency) []*Distribution {
	figures := map[string]*Distribution{
		"ttft": &lat.TTFT.All, "service_ttft": &lat.ServiceTTFT.All, "first_answer": &lat.FirstAnswer.All,
		"tpot": &lat.TPOT.All, "stall": &lat.Stall.All, "e2e": &lat.E2E.All,
	}
	var out []*Distribution
	v.eachObjective(func(_ string, o Objective) {
		if d := figures[o.Figure]; d != nil && o.Quantile == 0 {
			out = append(out, d)
		}
	})
	if out == nil {
		out = append(out, figures["ttft"])
	}
	return out
}

// eachObjective calls yield with every objective and the class it belongs to,
// empty for the global ones: the global ones first, then by class.
func (v *view) eachObjective(yield func(class string, o Objective)) {
	slo := &v.s.opt.SLO
	for _, o := range slo.Objectives {
		yield("", o)
	}
	classes := make([]string, 0, len(slo.Classes))
	for c := range slo.Classes {
		classes = append(classes, c)
	}
	slices.Sort(classes)
	for _, c := range classes {
		for _, o := range slo.Classes[c] {
			yield(c, o)
		}
	}
}

func (v *view) objectives() []ObjectiveResult {
	var out []ObjectiveResult
	slo := &v.s.opt.SLO
	v.eachObjective(func(class string, o Objective) {
		under := v.where(func(r *row) bool {
			name := v.s.names[r.class]
			if class != "" {
				return name == class
			}
			own := slo.Classes[name]
			return !slices.ContainsFunc(own, func(c Objective) bool { return c.Figure == o.Figure })
		})
		if len(under.rows) == 0 && len(v.rows) > 0 && class != "" {
			return // a slice without that class
		}
		out = append(out, under.objective(class, o))
	})
	return out
}

// objective judges one objective over the turns it holds for. The share of
// turns within the limit and the interval of the quantile say the same: the
// quantile's high end is within the limit exactly where the share's low end is
// at least the level.
func (v *view) objective(class string, o Objective) ObjectiveResult {
	f := sloFigures[o.Figure]
	out := ObjectiveResult{Figure: o.Figure, Class: class, Limit: o.Limit.Seconds(), Judgment: NoVerdict}
	t := newTrials(v.s.opt.Batches)
	for _, r := range v.rows {
		if !r.offered() {
			continue
		}
		switch d, has := f.value(r); has {
		case exists:
			t.add(v.batch(r), d > o.Limit)
		case gone:
			// A user who hung up as planned before the limit had passed tells nothing
			// of this request's objective; the run's quantile counts all the same.
			if o.Quantile == 0 && r.outcome == record.Cancelled && r.bound(v.s.end) <= o.Limit {
				continue
			}
			t.add(v.batch(r), true)
		}
	}
	dist := v.figure(f, func(*row) time.Duration { return o.Limit }, false).All
	share, k := t.met(&dist)
	out.Met = share
	if o.Quantile == 0 {
		return out
	}
	out.Quantile = quantileName(o.Quantile)
	q := Quantile{}
	if dist.N > 0 {
		q = v.quantile(f, o.Quantile, *dist.NEffective)
	}
	out.Observed = &q
	out.Judgment = judgeShare(&out.Met, o.Quantile.Share())
	if m := out.Met; out.Judgment == Inconclusive && m.N > 0 {
		if more, ok := stats.MoreToSettle(k, int(m.N), *m.NEffective, o.Quantile.Share(), stats.TwoSided95); ok && more > 0 {
			out.More = ptr(int64(more))
		}
	}
	return out
}

// quantile is one quantile of a figure over the view.
func (v *view) quantile(f *figure, p stats.Permille, eff float64) Quantile {
	var s sample
	for _, r := range v.rows {
		if !r.offered() {
			continue
		}
		switch d, has := f.value(r); has {
		case exists:
			s.values = append(s.values, value{v: d})
		case gone:
			s.gone = append(s.gone, value{v: r.bound(v.s.end)})
		}
	}
	s.sort()
	return s.quantile(p, eff)
}
