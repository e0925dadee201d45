package trace

import (
	"bytes"
	"encoding/csv"
	"errors"
	"time"
)

// csvFormat is a CSV layout, known by the names in its header, in lower case.
// Columns are found by name: the versions of one trace insert some.
type csvFormat struct {
	format Format
	// need are the columns that make the format; the parse function reads them
	// by their index here. One column may have several names.
	need [][]string
	// also are columns that some versions have; they follow those of need.
	also  []string
	parse func(*Reader, []byte, *Row) error
}

// Where a row's fields stand in csvFormat.need. The formats without a time
// leave its place empty.
const (
	colTime = iota
	colInput
	colOutput
	colFourth // images in AzureLMM, model in BurstGPT
	colFifth  // session in BurstGPT
)

// csvFormats stand in the order in which they are tried: one whose columns are
// among another's comes after it.
var csvFormats = []csvFormat{
	{AzureLMM, [][]string{{"timestamp"}, {"contexttokens"}, {"generatedtokens"}, {"numimages"}}, nil, (*Reader).parseAzure},
	{Azure, [][]string{{"timestamp"}, {"contexttokens"}, {"generatedtokens"}}, nil, (*Reader).parseAzure},
	{BurstGPT, [][]string{{"timestamp"}, {"request tokens"}, {"response tokens"}, {"model"}}, []string{"session id"}, (*Reader).parseBurstGPT},
	{Vidur, [][]string{{"arrived_at", "arrived_at(s)"}, {"num_prefill_tokens"}, {"num_decode_tokens"}}, nil, (*Reader).parseVidur},
	{Lengths, [][]string{nil, {"num_prefill_tokens"}, {"num_decode_tokens"}}, nil, (*Reader).parseLengths},
}

// find returns where the format's columns stand in a header, -1 for those that
// are not there and need not be, or false where it is not this format's header.
func (f csvFormat) find(at map[string]int) ([]int, bool) {
	var cols []int
	for _, names := range f.need {
		col := -1
		for _, n := range names {
			if i, ok := at[n]; ok {
				col = i
			}
		}
		if col < 0 && names != nil {
			return nil, false
		}
		cols = append(cols, col)
	}
	for _, n := range f.also {
		if i, ok := at[n]; ok {
			cols = append(cols, i)
		} else {
			cols = append(cols, -1)
		}
	}
	return cols, true
}

// table is how the rows of a CSV file are taken apart.
type table struct {
	names  []string // the header, as written
	cols   []int    // by colTime, colInput, ...; -1: not there
	fields []field  // of the present row
}

type field struct {
	text []byte
	col  int // the byte it starts at, from 1
}

// split cuts a line into its fields, reusing fields.
func split(fields []field, line []byte) ([]field, error) {
	fields = fields[:0]
	if bytes.IndexByte(line, '"') >= 0 {
		return splitQuoted(fields, line)
	}
	for start := 0; ; {
		i := bytes.IndexByte(line[start:], ',')
		if i < 0 {
			return append(fields, field{line[start:], start + 1}), nil
		}
		fields = append(fields, field{line[start : start+i], start + 1})
		start += i + 1
	}
}

// splitQuoted is split for lines with quotation marks, which no public trace
// has, and spreadsheets may write.
func splitQuoted(fields []field, line []byte) ([]field, error) {
	c := csv.NewReader(bytes.NewReader(line))
	rec, err := c.Read()
	if err != nil {
		var p *csv.ParseError
		if errors.As(err, &p) {
			return nil, &badRow{col: p.Column, msg: p.Err.Error()}
		}
		return nil, &badRow{msg: err.Error()}
	}
	for i, s := range rec {
		_, col := c.FieldPos(i)
		fields = append(fields, field{[]byte(s), col})
	}
	return fields, nil
}

// fields takes a row apart.
func (r *Reader) fields(text []byte) error {
	t := &r.table
	var err error
	if t.fields, err = split(t.fields, text); err != nil {
		return err
	}
	switch {
	case len(t.fields) < len(t.names):
		return &badRow{field: t.names[len(t.fields)], col: len(text) + 1, msg: "missing"}
	case len(t.fields) > len(t.names):
		return &badRow{col: t.fields[len(t.names)].col, msg: "more fields than the header has"}
	}
	return nil
}

// get returns the field of a column without the spaces around it.
func (r *Reader) get(col int) []byte {
	if i := r.table.cols[col]; i >= 0 {
		return bytes.TrimSpace(r.table.fields[i].text)
	}
	return nil
}

// bad blames a column.
func (r *Reader) badField(col int, err error) error {
	i := r.table.cols[col]
	text := r.get(col)
	msg := err.Error()
	if len(text) == 0 {
		msg = "empty"
	}
	return &badRow{field: r.table.names[i], col: r.table.fields[i].col, msg: msg, got: clip(text)}
}

func (r *Reader) lengths(row *Row) (err error) {
	if row.Input, err = parseCount(r.get(colInput)); err != nil {
		return r.badField(colInput, err)
	}
	if row.Output, err = parseCount(r.get(colOutput)); err != nil {
		return r.badField(colOutput, err)
	}
	return nil
}

func (r *Reader) parseAzure(text []byte, row *Row) error {
	if err := r.fields(text); err != nil {
		return err
	}
	ns, err := parseDate(r.get(colTime))
	if err != nil {
		return r.badField(colTime, err)
	}
	if err := r.lengths(row); err != nil {
		return err
	}
	if len(r.table.cols) > colFourth {
		if row.Images, err = parseCount(r.get(colFourth)); err != nil {
			return r.badField(colFourth, err)
		}
	}
	row.At = r.date(ns)
	return nil
}

// seconds reads a time column of seconds since the trace's zero.
func (r *Reader) seconds(row *Row) error {
	ns, err := parseDecimal(r.get(colTime), 9)
	if err != nil {
		return r.badField(colTime, err)
	}
	row.At = time.Duration(ns)
	return r.lengths(row)
}

func (r *Reader) parseBurstGPT(text []byte, row *Row) error {
	if err := r.fields(text); err != nil {
		return err
	}
	if err := r.seconds(row); err != nil {
		return err
	}
	row.Failed = row.Output == 0
	row.Model = r.name(r.get(colFourth))
	row.Session = string(r.get(colFifth))
	return nil
}

func (r *Reader) parseVidur(text []byte, row *Row) error {
	if err := r.fields(text); err != nil {
		return err
	}
	return r.seconds(row)
}

func (r *Reader) parseLengths(text []byte, row *Row) error {
	if err := r.fields(text); err != nil {
		return err
	}
	return r.lengths(row)
}
