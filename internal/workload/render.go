package workload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/trueload/trueload/internal/corpus"
	"github.com/trueload/trueload/internal/draw"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/protocol"
)

// RenderOptions say how a plan's prompts are made into text. The zero value
// salts with the empty string.
type RenderOptions struct {
	// Salt is the run's. The words made of it stand first in every session, so
	// that no prompt begins like one of an earlier run. Sessions of the phases
	// before the first measured one have words of their own; in closed loop, where
	// no session has a time before it begins, all take the run's, and a warm-up
	// shares these few words with what is measured.
	Salt string
	// SaltTokens is how many words of salt there are, out of 1,600 each; 0: 8,
	// which are 85 bits. Below 0: none, for an engine that takes CacheSalt.
	SaltTokens int
	// FirstTokens and LaterTokens are what the chat template adds to a session's
	// first request and to each later turn, as measured on the target. So many
	// words fewer are sent, and the server counts what the plan asks for.
	FirstTokens, LaterTokens int
}

// Renderer makes the text of a plan's turns. The same turn gives the same text
// always. It is safe for concurrent use.
//
// Random text is words of one token each. A session's first message is
//
//	salt | shared prefix | own words
//
// where the prefix, if there is one, is a system message together with the
// salt. The first two of the own words count the sessions, so that no two of
// them begin alike (of 2.5 million; the first word alone tells 1,600 apart).
type Renderer struct {
	opt     RenderOptions
	classes map[string]*class
	warmUp  map[string]bool // phases before the first measured one
	salts   [2][]uint16     // words of the run's salt, of the warm-up's
	order   uint64          // where the counting of sessions begins
	floored atomic.Int64
}

var _ protocol.Renderer = (*Renderer)(nil)

const defaultSaltTokens = 8

// Renderer returns a renderer of the workload's plan.
func (w *Workload) Renderer(o RenderOptions) *Renderer {
	if o.SaltTokens == 0 {
		o.SaltTokens = defaultSaltTokens
	}
	r := &Renderer{opt: o, classes: map[string]*class{}, warmUp: map[string]bool{}, order: draw.Seed(w.exp.Seed, "order")}
	for _, c := range w.classes {
		r.classes[c.spec.Name] = c
	}
	for _, p := range w.phases {
		if p.Measured {
			break
		}
		r.warmUp[p.Name] = true
	}
	for i := range r.salts {
		for n := range max(o.SaltTokens, 0) {
			sum := sha256.Sum256(fmt.Appendf(nil, "%d/%d/%s", i, n, o.Salt))
			r.salts[i] = append(r.salts[i], uint16(binary.LittleEndian.Uint64(sum[:])%uint64(len(words))))
		}
	}
	return r
}

// Floored is how many turns were rendered so far that asked for fewer tokens
// than salt, prefix, template and one word of their own take: the server counts
// more for them than the plan asks.
func (r *Renderer) Floored() int64 { return r.floored.Load() }

// salt is the index of the salt that s takes.
func (r *Renderer) salt(s *plan.Session) int {
	if r.warmUp[s.Phase] {
		return 1
	}
	return 0
}

// CacheSalt is the run's salt (or the warm-up's) in one word, for engines whose
// requests have a field for it.
func (r *Renderer) CacheSalt(s *plan.Session) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%s", r.salt(s), r.opt.Salt))
	return hex.EncodeToString(sum[:12])
}

// own is how many tokens of its own text t has, at least 1.
func (r *Renderer) own(t *plan.Turn, template bool) int {
	n := t.InputTokens
	if t.Index == 0 {
		n -= max(r.opt.SaltTokens, 0) + t.Prompt.PrefixTokens
		if template {
			n -= r.opt.FirstTokens
		}
	} else if template {
		n -= r.opt.LaterTokens
	}
	if n < 1 {
		r.floored.Add(1)
		return 1
	}
	return n
}

