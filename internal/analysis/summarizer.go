package analysis

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
)

// Options says what the records do not. The zero value takes the whole run as
// the measured window and asks no SLO.
type Options struct {
	// Facts may also come later, by Know.
	Facts
	// Phases of the run, in order and not overlapping. Empty: one measured phase
	// from 0 to the last stamp.
	Phases []plan.Phase
	SLO    SLO
	Limits Limits
	// Batches is how many blocks of equal length the window is cut into for the
	// intervals; 0: 20.
	Batches int
	// ClosedLoop is set where clients wait for their answers: there is then no
	// planned arrival to hold the run to.
	ClosedLoop bool
	// CutShort is set where the run did not live to record its last turns: when
	// those were released is unknown, and proves nothing against it.
	CutShort bool
}

// Planned counts what the plan holds.
type Planned struct{ Sessions, Turns int64 }

// Summarizer takes the records of a run and gives its Summary. Records may come
// in any order, each once; the summary does not depend on the order. It is not
// safe for concurrent use.
type Summarizer struct {
	opt    Options
	phases []plan.Phase
	slo    map[string][]Objective // by class

	rows  []row
	names []string
	ids   map[string]int32
	end   time.Duration // the last stamp of any record
	cut   time.Duration // where the load ended before its plan did

	series seriesCounts
	inside insideCounts
	pooled struct{ itlAll, itlOK, gapAll, gapOK pooledFigure }
	stamps struct {
		width                 stats.Histogram // nanoseconds
		sources               map[string]int64
		reads, multi, refused int64
		events                int64
	}
	reconnects, retries int64
}

// pooledFigure is a figure of tokens or gaps, all requests together.
type pooledFigure struct {
	h         stats.Histogram // nanoseconds
	undefined int64           // requests without it
}

// insideCounts is what happened inside the window, whenever it was scheduled.
// Token counts are in millionths, so that their sums are exact.
type insideCounts struct {
	turns                   struct{ dispatched, completed, rejected, failed int64 }
	outputMicro, inputMicro int64
}

const micro = 1_000_000

// New returns an empty Summarizer. It fails where the options contradict
// themselves: an objective on a figure that cannot have one, phases that overlap.
func New(opt Options) (*Summarizer, error) {
	if opt.Batches == 0 {
		opt.Batches = 20
	}
	if opt.Batches < 2 || opt.Batches > math.MaxInt16 {
		return nil, fmt.Errorf("batches: %d; use at least 2 (20 by default)", opt.Batches)
	}
	opt.Limits = opt.Limits.withDefaults()
	if a := opt.SLO.Attainment; !(a >= 0 && a <= 1) {
		return nil, fmt.Errorf("slo: attainment is a share from 0 to 1, not %v", a)
	}
	for _, o := range opt.SLO.Objectives {
		if err := o.check(); err != nil {
			return nil, fmt.Errorf("slo: %w", err)
		}
	}
	for class, own := range opt.SLO.Classes {
		for _, o := range own {
			if err := o.check(); err != nil {
				return nil, fmt.Errorf("slo of class %s: %w", class, err)
			}
		}
	}
	s := &Summarizer{opt: opt, phases: slices.Clone(opt.Phases), ids: map[string]int32{}, slo: map[string][]Objective{}, cut: plan.Endless}
	s.stamps.sources = map[string]int64{}
	for i, p := range s.phases {
		if p.End < p.Start || i > 0 && p.Start < s.phases[i-1].End {
			return nil, fmt.Errorf("phase %q (%v to %v) ends before it starts or begins before the one before it ends", p.Name, p.Start, p.End)
		}
	}
	if len(s.phases) > math.MaxInt16 {
		return nil, errors.New("too many phases")
	}
	if len(s.phases) == 0 {
		s.phases = []plan.Phase{{Name: "run", Start: 0, End: plan.Endless, Measured: true}}
	}
	return s, nil
}

// Cut ends the window where the load ended before its plan did: rates are then
// per second of what there was of it. What happens after that moment, as the
// last requests end, is not inside the window, of records added from then on.
func (s *Summarizer) Cut(at time.Duration) { s.cut = at }

