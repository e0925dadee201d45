package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Writer writes rows as JSON lines in Mooncake's form, which most tools read;
// Reader reads all of it back as it was. Keys of our own appear only where a
// row needs them: block_size where it is not 512, failed, and images.
type Writer struct {
	w      *bufio.Writer
	blocks int
	n      int
	buf    []byte
}

// NewWriter writes to w. blockTokens is what one of Row.Blocks stands for; 0: 512.
// The caller calls Flush at the end.
func NewWriter(w io.Writer, blockTokens int) *Writer {
	if blockTokens == 0 {
		blockTokens = mooncakeBlock
	}
	return &Writer{w: bufio.NewWriterSize(w, 1<<16), blocks: blockTokens}
}

// Write writes one row; Row.Line is not kept. A row that a Reader would refuse
// is an error: lengths below zero, ids that do not fit the length, or neither a
// time nor a session.
func (w *Writer) Write(r Row) error {
	w.n++
	if err := w.check(r); err != nil {
		return fmt.Errorf("row %d: %w", w.n, err)
	}
	b := append(w.buf[:0], '{')
	key := func(k string) {
		if len(b) > 1 {
			b = append(b, ", "...)
		}
		b = append(b, '"')
		b = append(b, k...)
		b = append(b, `": `...)
	}
	text := func(k, v string) {
		if v != "" {
			key(k)
			s, _ := json.Marshal(v)
			b = append(b, s...)
		}
	}
	text("session_id", r.Session)
	if r.At != unset {
		key("timestamp")
		b = appendMilliseconds(b, r.At)
	}
	if r.Delay != unset {
		key("delay")
		b = appendMilliseconds(b, r.Delay)
	}
	key("input_length")
	b = strconv.AppendInt(b, int64(r.Input), 10)
	key("output_length")
	b = strconv.AppendInt(b, int64(r.Output), 10)
	if len(r.Blocks) > 0 {
		key("hash_ids")
		for i, id := range r.Blocks {
			if i == 0 {
				b = append(b, '[')
			} else {
				b = append(b, ", "...)
			}
			b = strconv.AppendUint(b, id, 10)
		}
		b = append(b, ']')
	}
	if w.blocks != mooncakeBlock {
		key("block_size")
		b = strconv.AppendInt(b, int64(w.blocks), 10)
	}
	text("model", r.Model)
	if r.Failed {
		key("failed")
		b = append(b, "true"...)
	}
	if r.Images > 0 {
		key("images")
		b = strconv.AppendInt(b, int64(r.Images), 10)
	}
	b = append(b, "}\n"...)
	w.buf = b
	if len(b) > maxLine {
		return fmt.Errorf("row %d: its line would be longer than %d MiB", w.n, maxLine>>20)
	}
	_, err := w.w.Write(b)
	return err
}

// Flush writes out what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }

func (w *Writer) check(r Row) error {
	const most = 1<<31 - 1
	switch {
	case w.blocks < 0:
		return fmt.Errorf("a block size of %d tokens is below zero", w.blocks)
	case r.Input < 0 || r.Input > most || r.Output < 0 || r.Output > most || r.Images < 0 || r.Images > most:
		return fmt.Errorf("lengths of %d and %d tokens or %d images are out of range", r.Input, r.Output, r.Images)
	case r.At == unset && r.Session == "":
		return errors.New("it has neither a time nor a session")
	case r.At != unset && (r.At > mostOffset || r.At < -mostOffset):
		return fmt.Errorf("its time of %s is out of range", r.At)
	case r.Delay != unset && (r.Delay < 0 || r.Delay > mostOffset):
		return fmt.Errorf("its delay of %s is out of range", r.Delay)
	}
	if n := len(r.Blocks); n > 0 && n != (r.Input+w.blocks-1)/w.blocks {
		return fmt.Errorf("%d blocks of %d tokens are not what %d tokens need", n, w.blocks, r.Input)
	}
	return nil
}

// appendMilliseconds writes d in milliseconds with as many digits as it takes.
func appendMilliseconds(b []byte, d time.Duration) []byte {
	if d < 0 {
		b = append(b, '-')
		d = -d
	}
	b = strconv.AppendInt(b, int64(d/time.Millisecond), 10)
	if ns := int(d % time.Millisecond); ns > 0 {
		s := strconv.Itoa(1e6 + ns) // a 1, and six digits
		for s[len(s)-1] == '0' {
			s = s[:len(s)-1]
		}
		b = append(b, '.')
		b = append(b, s[1:]...)
	}
	return b
}
