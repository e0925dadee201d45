package workload

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/trueload/trueload/internal/corpus"
	"github.com/trueload/trueload/internal/draw"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/synth"
	"github.com/trueload/trueload/internal/trace"
)

// class is one kind of session, with all it draws from.
type class struct {
	spec          *spec.Class
	input, output *synth.Dist // nil: the text's own
	pairs         synth.Pairs // in the place of both
	turns, think  *synth.Dist // think nil: none
	meanTurns     float64
	service       time.Duration // nominal, see nominalService
	unanswered    int           // output tokens of a turn whose text has no answer
	pool          *synth.Choice // nil: no prefix
	text          *corpus.Text  // nil: random words
	order         []int32       // in which the text's items are used
	hangUps       uint64        // share of turns, in units of 2⁻⁵³
	seed          uint64
}

// The nominal time of an answer. The plan knows no server, so where it must
// guess when an earlier answer ended (sessions seeded in mid-course, scripted
// times) it takes a first token after 500 ms and then 20 ms a token. Against
// think times of many seconds it matters little.
const (
	nominalFirst = 500 * time.Millisecond
	nominalToken = 20 * time.Millisecond
)

func nominalService(output float64, timeout time.Duration) time.Duration {
	d := nominalFirst + time.Duration(math.Floor(float64(output*float64(nominalToken))))
	if timeout > 0 {
		d = min(d, timeout)
	}
	return d
}

func (w *Workload) newClass(s *spec.Class) (*class, error) {
	c := &class{spec: s, seed: draw.Seed(w.exp.Seed, "class/"+s.Name)}
	fail := func(key string, err error) (*class, error) {
		return c, fmt.Errorf("class %s: %s: %w", s.Name, key, err)
	}
	var err error
	if err = w.openText(c); err != nil {
		return fail("text", err)
	}
	if s.Lengths != nil {
		rows, err := w.lengthRows(s.Lengths.Joint)
		if err != nil {
			return fail("lengths", err)
		}
		c.pairs = rows
	}
	if c.input, err = w.counts(s.InputTokens, func(p synth.Pair) int { return p.Input }); err != nil {
		return fail("input_tokens", err)
	}
	if c.output, err = w.counts(s.OutputTokens, func(p synth.Pair) int { return p.Output }); err != nil {
		return fail("output_tokens", err)
	}
	if c.pairs == nil && c.text == nil && (c.input == nil || c.output == nil) {
		return fail("input_tokens and output_tokens", errors.New("random text needs both, or lengths"))
	}
	if c.pairs == nil && c.output == nil {
		if c.unanswered = int(c.textOutput() + 0.5); c.unanswered == 0 {
			return fail("output_tokens", errors.New("missing: the text has neither answers nor output_tokens"))
		}
	}
	one := 1.0
	turns := s.Session.Turns
	if turns == nil {
		turns = &spec.Counts{Fixed: &one}
	}
	if c.turns, err = w.counts(turns, nil); err != nil {
		return fail("session.turns", err)
	}
	if s.Session.Think != nil {
		if c.think, err = times(s.Session.Think); err != nil {
			return fail("session.think", err)
		}
	}
	if p := s.Prefix; p != nil {
		if c.pool, err = synth.Zipf(max(p.Pool, 1), p.Popularity.Zipf); err != nil {
			return fail("prefix", err)
		}
	}
	if s.HangUp != nil {
		c.hangUps = uint64(math.Floor(float64(float64(s.HangUp.Share) * (1 << 53))))
	}
	c.meanTurns = c.turns.Mean()
	if c.text != nil {
		c.meanTurns = c.meanTextTurns()
	}
	c.service = nominalService(c.meanOutput(), w.timeout(c))
	w.cuts(c)
	return c, nil
}

func (w *Workload) timeout(c *class) time.Duration {
	if c.spec.Deadline > 0 {
		return c.spec.Deadline
	}
	return w.exp.Target.Timeout
}

func (c *class) meanOutput() float64 {
	var sum float64
	switch {
	case c.pairs != nil:
		for _, p := range c.pairs {
			sum += float64(p.Output)
		}
		return sum / float64(len(c.pairs))
	case c.output != nil:
		return c.output.Mean()
	}
	return c.textOutput()
}

// textOutput is the mean length of the answers in the text, 0 where there are
// none.
func (c *class) textOutput() float64 {
	var sum, n float64
	for i := range c.text.Len() {
		for _, s := range c.text.Sizes(i) {
			if s.Output > 0 {
				sum += float64(s.Output)
				n++
			}
		}
	}
	return sum / max(n, 1)
}

// meanTextTurns is the mean over 10,000 sessions (or all items, where fewer) of
// turns, which a short conversation cuts.
func (c *class) meanTextTurns() float64 {
	d := newDrawer(c)
	n := min(max(c.text.Len(), 1000), 10_000)
	var sum int
	for k := range int64(n) {
		sum += d.turns(k)
	}
	return float64(sum) / float64(n)
}

