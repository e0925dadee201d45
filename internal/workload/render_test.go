package workload

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/trueload/trueload/internal/corpus"
	"github.com/trueload/trueload/internal/plan"
)

// prompt is all the words of a turn's messages, which are as many tokens.
func prompt(t testing.TB, r *Renderer, s *plan.Session, turn *plan.Turn) []string {
	t.Helper()
	m, err := r.Messages(s, turn)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, m := range m {
		words = append(words, strings.Split(m.Content, " ")...)
	}
	return words
}

func common[T comparable](a, b []T) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

const plain = `
workload: {classes: [{name: a, input_tokens: 100, output_tokens: 20, session: {turns: 2, think: 1s}}]}
load: {rate: 20/s, phases: [{name: w, for: 10s, measured: false}, {name: m, for: 100s}]}
`

func TestPromptsAreAsLongAsPlanned(t *testing.T) {
	known := map[string]bool{}
	for _, w := range corpus.Words() {
		known[w] = true
	}
	w := build(t, chat)
	for _, c := range []struct {
		name string
		o    RenderOptions
	}{{"plain", RenderOptions{Salt: "x"}}, {"behind a template", RenderOptions{Salt: "x", FirstTokens: 25, LaterTokens: 9}}, {"no salt", RenderOptions{SaltTokens: -1}}} {
		r := w.Renderer(c.o)
		floored := int64(0)
		for _, s := range read(t, w, 500) {
			for _, turn := range append(slices.Clone(s.History), s.Turns...) {
				words := prompt(t, r, s, &turn)
				want := turn.InputTokens - c.o.FirstTokens
				least := 8 + turn.Prompt.PrefixTokens + 1
				if c.o.SaltTokens < 0 {
					least -= 8
				}
				if turn.Index > 0 {
					want, least = turn.InputTokens-c.o.LaterTokens, 1
				}
				if want < least {
					want = least
					floored++
				}
				if len(words) != want {
					t.Fatalf("%s: session %d turn %d has %d words, want %d", c.name, s.Seq, turn.Index, len(words), want)
				}
				for _, word := range words {
					if !known[word] {
						t.Fatalf("%s: %q is not in the list", c.name, word)
					}
				}
				reply, err := r.Reply(s, &turn)
				if n := len(strings.Fields(reply)); err != nil || n != turn.OutputTokens {
					t.Fatalf("%s: a reply of %d words, want %d (%v)", c.name, n, turn.OutputTokens, err)
				}
			}
		}
		if r.Floored() != floored {
			t.Errorf("%s: %d turns floored, want %d", c.name, r.Floored(), floored)
		}
	}
}

// A hundred prompts share their salt and not one token after it.
func TestA13_NoAccidentalPrefixes(t *testing.T) {
	w := build(t, strings.Replace(plain, "output_tokens: 20", "prefix: {tokens: 50, pool: 2}, output_tokens: 20", 1))
	bare := build(t, plain)
	for name, w := range map[string]*Workload{"bare": bare, "behind a shared prefix": w} {
		r := w.Renderer(RenderOptions{Salt: "run 1"})
		var all [][]string
		var ids [][]int
		for _, s := range read(t, w, 1500) {
			if len(s.History) > 0 || s.Phase == "w" {
				continue
			}
			turn := &s.Turns[0]
			words := prompt(t, r, s, turn)[8:]
			tokens, err := r.Tokens(s, turn)
			if err != nil || len(tokens) != turn.InputTokens {
				t.Fatalf("%d token ids for %d (%v)", len(tokens), turn.InputTokens, err)
			}
			if slices.Min(tokens) < firstToken || slices.Max(tokens) >= lastToken {
				t.Fatalf("token ids from %d to %d", slices.Min(tokens), slices.Max(tokens))
			}
			all, ids = append(all, words[turn.Prompt.PrefixTokens:]), append(ids, tokens[8+turn.Prompt.PrefixTokens:])
		}
		for i := range all {
			for j := range i {
				if n := common(all[i], all[j]); n > 0 {
					t.Fatalf("%s: prompts %d and %d share %d words after the salt: %v", name, j, i, n, all[i][:n])
				}
				if n := common(ids[i], ids[j]); n > 0 {
					t.Fatalf("%s: prompts %d and %d share %d token ids", name, j, i, n)
				}
			}
		}
		if len(all) < 1000 {
			t.Fatalf("%s: only %d prompts", name, len(all))
		}
	}
}

