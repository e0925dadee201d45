package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Reader hands out the rows of one trace in the order of the file. It holds one
// line at a time, and of Bailian the name of every chat. It is not safe for
// concurrent use.
type Reader struct {
	info    Info
	opt     Options
	lines   lineReader
	pending []line // read while looking for the format
	parse   func(r *Reader, line []byte, row *Row) error
	close   []func() error

	table    table             // CSV
	row      Row               // the present one; here so that a row costs no allocation
	zero     int64             // ns since 1970 of offset 0
	names    map[string]string // model names seen, so that each is held once
	roots    map[string]string // of Bailian's chats; see root
	unknown  map[string]int64  // keys that were not known, and in how many rows
	surplus  int64             // rows with one block id more than their length needs
	good     int64
	bad      int64
	firstBad []string
	dropped  map[string]*Dropped
	err      error
}

type line struct {
	n    int
	text []byte
}

// badRow is an error that is the row's own: it is counted and reading goes on.
type badRow struct {
	field string // the column or key, where one is to blame
	col   int    // the byte in the line, from 1
	msg   string // the same for every row that has the same fault
	got   string
}

func (e *badRow) reason() string {
	if e.field == "" {
		return e.msg
	}
	return e.field + ": " + e.msg
}

func (e *badRow) Error() string {
	if e.got == "" {
		return e.reason()
	}
	return fmt.Sprintf("%s (%q)", e.reason(), e.got)
}

// clip bounds what a message quotes.
func clip(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}

// Open opens the trace at path, plain or compressed, and finds its format. The
// caller closes it.
func Open(path string, o Options) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f, path, o)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.close = append(r.close, f.Close)
	return r, nil
}

// NewReader reads a trace from src; name stands for the file in messages.
func NewReader(src io.Reader, name string, o Options) (*Reader, error) {
	if o.MaxBadShare == 0 {
		o.MaxBadShare = 0.01
	}
	if o.BlockTokens < 0 || o.MaxBadShare < 0 || o.MaxBadShare > 1 {
		return nil, fmt.Errorf("%s: block size %d or share of broken rows %g is out of range", name, o.BlockTokens, o.MaxBadShare)
	}
	r := &Reader{
		info: Info{Path: name}, opt: o,
		names: map[string]string{}, unknown: map[string]int64{}, dropped: map[string]*Dropped{},
	}
	raw := bufio.NewReaderSize(src, 1<<16)
	// The first bytes say whether and how it is compressed, whatever its name.
	switch magic, _ := raw.Peek(4); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.info.Compression = "gzip"
		r.close = append(r.close, z.Close)
		raw = bufio.NewReaderSize(z, 1<<16)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(raw, zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.info.Compression = "zstd"
		r.close = append(r.close, func() error { z.Close(); return nil })
		raw = bufio.NewReaderSize(z, 1<<16)
	}
	if bom, _ := raw.Peek(3); bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
		raw.Discard(3)
	}
	r.lines.r = raw
	if err := r.detect(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Next returns the next readable row, or io.EOF. Broken rows are counted and
// skipped; where they are more than Options.MaxBadShare of all, the error at
// the end says so instead of io.EOF. After an error the reader is of no more
// use and returns it again.
func (r *Reader) Next() (Row, error) {
	for r.err == nil {
		text, n, err := r.line()
		switch {
		case err == io.EOF:
			if r.err = r.Check(); r.err == nil {
				r.err = io.EOF
			}
			return Row{}, r.err
		case err == nil:
			if len(bytes.TrimSpace(text)) == 0 {
				continue
			}
			r.row = Row{At: unset, Delay: unset, Line: n}
			err = r.parse(r, text, &r.row)
		}
		if err == nil {
			r.good++
			return r.row, nil
		}
		if bad, ok := errors.AsType[*badRow](err); ok {
			r.drop(n, bad)
		} else {
			r.err = r.failed(n, err)
		}
	}
	return Row{}, r.err
}

// failed says where reading itself failed.
func (r *Reader) failed(n int, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s:%d: the compressed file is cut off: %w", r.info.Path, n, err)
	}
	return fmt.Errorf("%s:%d: %w", r.info.Path, n, err)
}

