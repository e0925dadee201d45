// Package record says what happened to each planned turn. A Record holds every
// stamp of the measurement contract as an offset from the run's start; the
// figures that users read (TTFT, TPOT, ...) are methods, never stored, so that
// a definition stands in one place. It judges nothing and sums nothing.
package record

import (
	"time"

	"github.com/trueload/trueload/internal/plan"
)

// Unset marks a stamp that does not exist.
const Unset = plan.Unset

// Record is what happened to one planned turn. Times are offsets from the run's
// start on the monotonic clock; Unset where the moment never came. Counts are
// -1 where unknown: zero is a measurement.
type Record struct {
	ID       plan.TurnID `json:"id"`
	Class    string      `json:"class,omitempty"`
	Phase    string      `json:"phase,omitempty"` // of the scheduled time
	Tenant   string      `json:"tenant,omitempty"`
	Priority int         `json:"priority,omitempty"`
	Model    string      `json:"model,omitempty"`
	Outcome  Outcome     `json:"outcome"`
	// Error is the server's or the library's own words, cut to 500 bytes and
	// free of secrets.
	Error      string        `json:"error,omitempty"`
	HTTPStatus int           `json:"http_status,omitempty"` // 0: no answer
	RetryAfter time.Duration `json:"retry_after,omitempty"` // as the server asked; 0: it did not
	// LastTurn is set on the last turn of its session.
	LastTurn bool `json:"last_turn,omitempty"`

	Scheduled   time.Duration `json:"scheduled"`
	Released    time.Duration `json:"released"`     // handed to a worker
	Admitted    time.Duration `json:"admitted"`     // past the in-flight cap
	Connected   time.Duration `json:"connected"`    // its connection was ready
	Sent        time.Duration `json:"sent"`         // just before the first byte is written
	Written     time.Duration `json:"written"`      // after the last byte was
	Headers     time.Duration `json:"headers"`      // status line and headers were read
	FirstOutput time.Duration `json:"first_output"` // text, reasoning, or a tool call's name or arguments
	FirstAnswer time.Duration `json:"first_answer"` // first output that is not reasoning
	LastOutput  time.Duration `json:"last_output"`
	Done        time.Duration `json:"done"` // end of the stream, or the failure

	// Events are the output events, in order of arrival.
	Events []Event `json:"events,omitempty"`

	AskedInput  int `json:"asked_input"`  // prompt tokens asked for; -1: not known before (live history)
	AskedOutput int `json:"asked_output"` // output tokens asked for

	InputTokens     int         `json:"input_tokens"`     // prompt tokens as counted by the server
	OutputTokens    int         `json:"output_tokens"`    // reasoning included
	ReasoningTokens int         `json:"reasoning_tokens"` // -1: the server does not say
	CachedTokens    int         `json:"cached_tokens"`    // prompt tokens from the prefix cache
	TokenSource     TokenSource `json:"token_source,omitempty"`
	// HiddenTokens is set where usage counts tokens that no event delivered
	// (hidden reasoning) and how many is unknown: TPOT is then undefined.
	HiddenTokens bool   `json:"hidden_tokens,omitempty"`
	FinishReason string `json:"finish_reason,omitempty"` // of choice 0
	Streamed     bool   `json:"streamed,omitempty"`

	HangUpPlanned bool          `json:"hang_up_planned,omitempty"`
	HangUpAfter   time.Duration `json:"hang_up_after,omitempty"`

	Reused     bool `json:"reused,omitempty"`     // the connection had served before
	Reconnects int  `json:"reconnects,omitempty"` // a dead reused connection was replaced
	// Retries counts attempts after the first where the user asked for them.
	Retries int `json:"retries,omitempty"`

	// Stamp quality: see wire.Stamp.
	StampSource     string `json:"stamp_source,omitempty"` // kernel | read | mixed | simulated
	Reads           int    `json:"reads,omitempty"`        // reads that held output events
	MultiEventReads int    `json:"multi_event_reads,omitempty"`
	RefusedStamps   int    `json:"refused_stamps,omitempty"` // kernel times outside the interval
}

// Event is one output event of a stream.
type Event struct {
	At     time.Duration `json:"t"`
	Tokens int32         `json:"n"` // in this event; -1: unknown
	Width  int32         `json:"w"` // of the stamp's interval, in whole microseconds, rounded up
}

// TokenSource says where a record's output count comes from, most trusted first.
type TokenSource string

const (
	TokensFromUsage      TokenSource = "usage"
	TokensFromEventUsage TokenSource = "event_usage"
	TokensFromIDs        TokenSource = "token_ids"
	TokensFromTokenizer  TokenSource = "tokenizer"
	TokensFromEvents     TokenSource = "events" // one per output event: an estimate
)

// New returns a record of a planned turn with every stamp Unset and every count unknown.
func New(s *plan.Session, t *plan.Turn) *Record {
	return &Record{
		ID:    plan.TurnID{Session: s.Seq, Turn: t.Index},
		Class: s.Class, Tenant: s.Tenant, Priority: s.Priority, Model: s.Model,
		Scheduled: Unset, Released: Unset, Admitted: Unset, Connected: Unset, Sent: Unset, Written: Unset,
		Headers: Unset, FirstOutput: Unset, FirstAnswer: Unset, LastOutput: Unset, Done: Unset,
		AskedInput: -1, AskedOutput: t.OutputTokens,
		InputTokens: -1, OutputTokens: -1, ReasoningTokens: -1, CachedTokens: -1,
		HangUpPlanned: t.HangUp > 0, HangUpAfter: t.HangUp,
	}
}
