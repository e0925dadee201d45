package protocol

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/wire"
)

const (
	// maxErrorBody bounds what is read of the body of an answer that is no
	// success.
	maxErrorBody = 64 << 10
	// After the event that settles an answer ([DONE], or an error) the rest of
	// the body is read, within these bounds, so that the connection can serve
	// again.
	drainBytes = 64 << 10
	drainTime  = 20 * time.Millisecond
)

// errSettled stops an exchange that has nothing more to say.
var errSettled = errors.New("the answer goes on after its end")

// format is what an answer's body turned out to be.
type format uint8

const (
	unseen   format = iota
	events          // server-sent events
	whole           // one JSON object
	foreign         // something else, such as a proxy's HTML page
	errorDoc        // the body of an answer that is no success
)

// An exchange is a wire.Handler: it turns one answer into a record.
type exchange struct {
	rec    *record.Record
	zero   time.Duration // subtracted from every stamp
	stop   context.CancelFunc
	decode decoder
	sse    SSE

	status  int
	format  format
	body    []byte // of whole, foreign and errorDoc
	last    wire.Stamp
	bytes   int64
	after   int         // bytes since the answer was settled
	settled wire.Stamp  // of the event that settled it
	drain   *time.Timer // runs since then

	// Of the read at hand, which may come in several calls.
	inRead int
	kernel int // reads with output whose stamp was the kernel's
}

// Headers implements wire.Handler.
func (x *exchange) Headers(status int, h http.Header, s wire.Stamp) error {
	x.status = status
	x.rec.HTTPStatus = status
	x.rec.Headers = s.At - x.zero
	x.last = s
	if status < 200 || status > 299 {
		x.format = errorDoc
		x.rec.RetryAfter = retryAfter(h, time.Now())
	}
	return nil
}

// Data implements wire.Handler.
func (x *exchange) Data(b []byte, s wire.Stamp) error {
	if !x.last.More {
		x.endRead()
	}
	x.last = s
	x.bytes += int64(len(b))
	if x.format == unseen {
		x.sniff(b)
	}
	switch x.format {
	case errorDoc, foreign:
		if x.body = append(x.body, b[:min(len(b), maxErrorBody-len(x.body))]...); len(x.body) == maxErrorBody {
			return errSettled
		}
		return nil
	case whole:
		if len(x.body)+len(b) > maxEvent {
			err := fmt.Errorf("the answer is longer than %d bytes (the limit)", maxEvent)
			x.decode.fail(serverError{message: err.Error()})
			return err
		}
		x.body = append(x.body, b...)
		return nil
	}

	if x.drain != nil {
		if x.after += len(b); x.after > drainBytes {
			return errSettled
		}
	}
	for len(b) > 0 {
		ev, rest, ok, err := x.sse.Next(b)
		if err != nil {
			x.decode.fail(serverError{message: err.Error()})
			return err
		}
		if !ok {
			break
		}
		b = rest
		x.event(ev, s, len(rest) > 0)
	}
	return nil
}

// sniff decides by the first byte what the body is: servers answer streaming
// requests with whole JSON errors, and stream under other content types, so
// the header cannot be trusted with it. No event stream begins with { or <:
// that would be a field nobody knows.
func (x *exchange) sniff(b []byte) {
	b = bytes.TrimLeft(b, " \t\r\n")
	switch {
	case len(b) == 0:
	case b[0] == '{':
		x.format = whole
		x.rec.Streamed = false
	case b[0] == '<':
		x.format = foreign
		x.rec.Streamed = false
	default:
		x.format = events
		x.rec.Streamed = true
	}
}

// event books one event, which the stamped read completed; more tells that
// bytes of the same read follow it.
func (x *exchange) event(ev Event, s wire.Stamp, more bool) {
	wasFailed := x.decode.failed
	d := x.decode.event(ev)
	if d.Output && !wasFailed {
		s.More = s.More || more
		x.output(d, s)
	}
	if (x.decode.done || x.decode.failed && !wasFailed) && x.drain == nil {
		x.settled = s
		x.drain = time.AfterFunc(drainTime, x.stop)
	}
}