// phaseAt returns the index of the phase t lies in, or -1.
func (s *Summarizer) phaseAt(t time.Duration) int16 {
	if t == record.Unset {
		return -1
	}
	for i := range s.phases {
		if t >= s.phases[i].Start && t < s.phases[i].End {
			return int16(i)
		}
	}
	return -1
}

// measured tells whether t lies inside the measured window.
func (s *Summarizer) measured(t time.Duration) bool {
	i := s.phaseAt(t)
	return i >= 0 && s.phases[i].Measured && t < s.cut
}

// inWindow tells whether a turn belongs to the measured window.
func (s *Summarizer) inWindow(r *row) bool { return r.phase >= 0 && s.phases[r.phase].Measured }

func (s *Summarizer) intern(name string) int32 {
	id, ok := s.ids[name]
	if !ok {
		id = int32(len(s.names))
		s.ids[name] = id
		s.names = append(s.names, name)
	}
	return id
}

// objectives returns what holds for the row's class.
func (s *Summarizer) objectives(r *row) []Objective {
	class := s.names[r.class]
	o, ok := s.slo[class]
	if !ok {
		o = s.opt.SLO.of(class)
		s.slo[class] = o
	}
	return o
}

// Add takes one record. It keeps nothing of it that the caller could change.
func (s *Summarizer) Add(rec *record.Record) {
	r := row{
		session: rec.ID.Session, turn: rec.ID.Turn, phase: s.phaseAt(rec.Scheduled),
		class: s.intern(rec.Class), tenant: s.intern(rec.Tenant), model: s.intern(rec.Model), source: s.intern(string(rec.TokenSource)),
		priority: int32(rec.Priority), outcome: rec.Outcome, lastTurn: rec.LastTurn,
		scheduled: rec.Scheduled, sent: rec.Sent, last: rec.LastOutput, done: rec.Done,
		ttft: orUnset(rec.TTFT()), serviceTTFT: orUnset(rec.ServiceTTFT()), firstAnswer: orUnset(rec.FirstAnswerTime()), e2e: orUnset(rec.E2E()),
		tpot: orUnset(rec.TPOT()), stall: orUnset(rec.Stall()), itl: record.Unset,
		lateness: orUnset(rec.Lateness()), capWait: orUnset(rec.CapWait()), connect: orUnset(rec.Connect()),
		askedInput: count(rec.AskedInput), askedOutput: count(rec.AskedOutput),
		input: count(rec.InputTokens), output: count(rec.OutputTokens),
		reasoning: count(rec.ReasoningTokens), cached: count(rec.CachedTokens),
	}
	rec.ITL(func(d time.Duration, _ int) { r.itl = max(r.itl, d) })
	if rec.Outcome == record.Pending {
		r.outcome = record.Unfinished // whoever wrote this did not live to see it end
	}
	if r.phase < 0 && rec.Scheduled == record.Unset && rec.Phase != "" {
		r.phase = int16(slices.IndexFunc(s.phases, func(p plan.Phase) bool { return p.Name == rec.Phase }))
	}
	for _, t := range []time.Duration{rec.Scheduled, rec.Released, rec.Sent, rec.LastOutput, rec.Done} {
		if t != record.Unset && r.outcome.Offered() {
			s.end = max(s.end, t)
		}
	}
	s.rows = append(s.rows, r)
	s.addFlow(&r, rec)
	s.series.add(&r)
	if s.inWindow(&r) {
		s.addWindow(&r, rec)
	}
}

// addFlow counts what happened inside the window and in each second, by the
// time at which it happened.
func (s *Summarizer) addFlow(r *row, rec *record.Record) {
	if s.measured(r.sent) {
		s.inside.turns.dispatched++
	}
	if s.measured(r.done) {
		switch {
		case r.outcome == record.OK:
			s.inside.turns.completed++
		case r.outcome == record.Rejected:
			s.inside.turns.rejected++
		case failed(r.outcome):
			s.inside.turns.failed++
		}
	}
	if r.input > 0 && s.measured(rec.FirstOutput) {
		s.inside.inputMicro += int64(r.input) * micro
	}
	spread(rec, func(at time.Duration, tokens int64) {
		if s.measured(at) {
			s.inside.outputMicro += tokens
		}
		s.series.tokens(at, tokens)
	})
}