func (w *Workload) openText(c *class) error {
	t := c.spec.Text
	name, format := t.ShareGPT, corpus.ShareGPT
	if name == "" {
		name, format = t.JSONL, corpus.JSONL
	}
	if name == "" {
		return nil
	}
	text, err := corpus.Open(w.path(name), format)
	if err != nil {
		return err
	}
	c.text = text
	if text.Len() > math.MaxInt32 {
		return errors.New("more than 2³¹ items")
	}
	c.order = make([]int32, text.Len())
	for i := range c.order {
		c.order[i] = int32(i)
	}
	r := draw.Stream(c.seed, "items")
	r.Shuffle(len(c.order), func(i, j int) { c.order[i], c.order[j] = c.order[j], c.order[i] })
	f := File{Name: name, Rows: text.Len(), Used: text.Len()}
	for _, d := range text.Dropped() {
		f.Rows += d.Rows
		f.Dropped = append(f.Dropped, Dropped{d.Reason, int64(d.Rows), d.First})
	}
	w.facts.Files = append(w.facts.Files, f)
	return nil
}

// item is the text item of the k-th session.
func (c *class) item(k int64) int64 { return int64(c.order[k%int64(len(c.order))]) }

// lengthRows reads the length pairs of a trace.
func (w *Workload) lengthRows(e spec.Empirical) (synth.Pairs, error) {
	format, err := trace.ParseFormat(e.Format)
	if err != nil {
		return nil, err
	}
	r, err := trace.Open(w.path(e.Trace), trace.Options{Format: format})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var pairs synth.Pairs
	f := File{Name: e.Trace}
	var empty int64
	for {
		row, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		f.Rows++
		if row.Input < 1 || row.Output < 1 {
			empty++
			continue
		}
		f.Used++
		pairs = append(pairs, synth.Pair{Input: row.Input, Output: row.Output})
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("%s: no row has both lengths", e.Trace)
	}
	if empty > 0 {
		f.Dropped = append(f.Dropped, Dropped{Reason: "no input or no output tokens", Rows: empty})
	}
	w.addDropped(&f, r.Dropped())
	w.facts.Files = append(w.facts.Files, f)
	return pairs, nil
}

// addDropped notes the rows that a trace's reader could not read.
func (w *Workload) addDropped(f *File, dropped []trace.Dropped) {
	for _, d := range dropped {
		first := ""
		if len(d.First) > 0 {
			first = d.First[0]
		}
		f.Rows += int(d.Rows)
		f.Dropped = append(f.Dropped, Dropped{d.Reason, d.Rows, first})
	}
}

// counts makes a distribution of whole numbers, at least 1. column is what an
// empirical one takes of a trace's rows.
func (w *Workload) counts(s *spec.Counts, column func(synth.Pair) int) (*synth.Dist, error) {
	if s == nil {
		return nil, nil
	}
	var d *synth.Dist
	var err error
	switch {
	case s.Uniform != nil:
		d = synth.UniformCounts(s.Uniform.Min, s.Uniform.Max)
	case s.Empirical != nil:
		if column == nil {
			return nil, errors.New("empirical is for tokens")
		}
		pairs, err := w.lengthRows(*s.Empirical)
		if err != nil {
			return nil, err
		}
		values := make([]float64, len(pairs))
		for i, p := range pairs {
			values[i] = float64(column(p))
		}
		d = synth.Sample(s.Empirical.Trace, values)
	default:
		if d, err = dist(s, func(x float64) float64 { return x }); err != nil {
			return nil, err
		}
	}
	lo, hi := 1, 0
	if s.Min != nil {
		lo = max(int(*s.Min), 1)
	}
	if s.Max != nil {
		hi = int(*s.Max)
	}
	return d.Counts(lo, hi)
}

// times makes a distribution of durations, at least 0.
func times(s *spec.Times) (*synth.Dist, error) {
	seconds := func(d time.Duration) float64 { return float64(d) / 1e9 }
	var d *synth.Dist
	var err error
	if s.Uniform != nil {
		d = synth.Uniform(seconds(s.Uniform.Min), seconds(s.Uniform.Max))
	} else if d, err = dist(s, seconds); err != nil {
		return nil, err
	}
	var lo, hi time.Duration
	if s.Min != nil {
		lo = *s.Min
	}
	if s.Max != nil {
		hi = *s.Max
	}
	return d.Seconds(lo, hi)
}

