package protocol

import (
	"bytes"
	"fmt"

	"github.com/trueload/trueload/internal/record"
)

// A decoder follows the events of one answer of the OpenAI chat or completions
// API, streamed or whole, as the engines really speak it. It knows no clock:
// event says what one event brought, and the other methods say at any moment
// what the answer amounts to so far.
type decoder struct {
	keepReply bool // collect choice 0's content
	keepText  bool // collect all that was delivered, for a tokenizer

	reply   []byte
	textCut bool // text or reply outgrew maxText

	choices []choice
	total   counts // of an event that belongs to no choice
	done    bool   // [DONE]

	failed   bool // an error in the stream, a malformed event, a failing finish reason
	overload bool // and it says that the server has too much to do
	message  string

	reasoned bool // an event delivered reasoning

	// Scratch of the event at hand.
	parts   []part
	content []byte
	other   []byte // reasoning, refusals and tool calls
	ev      counts
	timings counts
}

const (
	maxText    = 4 << 20 // bytes of collected text of one answer
	maxChoices = 1024
	maxReason  = 64 // bytes of a finish reason
)

// A choice is one of the answer's parallel completions.
type choice struct {
	index  int
	reason string // finish reason; "": not finished
	usage  counts // the latest on an event of this choice
	final  bool   // usage came with or after the finish reason
	rolled bool   // usage came before it: continuous usage, a running count

	given  int  // completion tokens of usage already given to events
	lapsed bool // an output event came without usage: events have no counts
	ids    int  // token ids in all events
	idsNew int  // token ids since the last output event
	noIDs  bool // an output event came without token ids

	text []byte // with keepText
}

// counts are a usage object's; -1 is unknown.
type counts struct {
	has                                          bool
	prompt, completion, total, reasoning, cached int
}

func (c *counts) clear() { *c = counts{false, -1, -1, -1, -1, -1} }

// A part is what one event says of one choice.
type part struct {
	index             int
	answer, reasoning bool
	ids               int // -1: none given
	reason            []byte
	contentEnd        int // in decoder.content
	otherEnd          int // in decoder.other
}

// A delta is what one event brought.
type delta struct {
	// Output is set where the event delivered text, reasoning, a refusal or a
	// tool call's name or arguments; Answer where not reasoning alone.
	Output, Answer bool
	// Tokens is how far the server's own count grew since the last output
	// event; -1 where it gives none.
	Tokens int
}

var doneMark = []byte("[DONE]")

// event decodes one server-sent event.
func (d *decoder) event(ev Event) delta {
	none := delta{Tokens: -1}
	if d.done || string(ev.Name) == "ping" {
		return none
	}
	data := bytes.TrimSpace(ev.Data)
	switch {
	case string(ev.Name) == "error":
		// One engine sends its error's text in a comment and no data at all.
		text := bytes.TrimSpace(bytes.Join([][]byte{ev.Comment, data}, []byte{' '}))
		if len(text) == 0 {
			text = []byte("the stream ended in an error event without a text")
		}
		if len(data) > 0 && data[0] == '{' {
			text = data
		}
		d.fail(parseError(text))
		return none
	case len(data) == 0: // a keep-alive
		return none
	case bytes.Equal(data, doneMark):
		d.done = true
		return none
	}
	return d.chunk(data)
}

func (d *decoder) fail(e serverError) {
	if !d.failed {
		d.failed, d.overload, d.message = true, e.overload(), e.message
	}
}

// chunk decodes one JSON object: an event's data or a whole answer.
func (d *decoder) chunk(data []byte) delta {
	d.parts, d.content, d.other = d.parts[:0], d.content[:0], d.other[:0]
	d.ev.clear()
	d.timings.clear()
	failed := false
	s := scanner{b: data}
	for first := s.open('{'); s.more('}', &first); {
		switch string(s.key()) {
		case "choices":
			if s.peek() != '[' {
				s.skip()
				continue
			}
			for first := s.open('['); s.more(']', &first); {
				d.choice(&s)
			}
		case "usage":
			d.usage(&s)
		case "timings":
			d.timing(&s)
		case "error":
			switch c := s.peek(); {
			case c == 'n' || c == 'f':
				s.skip()
			case c == '"':
				raw, _ := s.rawString()
				failed = failed || len(raw) > 0
			default:
				s.skip()
				failed = true
			}
		case "object":
			if s.peek() == '"' {
				raw, _ := s.rawString()
				failed = failed || string(raw) == "error"
			} else {
				s.skip()
			}
		default:
			s.skip()
		}
	}
	if !s.finish() {
		d.fail(serverError{message: "malformed event: " + string(excerpt(data))})
		return delta{Tokens: -1}
	}
	if failed {
		d.fail(parseError(data))
	}
	return d.settle()
}

