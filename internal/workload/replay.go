package workload

import (
	"fmt"
	"io"
	"math"
	"sort"
	"time"

	"github.com/trueload/trueload/internal/draw"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/trace"
)

// TraceClass is the class of all sessions of a replayed trace.
const TraceClass = "trace"

// replay is a trace that is to be sent again.
type replay struct {
	spec        *spec.Trace
	rows        []traceRow
	sessions    [][]int32 // rows of each, by the first one's time; nil: each row is one
	span        time.Duration
	blockTokens int
	repeat      bool
	timeout     time.Duration
	seed        uint64
}

type traceRow struct {
	at            time.Duration // from the first row, at the replay's speed
	delay         time.Duration // plan.Unset: not known
	input, output int32
	blocks        []uint64
}

func (w *Workload) openReplay(t *spec.Trace) error {
	format, err := trace.ParseFormat(t.Format)
	if err != nil {
		return fmt.Errorf("workload.trace.format: %w", err)
	}
	r, err := trace.Open(w.path(t.File), trace.Options{Format: format, BlockTokens: t.Block})
	if err != nil {
		return fmt.Errorf("workload.trace: %w", err)
	}
	defer r.Close()
	rows, outOfOrder, err := r.Load(t.Rows.Count)
	if err != nil {
		return fmt.Errorf("workload.trace: %w", err)
	}
	file := File{Name: t.File, Rows: len(rows)}
	w.addDropped(&file, r.Dropped())
	if len(rows) == 0 {
		return fmt.Errorf("workload.trace: %s: there are no rows in it", t.File)
	}
	info := r.Info()
	if w.byTrace() {
		untimed := 0
		for _, row := range rows {
			if row.At == plan.Unset {
				untimed++
			}
		}
		if untimed > 0 {
			return fmt.Errorf("workload.trace: %s: %d of %d rows have no time: give load.arrivals and load.rate, or draw lengths from it with lengths: {joint: ...}", t.File, untimed, len(rows))
		}
	}
	if outOfOrder > 0 {
		w.note("%s: %d rows came before their predecessor and were sorted by time", t.File, outOfOrder)
	}
	if first := t.Rows.First; first > 0 {
		n := sort.Search(len(rows), func(i int) bool { return rows[i].At >= first })
		rows = rows[:n]
	}
	at := make([]time.Duration, len(rows))
	for i, row := range rows {
		at[i] = row.At
	}
	if t.Spread > 0 {
		trace.Spread(rows, t.Spread, draw.Stream(w.exp.Seed, "spread"))
		trace.Rebase(rows)
		w.note("%s: times were spread at random inside %v; they are not those recorded", t.File, t.Spread)
	} else if q := trace.Quantum(at); q > 0 && w.byTrace() {
		w.note("%s: times were cut to about %v and are sent as recorded, in bursts; spread: %v would scatter them", t.File, q, q)
	}

	p := &replay{
		spec: t, repeat: t.Repeat, timeout: w.exp.Target.Timeout,
		blockTokens: info.BlockTokens, seed: draw.Seed(w.exp.Seed, "trace"),
	}
	speed := t.Speed
	if speed <= 0 {
		speed = 1
	}
	var noInput, noOutput int
	for _, row := range rows {
		tr := traceRow{at: scaled(row.At, speed), delay: row.Delay, blocks: row.Blocks}
		if tr.delay != plan.Unset {
			tr.delay = scaled(tr.delay, speed)
		}
		if row.Input < 1 {
			noInput++
		}
		if row.Output < 1 {
			noOutput++
		}
		tr.input = int32(min(max(row.Input, 1), math.MaxInt32))
		tr.output = int32(min(max(row.Output, 1), math.MaxInt32))
		p.rows = append(p.rows, tr)
	}
	if noInput > 0 {
		w.note("%s: %d rows have no input tokens; one is sent", t.File, noInput)
	}
	if noOutput > 0 {
		w.note("%s: %d rows have no output tokens (often a failure); one is asked for", t.File, noOutput)
	}
	file.Used = len(p.rows)
	w.facts.Files = append(w.facts.Files, file)
	w.group(p, rows)
	n := len(p.rows)
	p.span = p.rows[n-1].at + 1
	if n > 1 {
		// One mean gap between the last row and the first of the next round.
		p.span += p.rows[n-1].at / time.Duration(n-1)
	} else if p.repeat && w.byTrace() {
		return fmt.Errorf("workload.trace: %s: one row cannot repeat", t.File)
	}
	w.replay = p
	return nil
}

func scaled(d time.Duration, speed float64) time.Duration {
	if speed == 1 {
		return d
	}
	return time.Duration(math.Floor(float64(float64(d)/speed) + 0.5))
}