// dist makes the distributions that counts and times have in common.
func dist[T float64 | time.Duration](s *spec.Dist[T], num func(T) float64) (*synth.Dist, error) {
	switch {
	case s.Fixed != nil:
		return synth.Fixed(num(*s.Fixed)), nil
	case s.Normal != nil:
		sd := num(s.Normal.SD)
		if s.Normal.CV > 0 {
			sd = float64(num(s.Normal.Mean) * s.Normal.CV)
		}
		return synth.Normal(num(s.Normal.Mean), sd), nil
	case s.LogNormal != nil:
		l := s.LogNormal
		switch {
		case l.Mu != nil:
			return synth.LogNormal(*l.Mu, l.Sigma), nil
		case l.P90 > 0:
			return synth.LogNormalBy(num(l.P50), 0.90, num(l.P90))
		case l.P95 > 0:
			return synth.LogNormalBy(num(l.P50), 0.95, num(l.P95))
		case l.P99 > 0:
			return synth.LogNormalBy(num(l.P50), 0.99, num(l.P99))
		case l.P50 > 0:
			return synth.LogNormal(draw.Log(num(l.P50)), l.Sigma), nil
		}
		return nil, errors.New("lognormal needs two numbers that fix it")
	case s.Exponential != nil:
		return synth.Exponential(num(s.Exponential.Mean)), nil
	case s.Geometric != nil:
		return synth.Geometric(num(s.Geometric.Mean)), nil
	}
	return nil, errors.New("says nothing: give a distribution")
}

// drawer draws the sessions of one class. Session k comes out the same however
// many were drawn before it.
type drawer struct {
	c                                       *class
	session, lengths, text, prefix, hangUps *draw.Indexed
}

func newDrawer(c *class) *drawer {
	return &drawer{
		c:       c,
		session: draw.NewIndexed(c.seed, "session"), lengths: draw.NewIndexed(c.seed, "lengths"),
		text: draw.NewIndexed(c.seed, "text"), prefix: draw.NewIndexed(c.seed, "prefix"),
		hangUps: draw.NewIndexed(c.seed, "hang-up"),
	}
}

// turns draws how many turns session k has; the think times come next from
// d.session.
func (d *drawer) turns(k int64) int {
	n := d.c.turns.Count(d.session.At(k))
	if d.c.text != nil {
		n = min(n, len(d.c.text.Sizes(int(d.c.item(k)))))
	}
	return n
}

func (d *drawer) think() time.Duration {
	if d.c.think == nil {
		return 0
	}
	return d.c.think.Duration(d.session.Rand)
}

// outline calls due with the nominal due time of each turn of session k, as an
// offset from its arrival.
func (d *drawer) outline(k int64, due func(turn int, at time.Duration)) {
	n := d.turns(k)
	at := time.Duration(0)
	due(0, 0)
	for i := 1; i < n; i++ {
		at += d.c.service + d.think()
		due(i, at)
	}
}

// draw returns session k as it arrives at at: all its turns, none of them past.
func (d *drawer) draw(k int64, at, timeout time.Duration) *plan.Session {
	c := d.c
	s := &plan.Session{
		Scheduled: at, Class: c.spec.Name, Scripted: c.spec.Session.History == "scripted",
		Tenant: c.spec.Tenant, Priority: c.spec.Priority, Model: c.spec.ServedModel(),
	}
	n := d.turns(k)
	lengths, text := d.lengths.At(k), d.text.At(k)
	var hangs *rand.Rand
	if c.hangUps > 0 {
		hangs = d.hangUps.At(k)
	}
	item := int64(-1)
	var sizes []corpus.Size
	if c.text != nil {
		item = c.item(k)
		sizes = c.text.Sizes(int(item))
	}
	s.Turns = make([]plan.Turn, n)
	due := at
	for i := range s.Turns {
		t := &s.Turns[i]
		*t = plan.Turn{Index: int32(i), At: plan.Unset, Timeout: timeout, Prompt: plan.Prompt{Seed: text.Uint64(), Item: item}}
		if i > 0 {
			t.Think = d.think()
			due += c.service + t.Think
		}
		if s.Scripted && at != plan.Unset {
			t.At = due
		}
		if c.pairs != nil {
			p := c.pairs.Draw(lengths)
			t.InputTokens, t.OutputTokens = p.Input, p.Output
		} else {
			if c.input != nil {
				t.InputTokens = c.input.Count(lengths)
			} else {
				t.InputTokens = max(sizes[i].Input, 1)
			}
			if c.output != nil {
				t.OutputTokens = c.output.Count(lengths)
			} else if t.OutputTokens = sizes[i].Output; t.OutputTokens < 1 {
				t.OutputTokens = c.unanswered
			}
		}
		if hangs != nil && hangs.Uint64()>>11 < c.hangUps {
			t.HangUp = c.spec.HangUp.After
		}
	}
	if c.pool != nil {
		p := &s.Turns[0].Prompt
		p.PrefixID = draw.Mix(c.seed + uint64(c.pool.Draw(d.prefix.At(k))))
		p.PrefixTokens = c.spec.Prefix.Tokens
		s.Turns[0].InputTokens += p.PrefixTokens
	}
	return s
}