// choice reads one element of choices into parts.
func (d *decoder) choice(s *scanner) {
	p := part{ids: -1}
	if s.peek() != '{' {
		s.skip()
		return
	}
	for first := s.open('{'); s.more('}', &first); {
		switch string(s.key()) {
		case "index":
			p.index = s.count(0)
		case "delta", "message":
			d.delta(s, &p)
		case "text":
			p.answer = d.str(s, &d.content) || p.answer
		case "finish_reason":
			if s.peek() == '"' {
				p.reason, _ = s.rawString()
			} else {
				s.skip()
			}
		case "token_ids":
			if s.peek() != '[' {
				s.skip()
				continue
			}
			p.ids = 0
			for first := s.open('['); s.more(']', &first); p.ids++ {
				s.skip()
			}
		default:
			s.skip()
		}
	}
	p.contentEnd, p.otherEnd = len(d.content), len(d.other)
	d.parts = append(d.parts, p)
}

// str reads a string that is output if it is not empty, and collects it.
func (d *decoder) str(s *scanner, into *[]byte) bool {
	if s.peek() != '"' {
		s.skip()
		return false
	}
	raw, escaped := s.rawString()
	if len(raw) == 0 {
		return false
	}
	if d.keepReply || d.keepText {
		if escaped {
			*into = unescape(*into, raw)
		} else {
			*into = append(*into, raw...)
		}
	}
	return true
}

// delta reads a delta or message object.
func (d *decoder) delta(s *scanner, p *part) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	reasoning := false
	for first := s.open('{'); s.more('}', &first); {
		switch string(s.key()) {
		case "content":
			if s.peek() == '[' {
				d.contentParts(s, p)
			} else if d.str(s, &d.content) {
				p.answer = true
			}
		case "reasoning", "reasoning_content":
			// Some releases send the same text under both names.
			mark := len(d.other)
			if d.str(s, &d.other) {
				if reasoning {
					d.other = d.other[:mark]
				}
				reasoning = true
			}
		case "refusal":
			p.answer = d.str(s, &d.other) || p.answer
		case "function_call":
			p.answer = d.call(s) || p.answer
		case "tool_calls":
			if s.peek() != '[' {
				s.skip()
				continue
			}
			for first := s.open('['); s.more(']', &first); {
				if s.peek() != '{' {
					s.skip()
					continue
				}
				for first := s.open('{'); s.more('}', &first); {
					if string(s.key()) == "function" {
						p.answer = d.call(s) || p.answer
					} else {
						s.skip()
					}
				}
			}
		default:
			s.skip()
		}
	}
	p.reasoning = p.reasoning || reasoning
}

// contentParts reads content given as a list of typed parts.
func (d *decoder) contentParts(s *scanner, p *part) {
	for first := s.open('['); s.more(']', &first); {
		if s.peek() != '{' {
			p.answer = d.str(s, &d.content) || p.answer
			continue
		}
		for first := s.open('{'); s.more('}', &first); {
			switch string(s.key()) {
			case "text":
				p.answer = d.str(s, &d.content) || p.answer
			case "thinking":
				if s.peek() == '[' {
					from := s.i
					s.skip()
					p.reasoning = p.reasoning || s.i-from > len("[]")
				} else {
					p.reasoning = d.str(s, &d.other) || p.reasoning
				}
			default:
				s.skip()
			}
		}
	}
}

