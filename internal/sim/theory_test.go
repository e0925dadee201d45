package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// With one place nothing is batched, and the engine is an M/G/1 queue: a service
// is one prefill step and the decode steps after it. Two things are shown.
//
// Exactly, request by request, that waiting is Lindley's recursion
//
//	W(i) = max(0, W(i-1) + S(i-1) - (A(i) - A(i-1)))
//
// Steps do not blur it: an idle engine begins a step when a request arrives,
// and a busy one ends its step when the place becomes free.
//
// And in the mean, with Poisson arrivals, the formula of Pollaczek and Khinchine
//
//	W = λ E[S²] / (2 (1 - ρ))
//
// with the process's own λ and moments, not the sample's.
func TestPollaczekKhinchine(t *testing.T) {
	for _, tc := range []struct {
		rho     float64
		n, full int // requests, in short and in full tests
	}{
		// The standard error of the mean wait is 0.6 to 0.7 % in the full tests,
		// by 20 seeds of Lindley's recursion alone.
		{0.5, 400_000, 400_000},
		{0.7, 1_000_000, 1_000_000},
		{0.9, 0, 4_000_000},
	} {
		n := tc.full
		if testing.Short() {
			n = tc.n
		}
		if n == 0 {
			continue
		}
		const step = time.Millisecond
		e := mustNew(t, Config{Profile: flat, MaxSeqs: 1, NoPrefixCache: true})
		rng := rand.New(rand.NewPCG(11, uint64(tc.rho*10)))
		p := prompt(1, 3)
		// 1, 2 or 3 steps: E[S] = 2, E[S²] = 14/3.
		lambda := tc.rho / (2 * step.Seconds())
		want := lambda * 14 / 3 * step.Seconds() * step.Seconds() / (2 * (1 - tc.rho))
		var at, wait, last, service, sum time.Duration
		i := 0
		_, err := Run(e, func() (time.Duration, *Request, bool) {
			i++
			at += time.Duration(rng.ExpFloat64() / lambda * 1e9)
			return at, &Request{Prompt: p, MaxTokens: 1 + rng.IntN(3)}, i <= n
		}, func(s *Step) {
			for _, r := range s.Scheduled {
				wait = max(0, wait+service-(r.Life.Queued-last))
				last, service = r.Life.Queued, time.Duration(r.MaxTokens)*step
				if got := r.Life.Scheduled - r.Life.Queued; got != wait {
					t.Fatalf("ρ = %v: a request waited %v, Lindley says %v", tc.rho, got, wait)
				}
				sum += wait
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		got := sum.Seconds() / float64(n)
		t.Logf("ρ = %v: mean wait %.4f ms, Pollaczek-Khinchine %.4f ms (%+.2f %%)", tc.rho, got*1e3, want*1e3, 100*(got/want-1))
		if math.Abs(got/want-1) > 0.02 {
			t.Errorf("ρ = %v: mean wait %.6f s, Pollaczek-Khinchine %.6f s", tc.rho, got, want)
		}
	}
}

// erlangC is the mean wait of M/M/c in units of the mean service.
func erlangC(c int, rho float64) float64 {
	a, term, sum := rho*float64(c), 1.0, 0.0
	for k := range c {
		sum += term // a^k / k!
		term *= a / float64(k+1)
	}
	term /= 1 - rho
	return term / (sum + term) / (float64(c) * (1 - rho))
}

// stepped is the mean wait, in steps, of M/M/c seen through steps: who arrives
// during a step waits for its end, and a service is a geometric number of whole
// steps, m on average. It is exact, by the chain of the number in the system at
// the starts of steps (1 or more, since an idle engine waits for an arrival):
// of n, Binomial(min(n, c), 1/m) leave at the end, and Poisson(λ) have come.
func stepped(c int, rho, m float64) float64 {
	const states = 600
	lambda := rho * float64(c) / m // arrivals a step
	var come []float64
	for k, q := 0, math.Exp(-lambda); k < 40; k++ {
		come = append(come, q)
		q *= lambda / float64(k+1)
	}
	// move[n] is the distribution of n' - n + c.
	move := make([][]float64, min(states, c+1))
	for n := range move {
		move[n] = make([]float64, c+len(come))
		for d := 0; d <= n; d++ {
			leave := math.Exp(lchoose(n, d)+float64(n-d)*math.Log(1-1/m)) * math.Pow(1/m, float64(d))
			for k, q := range come {
				move[n][c+k-d] += leave * q
			}
		}
	}
	pi, next := make([]float64, states+1), make([]float64, states+1)
	pi[1] = 1
	var empty float64
	for diff := 1.0; diff > 1e-11; {
		clear(next)
		for n := 1; n <= states; n++ {
			for j, q := range move[min(n, c)] {
				if to := min(n+j-c, states); to >= 0 {
					next[to] += pi[n] * q
				}
			}
		}
		empty, next[1], next[0] = next[0], next[1]+next[0], 0
		diff = 0
		for n := range pi {
			diff += math.Abs(next[n] - pi[n])
		}
		pi, next = next, pi
	}
	area := lambda / 2 // of those that come during the step
	for n, q := range pi {
		area += float64(n) * q
	}
	return area/(1+empty/lambda)/lambda - m
}

func lchoose(n, k int) float64 {
	lg := func(x int) float64 { v, _ := math.Lgamma(float64(x + 1)); return v }
	return lg(n) - lg(k) - lg(n-k)
}

// With c places and geometric lengths the engine is M/M/c in steps of 1/20 of a
// service. Its mean wait is that of the stepped queue, and that one lies within
// a step of Erlang's.
func TestErlangC(t *testing.T) {
	// The stepped queue with one place is Pollaczek and Khinchine's.
	if got, want := stepped(1, 0.7, 20), 0.7*20*(1-1/40.0)/0.3; math.Abs(got/want-1) > 1e-6 {
		t.Fatalf("one place: %v steps, want %v", got, want)
	}
	for _, tc := range []struct {
		c    int
		rho  float64
		n    int
		tol  float64 // two standard errors or more, by 8 other seeds
		long bool
	}{
		{2, 0.5, 300_000, 0.02, false},
		{4, 0.5, 300_000, 0.03, false},
		{4, 0.7, 600_000, 0.04, true},
		{8, 0.7, 600_000, 0.04, true},
	} {
		if tc.long && testing.Short() {
			continue
		}
		const m, step = 20, time.Millisecond
		n := tc.n
		want := stepped(tc.c, tc.rho, m)
		erlang := m * erlangC(tc.c, tc.rho)
		if want < erlang || want > erlang+1 {
			t.Errorf("%d places: the stepped queue's wait is %.3f steps, Erlang's %.3f", tc.c, want, erlang)
		}
		e := mustNew(t, Config{Profile: flat, MaxSeqs: tc.c, NoPrefixCache: true})
		rng := rand.New(rand.NewPCG(5, uint64(tc.c)))
		p := prompt(1, 1)
		gap := m * float64(step) / (tc.rho * float64(tc.c))
		var at, sum time.Duration
		i := 0
		_, err := Run(e, func() (time.Duration, *Request, bool) {
			i++
			at += time.Duration(rng.ExpFloat64() * gap)
			length := 1 + int(math.Log(1-rng.Float64())/math.Log(1-1.0/m))
			return at, &Request{Prompt: p, MaxTokens: length}, i <= n
		}, func(s *Step) {
			for _, r := range s.Scheduled {
				sum += r.Life.Scheduled - r.Life.Queued
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		got := float64(sum) / float64(step) / float64(n)
		t.Logf("%d places, ρ = %v: mean wait %.4f steps, stepped M/M/c %.4f (%+.2f %%), Erlang C %.4f", tc.c, tc.rho, got, want, 100*(got/want-1), erlang)
		if math.Abs(got/want-1) > tc.tol {
			t.Errorf("%d places: mean wait %.4f steps, want %.4f", tc.c, got, want)
		}
	}
}

// little follows a run by the engine's own counts. Handed to Run as source and
// observer, it sums the number of requests in the system over time: those the
// engine says it holds, for each step, and those that have come and wait for the
// step to end.
type little struct {
	e       *Engine
	rs      []*Request
	handed  int
	seen    int // requests whose arrival a step has passed
	area    time.Duration
	stepEnd time.Duration
}

func (l *little) next() (time.Duration, *Request, bool) {
	if l.handed == len(l.rs) {
		return 0, nil, false
	}
	l.handed++
	r := l.rs[l.handed-1]
	return r.Tag.(time.Duration), r, true
}

func (l *little) observe(s *Step) {
	for ; l.seen < len(l.rs) && l.rs[l.seen].Tag.(time.Duration) <= s.Start; l.seen++ {
		l.area += s.Start - l.rs[l.seen].Tag.(time.Duration)
	}
	held := l.e.Running() + l.e.Waiting()
	for _, em := range s.Emitted {
		if em.Finish != NotFinished {
			held++
		}
	}
	l.area += time.Duration(held) * s.Duration
	l.stepEnd = s.End()
}

// Little, from empty to empty: the number in the system summed over time is the
// sum of the times in the system. An identity, to the nanosecond, whatever the
// engine does in between.
func TestLittle(t *testing.T) {
	for name, c := range loads() {
		for seed := range uint64(5) {
			c.Seed = seed
			e := mustNew(t, c)
			l := &little{e: e, rs: randomLoad(seed, 400, 4*time.Millisecond)}
			end, err := Run(e, l.next, l.observe)
			if err != nil {
				t.Fatal(err)
			}
			var lives time.Duration
			for _, r := range l.rs {
				lives += r.Life.LastToken - r.Life.Queued
			}
			if lives != l.area || end != l.stepEnd {
				t.Errorf("%s, seed %d: time in system is %v by lives and %v by counts", name, seed, lives, l.area)
			}
		}
	}
}

// loads are engines that differ in how they schedule, each small enough to be
// in need under randomLoad.
func loads() map[string]Config {
	return map[string]Config{
		"plenty":     {Profile: flat},
		"preempts":   {Profile: flat, Blocks: 14},
		"by chunk":   {Profile: flat, Blocks: 14, AdmitByChunk: true},
		"no cache":   {Profile: flat, Blocks: 14, NoPrefixCache: true},
		"jitter":     {Profile: flat, Blocks: 20, Jitter: 0.3},
		"freeze":     {Profile: flat, FreezeAt: 100 * time.Millisecond, FreezeFor: time.Second},
		"llama.cpp":  {Profile: flat, Policy: LlamaCpp, MaxBatchedTokens: 32},
		"sglang":     {Profile: flat, Blocks: 14, Policy: SGLang, Jitter: 0.1},
		"priority":   {Profile: flat, Blocks: 14, AdmitByChunk: true, Priority: true},
		"speculates": {Profile: flat, Blocks: 14, Speculation: Speculation{Tokens: 4, Accept: []float64{0.7}, Share: 0.1}, OutputInterval: 3},
		"thresholds": {Profile: flat, Blocks: 20, LongPrefillThreshold: 10},
	}
}

// More blocks may make a single schedule longer (Graham's anomalies), but not
// the mean over 20 of them, by more than 1 %.
func TestMoreBlocksMoreThroughput(t *testing.T) {
	for name, c := range map[string]Config{"whole prompts": {}, "by chunk": {AdmitByChunk: true}, "priority": {Priority: true}, "sglang": {Policy: SGLang}} {
		last, lastBlocks, first := 0.0, 0, 0.0
		for _, blocks := range []int{12, 14, 17, 21, 26, 34, 50, 101} {
			var mean float64
			const seeds = 20
			for seed := range uint64(seeds) {
				c.Profile, c.Blocks, c.Seed = flat, blocks, seed
				e := mustNew(t, c)
				end, err := Run(e, source(randomLoad(seed, 200, time.Millisecond)), nil)
				if err != nil {
					t.Fatal(err)
				}
				mean += float64(e.Counters().GenerationTokens) / end.Seconds() / seeds
			}
			if mean < 0.99*last {
				t.Errorf("%s: %.1f tokens/s with %d blocks, %.1f with %d", name, last, lastBlocks, mean, blocks)
			}
			if first == 0 {
				first = mean
			}
			last, lastBlocks = mean, blocks
		}
		if last < 1.5*first {
			t.Errorf("%s: from %.1f to %.1f tokens/s: blocks were never short, so the test shows nothing", name, first, last)
		}
	}
}

// A second run on a warm engine. With the first run's salts it hits all
// whole blocks; with another cache salt, or another salt in the text, each of its
// requests hits what it would hit on a fresh engine, and of what stands before
// the salt (the template) the whole blocks at most.
func TestSaltKillsCrossRunHits(t *testing.T) {
	const template = 40 // tokens: two whole blocks and a half
	run := func(e *Engine, cacheSalt string, textSalt int) []int {
		var hits []int
		for _, q := range randomLoad(3, 200, 0) {
			p := append(prompt(500, template), Token(textSalt))
			hits = append(hits, hit(t, e, &Request{Prompt: append(p, q.Prompt...), Salt: cacheSalt, MaxTokens: 3}))
		}
		return hits
	}
	engine := func() *Engine { return mustNew(t, Config{Profile: flat, Blocks: 20_000}) }
	warm := engine()
	run(warm, "a", 1)
	for _, tc := range []struct {
		name     string
		salt     string
		textSalt int
		floor    int
		all      bool
	}{
		{"another cache salt", "b", 1, 0, false},
		{"another salt in the text", "a", 2, template / 16 * 16, false},
		{"the same salts", "a", 1, 0, true},
	} {
		got, fresh := run(warm, tc.salt, tc.textSalt), run(engine(), tc.salt, tc.textSalt)
		for i, q := range randomLoad(3, 200, 0) {
			want := max(fresh[i], tc.floor)
			if tc.all { // but the last token
				want = (template + len(q.Prompt)) / 16 * 16
			}
			if got[i] != want {
				t.Errorf("%s, request %d: %d tokens hit, want %d", tc.name, i, got[i], want)
			}
		}
	}
}
