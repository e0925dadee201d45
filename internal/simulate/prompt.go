package simulate

import (
	"hash/fnv"

	"github.com/trueload/trueload/internal/draw"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/sim"
)

// prompts makes the token ids of a plan's prompts, as the texts of
// workload.Renderer would come out of the chat template and the tokenizer of
// sim/httpapi: the same lengths, and equal ids where the texts are equal.
//
//	chat:         preface, then for each message <start> role <message> text <end>,
//	              then <start> assistant <message>
//	completions:  the texts one after another
type prompts struct {
	chat    bool
	preface int // tokens that the template puts first
	salt    int // tokens of salt at the start of a session's first message
	warmUp  map[string]bool
	floored int64
}

// The special tokens of the template, and how many it adds around a message and
// at the end.
const (
	tokenStart     = sim.Token(1)
	tokenMessage   = sim.Token(2)
	tokenSystem    = sim.Token(3)
	tokenUser      = sim.Token(4)
	tokenAssistant = sim.Token(5)
	tokenEnd       = sim.EOS
	tokenPreface   = sim.Token(32)

	aroundMessage = 4
	atEnd         = 3
)

// Keys that keep the texts made of one number apart.
const (
	keyPrefix = 0x70726566 + iota<<32
	keyBlock
	keyOwn
	keyItem
	keyReply
	keyLive
	keySalt
)

// of returns the prompt of turn i of s with all its history. The replies to the
// earlier live turns are those of reply: a live turn follows only on an answer
// that came whole.
func (p *prompts) of(s *plan.Session, i int) []sim.Token {
	n := p.preface + 2*aroundMessage + atEnd
	for _, turns := range [][]plan.Turn{s.History, s.Turns[:i+1]} {
		for k := range turns {
			n += turns[k].InputTokens + turns[k].OutputTokens + 2*aroundMessage
		}
	}
	b := make([]sim.Token, 0, n-s.Turns[i].OutputTokens)
	if p.chat {
		for k := range p.preface {
			b = append(b, tokenPreface+sim.Token(k%1024))
		}
	}
	for k := range s.History {
		b = p.message(b, s, &s.History[k])
		b = p.answer(b, &s.History[k], planned(&s.History[k]))
	}
	for k := range s.Turns[:i] {
		t := &s.Turns[k]
		b = p.message(b, s, t)
		if s.Scripted {
			b = p.answer(b, t, planned(t))
		} else {
			b = p.answer(b, t, live(s, t))
		}
	}
	b = p.message(b, s, &s.Turns[i])
	if p.chat {
		b = append(b, tokenStart, tokenAssistant, tokenMessage)
	}
	return b
}

// template is what the chat template adds to a prompt of one message, and to each
// later turn: around the answer before it and its own message.
func (p *prompts) template() (first, later int) {
	if !p.chat {
		return 0, 0
	}
	return p.preface + aroundMessage + atEnd, 2 * aroundMessage
}

// message appends the messages that t adds: of a session's first turn the shared
// prefix, if there is one, as the system's, and the user's.
func (p *prompts) message(b []sim.Token, s *plan.Session, t *plan.Turn) []sim.Token {
	n := t.InputTokens
	if t.Index == 0 {
		n -= p.salt + t.Prompt.PrefixTokens
	}
	if t.Prompt.Item < 0 { // how long real text is, the plan only guesses
		first, later := p.template()
		if t.Index == 0 {
			n -= first
		} else {
			n -= later
		}
	}
	if n < 1 {
		n = 1
		p.floored++
	}
	if k := t.Prompt.PrefixTokens; t.Index == 0 && k > 0 {
		b = p.open(b, tokenSystem)
		b = p.salted(b, s)
		b = text(b, draw.Mix(t.Prompt.PrefixID^keyPrefix), k)
		b = p.close(b)
		b = p.open(b, tokenUser)
	} else {
		b = p.open(b, tokenUser)
		if t.Index == 0 {
			b = p.salted(b, s)
		}
	}
	switch size := t.Prompt.BlockTokens; {
	case t.Index == 0 && size > 0:
		for _, id := range t.Prompt.Blocks {
			k := min(n, size)
			b = text(b, draw.Mix(id^keyBlock), k)
			if n -= k; n == 0 {
				break
			}
		}
	case t.Prompt.Item >= 0:
		// An item may be used again, and is then the same text.
		h := fnv.New64a()
		h.Write([]byte(s.Class))
		b = text(b, draw.Mix(draw.Mix(h.Sum64()^keyItem)+uint64(t.Prompt.Item)<<16+uint64(t.Index)), n)
	default:
		b = text(b, turnKey(s, t, keyOwn), n)
	}
	return p.close(b)
}

// salted appends the run's salt, or the warm-up's.
func (p *prompts) salted(b []sim.Token, s *plan.Session) []sim.Token {
	seed := uint64(keySalt)
	if p.warmUp[s.Phase] {
		seed++
	}
	return text(b, draw.Mix(seed), p.salt)
}

// answer appends the assistant's reply to t.
func (p *prompts) answer(b []sim.Token, t *plan.Turn, seed uint64) []sim.Token {
	b = p.open(b, tokenAssistant)
	b = text(b, seed, max(t.OutputTokens, 1))
	return p.close(b)
}

func (p *prompts) open(b []sim.Token, role sim.Token) []sim.Token {
	if !p.chat {
		return b
	}
	return append(b, tokenStart, role, tokenMessage)
}

func (p *prompts) close(b []sim.Token) []sim.Token {
	if !p.chat {
		return b
	}
	return append(b, tokenEnd)
}

// turnKey is a number that no other turn of the plan has.
func turnKey(s *plan.Session, t *plan.Turn, key uint64) uint64 {
	return draw.Mix(draw.Mix(uint64(s.Seq)^key) + t.Prompt.Seed + uint64(t.Index))
}

func planned(t *plan.Turn) uint64 { return draw.Mix(t.Prompt.Seed ^ keyReply) }

func live(s *plan.Session, t *plan.Turn) uint64 { return turnKey(s, t, keyLive) }

// reply is the answer to t as the engine makes it, so that it is known when the
// next turn carries it.
func reply(s *plan.Session, t *plan.Turn) func(int) sim.Token {
	seed := live(s, t)
	return func(i int) sim.Token { return word(draw.Mix(seed+uint64(i/2)), i) }
}

// text appends n tokens of the endless text of seed.
func text(b []sim.Token, seed uint64, n int) []sim.Token {
	for i := 0; i < n; i += 2 {
		x := draw.Mix(seed + uint64(i/2))
		b = append(b, word(x, 0))
		if i+1 < n {
			b = append(b, word(x, 1))
		}
	}
	return b
}

// word is the i-th token (even or odd) that x makes, none of the special ones.
func word(x uint64, i int) sim.Token {
	return sim.Token(x>>(1+32*(i&1))&(1<<31-1)) | 1<<20
}