// call reads a function's name and arguments and tells whether either says
// something.
func (d *decoder) call(s *scanner) (output bool) {
	if s.peek() != '{' {
		s.skip()
		return false
	}
	for first := s.open('{'); s.more('}', &first); {
		switch string(s.key()) {
		case "name", "arguments":
			if s.peek() == '{' { // arguments as an object, not as a string
				s.skip()
				output = true
			} else {
				output = d.str(s, &d.other) || output
			}
		default:
			s.skip()
		}
	}
	return output
}

// usage reads a usage object. One that is all zero is none: an engine puts such
// a one on every chunk and the real one on the last.
func (d *decoder) usage(s *scanner) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	u := &d.ev
	inner := func(name string, into *int) {
		if s.peek() != '{' {
			s.skip()
			return
		}
		for first := s.open('{'); s.more('}', &first); {
			if string(s.key()) == name {
				*into = s.count(*into)
			} else {
				s.skip()
			}
		}
	}
	for first := s.open('{'); s.more('}', &first); {
		switch string(s.key()) {
		case "prompt_tokens":
			u.prompt = s.count(-1)
		case "completion_tokens":
			u.completion = s.count(-1)
		case "total_tokens":
			u.total = s.count(-1)
		case "reasoning_tokens":
			u.reasoning = s.count(u.reasoning)
		case "cached_tokens", "prompt_cache_hit_tokens":
			u.cached = s.count(u.cached)
		case "prompt_tokens_details":
			inner("cached_tokens", &u.cached)
		case "completion_tokens_details":
			inner("reasoning_tokens", &u.reasoning)
		default:
			s.skip()
		}
	}
	if u.has = u.prompt > 0 || u.completion > 0; !u.has {
		return
	}
	// Some servers leave reasoning out of completion_tokens; their total tells.
	if u.reasoning > 0 && u.prompt >= 0 && u.completion >= 0 && u.total == u.prompt+u.completion+u.reasoning {
		u.completion += u.reasoning
	}
}

// timing reads llama.cpp's timings: the same counts as its usage
// (prompt_tokens = cache_n + prompt_n, completion_tokens = predicted_n), on the
// last event even where usage was not asked for.
func (d *decoder) timing(s *scanner) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	cache, prompt, predicted := -1, -1, -1
	for first := s.open('{'); s.more('}', &first); {
		switch string(s.key()) {
		case "cache_n":
			cache = s.count(-1)
		case "prompt_n":
			prompt = s.count(-1)
		case "predicted_n":
			predicted = s.count(-1)
		default:
			s.skip()
		}
	}
	t := &d.timings
	t.cached = cache
	if cache >= 0 && prompt >= 0 && predicted >= 0 {
		t.has, t.prompt, t.completion = true, cache+prompt, predicted
	}
}

// settle books the event at hand.
func (d *decoder) settle() delta {
	out := delta{Tokens: -1}
	finished := false
	content, other := 0, 0
	for i := range d.parts {
		p := &d.parts[i]
		c := d.at(p.index)
		if len(p.reason) > 0 {
			finished = true
			p.reason = p.reason[:min(len(p.reason), maxReason)]
			if c.reason != string(p.reason) {
				c.reason = string(p.reason)
			}
			switch c.reason {
			case "abort", "error", "parse_error":
				d.fail(serverError{message: "finish_reason " + c.reason})
			}
		}
		if p.ids > 0 {
			c.ids += p.ids
			c.idsNew += p.ids
		}
		if p.answer || p.reasoning {
			out.Output = true
			out.Answer = out.Answer || p.answer
			d.reasoned = d.reasoned || p.reasoning
		}
		if text := d.content[content:p.contentEnd]; len(text) > 0 {
			if d.keepReply && p.index == 0 {
				d.collect(&d.reply, text)
			}
			if d.keepText {
				d.collect(&c.text, text)
			}
		}
		if text := d.other[other:p.otherEnd]; d.keepText && len(text) > 0 {
			d.collect(&c.text, text)
		}
		content, other = p.contentEnd, p.otherEnd
	}

	// Usage: on an event of its own (or of several choices) it is the answer's.
	// On a choice's event it is that choice's count so far: the last one holds,
	// and the choices' are summed. So running counts are never summed over
	// events, and one usage for each choice is.
	u := d.ev
	if !u.has && d.timings.has && (finished || len(d.parts) == 0) {
		// Timings of earlier events may be an older request's.
		u = d.timings
	} else if u.has && u.cached < 0 {
		u.cached = d.timings.cached
	}
	if u.has && len(d.parts) != 1 {
		d.total = u
	}
	var c *choice
	if len(d.parts) == 1 {
		c = d.at(d.parts[0].index)
		if u.has {
			c.usage = u
			if c.reason != "" {
				c.final = true
			} else {
				c.rolled = true
			}
		}
	}
	if out.Output {
		out.Tokens = d.eventTokens(c, u)
	}
	return out
}