// The first measured prompt was not sent by the warm-up: not one of its words
// is where a warm-up prompt has the same, from the first on. So it is with
// another run's salt, and with the same salt again the text is the same.
func TestA10_WarmUpSharesNothing(t *testing.T) {
	w := build(t, strings.Replace(plain, "output_tokens: 20", "prefix: {tokens: 50, pool: 1}, output_tokens: 20", 1))
	r := w.Renderer(RenderOptions{Salt: "one"})
	var warm [][]string
	var salts []string
	var first *plan.Session
	for _, s := range read(t, w, 0) {
		if s.Phase == "w" {
			warm = append(warm, prompt(t, r, s, &s.Turns[0]))
			if len(s.History) > 0 {
				warm[len(warm)-1] = prompt(t, r, s, &s.History[0])
			}
			salts = append(salts, r.CacheSalt(s))
		} else if first == nil && len(s.History) == 0 {
			first = s
		}
	}
	measured := prompt(t, r, first, &first.Turns[0])
	for _, p := range warm {
		if n := common(p, measured); n > 0 {
			t.Fatalf("a warm-up prompt shares its first %d words with the first measured one", n)
		}
	}
	if slices.Contains(salts, r.CacheSalt(first)) {
		t.Error("the warm-up has the measured phases' cache salt")
	}
	other := prompt(t, w.Renderer(RenderOptions{Salt: "two"}), first, &first.Turns[0])
	if n := common(other, measured); n > 0 {
		t.Errorf("another salt leaves the first %d words alike", n)
	}
	if n := common(other[8:], measured[8:]); n != len(measured)-8 {
		t.Errorf("another salt changes the words after it, at %d", n)
	}
	if again := prompt(t, w.Renderer(RenderOptions{Salt: "one"}), first, &first.Turns[0]); !slices.Equal(again, measured) {
		t.Error("the same salt gives another text")
	}
}

// Sessions of one prefix have equal system messages, of two have not.
func TestPrefixesAreShared(t *testing.T) {
	w := build(t, chat)
	r := w.Renderer(RenderOptions{Salt: "s"})
	texts := map[uint64]string{}
	counts := map[uint64]int{}
	for _, s := range read(t, w, 0) {
		turn := s.Turns[0]
		if s.Class != "chat" || turn.Index > 0 || s.Phase == "warm-up" {
			continue
		}
		m, err := r.Messages(s, &turn)
		if err != nil || len(m) != 2 || m[0].Role != "system" || m[1].Role != "user" {
			t.Fatalf("%v, %v", m, err)
		}
		if n := len(strings.Fields(m[0].Content)); n != 608 {
			t.Fatalf("a system message of %d words, want salt and prefix: 608", n)
		}
		id := turn.Prompt.PrefixID
		if old, ok := texts[id]; ok && old != m[0].Content {
			t.Fatal("one prefix, two texts")
		}
		texts[id] = m[0].Content
		counts[id]++
	}
	seen := map[string]bool{}
	for _, text := range texts {
		seen[text] = true
	}
	if len(texts) != 8 || len(seen) != 8 {
		t.Errorf("%d prefixes, %d texts; want 8", len(texts), len(seen))
	}
	var n []int
	for _, c := range counts {
		n = append(n, c)
	}
	slices.Sort(n)
	if n[7] < 4*n[0] { // 8^1.1 is 9.8
		t.Errorf("with a Zipf slope the prefixes are used %v times", n)
	}
}

// Equal leading block ids are equal leading text, in words and in token ids.
func TestBlocksAreShared(t *testing.T) {
	w := replayOf(t, traces+"mooncake_conversation.jsonl, rows: {count: 60}")
	const salt, template = 8, 5
	r := w.Renderer(RenderOptions{Salt: "s", FirstTokens: template})
	all := read(t, w, 0)
	var words [][]string
	var ids [][]int
	for _, s := range all {
		words = append(words, prompt(t, r, s, &s.Turns[0]))
		tokens, err := r.Tokens(s, &s.Turns[0])
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, tokens)
		if len(tokens) != s.Turns[0].InputTokens || len(words[len(words)-1]) != s.Turns[0].InputTokens-template {
			t.Fatalf("%d ids and %d words for %d tokens", len(tokens), len(words[len(words)-1]), s.Turns[0].InputTokens)
		}
	}
	for i := range all {
		for j := range i {
			a, b := all[i].Turns[0].Prompt.Blocks, all[j].Turns[0].Prompt.Blocks
			k := common(a, b)
			want := salt + 512*k
			if k == len(a) || k == len(b) {
				want = min(want, len(words[i]), len(words[j]))
			}
			// Two ids in 1,600 have a first word in common.
			if got := common(words[i], words[j]); got != want && (a[k]%1600 != b[k]%1600 || got > want+1) {
				t.Fatalf("rows %d and %d share %d blocks and %d words, want %d", j, i, k, got, want)
			}
			if got := common(ids[i], ids[j]); got < salt+512*min(k, len(a)-1, len(b)-1) || got > salt+512*k+1 {
				t.Fatalf("rows %d and %d share %d blocks and %d token ids", j, i, k, got)
			}
		}
	}
}