// Messages implements protocol.Renderer.
func (r *Renderer) Messages(s *plan.Session, t *plan.Turn) ([]protocol.Message, error) {
	if t.Prompt.Item >= 0 {
		return r.textMessages(s, t)
	}
	n := r.own(t, true)
	if t.Index > 0 {
		return []protocol.Message{{Role: "user", Content: string(appendWords(make([]byte, 0, wordRoom*n+wordRoom), t.Prompt.Seed, 0, n))}}, nil
	}
	salt := r.salts[r.salt(s)]
	b := make([]byte, 0, wordRoom*(1+n+len(salt)+t.Prompt.PrefixTokens))
	for _, w := range salt {
		b = appendWord(b, int(w))
	}
	if p := t.Prompt; p.PrefixTokens > 0 {
		b = appendWords(b, draw.Mix(p.PrefixID^prefixText), 0, p.PrefixTokens)
		system := string(b)
		b = b[:0]
		b = r.appendOwn(b, s, t, n)
		return []protocol.Message{{Role: "system", Content: system}, {Role: "user", Content: string(b)}}, nil
	}
	b = r.appendOwn(b, s, t, n)
	return []protocol.Message{{Role: "user", Content: string(b)}}, nil
}

// Keys that keep the texts made of one number apart.
const (
	prefixText = 0x70726566
	replyText  = 0x7265706c
	blockText  = 0x626c6f63
)

// appendOwn appends the n own words of a session's first turn.
func (r *Renderer) appendOwn(b []byte, s *plan.Session, t *plan.Turn, n int) []byte {
	if t.Prompt.BlockTokens > 0 {
		for _, id := range t.Prompt.Blocks {
			m := min(n, t.Prompt.BlockTokens)
			lead := min(m, 2)
			b = appendCount(b, id+r.order%uint64(len(words)), lead)
			b = appendWords(b, draw.Mix(id^blockText), lead, m-lead)
			if n -= m; n == 0 {
				break
			}
		}
		return b
	}
	lead := min(n, 2)
	b = appendCount(b, uint64(s.Seq)+r.order%uint64(len(words)*len(words)), lead)
	return appendWords(b, t.Prompt.Seed, lead, n-lead)
}

// words are the corpus's, each with a space before it, in a slot of one size:
// two moves of eight bytes write one, whatever its length.
var words = func() []word {
	list := corpus.Words()
	out := make([]word, len(list))
	for i, w := range list {
		if 1+len(w) > len(out[i].text) {
			panic("workload: a word is too long for its slot: " + w)
		}
		out[i].text[0] = ' '
		copy(out[i].text[1:], w)
		out[i].size = 1 + len(w)
	}
	return out
}()

type word struct {
	text [16]byte
	size int
}

// appendWord appends word i, with a space before it unless b is empty.
func appendWord(b []byte, i int) []byte {
	w := &words[i]
	if len(b) == 0 {
		return append(b, w.text[1:w.size]...)
	}
	n := len(b)
	return append(b, w.text[:]...)[:n+w.size]
}

// wordRoom is more than a word takes on average (6.6 bytes).
const wordRoom = 7

// appendCount appends the first n (at most 2) of the two words that number c,
// the one that changes with every count first.
func appendCount(b []byte, c uint64, n int) []byte {
	v := uint64(len(words))
	for range n {
		b = appendWord(b, int(c%v))
		c /= v
	}
	return b
}

// appendWords appends n words of the endless text of seed, from its word first
// on, first being a small number.
func appendWords(b []byte, seed uint64, first, n int) []byte {
	v := uint64(len(words))
	for i := 0; i < first+n; i += 4 {
		x := draw.Mix(seed + uint64(i))
		for j := i; j < i+4 && j < first+n; j++ {
			if j >= first {
				b = appendWord(b, int((x&0xffff)*v>>16))
			}
			x >>= 16
		}
	}
	return b
}

