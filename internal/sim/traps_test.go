package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The traps of load testing, on the default profile, each beside what the
// mechanism predicts: from the step-time model, Little's law or the block
// arithmetic, never from a former run.

// load plays requests and returns them when all have finished, with the longest
// gap between two tokens of one request.
func load(t *testing.T, c Config, rs []*Request) (*Engine, time.Duration) {
	t.Helper()
	e := mustNew(t, c)
	last := map[*Request]time.Duration{}
	var gap time.Duration
	if _, err := Run(e, source(rs), func(s *Step) {
		for _, em := range s.Emitted {
			if em.Index > 0 {
				gap = max(gap, s.End()-last[em.Request])
			}
			if last[em.Request] = s.End(); em.Finish != NotFinished {
				delete(last, em.Request)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return e, gap
}

// every makes n requests at a fixed distance, or as a Poisson process.
func every(n int, gap time.Duration, rng *rand.Rand, shape func(i int) *Request) (rs []*Request) {
	var at time.Duration
	for i := range n {
		r := shape(i)
		r.Tag = at
		rs = append(rs, r)
		if rng == nil {
			at += gap
		} else {
			at += time.Duration(rng.ExpFloat64() * float64(gap))
		}
	}
	return rs
}

// text is a prompt of n tokens of which the first shared are the same for all.
func text(i, shared, n int) []Token {
	return append(prompt(0, shared), prompt(1+i, n-shared)...)
}

func ttft(r *Request) time.Duration { return r.Life.FirstToken - r.Life.Queued }
func e2e(r *Request) time.Duration  { return r.Life.LastToken - r.Life.Queued }

// tpot is the mean time per output token after the first, in seconds.
func tpot(r *Request) float64 {
	return (r.Life.LastToken - r.Life.FirstToken).Seconds() / float64(r.Life.Output-1)
}

func quantile[T any](rs []*Request, q float64, f func(*Request) T) T {
	slices.SortFunc(rs, func(a, b *Request) int {
		switch x, y := any(f(a)), any(f(b)); x := x.(type) {
		case time.Duration:
			return int(x - y.(time.Duration))
		default:
			return int(math.Copysign(1, x.(float64)-y.(float64)))
		}
	})
	return f(rs[int(math.Ceil(q*float64(len(rs))))-1])
}

// alone is the step of one prompt of which the first cached tokens are cached.
func alone(n, cached int) time.Duration {
	p := DefaultProfile()
	k := int64(n - cached)
	return p.StepTime(Batch{Tokens: n - cached, Prefills: 1, PrefillTokens: n - cached, Attended: k*int64(cached) + k*k/2, Sampled: 1})
}

func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	t.Logf("%s: %.4g, predicted %.4g", what, got, want)
	if math.Abs(got/want-1) > tol {
		t.Errorf("%s: %.4g, predicted %.4g within %.0f %%", what, got, want, 100*tol)
	}
}

// A benchmark that sends one prompt again and again measures the cache.
func TestTrapRepeatedPrompt(t *testing.T) {
	const n = 2000
	run := func(gap time.Duration, repeated bool) []*Request {
		rs := every(400, gap, rand.New(rand.NewPCG(1, 1)), func(i int) *Request {
			if repeated {
				i = 0
			}
			return &Request{Prompt: text(i, 0, n), MaxTokens: 100}
		})
		load(t, Config{}, rs)
		return rs[1:]
	}
	// Seldom enough to be alone as a rule, time to first token is one step.
	slow, fast := run(20*time.Second, false), run(20*time.Second, true)
	near(t, "distinct, alone, p50 TTFT", quantile(slow, 0.5, ttft).Seconds(), alone(n, 0).Seconds(), 1e-6)
	near(t, "repeated, alone, p50 TTFT", quantile(fast, 0.5, ttft).Seconds(), alone(n, (n-1)/16*16).Seconds(), 1e-6)
	// At 12/s a distinct prompt also waits for others' prefill.
	slow, fast = run(time.Second/12, false), run(time.Second/12, true)
	a, b := quantile(slow, 0.99, ttft), quantile(fast, 0.99, ttft)
	t.Logf("at 12/s p99 TTFT: distinct %v, repeated %v", a, b)
	if float64(a) < float64(alone(n, 0))/float64(alone(n, (n-1)/16*16))*float64(b) {
		t.Errorf("at 12/s the trap is smaller (%v to %v) than alone", a, b)
	}
}

// Prompts of the mean length stretch nobody's decode for long; the same tokens
// in heavy-tailed lengths do, up to a whole budget of prefill in one step.
func TestTrapFixedLengths(t *testing.T) {
	const mean, n = 1000, 2000
	run := func(tail bool) ([]*Request, time.Duration, float64) {
		rng := rand.New(rand.NewPCG(2, 2))
		total := 0
		rs := every(n, time.Second/15, rng, func(i int) *Request {
			l := mean
			if tail { // lognormal, σ = 1.5
				l = max(1, min(60_000, int(mean*math.Exp(1.5*rng.NormFloat64()-1.5*1.5/2))))
			}
			total += l
			return &Request{Prompt: text(i, 0, l), MaxTokens: 100}
		})
		_, gap := load(t, Config{}, rs)
		return rs, gap, float64(total) / n
	}
	fixed, fixedGap, _ := run(false)
	tail, tailGap, tailMean := run(true)
	f, h := quantile(fixed, 0.99, tpot)/quantile(fixed, 0.5, tpot), quantile(tail, 0.99, tpot)/quantile(tail, 0.5, tpot)
	t.Logf("p99 TPOT over p50: fixed %.2f, heavy-tailed %.2f (mean length %.0f); longest gap %v and %v", f, h, tailMean, fixedGap, tailGap)
	if tailMean > mean*1.1 || h < 1.5*f {
		t.Error("heavy tails make no difference")
	}
	// The longest gap is a step full of prefill with, late in a long prompt, up
	// to 60,000 tokens to attend to.
	if full := alone(8192, 0); tailGap < full || tailGap > alone(8192+52_000, 52_000)+20*time.Millisecond {
		t.Errorf("longest gap %v; a full budget takes %v", tailGap, full)
	}
	if fixedGap > alone(8*mean, 0)/2 {
		t.Errorf("longest gap with fixed lengths %v", fixedGap)
	}
}

// closed plays n requests with at most k in the engine at a time.
func closed(t *testing.T, c Config, k, n int, shape func(i int) *Request) ([]*Request, time.Duration) {
	t.Helper()
	e := mustNew(t, c)
	var rs []*Request
	var now time.Duration
	admit := func() {
		if len(rs) < n {
			r := shape(len(rs))
			rs = append(rs, r)
			if err := e.Admit(now, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range k {
		admit()
	}
	for !e.Idle() {
		s := e.Step(now)
		now = s.End()
		for _, em := range s.Emitted {
			if em.Finish != NotFinished {
				admit()
			}
		}
	}
	return rs, now
}

// A closed loop slows down with the server: its latency is Little's N/X whatever
// users would see, and with no more users than places nobody queues. In an open
// loop somebody does, and past capacity the wait grows with the run.
func TestTrapClosedLoop(t *testing.T) {
	shape := func(i int) *Request {
		return &Request{Prompt: text(i, 0, 500), MaxTokens: 1 + rand.New(rand.NewPCG(uint64(i), 9)).IntN(399)}
	}
	wait := func(r *Request) time.Duration { return r.Life.Scheduled - r.Life.Queued }
	mean := func(rs []*Request, f func(*Request) time.Duration) float64 {
		var sum time.Duration
		for _, r := range rs {
			sum += f(r)
		}
		return sum.Seconds() / float64(len(rs))
	}
	const n, places = 4000, 64
	cfg := Config{MaxSeqs: places}
	// 256 users on 64 places run at capacity. Neither filling nor draining counts.
	rs, _ := closed(t, cfg, 256, n, shape)
	mid := rs[n/4 : 3*n/4]
	capacity := float64(n/2-1) / (rs[3*n/4-1].Life.Scheduled - rs[n/4].Life.Scheduled).Seconds()
	t.Logf("capacity %.2f requests/s", capacity)
	near(t, "closed, 256 users, mean latency, s", mean(mid, e2e), 256/capacity, 0.03)

	open := func(share float64) []*Request {
		rs := every(n, time.Duration(float64(time.Second)/(share*capacity)), rand.New(rand.NewPCG(3, 3)), shape)
		load(t, cfg, rs)
		return rs
	}
	// 90 % of capacity, from an open loop and from as many users as hold it.
	o := open(0.9)
	users := int(math.Round(0.9 * capacity * mean(o, e2e)))
	c, _ := closed(t, cfg, users, n, shape)
	waits := quantile(o, 0.99, wait)
	t.Logf("at 90 %%: p99 wait %v in an open loop, %v with %d users", waits, quantile(c, 0.99, wait), users)
	if users > places || waits < quantile(c, 0.99, wait)+100*time.Millisecond {
		t.Error("the open loop does not wait longer")
	}
	// At 120 % the k-th request comes at k/1.2X and is served at k/X: the last
	// of n waits n/6X.
	last := open(1.2)[n-n/50:]
	arrived := last[0].Life.Queued.Seconds() + last[len(last)-1].Life.Queued.Seconds()
	near(t, "open at 120 %, wait of the last, s", mean(last, wait), 0.99*n/capacity-arrived/2, 0.1)
}

// What the first steps cost is in the first requests' figures, unless a warm-up
// takes it.
func TestTrapColdStart(t *testing.T) {
	rs := every(50, time.Second, nil, func(i int) *Request { return &Request{Prompt: text(i, 0, 500), MaxTokens: 20} })
	e, _ := load(t, Config{Cold: TypicalColdStart()}, rs)
	cold := e.Config().Cold
	near(t, "cold, TTFT of the first", ttft(rs[0]).Seconds(), (cold.First + cold.Shape + alone(500, 0)).Seconds(), 1e-6)
	near(t, "warm, TTFT of the last", ttft(rs[49]).Seconds(), alone(500, 0).Seconds(), 1e-6)
}

// The same requests a second, but twenty at a time: the last of each twenty
// waits for the prefill of all.
func TestTrapBursts(t *testing.T) {
	const n, prompt, burst = 400, 1000, 20
	shape := func(i int) *Request { return &Request{Prompt: text(i, 0, prompt), MaxTokens: 10} }
	even := every(n, 500*time.Millisecond, nil, shape)
	load(t, Config{}, even)
	bursty := every(n, 500*time.Millisecond, nil, shape)
	for i, r := range bursty {
		r.Tag = time.Duration(i/burst*burst) * 500 * time.Millisecond
	}
	load(t, Config{}, bursty)
	near(t, "even, p99 TTFT", quantile(even, 0.99, ttft).Seconds(), alone(prompt, 0).Seconds(), 1e-6)
	// 20,000 tokens in steps of 8192, the weights' time by the token, the
	// attention by the prompt; decode tokens and cut prompts are the rest.
	p := DefaultProfile()
	want := 3*(p.Host+p.Base+p.HeadBase) + burst*(prompt*p.PerToken+prompt*prompt/2*p.PerAttended)
	near(t, "twenty at a time, p99 TTFT", quantile(bursty, 0.99, ttft).Seconds(), want, 0.02)
}

// Reuse of 0, half or all that a prefix allows, at two prefix lengths: hits are
// whole blocks, and a cached prompt still computes the rest of the last one.
func TestTrapPrefixReuse(t *testing.T) {
	const n = 5000
	for _, prefix := range []int{1000, 4000} {
		for _, share := range []float64{0, 0.5, 1} { // of the requests
			rs := every(201, 20*time.Second, nil, func(i int) *Request {
				if float64(i%2) < 2*share-1 || share == 1 || share == 0.5 && i%2 == 0 {
					return &Request{Prompt: text(i, prefix, n), MaxTokens: 10}
				}
				return &Request{Prompt: text(i, 0, n), MaxTokens: 10}
			})
			e, _ := load(t, Config{}, rs)
			hits := prefix / 16 * 16
			sharers := map[float64]int{0: 0, 0.5: 101, 1: 201}[share]
			want := max(0, sharers-1) * hits // the first one brings it
			got := int(e.Counters().PrefixHits)
			t.Logf("prefix of %d, %.0f %% of requests: %.1f %% of tokens hit, p50 TTFT %v", prefix, 100*share, 100*float64(got)/201/n, quantile(rs, 0.5, ttft))
			if got != want {
				t.Errorf("prefix of %d, %.0f %% of requests: %d tokens hit, want %d", prefix, 100*share, got, want)
			}
			if share == 1 {
				near(t, "p50 TTFT", quantile(rs, 0.5, ttft).Seconds(), alone(n, hits).Seconds(), 1e-6)
			}
		}
	}
}

// Memory for all: nobody is preempted. Memory for half of the running requests'
// final lengths: admission by chunk preempts and computes again, and the batch
// is as large as memory lets it.
func TestTrapPreemption(t *testing.T) {
	const prompt, output, seqs, n = 500, 500, 64, 600
	shape := func(i int) *Request { return &Request{Prompt: text(i, 0, prompt), MaxTokens: output} }
	run := func(blocks int) (Counters, float64) {
		e := mustNew(t, Config{MaxSeqs: seqs, Blocks: blocks + 1, AdmitByChunk: true})
		computed := 0
		end, err := Run(e, source(every(n, time.Millisecond, nil, shape)), func(s *Step) { computed += s.Batch.PrefillTokens })
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d blocks: %d preemptions, %d tokens prefilled of %d, %.0f tokens/s", blocks, e.Counters().Preemptions, computed, n*prompt, n*output/end.Seconds())
		if again := computed - n*prompt; (again > 0) != (e.Counters().Preemptions > 0) {
			t.Errorf("%d blocks: %d tokens prefilled again after %d preemptions", blocks, again, e.Counters().Preemptions)
		}
		return e.Counters(), n * output / end.Seconds()
	}
	enough := seqs * blocksFor(prompt+output, 16)
	plenty, fast := run(enough)
	scarce, slow := run(enough / 2)
	if plenty.Preemptions != 0 || scarce.Preemptions < n/10 {
		t.Errorf("%d and %d preemptions", plenty.Preemptions, scarce.Preemptions)
	}
	if slow > 0.9*fast {
		t.Errorf("%.0f tokens/s with half the memory, %.0f with enough", slow, fast)
	}
}
