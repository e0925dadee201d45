package analysis

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"

	"github.com/trueload/trueload/internal/record"
)

// Summarize takes all records of a run and gives its summary. It stops at the
// first error that records yields, and returns it.
func Summarize(opt Options, records iter.Seq2[*record.Record, error]) (*Summary, error) {
	s, err := New(opt)
	if err != nil {
		return nil, err
	}
	for rec, err := range records {
		if err != nil {
			return nil, err
		}
		s.Add(rec)
	}
	return s.Summary(), nil
}

// Write writes summary.json: the same summary gives the same bytes. Numbers are
// not rounded.
func (s *Summary) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// largestSummary bounds what Read takes: ten days of seconds and a thousand
// slices stay well below it.
const largestSummary = 512 << 20

// Read reads summary.json. It fails on another schema.
func Read(r io.Reader) (*Summary, error) {
	var s Summary
	if err := json.NewDecoder(io.LimitReader(r, largestSummary)).Decode(&s); err != nil {
		return nil, fmt.Errorf("read summary: %w", err)
	}
	if s.Schema != Schema {
		return nil, fmt.Errorf("read summary: its schema is %q, this version reads %q; report the result directory again to renew it", s.Schema, Schema)
	}
	return &s, nil
}