// failed tells the outcomes of the failed rate: sent, or tried, and come to
// nothing, but for those the server turned away.
func failed(o record.Outcome) bool {
	switch o {
	case record.HTTPError, record.StreamError, record.Empty, record.Timeout, record.ConnectError:
		return true
	}
	return false
}

// spread hands out a request's output tokens, in millionths, at the stamps of
// its events: by their own counts where they have them, scaled to the total
// where that is known and another (hidden reasoning); evenly where only a total
// is known; at its end where nothing streamed. Whatever the case, the parts sum
// to the total exactly.
func spread(rec *record.Record, yield func(at time.Duration, micros int64)) {
	total := int64(rec.OutputTokens)
	counted, sum := len(rec.Events) > 0, int64(0)
	for _, e := range rec.Events {
		counted = counted && e.Tokens >= 0
		sum += int64(max(e.Tokens, 0))
	}
	if total < 0 {
		if total = sum; !counted {
			total = int64(len(rec.Events)) // one each is the best that is known
		}
	}
	if total == 0 {
		return
	}
	if len(rec.Events) == 0 {
		for _, at := range []time.Duration{rec.LastOutput, rec.FirstOutput, rec.Done} {
			if at != record.Unset {
				yield(at, total*micro)
				return
			}
		}
		return
	}
	var before, whole float64
	if whole = float64(sum); !counted || sum == 0 {
		counted, whole = false, float64(len(rec.Events))
	}
	given := int64(0)
	for _, e := range rec.Events {
		if counted {
			before += float64(e.Tokens)
		} else {
			before++
		}
		upTo := int64(math.Round(float64(total) * micro * (before / whole)))
		yield(e.At, upTo-given)
		given = upTo
	}
}

// addWindow counts what needs the events of a turn of the window.
func (s *Summarizer) addWindow(r *row, rec *record.Record) {
	s.reconnects += int64(rec.Reconnects)
	s.retries += int64(rec.Retries)
	s.stamps.reads += int64(rec.Reads)
	s.stamps.multi += int64(rec.MultiEventReads)
	s.stamps.refused += int64(rec.RefusedStamps)
	if rec.StampSource != "" {
		s.stamps.sources[rec.StampSource]++
	}
	s.stamps.events += int64(len(rec.Events))
	ok := r.outcome == record.OK
	for _, e := range rec.Events {
		s.stamps.width.Add(int64(e.Width) * int64(time.Microsecond))
	}
	for gap := range rec.Gaps {
		s.pooled.gapAll.h.Add(int64(gap))
		if ok {
			s.pooled.gapOK.h.Add(int64(gap))
		}
	}
	itl := rec.ITL(func(d time.Duration, times int) {
		s.pooled.itlAll.h.AddN(int64(d), int64(times))
		if ok {
			s.pooled.itlOK.h.AddN(int64(d), int64(times))
		}
	})
	if ok && !itl {
		s.pooled.itlAll.undefined++
		s.pooled.itlOK.undefined++
	}
	if ok && len(rec.Events) < 2 {
		s.pooled.gapAll.undefined++
		s.pooled.gapOK.undefined++
	}
}

func orUnset(d time.Duration, ok bool) time.Duration {
	if !ok {
		return record.Unset
	}
	return d
}

// count narrows a token count; -1 stays unknown.
func count(n int) int32 { return int32(min(max(n, -1), math.MaxInt32)) }

