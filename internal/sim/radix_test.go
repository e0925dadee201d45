package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// checkTree verifies the tree's own books.
func checkTree(t *testing.T, p *radix) {
	t.Helper()
	holders := map[*node]int{}
	own := 0
	for _, s := range p.e.running {
		own += s.computed - s.depth
		depth := 0
		for n := s.node; n.parent != nil; n = n.parent {
			holders[n]++
			depth += len(n.key)
		}
		if depth != s.depth {
			t.Fatalf("a request holds %d tokens of the tree and thinks %d", depth, s.depth)
		}
	}
	evictable, held, leaves := 0, 0, 0
	var visit func(n *node)
	visit = func(n *node) {
		if n.locks != holders[n] {
			t.Fatalf("a node has %d locks and %d holders", n.locks, holders[n])
		}
		if n.locks > 0 {
			held += len(n.key)
		} else {
			evictable += len(n.key)
		}
		if len(n.children) == 0 && n.parent != nil {
			leaves++
			if _, ok := p.leaves[n]; !ok {
				t.Fatal("a leaf is not listed")
			}
		}
		for first, c := range n.children {
			if c.parent != n || len(c.key) == 0 || c.key[0] != first {
				t.Fatal("a child hangs wrongly")
			}
			visit(c)
		}
	}
	for _, r := range p.roots {
		visit(r)
	}
	if evictable != p.evictable || leaves != len(p.leaves) || p.avail < 0 || p.avail+evictable+held+own != p.e.cfg.capacity() {
		t.Fatalf("%d free + %d evictable (counted %d) + %d held + %d own is not the capacity %d; %d leaves, %d listed",
			p.avail, evictable, p.evictable, held, own, p.e.cfg.capacity(), leaves, len(p.leaves))
	}
}

// squeeze replaces repeated lines by one with their number.
func squeeze(lines []string) (out []string) {
	for i := 0; i < len(lines); {
		j := i
		for j < len(lines) && lines[j] == lines[i] {
			j++
		}
		l := lines[i]
		if j > i+1 {
			l = fmt.Sprintf("%d x %s", j-i, l)
		}
		out = append(out, l)
		i = j
	}
	return out
}