// eventTokens says how many tokens an output event of choice c (nil: of several
// at once) brought, from the growth of a running usage, else from token ids.
// Usage that does not come with every output event of the choice is no running
// usage: its growth would be other events' tokens too.
func (d *decoder) eventTokens(c *choice, u counts) int {
	if c == nil {
		for i := range d.choices {
			d.choices[i].lapsed, d.choices[i].noIDs = true, true
		}
		return -1
	}
	n := -1
	if !d.ev.has || u.completion < c.given {
		c.lapsed = true
	}
	if !c.lapsed {
		n = u.completion - c.given
		c.given = u.completion
	}
	if d.parts[0].ids < 0 {
		c.noIDs = true
	}
	if n < 0 && !c.noIDs {
		n = c.idsNew
	}
	c.idsNew = 0
	return n
}

func (d *decoder) collect(into *[]byte, text []byte) {
	if d.textCut || len(*into)+len(text) > maxText {
		d.textCut = true
		return
	}
	*into = append(*into, text...)
}

// at returns the choice of an index, a new one where it is new.
func (d *decoder) at(index int) *choice {
	for i := range d.choices {
		if d.choices[i].index == index {
			return &d.choices[i]
		}
	}
	if len(d.choices) == maxChoices {
		d.fail(serverError{message: fmt.Sprintf("the answer has more than %d choices (the limit)", maxChoices)})
		return &d.choices[0]
	}
	c := choice{index: index}
	c.usage.clear()
	d.choices = append(d.choices, c)
	return &d.choices[len(d.choices)-1]
}

// complete tells whether at least n choices were seen and all seen finished.
func (d *decoder) complete(n int) bool {
	for i := range d.choices {
		if d.choices[i].reason == "" {
			return false
		}
	}
	return len(d.choices) >= max(n, 1)
}

// reason returns the finish reason of choice 0.
func (d *decoder) reason() string {
	for i := range d.choices {
		if d.choices[i].index == 0 {
			return d.choices[i].reason
		}
	}
	return ""
}

// sum returns the answer's counts and where the output count comes from; ""
// where the server gave none.
func (d *decoder) sum() (counts, record.TokenSource) {
	if d.total.has {
		return d.total, record.TokensFromUsage
	}
	var sum counts
	sum.clear()
	from := record.TokensFromUsage
	rolled := false
	ids, known := 0, len(d.choices) > 0
	for i := range d.choices {
		c := &d.choices[i]
		known = known && c.usage.has
		rolled = rolled || c.rolled
		if !c.final {
			from = record.TokensFromEventUsage
		}
		if c.noIDs {
			ids = -1
		} else if ids >= 0 {
			ids += c.ids
		}
	}
	if !known {
		if ids > 0 {
			sum.has, sum.completion = true, ids
			return sum, record.TokensFromIDs
		}
		return sum, ""
	}
	for i := range d.choices {
		u := &d.choices[i].usage
		add(&sum.completion, u.completion)
		add(&sum.reasoning, u.reasoning)
		// A running usage states the whole prompt with each choice; one usage at
		// each choice's end states that choice's prompt.
		if rolled {
			sum.prompt, sum.cached = max(sum.prompt, u.prompt), max(sum.cached, u.cached)
		} else {
			add(&sum.prompt, u.prompt)
			add(&sum.cached, u.cached)
		}
	}
	sum.has = true
	return sum, from
}

// add sums counts of which any may be unknown.
func add(sum *int, v int) {
	if v >= 0 {
		*sum = max(*sum, 0) + v
	}
}