// Summary works everything out. It may be called again after more records.
func (s *Summarizer) Summary() *Summary {
	s.settle()
	win := s.window()
	var rows []*row // of the window
	for i := range s.rows {
		if r := &s.rows[i]; s.inWindow(r) {
			rows = append(rows, r)
		}
	}
	sum := &Summary{
		Schema: Schema, Run: s.opt.Run, Prefix: s.opt.Prefix, Replicas: s.opt.Replicas,
		Window: s.windowOf(win),
	}
	if sum.Run.NotReproduced == nil {
		sum.Run.NotReproduced = []string{}
	}
	if sum.Replicas == nil {
		sum.Replicas = []Replica{}
	}
	v := s.view(rows, win)
	sum.Counts = v.counts()
	sum.Latency = v.latency(true)
	sum.Latency.ITL = Figure{All: s.pooled.itlAll.distribution(), OK: s.pooled.itlOK.distribution()}
	sum.Latency.Gap = Figure{All: s.pooled.gapAll.distribution(), OK: s.pooled.gapOK.distribution()}
	sum.SLO = v.slo(&sum.Latency)
	sum.Attempts = s.attempts(v, &sum.Latency)
	sum.Rates = s.rates(v)
	sum.Tokens = v.tokens()
	sum.Throughput = s.throughput(win)
	sum.Generator = s.generator(sum, win)
	sum.Slices = s.slices(v)
	sum.Series = s.series.summary(s.rows)
	sum.Verdict = s.verdict(v, sum)
	sum.Findings = findings(&evidence{s: s, view: v, sum: sum})
	return sum
}

// settle puts the rows in the order of the plan, gives each the phase it
// belongs to, and judges it. A turn that has no phase by its due time, because
// it never came to be due (skipped) or lies after the end of the load (not due),
// belongs with the turn before it.
func (s *Summarizer) settle() {
	slices.SortFunc(s.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.turn, b.turn))
	})
	for i := range s.rows {
		r := &s.rows[i]
		if r.phase < 0 && i > 0 && s.rows[i-1].session == r.session {
			r.phase = s.rows[i-1].phase
		}
		r.standing = judge(r, s.objectives(r), func(string) {})
	}
}

// span is a stretch of measured time: phases laid end to end.
type span struct {
	phases []plan.Phase
	length time.Duration
}

// window returns the measured phases; an open end is the run's last stamp.
func (s *Summarizer) window() span {
	var w span
	for _, p := range s.phases {
		if p.Measured {
			p.End = min(p.End, max(p.Start, s.lastOf(p)))
			w.phases = append(w.phases, p)
			w.length += p.End - p.Start
		}
	}
	return w
}

// lastOf is where a phase ends: where the load was cut, and for one without an
// end of its own at the last stamp.
func (s *Summarizer) lastOf(p plan.Phase) time.Duration {
	if p.End == plan.Endless {
		p.End = s.end
	}
	return max(p.Start, min(p.End, s.cut))
}

// at maps a moment to measured time from 0 on.
func (w span) at(t time.Duration) time.Duration {
	before := time.Duration(0)
	for _, p := range w.phases {
		if t < p.Start {
			break
		}
		before += min(t, p.End) - p.Start
	}
	return before
}

func (w span) seconds() float64 { return w.length.Seconds() }

// perSecond is a rate over the window; null where it has no length.
func (w span) perSecond(n float64) *float64 {
	if w.length <= 0 {
		return nil
	}
	return ptr(n / w.seconds())
}

func (s *Summarizer) windowOf(w span) Window {
	out := Window{Measured: w.seconds(), Batches: s.opt.Batches, Phases: []WindowPhase{}}
	if len(w.phases) > 0 {
		out.Start = w.phases[0].Start.Seconds()
		out.End = w.phases[len(w.phases)-1].End.Seconds()
	}
	for _, p := range s.phases {
		wp := WindowPhase{Name: p.Name, Start: p.Start.Seconds(), End: s.lastOf(p).Seconds(), Measured: p.Measured, Constant: p.Constant}
		if p.Rate > 0 {
			wp.Rate = ptr(p.Rate)
		}
		wp.Tests = []PhaseTest{}
		out.Phases = append(out.Phases, wp)
	}
	s.steadiness(&out)
	return out
}

// throughput counts by the stamps of what happened inside the window.
func (s *Summarizer) throughput(w span) Throughput {
	return Throughput{
		OutputTokens: w.perSecond(float64(s.inside.outputMicro) / micro),
		InputTokens:  w.perSecond(float64(s.inside.inputMicro) / micro),
		TotalTokens:  w.perSecond(float64(s.inside.outputMicro+s.inside.inputMicro) / micro),
		Requests:     w.perSecond(float64(s.inside.turns.completed)),
	}
}

func ptr[T any](v T) *T { return &v }

// ratio is a / b; null where b is 0.
func ratio(a, b int64) *float64 {
	if b == 0 {
		return nil
	}
	return ptr(float64(a) / float64(b))
}