// output books one output event.
func (x *exchange) output(d delta, s wire.Stamp) {
	rec, at := x.rec, s.At-x.zero
	if rec.FirstOutput == record.Unset {
		rec.FirstOutput = at
	}
	if d.Answer && rec.FirstAnswer == record.Unset {
		rec.FirstAnswer = at
	}
	rec.LastOutput = at
	width := (s.Width() + time.Microsecond - 1) / time.Microsecond
	rec.Events = append(rec.Events, record.Event{
		At:     at,
		Tokens: int32(min(d.Tokens, math.MaxInt32)),
		Width:  int32(min(max(width, 0), math.MaxInt32)),
	})
	x.inRead++
}

// endRead closes the count of the last read.
func (x *exchange) endRead() {
	s := x.last
	if x.inRead == 0 {
		return
	}
	x.rec.Reads++
	if x.inRead > 1 {
		x.rec.MultiEventReads++
	}
	if s.Kernel {
		x.kernel++
	}
	if s.Refused {
		x.rec.RefusedStamps++
	}
	x.inRead = 0
}

// finish turns what came into the record's figures and outcome. ended is set
// where the caller's context ended, err is what the wire says, end is now.
func (x *exchange) finish(err error, ended bool, end time.Duration, choices int, countTokens func(string) (int, error)) {
	if x.drain != nil {
		x.drain.Stop()
	}
	rec, d := x.rec, &x.decode
	rec.Done = end - x.zero
	switch x.format {
	case events:
		if ev, ok := x.sse.End(); ok && !d.done {
			// The last event's blank line never came.
			x.event(ev, x.last, false)
			if x.drain != nil {
				x.drain.Stop()
			}
		}
	case whole:
		// The answer is as late as its last byte. It is one output event.
		if err == nil {
			rec.Done = x.last.At - x.zero
			if delta := d.chunk(bytes.TrimSpace(x.body)); delta.Output {
				delta.Tokens = -1
				x.last.More = false
				x.output(delta, x.last)
			}
		}
	}
	x.endRead()
	if x.drain != nil && (err != nil || d.failed) {
		// The failure, or a [DONE] after which the body would not end.
		rec.Done = x.settled.At - x.zero
	}
	if len(rec.Events) == 0 {
		rec.Events = nil
	}
	x.sources()
	x.tokens(ended, countTokens)
	rec.FinishReason = clip(d.reason(), maxReason)

	complete := d.complete(choices)
	var connect *wire.ConnectError
	switch {
	case x.status == 0 && ended:
	case x.status == 0 && errors.As(err, &connect):
		rec.Outcome, rec.Error = record.ConnectError, err.Error()
	case x.status == 0 && err == nil:
		rec.Outcome, rec.Error = record.StreamError, "the connection ended without an answer"
	case x.status == 0:
		rec.Outcome, rec.Error = record.StreamError, "no answer: "+err.Error()
	case x.status == http.StatusTooManyRequests || x.status == http.StatusServiceUnavailable:
		rec.Outcome, rec.Error = record.Rejected, x.errorText()
	case x.format == errorDoc:
		rec.Outcome, rec.Error = record.HTTPError, x.errorText()
	case d.failed && d.overload:
		rec.Outcome, rec.Error = record.Rejected, d.message
	case d.failed:
		rec.Outcome, rec.Error = record.StreamError, d.message
	case ended && err != nil && !complete:
		// The caller knows why its context ended.
	case complete && len(rec.Events) > 0:
		rec.Outcome = record.OK
	case complete:
		rec.Outcome, rec.Error = record.Empty, "finished without any output"
	case x.format == foreign:
		rec.Outcome, rec.Error = record.StreamError, "the answer is no model's: "+plainText(bytes.TrimSpace(x.body))
	case x.bytes == 0 && err == nil:
		rec.Outcome, rec.Error = record.StreamError, "the answer has no body"
	case err != nil:
		rec.Outcome, rec.Error = record.StreamError, "the answer was cut before its finish reason: "+err.Error()
	case x.format == whole:
		rec.Outcome, rec.Error = record.StreamError, "the answer has no finish reason"
	case d.done:
		rec.Outcome, rec.Error = record.StreamError, "the stream says [DONE] without a finish reason"
	default:
		rec.Outcome, rec.Error = record.StreamError, "the stream ended without a finish reason"
	}
}

