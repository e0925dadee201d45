package sim

import (
	"slices"
	"strings"
	"testing"
)

// twoSlots has room for 100 tokens in each.
var twoSlots = Config{Profile: flat, Policy: LlamaCpp, MaxSeqs: 2, MaxBatchedTokens: 64, BlockSize: 1, Blocks: 201}

func TestLlamaCppSchedule(t *testing.T) {
	for _, tc := range []struct {
		name string
		reqs []req
		want []string
	}{
		{
			name: "one batch: a token for who generates, then prompt",
			reqs: []req{{"a", 0, 1, 10, 3, 0, 0, ""}, {"b", 1, 2, 90, 1, 0, 0, ""}},
			want: []string{
				"10 prefill 10 decode 0 emit [a] preempt [] free 190",
				"64 prefill 63 decode 1 emit [a] preempt [] free 126",
				"28 prefill 27 decode 1 emit [a:length b:length] preempt [] free 200",
			},
		},
		{
			name: "two prompts: the first slot's first, and none left for the second",
			reqs: []req{{"a", 0, 1, 70, 1, 0, 0, ""}, {"b", 0, 2, 10, 1, 0, 0, ""}},
			want: []string{
				"64 prefill 64 decode 0 emit [] preempt [] free 135",
				"16 prefill 16 decode 0 emit [a:length b:length] preempt [] free 200",
			},
		},
		{
			name: "the third waits for a slot",
			reqs: []req{{"a", 0, 1, 10, 2, 0, 0, ""}, {"b", 0, 2, 10, 1, 0, 0, ""}, {"c", 0, 3, 10, 1, 0, 0, ""}},
			want: []string{
				"20 prefill 20 decode 0 emit [a b:length] preempt [] free 190",
				"11 prefill 10 decode 1 emit [a:length c:length] preempt [] free 200",
			},
		},
		{
			name: "slots of another adapter stand by",
			reqs: []req{{"a", 0, 1, 10, 2, 0, 0, "x"}, {"b", 0, 2, 10, 1, 0, 0, ""}},
			want: []string{
				"10 prefill 10 decode 0 emit [a] preempt [] free 189",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 199",
				"10 prefill 10 decode 0 emit [b:length] preempt [] free 200",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := play(t, twoSlots, tc.reqs, line); !slices.Equal(got, tc.want) {
				t.Errorf("steps:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestLlamaCppSlotChoice(t *testing.T) {
	type ask struct{ id, common, n int } // common tokens of prompt id, the rest its own
	own := 100
	text := func(a ask) []Token {
		own++
		return append(prompt(a.id, a.common), prompt(own, a.n-a.common)...)
	}
	for _, tc := range []struct {
		name string
		asks []ask
		want []int
	}{
		{"the same prompt: all but the last token", []ask{{1, 40, 40}, {1, 40, 40}}, []int{0, 39}},
		{"each to the slot that holds its beginning", []ask{{1, 40, 40}, {2, 40, 40}, {1, 40, 50}, {2, 40, 50}}, []int{0, 0, 40, 40}},
		{"a third text takes the slot idle for longest, whose text is lost", []ask{{1, 40, 40}, {2, 40, 40}, {3, 40, 40}, {2, 40, 40}, {1, 40, 40}}, []int{0, 0, 0, 39, 0}},
		{"the same requests in another order hit otherwise", []ask{{1, 40, 40}, {1, 40, 40}, {2, 40, 40}, {2, 40, 40}, {3, 40, 40}}, []int{0, 39, 0, 39, 0}},
		{"a tenth in common is too little to be chosen for", []ask{{1, 40, 40}, {2, 40, 40}, {2, 9, 90}}, []int{0, 0, 0}},
		{"but is used where the slot is taken for its age", []ask{{1, 40, 40}, {2, 40, 40}, {1, 9, 90}}, []int{0, 0, 9}},
		{"a little more than a tenth is enough", []ask{{1, 40, 40}, {2, 40, 40}, {2, 10, 90}}, []int{0, 0, 10}},
	} {
		e := mustNew(t, twoSlots)
		var got []int
		for _, a := range tc.asks {
			got = append(got, hit(t, e, &Request{Prompt: text(a), MaxTokens: 1}))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: hits %v, want %v", tc.name, got, tc.want)
		}
	}
	t.Run("salts keep nothing apart, adapters do", func(t *testing.T) {
		e := mustNew(t, twoSlots)
		hit(t, e, &Request{Prompt: prompt(1, 40), Salt: "a", MaxTokens: 1})
		if got := hit(t, e, &Request{Prompt: prompt(1, 40), Salt: "b", MaxTokens: 1}); got != 39 {
			t.Errorf("another salt: hit %d", got)
		}
		if got := hit(t, e, &Request{Prompt: prompt(1, 40), Adapter: "x", MaxTokens: 1}); got != 0 {
			t.Errorf("another adapter: hit %d", got)
		}
	})
	t.Run("a reset forgets", func(t *testing.T) {
		e := mustNew(t, twoSlots)
		hit(t, e, &Request{Prompt: prompt(1, 40), MaxTokens: 1})
		if !e.ResetPrefixCache() || hit(t, e, &Request{Prompt: prompt(1, 40), MaxTokens: 1}) != 0 {
			t.Error("not forgotten")
		}
	})
	t.Run("four slots and batches of 2048 by default", func(t *testing.T) {
		if c := mustNew(t, Config{Policy: LlamaCpp}).Config(); c.MaxSeqs != 4 || c.MaxBatchedTokens != 2048 || c.MaxModelLen != 26479*16/4 {
			t.Errorf("%+v", c)
		}
	})
}