func (r *Reader) line() ([]byte, int, error) {
	if len(r.pending) > 0 {
		l := r.pending[0]
		r.pending = r.pending[1:]
		return l.text, l.n, nil
	}
	text, err := r.lines.next()
	return text, r.lines.n, err
}

// firstFew is how many places of a fault are kept.
const firstFew = 3

func (r *Reader) drop(n int, e *badRow) {
	place := fmt.Sprintf("%s:%d", r.info.Path, n)
	if e.col > 0 {
		place += fmt.Sprintf(":%d", e.col)
	}
	r.bad++
	if len(r.firstBad) < firstFew {
		r.firstBad = append(r.firstBad, place+": "+e.Error())
	}
	d := r.dropped[e.reason()]
	if d == nil {
		d = &Dropped{Reason: e.reason()}
		r.dropped[e.reason()] = d
	}
	d.Rows++
	if len(d.First) < firstFew {
		d.First = append(d.First, place)
	}
}

// Check says whether so many of the rows met so far were broken that the trace
// cannot be trusted. Next does this at the end; who stops earlier asks here.
func (r *Reader) Check() error {
	if r.bad <= 1 || float64(r.bad) <= r.opt.MaxBadShare*float64(r.good+r.bad) {
		return nil
	}
	more := ""
	if n := r.bad - int64(len(r.firstBad)); n > 0 {
		more = fmt.Sprintf("\n  and %d more", n)
	}
	return fmt.Errorf("%s: %d of %d rows cannot be read as %s, more than the %g %% that is borne:\n  %s%s",
		r.info.Path, r.bad, r.good+r.bad, r.info.Format, 100*r.opt.MaxBadShare, strings.Join(r.firstBad, "\n  "), more)
}

// Info says what is being read.
func (r *Reader) Info() Info { return r.info }

// Dropped counts the broken rows met so far, most frequent reason first.
func (r *Reader) Dropped() []Dropped {
	var all []Dropped
	for _, d := range r.dropped {
		c := *d
		c.First = slices.Clone(d.First)
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Dropped) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Reason, b.Reason))
	})
	return all
}

// Close closes the file, where Open opened it.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.close {
		errs = append(errs, f())
	}
	r.close = nil
	return errors.Join(errs...)
}

// date takes a row's date; the first one is offset 0.
func (r *Reader) date(ns int64) time.Duration {
	if r.info.Zero.IsZero() {
		r.zero = ns
		r.info.Zero = time.Unix(0, ns).UTC()
	}
	return time.Duration(ns - r.zero)
}

// name returns b as a string, the same one for the same name. A trace has a
// few; one that has thousands is not held.
func (r *Reader) name(b []byte) string {
	if s, ok := r.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(r.names) < 1000 {
		r.names[s] = s
	}
	return s
}

// lineReader reads lines of at most maxLine bytes.
type lineReader struct {
	r   *bufio.Reader
	n   int // lines read
	buf []byte
}

// next returns a line without its end, valid until the following call.
func (l *lineReader) next() ([]byte, error) {
	part, err := l.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		l.buf = l.buf[:0]
		long := false
		for err == bufio.ErrBufferFull {
			if long = long || len(l.buf)+len(part) > maxLine; !long {
				l.buf = append(l.buf, part...)
			}
			part, err = l.r.ReadSlice('\n')
		}
		if long || len(l.buf)+len(part) > maxLine {
			if err == nil || err == io.EOF {
				l.n++
				return nil, &badRow{msg: fmt.Sprintf("the line is longer than %d MiB", maxLine>>20)}
			}
			return nil, err
		}
		l.buf = append(l.buf, part...)
		part = l.buf
	}
	switch {
	case err == io.EOF && len(part) == 0:
		return nil, io.EOF
	case err != nil && err != io.EOF:
		l.n++ // the line it happened in
		return nil, err
	}
	l.n++
	part = bytes.TrimSuffix(part, []byte("\n"))
	return bytes.TrimSuffix(part, []byte("\r")), nil
}
