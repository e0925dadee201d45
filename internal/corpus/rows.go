package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// row is one JSON value of a file.
type row struct {
	text   []byte // valid during the call; nil where err is set
	offset int64
	line   int // where it begins, from 1
	err    error
}

// jsonLines cuts a file into its lines. Empty ones are no rows.
func jsonLines(r io.Reader, each func(row)) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var text []byte
	offset := int64(0)
	for line := 1; ; line++ {
		text = text[:0]
		size := int64(0)
		var err error
		for {
			var part []byte
			part, err = in.ReadSlice('\n')
			size += int64(len(part))
			if size <= maxRow {
				text = append(text, part...)
			}
			if err != bufio.ErrBufferFull {
				break
			}
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("%d: %w", line, err)
		}
		switch {
		case size > maxRow:
			each(row{offset: offset, line: line, err: errTooLong})
		case len(bytes.TrimSpace(text)) > 0:
			each(row{text: text, offset: offset, line: line})
		}
		offset += size
		if err == io.EOF {
			return nil
		}
	}
}

// jsonArray cuts a file that is one JSON array into its elements, without
// holding more than one of them: it follows strings and brackets and leaves
// what is inside to the decoder.
func jsonArray(r io.Reader, each func(row)) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var text []byte
	line, offset := 1, int64(-1)
	var (
		start     row
		size      int64 // of the element so far; 0: between elements
		depth     int   // brackets open inside the element
		inString  bool
		escaped   bool
		opened    bool // the array's [ was read
		elementOK bool // a comma or the [ came before
	)
	end := func() {
		if size == 0 {
			return
		}
		if size > maxRow {
			start.err = errTooLong
		} else {
			start.text = text
		}
		each(start)
		size = 0
	}
	for {
		c, err := in.ReadByte()
		if err == io.EOF {
			return fmt.Errorf("%d: the file ends inside its array", line)
		} else if err != nil {
			return fmt.Errorf("%d: %w", line, err)
		}
		offset++
		if c == '\n' {
			line++
		}
		if size == 0 { // between elements
			switch {
			case c == ' ' || c == '\n' || c == '\r' || c == '\t':
				continue
			case !opened:
				// Some editors put a byte order mark first.
				if offset < 3 && (c == 0xef || c == 0xbb || c == 0xbf) {
					continue
				}
				if c != '[' {
					return fmt.Errorf("%d: a JSON array was expected", line)
				}
				opened, elementOK = true, true
				continue
			case c == ']':
				return nil
			case c == ',':
				elementOK = true
				continue
			case !elementOK:
				return fmt.Errorf("%d: a comma was expected", line)
			}
			start, text = row{offset: offset, line: line}, text[:0]
			elementOK = false
		} else if !inString && depth == 0 && (c == ',' || c == ']') {
			end()
			if c == ']' {
				return nil
			}
			elementOK = true
			continue
		}
		if size++; size <= maxRow {
			text = append(text, c)
		}
		switch {
		case inString:
			switch {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth < 0 {
				return fmt.Errorf("%d: %w", line, errors.New("a bracket closes what was not open"))
			}
			if depth == 0 {
				end()
			}
		}
	}
}