// errorText is the message of an answer that is no success.
func (x *exchange) errorText() string {
	if m := parseError(x.body).message; m != "" {
		return m
	}
	if t := http.StatusText(x.status); t != "" {
		return t
	}
	return fmt.Sprintf("status %d", x.status)
}

// sources says whose clock the output's stamps are of; of an answer without
// output, that of its last read.
func (x *exchange) sources() {
	kernel, reads := x.kernel, x.rec.Reads
	if reads == 0 {
		if x.status == 0 {
			return
		}
		reads = 1
		if x.last.Kernel {
			kernel = 1
		}
	}
	switch kernel {
	case 0:
		x.rec.StampSource = "read"
	case reads:
		x.rec.StampSource = "kernel"
	default:
		x.rec.StampSource = "mixed"
	}
}

// tokens fills the record's counts from the best source there is.
func (x *exchange) tokens(ended bool, countTokens func(string) (int, error)) {
	rec, d := x.rec, &x.decode
	c, from := d.sum()
	rec.InputTokens, rec.CachedTokens, rec.ReasoningTokens = c.prompt, c.cached, c.reasoning
	rec.OutputTokens, rec.TokenSource = c.completion, from
	if c.completion < 0 {
		rec.TokenSource = ""
	}
	if rec.TokenSource == "" && len(rec.Events) > 0 {
		rec.OutputTokens, rec.TokenSource = len(rec.Events), record.TokensFromEvents
		if countTokens != nil && !d.textCut && !ended {
			if n, ok := JoinAndCount(d.texts(), countTokens); ok {
				rec.OutputTokens, rec.TokenSource = n, record.TokensFromTokenizer
			}
		}
	}
	x.hidden()
}

// hidden sees to reasoning that usage counts and no event delivered. Of n
// output tokens r were then made before the first output event, so the visible
// ones are n - r, and
//
//	TPOT = (last_output - first_output) / (n - r - 1)
//
// since without per-event counts one token is taken to come in the first event
// (measurement contract, section 2). The first event's count says so: it is
// the growth of the server's own count up to that event, r + 1, as continuous
// usage would have put it. Where r exceeds n the two do not belong together,
// the visible number is unknown, and there is no TPOT.
func (x *exchange) hidden() {
	rec := x.rec
	r, n := rec.ReasoningTokens, rec.OutputTokens
	if r <= 0 || n < 0 || x.decode.reasoned || len(rec.Events) < 2 {
		return // a single event holds all that came
	}
	if r > n {
		rec.HiddenTokens = true
		return
	}
	for _, e := range rec.Events {
		if e.Tokens >= 0 {
			return // counted event by event already
		}
	}
	visible := n - r
	if visible < len(rec.Events) {
		// More events than visible tokens: then some of the text is not what
		// the server calls visible.
		rec.HiddenTokens = true
		return
	}
	if visible == len(rec.Events) {
		for i := range rec.Events {
			rec.Events[i].Tokens = 1
		}
	}
	rec.Events[0].Tokens = int32(min(r+1, math.MaxInt32))
}

// texts returns what each choice delivered.
func (d *decoder) texts() []string {
	var t []string
	for i := range d.choices {
		if len(d.choices[i].text) > 0 {
			t = append(t, string(d.choices[i].text))
		}
	}
	return t
}

// JoinAndCount counts the tokens of what each of an answer's choices delivered,
// once on its joined text: counting piece by piece would add a begin-of-sequence
// token to each. It reports false where the tokenizer fails.
func JoinAndCount(choices []string, count func(string) (int, error)) (n int, ok bool) {
	for _, text := range choices {
		k, err := count(text)
		if err != nil || k < 0 {
			return 0, false
		}
		n += k
	}
	return n, len(choices) > 0
}
