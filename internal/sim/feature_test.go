package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// timed prints what line does not: the step's time, and what came with it.
func timed(e *Engine, s *Step) string {
	var em []string
	for _, x := range s.Emitted {
		m := fmt.Sprint(x.Request.Tag)
		if x.Finish != NotFinished {
			m += ":" + x.Finish.String()
		}
		em = append(em, m)
	}
	l := fmt.Sprintf("%d tokens %v [%s]", s.Batch.Tokens, s.Duration, strings.Join(em, " "))
	if s.Batch.Drafted > 0 {
		l += fmt.Sprintf(" drafted %d", s.Batch.Drafted)
	}
	if s.Batch.Loads > 0 {
		l += fmt.Sprintf(" loads %d", s.Batch.Loads)
	}
	if s.Cold > 0 {
		l += fmt.Sprintf(" cold %v", s.Cold)
	}
	return l
}

func TestPriority(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		reqs []req
		want []string
	}{
		{
			name: "lower first, among equals first come first served",
			cfg:  Config{Profile: flat, MaxSeqs: 1, Priority: true},
			reqs: []req{{"a", 0, 1, 5, 1, 0, 1, ""}, {"b", 0, 2, 5, 1, 0, 0, ""}, {"c", 0, 3, 5, 1, 0, -1, ""}, {"d", 0, 4, 5, 1, 0, 0, ""}},
			want: []string{
				"5 prefill 5 decode 0 emit [c:length] preempt [] free 100",
				"5 prefill 5 decode 0 emit [b:length] preempt [] free 100",
				"5 prefill 5 decode 0 emit [d:length] preempt [] free 100",
				"5 prefill 5 decode 0 emit [a:length] preempt [] free 100",
			},
		},
		{
			name: "switched off, priorities change nothing",
			cfg:  Config{Profile: flat, MaxSeqs: 1},
			reqs: []req{{"a", 0, 1, 5, 1, 0, 1, ""}, {"b", 0, 2, 5, 1, 0, 0, ""}},
			want: []string{
				"5 prefill 5 decode 0 emit [a:length] preempt [] free 100",
				"5 prefill 5 decode 0 emit [b:length] preempt [] free 100",
			},
		},
		{
			name: "nobody who runs is preempted for a place",
			cfg:  Config{Profile: flat, MaxSeqs: 1, Priority: true},
			reqs: []req{{"a", 0, 1, 5, 3, 0, 5, ""}, {"b", 1, 2, 5, 1, 0, 0, ""}},
			want: []string{
				"5 prefill 5 decode 0 emit [a] preempt [] free 99",
				"1 prefill 0 decode 1 emit [a] preempt [] free 99",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 100",
				"5 prefill 5 decode 0 emit [b:length] preempt [] free 100",
			},
		},
		{
			name: "no free block: the lowest is preempted, though it asked and came first",
			cfg:  Config{Profile: flat, Blocks: 5, Priority: true},
			reqs: []req{{"a", 0, 1, 31, 4, 0, 1, ""}, {"b", 1, 2, 31, 4, 0, 0, ""}},
			want: []string{
				"31 prefill 31 decode 0 emit [a] preempt [] free 2",
				"32 prefill 31 decode 1 emit [a b] preempt [] free 0",
				// a wants a third block and preempts itself; the step goes to b.
				"1 prefill 0 decode 1 emit [b] preempt [a] free 2",
				"1 prefill 0 decode 1 emit [b] preempt [] free 1",
				"1 prefill 0 decode 1 emit [b:length] preempt [] free 4",
				// b took the tail of a's two blocks.
				"17 prefill 17 decode 0 emit [a] preempt [] free 1",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 4",
			},
		},
		{
			name: "first come first served preempts the last instead",
			cfg:  Config{Profile: flat, Blocks: 5},
			reqs: []req{{"a", 0, 1, 31, 4, 0, 1, ""}, {"b", 1, 2, 31, 4, 0, 0, ""}},
			want: []string{
				"31 prefill 31 decode 0 emit [a] preempt [] free 2",
				"32 prefill 31 decode 1 emit [a b] preempt [] free 0",
				"1 prefill 0 decode 1 emit [a] preempt [b] free 1",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 4",
				// b knows 32 tokens, of which the last is not computed: one full
				// block, and a took the other.
				"16 prefill 16 decode 0 emit [b] preempt [] free 2",
				"1 prefill 0 decode 1 emit [b] preempt [] free 1",
				"1 prefill 0 decode 1 emit [b:length] preempt [] free 4",
			},
		},
		{
			name: "the victim had its token in this step already, and loses it",
			cfg:  Config{Profile: flat, Blocks: 4, Priority: true},
			reqs: []req{{"x", 0, 1, 10, 6, 0, 1, ""}, {"a", 1, 2, 31, 4, 0, 0, ""}},
			want: []string{
				"10 prefill 10 decode 0 emit [x] preempt [] free 2",
				"32 prefill 31 decode 1 emit [x a] preempt [] free 0",
				"2 prefill 0 decode 2 emit [x a] preempt [] free 0",
				"1 prefill 0 decode 1 emit [a] preempt [x] free 0",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 3",
				"13 prefill 13 decode 0 emit [x] preempt [] free 2",
				"1 prefill 0 decode 1 emit [x] preempt [] free 2",
				"1 prefill 0 decode 1 emit [x:length] preempt [] free 3",
			},
		},
		{
			name: "what the victim was to compute in this step is not in the cache",
			cfg:  Config{Profile: flat, Blocks: 11, LongPrefillThreshold: 32, AdmitByChunk: true, Priority: true},
			reqs: []req{{"x", 0, 1, 140, 1, 0, 1, ""}, {"a", 1, 2, 31, 4, 0, 0, ""}},
			want: []string{
				"32 prefill 32 decode 0 emit [] preempt [] free 8",
				"63 prefill 63 decode 0 emit [a] preempt [] free 4",
				"33 prefill 32 decode 1 emit [a] preempt [] free 2",
				"1 prefill 0 decode 1 emit [a] preempt [x] free 7",
				"1 prefill 0 decode 1 emit [a:length] preempt [] free 10",
				// x goes on at token 96, not at 112.
				"32 prefill 32 decode 0 emit [] preempt [] free 2",
				"12 prefill 12 decode 0 emit [x:length] preempt [] free 10",
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

func TestSpeculationOutputsAdaptersColdStart(t *testing.T) {
	spec := func(k int, accept ...float64) Speculation { return Speculation{Tokens: k, Accept: accept} }
	one := func(prompt, max, stop int) []req { return []req{{"a", 0, 1, prompt, max, stop, 0, ""}} }
	for _, tc := range []struct {
		name string
		cfg  Config
		reqs []req
		want []string
	}{
		{
			name: "three drafts, all accepted: four tokens a step, after the prefill's one",
			cfg:  Config{Profile: flat, Speculation: spec(3, 1)},
			reqs: one(20, 9, 0),
			want: []string{"20 tokens 1ms [a]", "4 tokens 1ms [a a a a] drafted 3", "4 tokens 1ms [a a a a:length] drafted 3"},
		},
		{
			name: "none accepted: one token a step, the drafts computed in vain",
			cfg:  Config{Profile: flat, Speculation: spec(3, 0)},
			reqs: one(20, 3, 0),
			want: []string{"20 tokens 1ms [a]", "4 tokens 1ms [a] drafted 3", "4 tokens 1ms [a:length] drafted 3"},
		},
		{
			name: "the first position accepted, the second not, the third not reached",
			cfg:  Config{Profile: flat, Speculation: spec(3, 1, 0, 1)},
			reqs: one(20, 5, 0),
			want: []string{"20 tokens 1ms [a]", "4 tokens 1ms [a a] drafted 3", "4 tokens 1ms [a a:length] drafted 3"},
		},
		{
			name: "accepted tokens past the limit, or past EOS, are dropped",
			cfg:  Config{Profile: flat, Speculation: spec(3, 1)},
			reqs: []req{{"a", 0, 1, 20, 3, 0, 0, ""}, {"b", 0, 2, 20, 9, 4, 0, ""}},
			want: []string{"40 tokens 1ms [a b]", "8 tokens 1ms [a a:length b b b:stop] drafted 6"},
		},
		{
			name: "the budget cuts drafts, never the token",
			cfg:  Config{Profile: flat, MaxBatchedTokens: 6, Speculation: spec(3, 1)},
			reqs: []req{{"a", 0, 1, 2, 5, 0, 0, ""}, {"b", 0, 2, 2, 3, 0, 0, ""}},
			want: []string{"4 tokens 1ms [a b]", "6 tokens 1ms [a a a a:length b b:length] drafted 4"},
		},
		{
			name: "so does the model's length",
			cfg:  Config{Profile: flat, MaxModelLen: 24, Speculation: spec(3, 1)},
			// 21 tokens known, 3 may come: 2 drafts.
			reqs: one(20, 0, 0),
			want: []string{"20 tokens 1ms [a]", "3 tokens 1ms [a a a:length] drafted 2"},
		},
		{
			name: "an output interval of three: the first token at once, then three together, the rest at the end",
			cfg:  Config{Profile: flat, OutputInterval: 3},
			reqs: one(20, 8, 0),
			want: []string{
				"20 tokens 1ms [a]", "1 tokens 1ms []", "1 tokens 1ms []", "1 tokens 1ms [a a a]",
				"1 tokens 1ms []", "1 tokens 1ms []", "1 tokens 1ms [a a a]", "1 tokens 1ms [a:length]",
			},
		},
		{
			name: "EOS does not wait for the interval",
			cfg:  Config{Profile: flat, OutputInterval: 10},
			reqs: one(20, 8, 3),
			want: []string{"20 tokens 1ms [a]", "1 tokens 1ms []", "1 tokens 1ms [a a:stop]"},
		},
		{
			name: "an interval longer than what drafts give lets two steps pass",
			cfg:  Config{Profile: flat, OutputInterval: 3, Speculation: spec(1, 1)},
			reqs: one(20, 6, 0),
			want: []string{"20 tokens 1ms [a]", "2 tokens 1ms [] drafted 1", "2 tokens 1ms [a a a a] drafted 1", "2 tokens 1ms [a:length] drafted 1"},
		},
		{
			name: "one adapter at a time: another waits, base model and same adapter pass it",
			cfg:  Config{Profile: flat, LoRALoad: 5 * time.Millisecond},
			reqs: []req{{"a", 0, 1, 5, 2, 0, 0, "x"}, {"b", 0, 2, 5, 1, 0, 0, "y"}, {"c", 0, 3, 5, 1, 0, 0, ""}, {"d", 0, 4, 5, 1, 0, 0, "x"}, {"e", 3, 5, 5, 1, 0, 0, "x"}},
			want: []string{
				"15 tokens 6ms [a c:length d:length] loads 1",
				"1 tokens 1ms [a:length]",
				"5 tokens 6ms [b:length] loads 1",
				"5 tokens 6ms [e:length] loads 1", // y had pushed x out
			},
		},
		{
			name: "two adapters: both in one batch, loaded once, and the older makes room for a third",
			cfg:  Config{Profile: flat, MaxLoRAs: 2, LoRALoad: 5 * time.Millisecond},
			reqs: []req{
				{"a", 0, 1, 5, 2, 0, 0, "x"}, {"b", 0, 2, 5, 1, 0, 0, "y"}, {"c", 2, 3, 5, 1, 0, 0, "y"}, {"d", 3, 4, 5, 1, 0, 0, "z"},
				{"e", 4, 5, 5, 1, 0, 0, "y"}, {"f", 5, 6, 5, 1, 0, 0, "x"},
			},
			want: []string{
				"10 tokens 11ms [a b:length] loads 2",
				"1 tokens 1ms [a:length]",
				"5 tokens 1ms [c:length]",
				"5 tokens 6ms [d:length] loads 1", // x goes
				"5 tokens 1ms [e:length]",
				"5 tokens 6ms [f:length] loads 1",
			},
		},
		{
			name: "cold: the first step, and the first step of each size",
			cfg:  Config{Profile: flat, Cold: ColdStart{First: 10 * time.Millisecond, Shape: 2 * time.Millisecond}},
			reqs: []req{{"a", 0, 1, 20, 3, 0, 0, ""}, {"b", 3, 2, 33, 1, 0, 0, ""}, {"c", 4, 3, 32, 1, 0, 0, ""}, {"d", 5, 4, 64, 1, 0, 0, ""}},
			want: []string{
				"20 tokens 13ms [a] cold 12ms", // up to 32
				"1 tokens 3ms [a] cold 2ms",
				"1 tokens 1ms [a:length]",
				"33 tokens 3ms [b:length] cold 2ms", // up to 64
				"32 tokens 1ms [c:length]",
				"64 tokens 1ms [d:length]",
			},
		},
		{
			name: "cold for the first two steps of each size",
			cfg:  Config{Profile: flat, Cold: ColdStart{Shape: 2 * time.Millisecond, Steps: 2}},
			reqs: one(20, 4, 0),
			want: []string{"20 tokens 3ms [a] cold 2ms", "1 tokens 3ms [a] cold 2ms", "1 tokens 3ms [a] cold 2ms", "1 tokens 1ms [a:length]"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := play(t, tc.cfg, tc.reqs, timed); !slices.Equal(got, tc.want) {
				t.Errorf("steps:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// Speculation changes when tokens come, not which, and yields what its
// probabilities promise: 1 + p1 + p1·p2 + … tokens a verification.
func TestSpeculationYield(t *testing.T) {
	accept := []float64{0.8, 0.6, 0.5}
	run := func(s Speculation) (*Engine, [][]Token) {
		e := mustNew(t, Config{Profile: flat, Speculation: s, Seed: 3})
		out := make([][]Token, 200)
		for i := range out {
			if err := e.Admit(0, &Request{Prompt: prompt(i, 5), MaxTokens: 400, Tag: i}); err != nil {
				t.Fatal(err)
			}
		}
		for now := time.Duration(0); !e.Idle(); {
			s := e.Step(now)
			now = s.End()
			for _, em := range s.Emitted {
				i := em.Request.Tag.(int)
				out[i] = append(out[i], em.Token)
			}
		}
		return e, out
	}
	_, plain := run(Speculation{})
	e, got := run(Speculation{Tokens: 4, Accept: accept})
	for i := range plain {
		if !slices.Equal(plain[i], got[i]) {
			t.Fatalf("request %d: speculation changed its tokens", i)
		}
	}
	c := e.Counters()
	want, p := 1.0, 1.0
	for i := range 4 {
		p *= accept[min(i, 2)]
		want += p
		// Standard error: at most 0.5/√30,000.
		if rate := float64(c.AcceptedAt[i]) / float64(c.Drafts); math.Abs(rate-p) > 0.01 {
			t.Errorf("position %d: %.4f of the drafts accepted, want %.4f", i, rate, p)
		}
	}
	if got := 1 + float64(c.AcceptedTokens)/float64(c.Drafts); math.Abs(got-want) > 0.02 {
		t.Errorf("%.3f tokens a verification, want %.3f", got, want)
	}
	if c.GenerationTokens != 200*400 || c.DraftTokens > 4*c.Drafts || c.DraftTokens < 39*c.Drafts/10 {
		t.Errorf("%+v", c)
	}
}

// What speculation costs on the H100 profile: the drafts' part of the weights'
// products and of the head, and the draft passes.
func TestSpeculationCost(t *testing.T) {
	p := DefaultProfile()
	p.HeadPerSeq = 2 * us
	for _, tc := range []struct {
		name  string
		share float64
		b     Batch
		want  float64 // ms
	}{
		{"one request, n-grams: below the floor verification is all but free", 0, Batch{Tokens: 4, Decodes: 1, Context: 1000, Sampled: 1, Drafted: 3}, 0.9 + 6.2 + 0.0425 + 0.4 + 4*0.002},
		{"one request, EAGLE", 0.1, Batch{Tokens: 4, Decodes: 1, Context: 1000, Sampled: 1, Drafted: 3}, 0.9 + 6.2 + 0.0425 + 0.4 + 4*0.002 + 3*0.1*(6.2+0.4+0.002)},
		{"256 requests: past the ridge each draft costs", 0, Batch{Tokens: 1024, Decodes: 256, Context: 256_000, Sampled: 256, Drafted: 768}, 0.9 + 1.5 + 0.0224*1024 + 0.0425*256 + 0.4 + 1024*0.002},
		{"a prefill chunk that samples nothing drafts nothing", 0.1, Batch{Tokens: 8, Prefills: 1, PrefillTokens: 8}, 0.9 + 6.2},
	} {
		e := mustNew(t, Config{Profile: p, Speculation: Speculation{Tokens: 3, Accept: []float64{0.5}, Share: tc.share}})
		if got := float64(e.duration(0, tc.b)) / 1e6; math.Abs(got-tc.want) > 1e-5 {
			t.Errorf("%s: %.6f ms, want %.6f", tc.name, got, tc.want)
		}
	}
}

// An aborted request's tokens that had not left never do; what was made is told
// by its Life.
func TestOutputIntervalAbort(t *testing.T) {
	e := mustNew(t, Config{Profile: flat, OutputInterval: 4})
	r := &Request{Prompt: prompt(1, 5), MaxTokens: 10}
	if err := e.Admit(0, r); err != nil {
		t.Fatal(err)
	}
	left := 0
	for now := time.Duration(0); now < 3*time.Millisecond; {
		s := e.Step(now)
		now = s.End()
		left += len(s.Emitted)
	}
	e.Abort(r)
	if left != 1 || r.Life.Output != 3 || r.Life.LastToken != 3*time.Millisecond {
		t.Errorf("%d tokens left, %+v", left, r.Life)
	}
}

func TestAdaptersApart(t *testing.T) {
	e := mustNew(t, Config{Profile: flat, MaxLoRAs: 2})
	hit(t, e, &Request{Prompt: prompt(1, 40), Adapter: "x", MaxTokens: 1})
	for _, tc := range []struct {
		salt, adapter string
		want          int
	}{
		{"", "", 0}, {"", "y", 0}, {"x", "", 0}, {"", "x", 32},
	} {
		if got := hit(t, e, &Request{Prompt: prompt(1, 40), Salt: tc.salt, Adapter: tc.adapter, MaxTokens: 1}); got != tc.want {
			t.Errorf("salt %q, adapter %q: %d tokens hit, want %d", tc.salt, tc.adapter, got, tc.want)
		}
	}
	for i, a := range []string{"x", "y", "", "z", "x", "z"} {
		if err := e.Admit(0, &Request{Prompt: prompt(2+i, 5), Adapter: a, MaxTokens: 2}); err != nil {
			t.Fatal(err)
		}
	}
	e.Step(0)
	if running, waiting := e.Adapters(); !slices.Equal(running, []string{"x", "y"}) || !slices.Equal(waiting, []string{"z"}) {
		t.Errorf("running %q, waiting %q", running, waiting)
	}
}