// group joins the rows of a session where the trace names sessions. A row's
// input is the whole prompt, so a later turn adds what goes beyond the prompt
// and the answer before it. A session in which a row does not reach that far
// (its history was cut, or its rows do not hold any) cannot be told as turns:
// its rows are sent each by itself. So are those of a trace with block ids,
// whose ids already say what is shared.
func (w *Workload) group(p *replay, rows []trace.Row) {
	byName := map[string]int{}
	var sessions [][]int32
	named := false
	for i, row := range rows {
		if row.Session == "" || row.Blocks != nil {
			sessions = append(sessions, []int32{int32(i)})
			continue
		}
		k, ok := byName[row.Session]
		if !ok {
			k = len(sessions)
			byName[row.Session] = k
			sessions = append(sessions, nil)
		}
		sessions[k] = append(sessions[k], int32(i))
		named = named || len(sessions[k]) > 1
	}
	if !named {
		return
	}
	split := 0
	out := sessions[:0:0]
	for _, s := range sessions {
		whole := true
		for j := 1; j < len(s); j++ {
			before := p.rows[s[j-1]]
			whole = whole && p.rows[s[j]].input > before.input+before.output
		}
		if whole {
			out = append(out, s)
			continue
		}
		split++
		for _, i := range s {
			out = append(out, []int32{i})
		}
	}
	sort.SliceStable(out, func(a, b int) bool { return out[a][0] < out[b][0] })
	p.sessions = out
	if split > 0 {
		w.note("%s: the prompts of %d sessions do not contain their earlier turns; their rows are sent each by itself", p.spec.File, split)
	}
}

// len is how many sessions one round has.
func (p *replay) len() int {
	if p.sessions != nil {
		return len(p.sessions)
	}
	return len(p.rows)
}

// last is when the last row of the first round is due.
func (p *replay) last() time.Duration { return p.rows[len(p.rows)-1].at }

// rowAt is when row i is due, counted through all rounds.
func (p *replay) rowAt(i int64) (time.Duration, bool) {
	n := int64(len(p.rows))
	if !p.repeat && i >= n {
		return 0, false
	}
	return p.rows[i%n].at + time.Duration(i/n)*p.span, true
}

// rowsBefore is how many rows are due before t.
func (p *replay) rowsBefore(t time.Duration) int64 {
	round := int64(0)
	if p.repeat {
		round = int64(t / p.span)
	}
	t -= time.Duration(round) * p.span
	return round*int64(len(p.rows)) + int64(sort.Search(len(p.rows), func(i int) bool { return p.rows[i].at >= t }))
}

// session makes session k, counted through all rounds, as it stands in the trace.
func (p *replay) session(k int64, text *draw.Indexed) *plan.Session {
	round := k / int64(p.len())
	i := int(k % int64(p.len()))
	members := []int32{int32(i)}
	if p.sessions != nil {
		members = p.sessions[i]
	}
	shift := time.Duration(round) * p.span
	s := &plan.Session{
		Class: TraceClass, Scripted: p.spec.History != "live",
		Scheduled: p.rows[members[0]].at + shift,
		Turns:     make([]plan.Turn, len(members)),
	}
	for j, m := range members {
		row := &p.rows[m]
		t := &s.Turns[j]
		*t = plan.Turn{
			Index: int32(j), At: plan.Unset, Timeout: p.timeout,
			InputTokens: int(row.input), OutputTokens: int(row.output),
			Prompt: plan.Prompt{Seed: text.At(int64(m) + round*int64(len(p.rows))).Uint64(), Item: -1},
		}
		if s.Scripted {
			t.At = row.at + shift
		}
		if j > 0 {
			before := &p.rows[members[j-1]]
			t.InputTokens -= int(before.input + before.output)
			t.Think = row.delay
			if t.Think == plan.Unset {
				t.Think = max(row.at-before.at-nominalService(float64(before.output), p.timeout), 0)
			}
		}
		if row.blocks != nil {
			t.Prompt.BlockTokens = p.blockTokens
			t.Prompt.Blocks = make([]uint64, len(row.blocks))
			for b, id := range row.blocks {
				if round > 0 { // another round's prompts are other prompts
					id = draw.Mix(id + draw.Mix(uint64(round)))
				}
				t.Prompt.Blocks[b] = id
			}
		}
	}
	return s
}

// replaySource hands out a trace, at its own times or those of a process.
type replaySource struct {
	w        *Workload
	arrivals *arrivals // nil: the trace's own times, or none in closed loop
	text     *draw.Indexed
	seq      int64
}

func (w *Workload) replaySource() plan.Source {
	s := &replaySource{w: w, text: draw.NewIndexed(w.replay.seed, "text")}
	if w.exp.Load.Closed == nil && !w.byTrace() {
		s.arrivals = w.arrivals()
	}
	return s
}

// Next implements plan.Source.
func (s *replaySource) Next() (*plan.Session, error) {
	w, p := s.w, s.w.replay
	if !p.repeat && s.seq >= int64(p.len()) || w.sessions > 0 && s.seq >= w.sessions {
		return nil, io.EOF
	}
	out := p.session(s.seq, s.text)
	switch {
	case w.exp.Load.Closed != nil:
		out.Scheduled = plan.Unset
		for i := range out.Turns {
			out.Turns[i].At = plan.Unset
		}
	case s.arrivals != nil:
		_, at, ok := s.arrivals.next()
		if !ok {
			return nil, io.EOF
		}
		for i := range out.Turns {
			if out.Turns[i].At != plan.Unset {
				out.Turns[i].At += at - out.Scheduled
			}
		}
		out.Scheduled = at
	default:
		if out.Scheduled >= w.phases[len(w.phases)-1].End {
			return nil, io.EOF
		}
	}
	if out.Scheduled != plan.Unset {
		if ph, ok := plan.PhaseAt(w.phases, out.Scheduled); ok {
			out.Phase = ph.Name
		}
	}
	out.Seq = s.seq
	s.seq++
	return out, nil
}
