package analysis

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// session is the turns of one session, in order.
type session []row

// sessions calls yield with every session of the run.
func (s *Summarizer) sessions(yield func(session)) {
	for i := 0; i < len(s.rows); {
		j := i + 1
		for j < len(s.rows) && s.rows[j].session == s.rows[i].session {
			j++
		}
		yield(s.rows[i:j])
		i = j
	}
}

// complete tells whether every turn of the session was ok.
func (t session) complete() bool {
	for i := range t {
		if t[i].outcome != record.OK {
			return false
		}
	}
	return t[len(t)-1].lastTurn
}

// standing is a session's own: missed where a turn missed or was skipped, met
// where every turn was good, else pending. A turn that the end of the run cut
// off outside the window says nothing of the server.
func (s *Summarizer) standing(t session) standing {
	all := met
	for i := range t {
		switch r := &t[i]; {
		case r.outcome == record.Unfinished && !s.inWindow(r):
			all = pending
		case r.standing == missed || r.outcome == record.Skipped:
			return missed
		case r.standing != met:
			all = pending
		}
	}
	if !t[len(t)-1].lastTurn {
		return pending // the rest of it is not among the records
	}
	return all
}

func (s *Summarizer) attempts(v *view, lat *Latency) Attempts {
	a := Attempts{Reconnects: s.reconnects, Retries: s.retries}
	for _, r := range v.rows {
		if r.sent != record.Unset {
			a.Sent++
		}
	}
	t := newTrials(s.opt.Batches)
	s.sessions(func(ses session) {
		first := &ses[0]
		if !s.inWindow(first) {
			return
		}
		a.Sessions.Planned++
		if ses.complete() {
			a.Sessions.Complete++
		}
		switch s.standing(ses) {
		case met:
			a.Sessions.AllGood++
			t.add(v.batch(first), false)
		case missed:
			t.add(v.batch(first), true)
		}
	})
	a.Sessions.Attainment, _ = t.met(v.basis(lat)...)
	return a
}

func (s *Summarizer) rates(v *view) Rates {
	var out Rates
	var offered, sesOffered int64
	for _, r := range v.rows {
		if r.offered() {
			offered++
		}
	}
	var dispatched, completed, rejected, refused int64 // sessions
	var asked, delivered []time.Duration
	s.sessions(func(ses session) {
		first, last := &ses[0], &ses[0]
		if s.inWindow(first) && first.offered() {
			sesOffered++
		}
		if s.measured(first.sent) {
			dispatched++
		}
		for i := range ses {
			if ses[i].outcome.Offered() {
				last = &ses[i]
			}
		}
		if s.measured(last.done) {
			switch {
			case last.lastTurn && ses.complete():
				completed++
			case last.outcome == record.Rejected:
				rejected++
			case failed(last.outcome):
				refused++
			}
		}
		// A session seeded in mid-course did not arrive: its first turn was before the run.
		if first.turn == 0 {
			if s.measured(first.scheduled) {
				asked = append(asked, v.span.at(first.scheduled))
			}
			if at := first.released(); s.measured(at) {
				delivered = append(delivered, v.span.at(at))
			}
		}
	})
	five := func(o, d, c, r, f int64) FiveRates {
		per := func(n int64) *float64 { return v.span.perSecond(float64(n)) }
		return FiveRates{per(o), per(d), per(c), per(r), per(f)}
	}
	in := &s.inside.turns
	out.FiveRates = five(offered, in.dispatched, in.completed, in.rejected, in.failed)
	out.Sessions = five(sesOffered, dispatched, completed, rejected, refused)
	out.IDC = IDC{Asked: dispersion(asked, v.span.length), Delivered: dispersion(delivered, v.span.length)}
	return out
}

// leastBins is how many bins an index of dispersion needs to say anything: with
// ten its 95 % band around 1 is still 0.3 to 2.1.
const leastBins = 10

func dispersion(arrivals []time.Duration, length time.Duration) IDCAt {
	at := func(width time.Duration) *float64 {
		if length/width < leastBins || length/width > longestSeries {
			return nil
		}
		if d := stats.Dispersion(stats.BinCounts(arrivals, 0, length, width)); !math.IsNaN(d) {
			return &d
		}
		return nil
	}
	return IDCAt{At1: at(time.Second), At10: at(10 * time.Second), At60: at(time.Minute)}
}

// tokens sets asked beside delivered, over the ok turns: any other was cut short.
func (v *view) tokens() Tokens {
	t := Tokens{Source: map[string]int64{}}
	lengths := func(of func(*row) int32) *TokenDistribution {
		var x []int64
		for _, r := range v.rows {
			if n := of(r); n >= 0 && r.outcome == record.OK {
				x = append(x, int64(n))
			}
		}
		return tokenDistribution(x)
	}
	t.Input = TokenFigure{lengths(func(r *row) int32 { return r.askedInput }), lengths(func(r *row) int32 { return r.input })}
	t.Output = TokenFigure{lengths(func(r *row) int32 { return r.askedOutput }), lengths(func(r *row) int32 { return r.output })}
	t.Reasoning.Delivered = lengths(func(r *row) int32 { return r.reasoning })
	t.Cached.Delivered = lengths(func(r *row) int32 { return r.cached })
	for _, r := range v.rows {
		if r.outcome == record.OK {
			if name := v.s.names[r.source]; name != "" {
				t.Source[name]++
			}
		}
	}
	return t
}

