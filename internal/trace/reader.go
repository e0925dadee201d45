package trace

import (
	"errors"
	"io"
)

// Reader hands out the rows of one trace in the order of the file. It holds one
// line at a time. It is not safe for concurrent use.
type Reader struct{ info Info }

// Open opens the trace at path, plain or compressed, and finds its format. The
// caller closes it.
func Open(path string, o Options) (*Reader, error) { return nil, errors.ErrUnsupported }

// NewReader reads a trace from r; name stands for the file in messages.
func NewReader(r io.Reader, name string, o Options) (*Reader, error) {
	return nil, errors.ErrUnsupported
}

// Next returns the next readable row, or io.EOF. Broken rows are counted and
// skipped; where they are more than Options.MaxBadShare of all, the error at
// the end says so instead of io.EOF. After an error that is not io.EOF the
// reader is of no more use.
func (r *Reader) Next() (Row, error) { return Row{}, io.EOF }

// Info says what is being read.
func (r *Reader) Info() Info { return r.info }

// Dropped counts the broken rows met so far, most frequent reason first.
func (r *Reader) Dropped() []Dropped { return nil }

// Close closes the file.
func (r *Reader) Close() error { return nil }
