package store

import (
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// planRow is one row of plan.parquet: one planned turn. Times are nanoseconds
// from the run's start; what does not exist is null.
type planRow struct {
	Session      int64   `parquet:"session,delta"`
	Turn         int32   `parquet:"turn"`
	Class        string  `parquet:"class,dict"`
	Phase        string  `parquet:"phase,dict"`
	Tenant       string  `parquet:"tenant,dict"`
	Priority     int32   `parquet:"priority"`
	Model        string  `parquet:"model,dict"`
	Scripted     bool    `parquet:"scripted"`
	Sent         bool    `parquet:"sent"` // false: history from before the run's start
	ScheduledNs  *int64  `parquet:"scheduled_ns,optional"`
	ThinkNs      int64   `parquet:"think_ns"`
	InputTokens  int64   `parquet:"input_tokens"`
	OutputTokens int64   `parquet:"output_tokens"`
	TimeoutNs    *int64  `parquet:"timeout_ns,optional"`
	HangUpNs     *int64  `parquet:"hang_up_ns,optional"`
	TextSeed     int64   `parquet:"text_seed"`
	TextItem     *int64  `parquet:"text_item,optional"`
	PrefixID     int64   `parquet:"prefix_id"`
	PrefixTokens int64   `parquet:"prefix_tokens"`
	BlockTokens  int64   `parquet:"block_tokens"`
	Blocks       []int64 `parquet:"blocks,list"`
}

// recordRow is one row of records.parquet: what happened to one planned turn.
type recordRow struct {
	Session    int64  `parquet:"session"`
	Turn       int32  `parquet:"turn"`
	LastTurn   bool   `parquet:"last_turn"`
	Class      string `parquet:"class,dict"`
	Phase      string `parquet:"phase,dict"`
	Tenant     string `parquet:"tenant,dict"`
	Priority   int32  `parquet:"priority"`
	Model      string `parquet:"model,dict"`
	Outcome    string `parquet:"outcome,dict"`
	Error      string `parquet:"error,dict"`
	HTTPStatus *int32 `parquet:"http_status,optional"`
	RetryAfter *int64 `parquet:"retry_after_ns,optional"`

	Scheduled   *int64 `parquet:"scheduled_ns,optional"`
	Released    *int64 `parquet:"released_ns,optional"`
	Admitted    *int64 `parquet:"admitted_ns,optional"`
	Connected   *int64 `parquet:"connected_ns,optional"`
	Sent        *int64 `parquet:"sent_ns,optional"`
	Written     *int64 `parquet:"written_ns,optional"`
	Headers     *int64 `parquet:"headers_ns,optional"`
	FirstOutput *int64 `parquet:"first_output_ns,optional"`
	FirstAnswer *int64 `parquet:"first_answer_ns,optional"`
	LastOutput  *int64 `parquet:"last_output_ns,optional"`
	Done        *int64 `parquet:"done_ns,optional"`

	GapsNs      []int64 `parquet:"gaps_ns,list"`
	EventTokens []int32 `parquet:"event_tokens,list"` // -1: unknown
	EventWidth  []int32 `parquet:"event_width_us,list"`

	AskedInput      *int64 `parquet:"asked_input,optional"`
	AskedOutput     int64  `parquet:"asked_output"`
	InputTokens     *int64 `parquet:"input_tokens,optional"`
	OutputTokens    *int64 `parquet:"output_tokens,optional"`
	ReasoningTokens *int64 `parquet:"reasoning_tokens,optional"`
	CachedTokens    *int64 `parquet:"cached_tokens,optional"`
	TokenSource     string `parquet:"token_source,dict"`
	HiddenTokens    bool   `parquet:"hidden_tokens"`
	FinishReason    string `parquet:"finish_reason,dict"`
	Streamed        bool   `parquet:"streamed"`
	HangUpAfter     *int64 `parquet:"hang_up_after_ns,optional"`

	Reused          bool   `parquet:"reused"`
	Reconnects      int32  `parquet:"reconnects"`
	Retries         int32  `parquet:"retries"`
	StampSource     string `parquet:"stamp_source,dict"`
	Reads           int32  `parquet:"reads"`
	MultiEventReads int32  `parquet:"multi_event_reads"`
	RefusedStamps   int32  `parquet:"refused_stamps"`
}

// known returns a pointer to v, or nil where v is the mark of absence.
func known[T, U int64 | int32 | int | time.Duration](v, absent T) *U {
	if v == absent {
		return nil
	}
	u := U(v)
	return &u
}

// or undoes known.
func or[T, U int64 | int32 | int | time.Duration](p *U, absent T) T {
	if p == nil {
		return absent
	}
	return T(*p)
}

func at(t time.Duration) *int64 { return known[time.Duration, int64](t, record.Unset) }

func sessionRows(s *plan.Session, rows []planRow) []planRow {
	add := func(t plan.Turn, sent bool) {
		r := planRow{
			Session: s.Seq, Turn: t.Index, Class: s.Class, Phase: s.Phase, Tenant: s.Tenant,
			Priority: int32(s.Priority), Model: s.Model, Scripted: s.Scripted, Sent: sent,
			ScheduledNs: at(t.At), ThinkNs: int64(t.Think),
			InputTokens: int64(t.InputTokens), OutputTokens: int64(t.OutputTokens),
			TimeoutNs: known[time.Duration, int64](t.Timeout, 0), HangUpNs: known[time.Duration, int64](t.HangUp, 0),
			TextSeed: int64(t.Prompt.Seed), TextItem: known[int64, int64](t.Prompt.Item, -1),
			PrefixID: int64(t.Prompt.PrefixID), PrefixTokens: int64(t.Prompt.PrefixTokens),
			BlockTokens: int64(t.Prompt.BlockTokens),
		}
		for _, b := range t.Prompt.Blocks {
			r.Blocks = append(r.Blocks, int64(b))
		}
		rows = append(rows, r)
	}
	for _, t := range s.History {
		add(t, false)
	}
	for i, t := range s.Turns {
		if i == 0 && t.At == plan.Unset {
			t.At = s.Scheduled
		}
		add(t, true)
	}
	return rows
}

func toRow(r *record.Record) recordRow {
	row := recordRow{
		Session: r.ID.Session, Turn: r.ID.Turn, LastTurn: r.LastTurn, Class: r.Class, Phase: r.Phase,
		Tenant: r.Tenant, Priority: int32(r.Priority), Model: r.Model,
		Outcome: r.Outcome.String(), Error: r.Error, HTTPStatus: known[int, int32](r.HTTPStatus, 0),
		RetryAfter: known[time.Duration, int64](r.RetryAfter, 0),
		Scheduled:  at(r.Scheduled), Released: at(r.Released), Admitted: at(r.Admitted), Connected: at(r.Connected),
		Sent: at(r.Sent), Written: at(r.Written), Headers: at(r.Headers), FirstOutput: at(r.FirstOutput),
		FirstAnswer: at(r.FirstAnswer), LastOutput: at(r.LastOutput), Done: at(r.Done),
		AskedInput: known[int, int64](r.AskedInput, -1), AskedOutput: int64(r.AskedOutput),
		InputTokens: known[int, int64](r.InputTokens, -1), OutputTokens: known[int, int64](r.OutputTokens, -1),
		ReasoningTokens: known[int, int64](r.ReasoningTokens, -1), CachedTokens: known[int, int64](r.CachedTokens, -1),
		TokenSource: string(r.TokenSource), HiddenTokens: r.HiddenTokens, FinishReason: r.FinishReason, Streamed: r.Streamed,
		HangUpAfter: known[time.Duration, int64](r.HangUpAfter, 0),
		Reused:      r.Reused, Reconnects: int32(r.Reconnects), Retries: int32(r.Retries),
		StampSource: r.StampSource, Reads: int32(r.Reads), MultiEventReads: int32(r.MultiEventReads),
		RefusedStamps: int32(r.RefusedStamps),
	}
	for i, e := range r.Events {
		if i > 0 {
			row.GapsNs = append(row.GapsNs, int64(e.At-r.Events[i-1].At))
		}
		row.EventTokens = append(row.EventTokens, e.Tokens)
		row.EventWidth = append(row.EventWidth, e.Width)
	}
	return row
}

func (row *recordRow) record() (*record.Record, error) {
	r := &record.Record{
		ID: plan.TurnID{Session: row.Session, Turn: row.Turn}, LastTurn: row.LastTurn, Class: row.Class, Phase: row.Phase,
		Tenant: row.Tenant, Priority: int(row.Priority), Model: row.Model,
		Error: row.Error, HTTPStatus: or[int](row.HTTPStatus, 0), RetryAfter: or[time.Duration](row.RetryAfter, 0),
		Scheduled: or(row.Scheduled, record.Unset), Released: or(row.Released, record.Unset),
		Admitted: or(row.Admitted, record.Unset), Connected: or(row.Connected, record.Unset),
		Sent: or(row.Sent, record.Unset), Written: or(row.Written, record.Unset), Headers: or(row.Headers, record.Unset),
		FirstOutput: or(row.FirstOutput, record.Unset), FirstAnswer: or(row.FirstAnswer, record.Unset),
		LastOutput: or(row.LastOutput, record.Unset), Done: or(row.Done, record.Unset),
		AskedInput: or(row.AskedInput, -1), AskedOutput: int(row.AskedOutput),
		InputTokens: or(row.InputTokens, -1), OutputTokens: or(row.OutputTokens, -1),
		ReasoningTokens: or(row.ReasoningTokens, -1), CachedTokens: or(row.CachedTokens, -1),
		TokenSource: record.TokenSource(row.TokenSource), HiddenTokens: row.HiddenTokens,
		FinishReason: row.FinishReason, Streamed: row.Streamed,
		HangUpPlanned: row.HangUpAfter != nil, HangUpAfter: or[time.Duration](row.HangUpAfter, 0),
		Reused: row.Reused, Reconnects: int(row.Reconnects), Retries: int(row.Retries),
		StampSource: row.StampSource, Reads: int(row.Reads), MultiEventReads: int(row.MultiEventReads),
		RefusedStamps: int(row.RefusedStamps),
	}
	if err := r.Outcome.UnmarshalText([]byte(row.Outcome)); err != nil {
		return nil, err
	}
	if len(row.EventTokens) > 0 {
		r.Events = make([]record.Event, len(row.EventTokens))
		t := r.FirstOutput
		for i := range r.Events {
			if i > 0 && i-1 < len(row.GapsNs) {
				t += time.Duration(row.GapsNs[i-1])
			}
			r.Events[i] = record.Event{At: t, Tokens: row.EventTokens[i]}
			if i < len(row.EventWidth) {
				r.Events[i].Width = row.EventWidth[i]
			}
		}
	}
	return r, nil
}