func tokenDistribution(x []int64) *TokenDistribution {
	if len(x) == 0 {
		return nil
	}
	slices.Sort(x)
	d := &TokenDistribution{N: int64(len(x)), Max: ptr(x[len(x)-1])}
	for _, n := range x {
		d.Total += n
	}
	d.Mean = ptr(float64(d.Total) / float64(d.N))
	at := func(p stats.Permille) *int64 {
		n, _ := stats.Sorted[int64]{Values: x}.Quantile(p)
		return &n
	}
	d.P50, d.P90, d.P95, d.P99 = at(stats.P50), at(stats.P90), at(stats.P95), at(stats.P99)
	return d
}

// mostSlices is how many values of one key become slices; the rest of them, the
// ones with the fewest turns, are left out and a finding says so.
const mostSlices = 100

// slices cuts the window by each key that has more than one value. Turns
// without a name for a key (no tenant) are in none of its slices; those whose
// length is unknown are a slice of their own, the last.
func (s *Summarizer) slices(v *view) []Slice {
	out := []Slice{}
	for _, k := range s.keys() {
		parts, order := map[string][]*row{}, []string{}
		least := map[string]int64{}
		for _, r := range v.rows {
			name, rank, ok := k.of(r)
			if !ok {
				continue
			}
			if _, seen := parts[name]; !seen {
				order = append(order, name)
				least[name] = rank
			}
			parts[name] = append(parts[name], r)
		}
		if len(order) < 2 {
			continue
		}
		if len(order) > mostSlices {
			slices.SortFunc(order, func(a, b string) int {
				if d := len(parts[b]) - len(parts[a]); d != 0 {
					return d
				}
				return compare(a, b)
			})
			order = order[:mostSlices]
		}
		slices.SortFunc(order, func(a, b string) int {
			if least[a] != least[b] {
				return compare(least[a], least[b])
			}
			return compare(a, b)
		})
		for _, name := range order {
			part := s.view(parts[name], v.span)
			if k.name == "phase" {
				part.span = s.phaseSpan(parts[name][0])
			}
			lat := part.latency(false)
			out = append(out, Slice{By: k.name, Value: name, Counts: part.counts(), Latency: lat, SLO: part.slo(&lat)})
		}
	}
	return out
}

func compare[T int64 | string](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// phaseSpan is the measured time of one phase: what its rates are per second of.
func (s *Summarizer) phaseSpan(r *row) span {
	p := s.phases[r.phase]
	p.End = s.lastOf(p)
	return span{phases: s.phases[r.phase : r.phase+1 : r.phase+1], length: p.End - p.Start}
}

// key is what the window can be cut by: of returns a turn's value, and a rank
// that orders values before their names do.
type key struct {
	name string
	of   func(*row) (value string, rank int64, ok bool)
}

func (s *Summarizer) keys() []key {
	named := func(id func(*row) int32) func(*row) (string, int64, bool) {
		return func(r *row) (string, int64, bool) {
			name := s.names[id(r)]
			return name, 0, name != ""
		}
	}
	return []key{
		{"class", named(func(r *row) int32 { return r.class })},
		{"phase", func(r *row) (string, int64, bool) { return s.phases[r.phase].Name, int64(r.phase), true }},
		{"input_tokens", func(r *row) (string, int64, bool) {
			if r.askedInput >= 0 {
				return bucket(r.askedInput)
			}
			return bucket(r.input)
		}},
		{"output_tokens", func(r *row) (string, int64, bool) {
			// By what was asked: what was delivered depends on how the turn went.
			return bucket(r.askedOutput)
		}},
		{"tenant", named(func(r *row) int32 { return r.tenant })},
		{"priority", func(r *row) (string, int64, bool) { return fmt.Sprint(r.priority), int64(r.priority), true }},
		{"model", named(func(r *row) int32 { return r.model })},
	}
}

// bucket names the powers of four that a length lies between: 0-63, 64-255,
// 256-1023 and so on. A length is unknown where nothing came of a turn whose
// prompt holds a live reply or real text.
func bucket(tokens int32) (name string, rank int64, ok bool) {
	if tokens < 0 {
		return "unknown", math.MaxInt64, true
	}
	low, high := int64(0), int64(64)
	for int64(tokens) >= high {
		low, high = high, high*4
	}
	return fmt.Sprintf("%d-%d", low, high-1), low, true
}
