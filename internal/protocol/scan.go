package protocol

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A scanner walks one JSON text in one pass, checking it as it goes (it accepts
// what encoding/json.Valid accepts) and allocating nothing. It exists because
// a stream's events are decoded beside the clock: encoding/json takes several
// microseconds for a chunk of 270 bytes and allocates for each.
//
// The first fault sets bad, and every method then does nothing and returns
// zero, so that callers check once at the end.
type scanner struct {
	b     []byte
	i     int
	depth int
	bad   bool
}

// maxDepth bounds nesting.
const maxDepth = 1000

func (s *scanner) fail() { s.bad, s.i = true, len(s.b) }

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		c := s.b[s.i]
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.i++
	}
	return 0
}

// open enters an array or object; the loop over its elements is
//
//	for first := s.open('{'); s.more('}', &first); { ... }
func (s *scanner) open(c byte) (first bool) {
	if s.peek() != c {
		s.fail()
		return false
	}
	s.i++
	if s.depth++; s.depth > maxDepth {
		s.fail()
	}
	return true
}

// more steps to the next element, or past the closing byte and returns false.
func (s *scanner) more(closing byte, first *bool) bool {
	if s.bad {
		return false
	}
	c := s.peek()
	if c == closing {
		s.i++
		s.depth--
		return false
	}
	if !*first {
		if c != ',' {
			s.fail()
			return false
		}
		s.i++
		s.peek()
	}
	*first = false
	return s.i < len(s.b) || s.end()
}

func (s *scanner) end() bool { s.fail(); return false }

// key reads a member's name and its colon.
func (s *scanner) key() []byte {
	k, escaped := s.rawString()
	if escaped {
		k = unescape(nil, k)
	}
	if s.peek() != ':' {
		s.fail()
		return nil
	}
	s.i++
	return k
}

// plain marks the bytes a string may hold as they are.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 256; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// rawString reads a string and returns what lies between its quotes, escapes
// left as they are.
func (s *scanner) rawString() (raw []byte, escaped bool) {
	if s.peek() != '"' {
		s.fail()
		return nil, false
	}
	b, i := s.b, s.i+1
	start := i
	for {
		for i < len(b) && plain[b[i]] {
			i++
		}
		if i >= len(b) {
			break
		}
		if b[i] == '"' {
			s.i = i + 1
			return b[start:i], escaped
		}
		if b[i] != '\\' || i+1 >= len(b) { // a bare control character
			break
		}
		escaped = true
		switch b[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			i += 2
			continue
		case 'u':
			if i+6 <= len(b) && hex4(b[i+2:i+6]) >= 0 {
				i += 6
				continue
			}
		}
		break
	}
	s.fail()
	return nil, false
}

// hex4 returns the value of four hex digits, or -1.
func hex4(b []byte) rune {
	var v rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		v = v<<4 | rune(c)
	}
	return v
}

// unescape appends the meaning of a valid raw string to dst. A lone surrogate
// becomes U+FFFD, as in encoding/json.
func unescape(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					low = hex4(raw[2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					raw = raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, c)
		}
	}
}

// text reads a string into a value of its own; null and anything else give "".
func (s *scanner) text() string {
	if s.peek() != '"' {
		s.skip()
		return ""
	}
	raw, escaped := s.rawString()
	if !escaped {
		return string(raw)
	}
	return string(unescape(nil, raw))
}

// literal reads true, false or null.
func (s *scanner) literal(word string) {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		s.fail()
		return
	}
	s.i += len(word)
}

// number reads a number's bytes.
func (s *scanner) number() []byte {
	b, i := s.b, s.i
	start := i
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		s.fail()
		return nil
	}
	if i < len(b) && b[i] == '.' {
		i++
		if !digits() {
			s.fail()
			return nil
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			s.fail()
			return nil
		}
	}
	s.i = i
	return b[start:i]
}

// count reads a whole number that is a count or an index. Anything else, a
// negative or a broken number among it, gives none.
func (s *scanner) count(none int) int {
	c := s.peek()
	if c < '0' || c > '9' {
		s.skip()
		return none
	}
	n := s.number()
	if len(n) <= 9 {
		v := 0
		for _, c := range n {
			if c < '0' || c > '9' {
				v = -1
				break
			}
			v = v*10 + int(c-'0')
		}
		if v >= 0 {
			return v
		}
	}
	if f, err := strconv.ParseFloat(string(n), 64); err == nil && f == float64(int64(f)) && f < 1<<40 {
		return int(f)
	}
	return none
}

// skip reads any value.
func (s *scanner) skip() {
	switch c := s.peek(); c {
	case '{':
		for first := s.open('{'); s.more('}', &first); {
			if s.peek() != '"' {
				s.fail()
				return
			}
			s.rawString()
			if s.peek() != ':' {
				s.fail()
				return
			}
			s.i++
			s.skip()
		}
	case '[':
		for first := s.open('['); s.more(']', &first); {
			s.skip()
		}
	case '"':
		s.rawString()
	case 't':
		s.literal("true")
	case 'f':
		s.literal("false")
	case 'n':
		s.literal("null")
	default:
		s.number()
	}
}

// finish checks that nothing but white space is left.
func (s *scanner) finish() bool {
	if s.peek(); s.i < len(s.b) {
		s.fail()
	}
	return !s.bad
}