func TestSGLangSchedule(t *testing.T) {
	tokens := func(n int) Config { return Config{Profile: flat, Policy: SGLang, BlockSize: 1, Blocks: n + 1} }
	for _, tc := range []struct {
		name string
		cfg  Config
		reqs []req
		want []string
	}{
		{
			name: "prefill goes first and alone: decode stands still meanwhile",
			cfg:  tokens(1000),
			reqs: []req{{"a", 0, 1, 10, 4, 0, 0, ""}, {"b", 1, 2, 100, 1, 0, 0, ""}},
			want: []string{
				"10 prefill 10 decode 0 emit [a] preempt [] free 990",
				"64 prefill 64 decode 0 emit [] preempt [] free 926",
				"36 prefill 36 decode 0 emit [b:length] preempt [] free 990",
				"1 prefill 0 decode 1 emit [a] preempt [] free 989",
				"1 prefill 0 decode 1 emit [a] preempt [] free 988",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 1000",
			},
		},
		{
			name: "the tree hits single tokens, all but the last",
			cfg:  tokens(1000),
			reqs: []req{{"a", 0, 1, 37, 1, 0, 0, ""}, {"b", 1, 1, 30, 1, 0, 0, ""}, {"c", 2, 1, 50, 1, 0, 0, ""}, {"d", 3, 1, 50, 1, 0, 0, ""}},
			want: []string{
				"37 prefill 37 decode 0 emit [a:length] preempt [] free 1000",
				"1 prefill 1 decode 0 emit [b:length] preempt [] free 1000",
				"13 prefill 13 decode 0 emit [c:length] preempt [] free 1000",
				"1 prefill 1 decode 0 emit [d:length] preempt [] free 1000",
			},
		},
		{
			name: "two of one batch do not share; one prompt is cut to fill the batch",
			cfg:  tokens(1000),
			reqs: []req{{"a", 0, 1, 32, 1, 0, 0, ""}, {"b", 0, 1, 40, 1, 0, 0, ""}},
			want: []string{
				"64 prefill 64 decode 0 emit [a:length] preempt [] free 968",
				"8 prefill 8 decode 0 emit [b:length] preempt [] free 1000",
			},
		},
		{
			name: "memory must hold the output that is allowed, so the second waits",
			cfg:  tokens(100),
			reqs: []req{{"a", 0, 1, 60, 3, 0, 0, ""}, {"b", 0, 2, 30, 10, 1, 0, ""}},
			want: []string{
				"60 prefill 60 decode 0 emit [a] preempt [] free 40",
				"1 prefill 0 decode 1 emit [a] preempt [] free 39",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 100",
				"30 prefill 30 decode 0 emit [b:stop] preempt [] free 100",
			},
		},
		{
			name: "an adapter without a place blocks those behind it, too",
			cfg:  tokens(1000),
			reqs: []req{{"a", 0, 1, 10, 2, 0, 0, "x"}, {"b", 0, 2, 10, 1, 0, 0, "y"}, {"c", 0, 3, 10, 1, 0, 0, ""}},
			want: []string{
				"10 prefill 10 decode 0 emit [a] preempt [] free 990",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 1000",
				"20 prefill 20 decode 0 emit [b:length c:length] preempt [] free 1000",
			},
		},
		{
			name: "max_num_seqs",
			cfg:  Config{Profile: flat, Policy: SGLang, MaxSeqs: 1},
			reqs: []req{{"a", 0, 1, 10, 2, 0, 0, ""}, {"b", 0, 2, 10, 1, 0, 0, ""}},
			want: []string{
				"10 prefill 10 decode 0 emit [a] preempt [] free 99",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 100",
				"10 prefill 10 decode 0 emit [b:length] preempt [] free 100",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := play(t, tc.cfg, tc.reqs, line); !slices.Equal(got, tc.want) {
				t.Errorf("steps:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// The ratio decays while all is well, and begins anew after an idle time.
func TestSGLangRatio(t *testing.T) {
	e := mustNew(t, Config{Profile: flat, Policy: SGLang, BlockSize: 1, Blocks: 2001})
	p := e.policy.(*radix)
	admit := func(r *Request, now time.Duration) time.Duration {
		if err := e.Admit(now, r); err != nil {
			t.Fatal(err)
		}
		return e.Step(now).End()
	}
	now := admit(&Request{Prompt: prompt(1, 10), MaxTokens: 1000}, 0)
	if p.ratio != 0.7 {
		t.Errorf("ratio %v at first", p.ratio)
	}
	for range 300 {
		now = e.Step(now).End()
	}
	if want := 0.7 - 300*(0.7-0.098)/600; math.Abs(p.ratio-want) > 1e-9 {
		t.Errorf("ratio %v after 300 decode steps, want %v", p.ratio, want)
	}
	for range 600 {
		now = e.Step(now).End()
	}
	if math.Abs(p.ratio-0.098) > 1e-9 {
		t.Errorf("ratio %v after 900 decode steps, want 0.098", p.ratio)
	}
	now = finish(e, now)
	decayed := p.ratio
	now = admit(&Request{Prompt: prompt(2, 10), MaxTokens: 1}, now)
	if p.ratio != decayed {
		t.Errorf("ratio %v though the engine was never idle", p.ratio)
	}
	if admit(&Request{Prompt: prompt(3, 10), MaxTokens: 1}, now+1); p.ratio != 0.7 {
		t.Errorf("ratio %v after an idle time", p.ratio)
	}
}

// Three requests with a prompt of 10 tokens fill 100; the youngest has the
// fewest output tokens and goes alone, since one token for each of the others is
// all that the step needs.
func TestSGLangRetractsNoMoreThanNeeded(t *testing.T) {
	e := mustNew(t, Config{Profile: flat, Policy: SGLang, BlockSize: 1, Blocks: 101})
	p := e.policy.(*radix)
	now := time.Duration(0)
	var rs []*Request
	for i := range 3 {
		r := &Request{Prompt: prompt(i, 10), MaxTokens: 89}
		rs = append(rs, r)
		if err := e.Admit(now, r); err != nil {
			t.Fatal(err)
		}
		p.ratio = 0 // lets all in
		r.seq.limit = 40
		for range 2 { // its prefill, and a decode step
			now = e.Step(now).End()
		}
	}
	for range 200 {
		s := e.Step(now)
		now = s.End()
		checkTree(t, p)
		if len(s.Preempted) > 0 {
			if len(s.Preempted) != 1 || s.Preempted[0] != rs[2] {
				t.Fatalf("%d retracted", len(s.Preempted))
			}
			// (out + 20 each)/(40 + 40 + 1)
			if want := float64(rs[0].Life.Output-1+rs[1].Life.Output-1+40) / 81; p.ratio != math.Min(1, want) {
				t.Errorf("ratio %v, want %v", p.ratio, want)
			}
			return
		}
	}
	t.Error("nobody was retracted")
}

// a takes 10 tokens and may give 39 more, counted as 0.7 of it: 27.3. So b, with
// 2 and 40, fits in the 42.7 of 80 that are left, and after 34 steps it shows
// that it does not. Of equal outputs the longer prompt, a, is retracted. It goes
// on when b is done, from its prompt, which is in the tree, and not from its
// output, which is not.
func TestSGLangRetraction(t *testing.T) {
	cfg := Config{Profile: flat, Policy: SGLang, BlockSize: 1, Blocks: 81}
	got := squeeze(play(t, cfg, []req{{"a", 0, 1, 10, 40, 0, 0, ""}, {"b", 1, 2, 2, 40, 0, 0, ""}}, func(e *Engine, s *Step) string {
		l, _, _ := strings.Cut(line(e, s), " free")
		return l
	}))
	want := []string{
		"10 prefill 10 decode 0 emit [a] preempt []",
		"2 prefill 2 decode 0 emit [b] preempt []",
		"34 x 2 prefill 0 decode 2 emit [a b] preempt []",
		"1 prefill 0 decode 1 emit [b] preempt [a]",
		"3 x 1 prefill 0 decode 1 emit [b] preempt []",
		"1 prefill 0 decode 1 emit [b:length] preempt []",
		"35 prefill 35 decode 0 emit [a] preempt []",
		"3 x 1 prefill 0 decode 1 emit [a] preempt []",
		"1 prefill 0 decode 1 emit [a:length] preempt []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSGLangCache(t *testing.T) {
	cfg := Config{Profile: flat, Policy: SGLang, BlockSize: 1, Blocks: 101}
	t.Run("the least recently used leaf is evicted, whole", func(t *testing.T) {
		for id, want := range map[int]int{1: 39, 2: 0} {
			e := mustNew(t, cfg)
			for _, r := range []struct{ id, n int }{{1, 40}, {2, 40}, {1, 40}, {3, 30}} {
				hit(t, e, &Request{Prompt: prompt(r.id, r.n), MaxTokens: 1})
				checkPool(t, e)
			}
			if got := hit(t, e, &Request{Prompt: prompt(id, 40), MaxTokens: 1}); got != want {
				t.Errorf("prompt %d: hit %d, want %d", id, got, want)
			}
		}
	})
	t.Run("salts and adapters are apart, and leave nothing behind", func(t *testing.T) {
		e := mustNew(t, cfg)
		hit(t, e, &Request{Prompt: prompt(1, 20), Salt: "a", MaxTokens: 1})
		for _, tc := range []struct {
			salt, adapter string
			want          int
		}{{"b", "", 0}, {"", "a", 0}, {"a", "", 19}} {
			if got := hit(t, e, &Request{Prompt: prompt(1, 20), Salt: tc.salt, Adapter: tc.adapter, MaxTokens: 1}); got != tc.want {
				t.Errorf("salt %q, adapter %q: hit %d, want %d", tc.salt, tc.adapter, got, tc.want)
			}
		}
		for i := range 50 {
			hit(t, e, &Request{Prompt: prompt(1, 20), Salt: fmt.Sprint(i), MaxTokens: 1})
			checkPool(t, e)
		}
		if n := len(e.policy.(*radix).roots); n > 5 {
			t.Errorf("%d trees in room for 5", n)
		}
		if !e.ResetPrefixCache() || hit(t, e, &Request{Prompt: prompt(1, 20), Salt: "49", MaxTokens: 1}) != 0 {
			t.Error("a reset did not forget")
		}
	})
	t.Run("generated tokens are hit in the next turn", func(t *testing.T) {
		e := mustNew(t, cfg)
		out := func(i int) Token { return Token(7000 + i) }
		hit(t, e, &Request{Prompt: prompt(1, 20), MaxTokens: 10, Output: out})
		next := prompt(1, 20)
		for i := range 10 {
			next = append(next, out(i))
		}
		// The tenth was only sampled.
		if got := hit(t, e, &Request{Prompt: append(next, 1, 2), MaxTokens: 1}); got != 29 {
			t.Errorf("hit %d, want 29", got)
		}
	})
}

// Without a limit and one request at a time, the tree hits what the traces'
// published token_hit says: of k leading ids seen, min(512·k, n) tokens; the
// engine computes the last one all the same.
func TestSGLangCacheAgainstGolden(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(traces, "GOLDEN.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]json.RawMessage
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	for _, x := range excerpts {
		var published struct {
			Prefix struct {
				Hit int `json:"tok_hit"`
			} `json:"prefix_hit_infinite_B512"`
		}
		if err := json.Unmarshal(golden[x.name], &published); err != nil {
			t.Fatal(err)
		}
		e := mustNew(t, Config{Policy: SGLang, Blocks: 2_000_000, MaxModelLen: 150_000})
		seen, sum := map[int]bool{}, 0
		for i, r := range readTrace(t, x.name) {
			k := 0
			for k < len(r.IDs) && seen[r.IDs[k]] {
				k++
			}
			for _, id := range r.IDs {
				seen[id] = true
			}
			want := min(k*traceBlock, r.Input)
			sum += want
			if got := hit(t, e, &Request{Prompt: r.prompt(), MaxTokens: 1}); got != min(want, r.Input-1) {
				t.Fatalf("%s, row %d of %d tokens: %d hit, want %d", x.name, i+1, r.Input, got, min(want, r.Input-1))
			}
		}
		if sum != published.Prefix.Hit {
			t.Errorf("%s: %d tokens, published %d", x.name, sum, published.Prefix.Hit)
		}
	}
}
