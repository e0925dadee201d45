package protocol

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// maxEvent bounds one server-sent event, its data and its longest line alike.
const maxEvent = 16 << 20

// An Event is one server-sent event. Its slices are valid until the next call
// of the reader that returned it.
type Event struct {
	// Name is the event field; empty: an ordinary "message".
	Name []byte
	// Data is the joined data lines, without the last line feed. It is nil for
	// an "event: error" that has no data line: see SSE.
	Data []byte
	// ID is the last event id of the stream so far.
	ID []byte
	// Comment is the text of the comment lines inside this event, joined by line
	// feeds; of more than 4 KiB the latest part.
	Comment []byte
}

// SSE reads a stream of server-sent events as its bytes arrive, by the rules of
// the WHATWG HTML standard, section 9.2.6 ("Interpreting an event stream").
// Line ends are LF, CRLF or CR and nothing else, one space after the colon is
// dropped, comments and unknown fields are skipped, and a leading byte order
// mark is.
//
// It leaves the rules at two places, because servers do. An event that never
// saw its blank line is still handed out at the end of the stream (End), and an
// "event: error" without data is handed out with Data nil: one engine puts the
// error's text into a comment.
//
// The zero value is ready. Its buffers grow to the largest event and are kept,
// so that reading allocates nothing in the steady state.
type SSE struct {
	// Retry is the last reconnection time the server asked for; 0: none.
	Retry time.Duration
	// Limit bounds the bytes of one event; 0: 16 MiB.
	Limit int

	line    []byte // of a line that began in an earlier call
	data    []byte
	name    []byte
	id      []byte
	comment []byte
	hasData bool
	handed  bool // the buffers belong to an event already handed out
	afterCR bool // a LF would belong to the CR before it
	bom     int  // bytes of the byte order mark seen; -1: past it
}

// EventTooLong is the error of an event that exceeds the reader's limit.
type EventTooLong struct{ Limit int }

func (e *EventTooLong) Error() string {
	return fmt.Sprintf("a server-sent event is longer than %d bytes (the limit)", e.Limit)
}

const byteOrderMark = "\xef\xbb\xbf"

// Next takes bytes from b up to the end of the next event. It returns the event
// and the bytes after it; ok is false where b ends before an event does, and
// the reader has then kept what it needs of b.
func (r *SSE) Next(b []byte) (ev Event, rest []byte, ok bool, err error) {
	if r.handed {
		r.reset()
	}
	for len(b) > 0 && r.bom >= 0 {
		if r.bom < len(byteOrderMark) && b[0] == byteOrderMark[r.bom] {
			r.bom++
			b = b[1:]
			continue
		}
		if r.bom < len(byteOrderMark) { // not a mark after all: its bytes are text
			r.line = append(r.line, byteOrderMark[:r.bom]...)
		}
		r.bom = -1
	}
	for len(b) > 0 {
		if r.afterCR {
			r.afterCR = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		i := lineEnd(b)
		if n := len(r.line) + len(r.data); n+max(i, 0) > r.limit() || i < 0 && n+len(b) > r.limit() {
			return Event{}, nil, false, &EventTooLong{r.limit()}
		}
		if i < 0 {
			r.line = append(r.line, b...)
			return Event{}, nil, false, nil
		}
		line := b[:i]
		if len(r.line) > 0 {
			r.line = append(r.line, line...)
			line = r.line
		}
		if b[i] == '\r' {
			// The LF of a CRLF is part of the line's end: taking it here where
			// it is at hand tells the caller rightly whether bytes follow.
			if i+1 < len(b) && b[i+1] == '\n' {
				i++
			} else {
				r.afterCR = true
			}
		}
		b = b[i+1:]
		if len(line) > 0 {
			r.field(line)
			r.line = r.line[:0]
			continue
		}
		if ev, ok = r.dispatch(); ok {
			return ev, b, true, nil
		}
	}
	return Event{}, nil, false, nil
}

// End tells that the stream has ended and returns the event left over, if any.
func (r *SSE) End() (ev Event, ok bool) {
	if r.handed {
		r.reset()
	}
	if r.bom > 0 && r.bom < len(byteOrderMark) {
		r.line = append(r.line, byteOrderMark[:r.bom]...)
		r.bom = -1
	}
	if len(r.line) > 0 {
		r.field(r.line)
		r.line = r.line[:0]
	}
	return r.dispatch()
}

func (r *SSE) limit() int {
	if r.Limit > 0 {
		return r.Limit
	}
	return maxEvent
}

func (r *SSE) reset() {
	r.data, r.name, r.comment, r.hasData, r.handed = r.data[:0], r.name[:0], r.comment[:0], false, false
}

// dispatch ends an event at its blank line.
func (r *SSE) dispatch() (Event, bool) {
	if !r.hasData && string(r.name) != "error" {
		r.name, r.comment = r.name[:0], r.comment[:0]
		return Event{}, false
	}
	r.handed = true
	ev := Event{Name: r.name, ID: r.id, Comment: r.comment}
	if r.hasData {
		ev.Data = r.data[:len(r.data)-1]
	}
	return ev, true
}

// field takes one line that is not blank.
func (r *SSE) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		r.data = append(append(r.data, value...), '\n')
		r.hasData = true
	case "":
		const maxComment = 4 << 10
		if len(value) == 0 {
			return
		}
		if len(r.comment)+len(value) > maxComment {
			r.comment = r.comment[:0] // keep the latest
			value = value[:min(len(value), maxComment)]
		}
		if len(r.comment) > 0 {
			r.comment = append(r.comment, '\n')
		}
		r.comment = append(r.comment, value...)
	case "event":
		r.name = append(r.name[:0], value...)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			r.id = append(r.id[:0], value...)
		}
	case "retry":
		for _, c := range value {
			if c < '0' || c > '9' {
				return
			}
		}
		if ms, err := strconv.ParseInt(string(value), 10, 32); err == nil {
			r.Retry = time.Duration(ms) * time.Millisecond
		}
	}
}

// lineEnd returns the index of the first CR or LF, or -1. It looks at windows,
// so that the cost of a line does not depend on what follows it.
func lineEnd(b []byte) int {
	const window = 1 << 10
	for off := 0; off < len(b); off += window {
		w := b[off:min(off+window, len(b))]
		lf := bytes.IndexByte(w, '\n')
		if lf >= 0 {
			w = w[:lf]
		}
		if cr := bytes.IndexByte(w, '\r'); cr >= 0 {
			return off + cr
		}
		if lf >= 0 {
			return off + lf
		}
	}
	return -1
}
