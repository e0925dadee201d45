package httpapi

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/trueload/trueload/internal/sim"
)

// The tokenizer of the simulated model. A token is, with the one space before
// it: a run of up to 20 letters, a run of up to three digits, an apostrophe
// with the letters after it, or any other single character; a run of white
// space that no such piece takes is one token. So n plain words are n tokens,
// and cutting text at word beginnings is additive.
//
// Ids: the special tokens, then the words that the model speaks (with their
// leading space, then without), then everything else by hash.
const (
	tokenEnd     = sim.EOS
	tokenStart   = sim.Token(1)
	tokenMessage = sim.Token(2)
	tokenRole    = sim.Token(3) // and on, one per role
	tokenPreface = sim.Token(32)
	tokenWord    = sim.Token(1 << 16)
	tokenHashed  = sim.Token(1 << 20)
)

var roles = []string{"system", "user", "assistant", "tool", "developer"}

// spoken are the words that outputs are made of.
var spoken = strings.Fields(`
a able about above across act add after again age ago air all almost along also always among and animal answer any
area arm around art as ask at away back ball bank base be bear beat bed before begin behind being believe best better
between big bird bit black blue board boat body book both bottom box boy bread break bridge bright bring brother build
business but buy by call camp can car care carry case catch cause cell center certain chair chance change chart check
child choose circle city class clear climb clock close cloth cloud coast cold color come common complete cook cool copy
corn corner cost could count country course cover cross crowd cry current cut dance dark day dead deal decide deep
degree depend desert design develop direct discuss distant divide do doctor does dog dollar door double down draw dream
dress drink drive drop dry during each ear early earth ease east eat edge effect egg eight either electric else end
energy engine enough enter equal even evening event ever every exact example excite exercise expect experience eye face
fact fall family famous far farm fast father favor fear feed feel few field fight figure fill final find fine finger
finish fire first fish fit five flat floor flow flower fly follow food foot for force forest form forward found four
free fresh friend from front fruit full fun game garden gas gather general gentle get girl give glad glass go gold good
govern grand grass great green ground group grow guess guide hair half hand happen happy hard has hat have he head hear
heart heat heavy help her here high hill his history hit hold hole home hope horse hot hour house how huge human hundred
`)

// wordIDs maps a piece of text to the id of a spoken word.
var wordIDs = func() map[string]sim.Token {
	m := make(map[string]sim.Token, 2*len(spoken))
	for i, w := range spoken {
		m[" "+w] = tokenWord + sim.Token(i)
		m[w] = tokenWord + sim.Token(len(spoken)+i)
	}
	return m
}()

// pieceID is the id of one piece of text.
func pieceID(p string) sim.Token {
	if id, ok := wordIDs[p]; ok {
		return id
	}
	h := uint64(14695981039346656037) // FNV-1a
	for i := 0; i < len(p); i++ {
		h = (h ^ uint64(p[i])) * 1099511628211
	}
	h ^= h >> 32
	return tokenHashed + sim.Token(h%uint64(1<<31-1<<20))
}

// piece returns the length in bytes of the first token of s, which is not empty.
func piece(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	i := n
	if r == ' ' && len(s) > 1 {
		if next, m := utf8.DecodeRuneInString(s[1:]); !unicode.IsSpace(next) {
			r, i = next, 1+m
		}
	}
	run := func(most int, in func(rune) bool) {
		for k := 1; k < most; k++ {
			r, n := utf8.DecodeRuneInString(s[i:])
			if n == 0 || !in(r) {
				return
			}
			i += n
		}
	}
	switch {
	case unicode.IsSpace(r):
		// The last space belongs to the piece that follows it.
		for i < len(s) {
			next, n := utf8.DecodeRuneInString(s[i:])
			if !unicode.IsSpace(next) {
				break
			}
			if next == ' ' && i+1 < len(s) {
				if after, _ := utf8.DecodeRuneInString(s[i+1:]); !unicode.IsSpace(after) {
					break
				}
			}
			i += n
		}
	case inWord(r):
		run(20, inWord)
	case unicode.IsDigit(r):
		run(3, unicode.IsDigit)
	case r == '\'':
		run(20, inWord)
	}
	return i
}

// inWord excludes scripts written without spaces, where each character is a
// token.
func inWord(r rune) bool {
	if r < 0x80 {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	return (unicode.IsLetter(r) || unicode.IsMark(r)) && !unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

// encode appends the ids of text's tokens.
func encode(dst []sim.Token, text string) []sim.Token {
	for len(text) > 0 {
		n := piece(text)
		dst = append(dst, pieceID(text[:n]))
		text = text[n:]
	}
	return dst
}

// chatPrompt renders messages: TemplateTokens of preface, then each message as
// <start> role <message> content <end>, then <start> assistant <message>. So a
// prompt has 4 tokens more per message and 3 more at the end, and a reply that
// is sent back as history gives the ids under which it was made.
func chatPrompt(preface int, messages []chatMessage, generate bool) []sim.Token {
	var p []sim.Token
	for i := range preface {
		p = append(p, tokenPreface+sim.Token(i%1024))
	}
	for _, m := range messages {
		p = append(p, tokenStart, roleID(m.Role), tokenMessage)
		for _, t := range m.Content {
			p = encode(p, t)
		}
		p = append(p, tokenEnd)
	}
	if generate {
		p = append(p, tokenStart, roleID("assistant"), tokenMessage)
	}
	return p
}

func roleID(role string) sim.Token {
	for i, r := range roles {
		if r == role {
			return tokenRole + sim.Token(i)
		}
	}
	return pieceID(role)
}

// vocabulary remembers the pieces that /tokenize has hashed, so that
// /detokenize can give them back. It is bounded; what it has not seen is
// rendered as U+FFFD.
type vocabulary struct {
	mu   sync.Mutex
	seen map[sim.Token]string
}

const vocabularyLimit = 1 << 16

func (v *vocabulary) remember(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen == nil {
		v.seen = map[sim.Token]string{}
	}
	for len(text) > 0 && len(v.seen) < vocabularyLimit {
		n := piece(text)
		if id := pieceID(text[:n]); id >= tokenHashed {
			v.seen[id] = strings.Clone(text[:n])
		}
		text = text[n:]
	}
}

func (v *vocabulary) text(id sim.Token) string {
	if s, ok := word(id); ok {
		return s
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s, ok := v.seen[id]; ok {
		return s
	}
	return "�"
}

// word is the text of a token that a model can emit: "" for the end token.
func word(id sim.Token) (string, bool) {
	switch i := int(id - tokenWord); {
	case id == tokenEnd:
		return "", true
	case i >= 0 && i < len(spoken):
		return spacedWords[i], true
	case i >= len(spoken) && i < 2*len(spoken):
		return spoken[i-len(spoken)], true
	case id == tokenStart:
		return "<|start|>", true
	case id == tokenMessage:
		return "<|message|>", true
	case id >= tokenRole && int(id-tokenRole) < len(roles):
		return roles[id-tokenRole], true
	}
	return "", false
}

var spacedWords = func() []string {
	s := make([]string, len(spoken))
	for i, w := range spoken {
		s[i] = " " + w
	}
	return s
}()

// speaker returns the output of a prompt: words drawn from the seed. The first
// word of a chat answer has no space before it.
func speaker(seed uint64, chat bool) func(int) sim.Token {
	return func(i int) sim.Token {
		h := (seed + uint64(i)) * 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		w := tokenWord + sim.Token((h>>33)%uint64(len(spoken)))
		if chat && i == 0 {
			w += sim.Token(len(spoken))
		}
		return w
	}
}