// textMessages are the messages of a turn of real text.
func (r *Renderer) textMessages(s *plan.Session, t *plan.Turn) ([]protocol.Message, error) {
	c := r.classes[s.Class]
	if c == nil || c.text == nil {
		return nil, fmt.Errorf("session %d: class %q has no text", s.Seq, s.Class)
	}
	item, err := c.text.Item(int(t.Prompt.Item))
	if err != nil {
		return nil, err
	}
	if int(t.Index) >= len(item.Turns) {
		return nil, fmt.Errorf("session %d: its text has no turn %d", s.Seq, t.Index)
	}
	var out []protocol.Message
	for _, m := range item.Turns[t.Index].Messages {
		out = append(out, protocol.Message{Role: m.Role, Content: m.Content})
	}
	if c.input != nil || c.pairs != nil {
		// A length was asked for: only the last message, cut or filled.
		content := fit(out[len(out)-1].Content, 4*r.own(t, true))
		out = []protocol.Message{{Role: "user", Content: content}}
	}
	if t.Index > 0 {
		return out, nil
	}
	var b []byte
	for _, w := range r.salts[r.salt(s)] {
		b = appendWord(b, int(w))
	}
	if p := t.Prompt; p.PrefixTokens > 0 {
		b = appendWords(b, draw.Mix(p.PrefixID^prefixText), 0, p.PrefixTokens)
		return append([]protocol.Message{{Role: "system", Content: string(b)}}, out...), nil
	}
	if len(b) > 0 {
		out[0].Content = string(b) + "\n\n" + out[0].Content
	}
	return out, nil
}

// fit cuts text to about size bytes at a space, or says it again until it is
// that long.
func fit(text string, size int) string {
	if len(text) < size {
		text = strings.Repeat(text+"\n\n", size/(len(text)+2)+1)
	}
	if i := strings.LastIndexByte(text[:min(size, len(text))], ' '); i > 0 {
		return text[:i]
	}
	return strings.ToValidUTF8(text[:min(size, len(text))], "")
}

// Reply implements protocol.Renderer: the recorded answer where the text has
// one, else OutputTokens random words.
func (r *Renderer) Reply(s *plan.Session, t *plan.Turn) (string, error) {
	if t.Prompt.Item >= 0 {
		if c := r.classes[s.Class]; c != nil && c.text != nil {
			item, err := c.text.Item(int(t.Prompt.Item))
			if err != nil {
				return "", err
			}
			if int(t.Index) < len(item.Turns) && item.Turns[t.Index].Reply != "" {
				return item.Turns[t.Index].Reply, nil
			}
		}
	}
	n := max(t.OutputTokens, 1)
	return string(appendWords(make([]byte, 0, wordRoom*n+wordRoom), draw.Mix(t.Prompt.Seed^replyText), 0, n)), nil
}

// Token ids are drawn from a range that holds plain text in every vocabulary:
// above bytes and control tokens, below where the smallest ends.
const (
	firstToken = 1000
	lastToken  = 30_000 // not included
)

// Tokens implements protocol.Renderer: the turn's prompt in token ids, exactly
// InputTokens of them unless salt and prefix alone are more.
func (r *Renderer) Tokens(s *plan.Session, t *plan.Turn) ([]int, error) {
	if t.Prompt.Item >= 0 {
		return nil, fmt.Errorf("session %d: real text cannot be sent as token ids", s.Seq)
	}
	n := r.own(t, false)
	if t.Index > 0 {
		return appendTokens(make([]int, 0, n), t.Prompt.Seed, 0, n), nil
	}
	ids := make([]int, 0, n+max(r.opt.SaltTokens, 0)+t.Prompt.PrefixTokens)
	for i, w := range r.salts[r.salt(s)] {
		ids = append(ids, firstToken+int(draw.Mix(uint64(w)<<8|uint64(i))%(lastToken-firstToken)))
	}
	if p := t.Prompt; p.PrefixTokens > 0 {
		ids = appendTokens(ids, draw.Mix(p.PrefixID^prefixText), 0, p.PrefixTokens)
	}
	if t.Prompt.BlockTokens > 0 {
		for _, id := range t.Prompt.Blocks {
			m := min(n, t.Prompt.BlockTokens)
			ids = appendTokens(ids, draw.Mix(id^blockText), 0, m)
			if n -= m; n == 0 {
				break
			}
		}
		return ids, nil
	}
	const span = lastToken - firstToken
	ids = append(ids, firstToken+int((uint64(s.Seq)+r.order)%span))
	return appendTokens(ids, t.Prompt.Seed, 1, n-1), nil
}

// appendTokens appends n ids of the endless text of seed, from its id first on.
func appendTokens(ids []int, seed uint64, first, n int) []int {
	for i := range n {
		x := draw.Mix(seed + uint64(first+i))
		ids = append(ids, firstToken+int(x>>32*(lastToken-firstToken)>>32))
	}
	return ids
}
