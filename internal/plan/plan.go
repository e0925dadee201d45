// Package plan says what a run intends to send and when. A Source hands out
// Sessions in the order of their first due time; each Session is one user's
// exchange of Turns. A plan is data only: it knows nothing of sockets, text or
// clocks, and the same experiment file and seed give the same plan, bit for
// bit, on every machine: every time is whole nanoseconds and every length a
// whole number of tokens.
package plan

import "time"

// Unset marks an offset that does not exist. Zero is a real offset (the run's
// start), so it cannot serve.
const Unset time.Duration = -1 << 63

// TurnID names one planned turn for the whole life of a result.
type TurnID struct {
	Session int64 // Session.Seq
	Turn    int32 // Turn.Index
}

// Session is one user's exchange: one turn or several, with think time between.
type Session struct {
	// Seq counts sessions of the plan from 0, in the order Next returns them.
	Seq int64
	// Scheduled is when the first turn in Turns is due, as an offset from the
	// run's start. Unset in closed loop, where a client takes the session when
	// it is free.
	Scheduled time.Duration
	// Class names the workload class the session was drawn from.
	Class string
	// Phase names the phase that Scheduled lies in. A later turn belongs to
	// the phase of its own due time, which only the run can know.
	Phase string
	// Scripted sessions carry planned replies as history, so that what is sent
	// does not depend on what the server answered. Otherwise the server's own
	// reply is carried into the next turn.
	Scripted bool
	// Tenant, Priority and Model (an adapter or another served model; empty:
	// the target's own) are slices of the report and fields of the request.
	Tenant   string
	Priority int
	Model    string
	// History holds the turns that lie before the run's start when a session
	// was seeded in mid-course. They are never sent; their prompts and planned
	// replies form the history of the first turn that is.
	History []Turn
	// Turns are to be sent, at least one, in order.
	Turns []Turn
}

// AskedInput is how many prompt tokens Turns[turn] asks for: those that each turn
// so far adds, and the planned replies between them. It is -1 where no plan can
// tell: after a live reply, and where real text is part of the prompt.
func (s *Session) AskedInput(turn int) int {
	if turn > 0 && !s.Scripted {
		return -1
	}
	t := &s.Turns[turn]
	n, known := t.InputTokens, t.Prompt.Item < 0
	for _, before := range [][]Turn{s.History, s.Turns[:turn]} {
		for i := range before {
			n += before[i].InputTokens + before[i].OutputTokens
			known = known && before[i].Prompt.Item < 0
		}
	}
	if !known {
		return -1
	}
	return n
}

// Turn is one request of a session.
type Turn struct {
	// Index counts the turns of the whole session, History included, from 0.
	Index int32
	// At is the absolute due time of strict replay; Unset where the turn is due
	// Think after the previous turn was done.
	At time.Duration
	// Think is the pause between the previous turn's end and this turn's due
	// time. For a first turn it is 0, or in closed loop the client's pause before
	// the session.
	Think time.Duration
	// InputTokens is how many tokens the turn adds to the prompt, as the server
	// is to count them: the salt and, for a first turn, the prefix and what the
	// chat template adds are part of it.
	InputTokens int
	// OutputTokens is how many tokens are asked for (and forced where the
	// engine can).
	OutputTokens int
	// Timeout is the request's own deadline, counted from its due time; 0: none.
	Timeout time.Duration
	// HangUp is when the user gives up, counted from the due time; 0: never.
	HangUp time.Duration
	// Prompt says which text makes up InputTokens.
	Prompt Prompt
}

// Prompt identifies a turn's text without holding it: the text is rendered
// from it shortly before it is needed.
type Prompt struct {
	// Seed draws the words of random text.
	Seed uint64
	// Item is the index into the class's text file, or -1 for random text.
	Item int64
	// PrefixID names a shared prefix of PrefixTokens tokens (part of
	// InputTokens) that stands before the turn's own text; equal IDs are equal
	// text. PrefixTokens 0: none.
	PrefixID     uint64
	PrefixTokens int
	// Blocks are the ids of a trace's prefix blocks, BlockTokens tokens each,
	// the last one perhaps partial: equal leading ids are equal leading text.
	Blocks      []uint64
	BlockTokens int
}

// Phase is a stretch of the run. A turn belongs to the phase of its due time.
type Phase struct {
	Name string `json:"name"`
	// Start and End are offsets from the run's start; Start is inside. End is
	// Endless where only the run can tell: in a closed loop of so many requests.
	Start time.Duration `json:"start_ns"`
	End   time.Duration `json:"end_ns"`
	// Measured phases form the measured window; the others (warm-up, and the
	// tail that keeps the load on while the window's last requests end) stay
	// out of every count.
	Measured bool `json:"measured"`
	// Constant is set where the planned rate does not change inside the phase.
	Constant bool `json:"constant"`
	// Rate is the planned mean rate of sessions, per second; 0 in closed loop.
	Rate float64 `json:"rate"`
}

// Endless is the End of a phase that ends with its source.
const Endless time.Duration = 1<<63 - 1

// PhaseAt returns the phase that t lies in, or false.
func PhaseAt(phases []Phase, t time.Duration) (Phase, bool) {
	for _, p := range phases {
		if t >= p.Start && t < p.End {
			return p, true
		}
	}
	return Phase{}, false
}

// Source hands out a plan.
type Source interface {
	// Next returns the next session in the order of Scheduled, or io.EOF. The
	// caller owns the session. It is not safe for concurrent use.
	Next() (*Session, error)
}
