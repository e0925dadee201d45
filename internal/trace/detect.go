package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// detect finds the format from the file's first lines and leaves them to be
// read again where they are rows.
func (r *Reader) detect() error {
	first, err := r.ahead()
	switch {
	case err == io.EOF:
		return fmt.Errorf("%s: the file is empty", r.info.Path)
	case err != nil:
		return r.failed(r.lines.n, err)
	case first[0] == '{':
		return r.detectJSON()
	case first[0] == '[':
		return fmt.Errorf("%s: this is a JSON array, and traces in JSON have one object a line; a file of conversations is a text source, not a trace", r.info.Path)
	}
	return r.detectCSV(r.pending[0])
}

// ahead reads the next line that is not blank and queues it for Next.
func (r *Reader) ahead() ([]byte, error) {
	for {
		text, err := r.lines.next()
		if err != nil {
			return nil, err
		}
		if t := bytes.TrimSpace(text); len(t) > 0 {
			t = bytes.Clone(t)
			r.pending = append(r.pending, line{r.lines.n, t})
			return t, nil
		}
	}
}

// refuse says what was found and what would have been read.
func (r *Reader) refuse(found string) error {
	return fmt.Errorf(`%s: %s: no trace format that can be read. Those are:
  azure      CSV with TIMESTAMP, ContextTokens, GeneratedTokens
  azure-lmm  the same with NumImages
  burstgpt   CSV with Timestamp, Model, Request tokens, Response tokens
  mooncake   JSON lines with timestamp (ms), input_length, output_length, hash_ids
  bailian    JSON lines with chat_id, timestamp (s), input_length, output_length, hash_ids
  vidur      CSV with arrived_at, num_prefill_tokens, num_decode_tokens
  lengths    CSV with num_prefill_tokens, num_decode_tokens`, r.info.Path, found)
}

// header quotes a header in a message.
func header(b []byte) string {
	const most = 160
	if len(b) > most {
		return fmt.Sprintf("%q...", b[:most])
	}
	return fmt.Sprintf("%q", b)
}

func (r *Reader) detectCSV(l line) error {
	fields, err := split(nil, l.text)
	if err != nil {
		return fmt.Errorf("%s:%d: the header: %w", r.info.Path, l.n, err)
	}
	at := map[string]int{}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = string(bytes.TrimSpace(f.text))
		k := strings.ToLower(names[i])
		if _, twice := at[k]; twice && k != "" {
			return fmt.Errorf("%s:%d:%d: the header names the column %q twice", r.info.Path, l.n, f.col, names[i])
		}
		at[k] = i
	}
	for _, f := range csvFormats {
		if r.opt.Format != "" && r.opt.Format != f.format {
			continue
		}
		cols, ok := f.find(at)
		if !ok {
			continue
		}
		if r.opt.BlockTokens != 0 {
			return fmt.Errorf("%s: a block size was given, but the format %s has no block ids", r.info.Path, f.format)
		}
		r.table = table{names: names, cols: cols}
		r.parse = f.parse
		r.pending = nil
		r.info.Format = f.format
		r.info.Timed = f.need[colTime] != nil
		r.info.Why = "its header is " + header(l.text)
		if r.opt.Format != "" {
			r.info.Why = "as asked"
		}
		return nil
	}
	if r.opt.Format != "" {
		return fmt.Errorf("%s: it cannot be read as %s: its first line is %s", r.info.Path, r.opt.Format, header(l.text))
	}
	return r.refuse("its first line is " + header(l.text))
}

// detectTries is how many broken lines may stand before the first good one.
const detectTries = 100

func (r *Reader) detectJSON() error {
	if r.opt.Format != "" && r.opt.Format != Mooncake && r.opt.Format != Bailian {
		return fmt.Errorf("%s: it cannot be read as %s: its lines are JSON objects", r.info.Path, r.opt.Format)
	}
	r.parse = (*Reader).parseMooncake
	r.info.Format = Mooncake
	r.info.Timed = true
	r.info.BlockTokens = mooncakeBlock
	for i := range detectTries {
		if i == len(r.pending) {
			_, err := r.ahead()
			var bad *badRow
			switch {
			case err == io.EOF || errors.As(err, &bad):
				return r.refuse("its lines start like JSON and are not")
			case err != nil:
				return r.failed(r.lines.n, err)
			}
		}
		l := r.pending[i]
		has := map[string]bool{}
		var keys []string
		if err := walkObject(l.text, func(key, value []byte, _ int) error {
			if len(keys) < 20 {
				keys = append(keys, clip(key))
			}
			has[string(key)] = true
			if string(key) == "block_size" {
				if n, err := parseCount(value); err == nil && n > 0 {
					r.info.BlockTokens = n
				}
			}
			return nil
		}); err != nil {
			continue
		}
		if r.opt.Format == Bailian || r.opt.Format == "" && has["chat_id"] && has["input_length"] {
			r.info.Format = Bailian
			r.roots = map[string]string{}
			if !has["block_size"] {
				r.info.BlockTokens = bailianBlock
			}
		}
		if r.opt.BlockTokens != 0 {
			r.info.BlockTokens = r.opt.BlockTokens
		}
		if r.opt.Format != "" {
			r.info.Why = "as asked"
			return nil
		}
		switch {
		case has["requests"]:
			return r.refuse("its first line is a whole session with its requests")
		case has["input_length"] && (has["timestamp"] || has["session_id"]):
			r.info.Why = fmt.Sprintf("line %d has the keys %s", l.n, strings.Join(keys, ", "))
			return nil
		case has["text_input"], has["messages"], has["payload"]:
			return r.refuse("its rows carry text and no input_length")
		}
		return r.refuse("its rows have the keys " + strings.Join(keys, ", "))
	}
	return r.refuse("its lines start like JSON and are not")
}
