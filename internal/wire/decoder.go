package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
)

const (
	maxHead = 1 << 20 // bytes of an answer's head, and of its trailers
	maxLine = 4 << 10 // bytes of a chunk's size line, extensions included
)

// decoder takes an HTTP/1.1 answer to pieces (RFC 9112) as its bytes come in,
// and hands them on; it buffers nothing but the head.
type decoder struct {
	method string
	h      Handler

	state   decoderState
	head    []byte
	started bool // a byte of the answer came
	close   bool // the connection ends with this answer

	left   int64 // bytes of the body or chunk to come
	digits int   // of the chunk's size
	line   int   // bytes of the present line, of the trailers in all
	blank  bool  // the trailer line is empty so far
	body   int64 // bytes handed on

	handlerErr error
}

type decoderState uint8

const (
	inHead      decoderState = iota
	inLength                 // a body of known length
	inClose                  // a body that the connection's end ends
	inSize                   // the hexadecimal size of a chunk
	inBlanks                 // after the size
	inExtension              // after a semicolon
	inSizeEnd                // after the carriage return
	inChunk
	inChunkEnd // the line end after a chunk
	inTrailer
	done
)

// feed takes bytes of one read, and returns how many of them belong to this
// answer: fewer than it was given only when the answer is complete.
func (d *decoder) feed(b []byte, s Stamp) (int, error) {
	all := len(b)
	d.started = d.started || all > 0
	for len(b) > 0 && d.state != done {
		n, err := d.step(b, s)
		if err != nil {
			return all - len(b), err
		}
		b = b[n:]
	}
	return all - len(b), nil
}

// eof ends an answer where its connection ended.
func (d *decoder) eof() error {
	switch {
	case d.state == done:
		return nil
	case d.state == inClose:
		d.state = done
		return nil
	case !d.started:
		return fmt.Errorf("the server closed the connection without an answer: %w", io.ErrUnexpectedEOF)
	case d.state == inHead:
		return fmt.Errorf("the server closed the connection within the answer's headers: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("the answer was cut after %d bytes of its body: %w", d.body, io.ErrUnexpectedEOF)
}

// step consumes a part of b, at least one byte.
func (d *decoder) step(b []byte, s Stamp) (int, error) {
	switch d.state {
	case inHead:
		return d.readHead(b, s)
	case inClose:
		return len(b), d.data(b, nil, s)
	case inLength:
		b, rest := cut(b, d.left)
		if d.left -= int64(len(b)); d.left == 0 {
			d.state = done
		}
		return len(b), d.data(b, rest, s)
	case inChunk:
		b, rest := cut(b, d.left)
		if d.left -= int64(len(b)); d.left == 0 {
			d.state = inChunkEnd
			rest = bytes.TrimPrefix(rest, []byte("\r"))
			rest = bytes.TrimPrefix(rest, []byte("\n"))
		}
		return len(b), d.data(b, rest, s)
	case inChunkEnd:
		if b[0] == '\r' && d.line == 0 {
			d.line = 1
			return 1, nil
		}
		if b[0] != '\n' {
			return 0, errors.New("malformed chunk: no line end after its bytes")
		}
		d.state, d.line, d.digits = inSize, 0, 0
		return 1, nil
	case inTrailer:
		return 1, d.trailer(b[0])
	default: // in the size line
		return 1, d.size(b[0])
	}
}

func cut(b []byte, n int64) (head, rest []byte) {
	n = min(n, int64(len(b)))
	return b[:n], b[n:]
}

func (d *decoder) data(b, rest []byte, s Stamp) error {
	s.More = s.More || len(rest) > 0
	d.body += int64(len(b))
	d.handlerErr = d.h.Data(b, s)
	return d.handlerErr
}

// size takes a byte of a chunk's size line: the size, perhaps blanks, perhaps
// extensions after a semicolon (ignored), and the line end.
func (d *decoder) size(c byte) error {
	if d.line++; d.line > maxLine {
		return errors.New("malformed chunk: its size line is too long")
	}
	v, hex := hexDigit(c)
	switch {
	case c == '\n' && d.digits > 0:
		d.line, d.digits = 0, 0
		d.state = inChunk
		if d.left == 0 {
			d.state, d.blank = inTrailer, true
		}
	case d.state == inSize && hex:
		if d.left > math.MaxInt64>>4 {
			return errors.New("malformed chunk: its size is too large")
		}
		d.left = d.left<<4 | int64(v)
		d.digits++
	case d.digits == 0 || d.state == inSizeEnd:
		return fmt.Errorf("malformed chunk: %q in its size line", c)
	case c == '\r':
		d.state = inSizeEnd
	case d.state == inExtension:
	case c == ';':
		d.state = inExtension
	case c == ' ' || c == '\t':
		d.state = inBlanks
	default:
		return fmt.Errorf("malformed chunk: %q in its size line", c)
	}
	return nil
}

func hexDigit(c byte) (v byte, ok bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// trailer skips trailers: lines up to an empty one.
func (d *decoder) trailer(c byte) error {
	if d.line++; d.line > maxHead {
		return fmt.Errorf("the answer's trailers exceed %d bytes", maxHead)
	}
	switch {
	case c == '\n' && d.blank:
		d.state = done
	case c == '\n':
		d.blank = true
	case c != '\r':
		d.blank = false
	}
	return nil
}

// readHead collects the head and acts on it when it is complete.
func (d *decoder) readHead(b []byte, s Stamp) (int, error) {
	had := len(d.head)
	room := maxHead + 1 - had
	d.head = append(d.head, b[:min(len(b), room)]...)
	end := headEnd(d.head, max(0, had-2))
	if end < 0 {
		if len(d.head) > maxHead {
			return 0, fmt.Errorf("the answer's headers exceed %d bytes", maxHead)
		}
		return len(b), nil
	}
	if end > maxHead {
		return 0, fmt.Errorf("the answer's headers exceed %d bytes", maxHead)
	}
	used := end - had
	s.More = s.More || used < len(b)
	head := d.head[:end]
	d.head = nil
	return used, d.begin(head, s)
}

// headEnd returns the offset after the empty line that ends a head, or -1. The
// bytes before from hold no line end but perhaps in the two last.
func headEnd(b []byte, from int) int {
	for i := from; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return -1
		}
		i += j + 1
		switch {
		case i < len(b) && b[i] == '\n':
			return i + 1
		case i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n':
			return i + 2
		}
	}
}

// begin reads a complete head and decides how the body ends (RFC 9112, 6.3).
func (d *decoder) begin(head []byte, s Stamp) error {
	resp, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(head), 512), &http.Request{Method: d.method})
	if err != nil {
		return fmt.Errorf("malformed answer: %w", err)
	}
	status := resp.StatusCode
	if status == http.StatusSwitchingProtocols {
		return errors.New("the server switched protocols, which nobody asked for")
	}
	if status < 200 {
		return nil // another head follows
	}
	d.close = resp.Close
	switch {
	case d.method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified:
		d.state = done
	case len(resp.TransferEncoding) > 0:
		d.state = inSize
	case resp.ContentLength > 0:
		d.state, d.left = inLength, resp.ContentLength
	case resp.ContentLength == 0:
		d.state = done
	default:
		d.state, d.close = inClose, true
	}
	d.handlerErr = d.h.Headers(status, resp.Header, s)
	return d.handlerErr
}