func TestRealText(t *testing.T) {
	file := write(t, "c.json", `[
{"conversations": [{"from": "human", "value": "What is two and two, if I may ask?"}, {"from": "gpt", "value": "It is four."}, {"from": "human", "value": "And three?"}, {"from": "gpt", "value": "Six, for three and three."}]},
{"conversations": [{"from": "human", "value": "Hello!"}, {"from": "gpt", "value": "Hi."}]},
{"conversations": []}]`)
	w := build(t, `
workload: {classes: [{name: a, text: {sharegpt: `+file+`}, session: {turns: 3, think: 1s}}]}
load: {rate: 20/s, phases: [{name: m, for: 10s}]}
`)
	r := w.Renderer(RenderOptions{Salt: "s"})
	turns := map[int]int{}
	for _, s := range read(t, w, 0) {
		all := append(slices.Clone(s.History), s.Turns...)
		turns[len(all)]++
		m, err := r.Messages(s, &all[0])
		if err != nil || len(m) != 1 {
			t.Fatal(m, err)
		}
		salt, text, _ := strings.Cut(m[0].Content, "\n\n")
		if len(strings.Fields(salt)) != 8 || text != "Hello!" && !strings.HasPrefix(text, "What is two") {
			t.Fatalf("prompt %q", m[0].Content)
		}
		if len(all) > 1 {
			m, err := r.Messages(s, &all[1])
			reply, err2 := r.Reply(s, &all[0])
			if err != nil || err2 != nil || m[0].Content != "And three?" || reply != "It is four." {
				t.Fatal(m, reply, err, err2)
			}
		}
		if _, err := r.Tokens(s, &all[0]); err == nil {
			t.Fatal("real text was turned into token ids")
		}
	}
	if turns[1] == 0 || turns[2] == 0 || len(turns) != 2 {
		t.Errorf("sessions by turns: %v, want those of the conversations, at most 3", turns)
	}
	f := w.Facts().Files
	if len(f) != 1 || f[0].Rows != 3 || f[0].Used != 2 || len(f[0].Dropped) != 1 || f[0].Dropped[0].Rows != 1 {
		t.Errorf("files: %+v", f)
	}
	// Both texts are used before one comes again.
	s := slices.DeleteFunc(read(t, w, 0), func(s *plan.Session) bool { return len(s.History) > 0 })
	if s[0].Turns[0].Prompt.Item == s[1].Turns[0].Prompt.Item {
		t.Error("a text came again before the other was used")
	}
}

// Text of an asked length is cut at a word, or said again.
func TestRealTextOfAskedLength(t *testing.T) {
	file := write(t, "p.jsonl", `{"prompt": "`+strings.Repeat("some words ", 100)+`"}`)
	w := build(t, `
workload: {classes: [{name: a, text: {jsonl: `+file+`}, input_tokens: 58, output_tokens: 3}]}
load: {rate: 20/s, phases: [{name: m, for: 10s}]}
`)
	r := w.Renderer(RenderOptions{})
	s := read(t, w, 1)[0]
	m, err := r.Messages(s, &s.Turns[0])
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(m[0].Content, "\n\n")
	if len(text) > 200 || len(text) < 190 || strings.TrimLeft(text, "somewrd ") != "" {
		t.Errorf("%d bytes: %q", len(text), text)
	}
	if got := fit("ab", 9); !strings.HasPrefix(got, "ab\n\nab") || len(got) > 9 {
		t.Errorf("fit: %q", got)
	}
	if got := fit("ééé", 3); got != "é" {
		t.Errorf("fit cut inside a letter: %q", got)
	}
}

// Renderers are used from many goroutines at once.
func TestRendererIsDeterministic(t *testing.T) {
	w := build(t, chat)
	a, b := w.Renderer(RenderOptions{Salt: "s"}), w.Renderer(RenderOptions{Salt: "s"})
	sessions := read(t, w, 200)
	done := make(chan string)
	for range 4 {
		go func() {
			for _, s := range sessions {
				m, err := a.Messages(s, &s.Turns[0])
				n, err2 := b.Messages(s, &s.Turns[0])
				if err != nil || err2 != nil || !reflect.DeepEqual(m, n) {
					done <- fmt.Sprint("session ", s.Seq, " was rendered in two ways: ", err, err2)
					return
				}
			}
			done <- ""
		}()
	}
	for range 4 {
		if msg := <-done; msg != "" {
			t.Error(msg)
		}
	}
}

// Prompts of 1,000 tokens.
func BenchmarkMessages(b *testing.B) {
	w := build(b, strings.Replace(plain, "input_tokens: 100", "input_tokens: 1000", 1))
	r := w.Renderer(RenderOptions{Salt: "s"})
	sessions := read(b, w, 1000)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		s := sessions[n%len(sessions)]
		n++
		if _, err := r.Messages(s, &s.Turns[0]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "prompts/s")
}
