package sim

import (
	"fmt"
	"math"
	"time"
)

// Step is one forward pass. Its slices belong to the engine and are valid until
// the next call of Step.
type Step struct {
	Start    time.Duration
	Duration time.Duration // the tokens leave at Start + Duration
	Batch    Batch
	Emitted  []Emitted
	// Scheduled are the requests that left the queue in this step for the
	// first time.
	Scheduled []*Request
	// Preempted requests lost their blocks and went back to the queue's front.
	Preempted []*Request
}

// End is when the step's tokens leave.
func (s *Step) End() time.Duration { return s.Start + s.Duration }

// Batch is what one step computes: all that its duration depends on.
type Batch struct {
	Tokens        int   // new tokens in the step, prefill and decode
	Prefills      int   // requests with a prefill chunk
	PrefillTokens int   // their tokens
	Attended      int64 // over prefill chunks of T tokens after kv others: the sum of T·(kv + T/2)
	Decodes       int   // requests with one decode token
	Context       int64 // the sum of their context lengths
	Sampled       int   // requests that get a token
}

// Emitted is one output token.
type Emitted struct {
	Request *Request
	Token   Token
	Index   int    // among the request's output tokens, from 0
	Finish  Finish // NotFinished but on the last
}

// chunk is one request's share of a batch.
type chunk struct {
	s *seq
	n int
}

// Step schedules one batch that begins at now and returns what it does. With
// nothing to do it returns an empty batch of duration 0.
//
// The order is vLLM V1's (v1/core/sched/scheduler.py):
//  1. running requests, in order, each with its next token or prefill chunk;
//     where no block is free, the last running request is preempted, again and
//     again, if need be the one that asked;
//  2. if nobody was preempted, waiting requests from the queue's head, while
//     budget and places last. A head that does not fit blocks those behind it.
//
// A block becomes hittable when its tokens are scheduled, so two requests of
// one step can share it.
func (e *Engine) Step(now time.Duration) *Step {
	st := &e.step
	*st = Step{Start: now, Emitted: st.Emitted[:0], Scheduled: st.Scheduled[:0], Preempted: st.Preempted[:0]}
	e.chunks = e.chunks[:0]
	budget := e.scheduleRunning(e.cfg.MaxBatchedTokens)
	if len(st.Preempted) == 0 {
		e.scheduleWaiting(budget)
	}
	if len(e.chunks) == 0 {
		if !e.Idle() {
			// Cannot happen: MaxModelLen fits in the blocks, so the first
			// running or waiting request always does.
			panic(fmt.Sprintf("sim: %d running and %d waiting requests, and none fits", len(e.running), e.waiting.len()))
		}
		return st
	}
	b := &st.Batch
	for _, c := range e.chunks {
		b.add(c)
	}
	st.Duration = e.duration(now, *b)
	e.emit(st)
	e.counters.Steps++
	return st
}

// add counts one chunk, before its tokens are computed.
func (b *Batch) add(c chunk) {
	kv := c.s.computed
	b.Tokens += c.n
	if c.n == 1 && len(c.s.out) > 0 && kv == c.s.total()-1 {
		b.Decodes++
		b.Context += int64(kv + 1)
	} else {
		b.Prefills++
		b.PrefillTokens += c.n
		b.Attended += int64(c.n)*int64(kv) + int64(c.n)*int64(c.n)/2
	}
	if kv+c.n == c.s.total() {
		b.Sampled++
	}
}

func (e *Engine) scheduleRunning(budget int) int {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := e.chunk(s, s.computed, budget)
		for !e.grow(s, n) {
			last := e.running[len(e.running)-1]
			e.running = e.running[:len(e.running)-1]
			e.preempt(last)
			if last == s {
				return budget
			}
		}
		e.chunks = append(e.chunks, chunk{s, n})
		budget -= n
	}
	return budget
}

// preempt drops s's KV and puts it back in front of the queue; it will compute
// its prompt and its output so far again, as far as they are no longer cached.
func (e *Engine) preempt(s *seq) {
	e.release(s)
	e.waiting.pushFront(s)
	s.r.Life.Preemptions++
	e.counters.Preemptions++
	e.step.Preempted = append(e.step.Preempted, s.r)
}

func (e *Engine) scheduleWaiting(budget int) {
	size := e.cfg.BlockSize
	for e.waiting.len() > 0 && budget > 0 && len(e.running) < e.cfg.MaxSeqs {
		s := e.waiting.front()
		e.hits = e.hits[:0]
		if !e.cfg.NoPrefixCache {
			// At most n-1 tokens: the last one must be computed to get its
			// logits, and so a fully cached prompt computes its last block.
			e.hits = e.pool.lookup(e.hits, s.hash((s.total()-1)/size, size))
		}
		hit := len(e.hits) * size
		n := e.chunk(s, hit, budget)
		upTo := s.total()
		if e.cfg.AdmitByChunk {
			upTo = hit + n
		}
		need := blocksFor(upTo, size) - len(e.hits)
		for _, b := range e.hits {
			if e.pool.blocks[b].refs == 0 {
				need++ // taking it shortens the free list
			}
		}
		blocked := need > e.pool.nfree
		if (!blocked || e.cfg.RecountBlocked) && s.r.Life.Preemptions == 0 && !e.cfg.NoPrefixCache {
			e.counters.PrefixQueries += int64(s.total())
			e.counters.PrefixHits += int64(hit)
		}
		if blocked {
			return
		}
		for _, b := range e.hits {
			e.pool.hold(b)
		}
		s.blocks = append(s.blocks, e.hits...)
		s.cached = len(e.hits)
		s.computed = hit
		if !e.grow(s, n) {
			panic("sim: blocks counted as free are not")
		}
		if s.r.Life.Scheduled == Unset {
			s.r.Life.Scheduled = e.step.Start
			s.r.Life.Cached = hit
			e.counters.CachedPromptTokens += int64(hit)
			e.step.Scheduled = append(e.step.Scheduled, s.r)
		}
		e.waiting.popFront()
		e.running = append(e.running, s)
		e.chunks = append(e.chunks, chunk{s, n})
		budget -= n
	}
}

// chunk is how many tokens s computes next, after the first computed ones.
func (e *Engine) chunk(s *seq, computed, budget int) int {
	n := min(s.total()-computed, budget)
	if t := e.cfg.LongPrefillThreshold; t > 0 {
		n = min(n, t)
	}
	return n
}

// grow gives s the blocks for n more tokens, and makes those that fill up
// hittable. It reports false, doing nothing, where too few blocks are free.
func (e *Engine) grow(s *seq, n int) bool {
	size := e.cfg.BlockSize
	need := blocksFor(s.computed+n, size) - len(s.blocks)
	if need > e.pool.nfree {
		return false
	}
	for range need {
		s.blocks = append(s.blocks, e.pool.alloc())
	}
	if e.cfg.NoPrefixCache {
		return true
	}
	full := (s.computed + n) / size
	hashes := s.hash(full, size)
	for ; s.cached < full; s.cached++ {
		e.pool.cache(s.blocks[s.cached], hashes[s.cached])
	}
	return true
}

func blocksFor(tokens, size int) int { return (tokens + size - 1) / size }

// emit computes the chunks and samples a token for each request whose known
// tokens are all computed.
func (e *Engine) emit(st *Step) {
	end := st.End()
	for _, c := range e.chunks {
		s, r := c.s, c.s.r
		s.computed += c.n
		if s.computed < s.total() {
			continue
		}
		i := len(s.out)
		if i == 0 {
			r.Life.FirstToken = end
			e.counters.PromptTokens += int64(len(r.Prompt))
		}
		em := Emitted{Request: r, Index: i}
		switch {
		case i+1 == r.StopAt:
			em.Token, em.Finish = EOS, FinishedStop
		case r.Output != nil:
			em.Token = r.Output(i)
		default:
			em.Token = Token(mix(mix(e.cfg.Seed, s.id), uint64(i))>>33) | 1
		}
		if em.Finish == NotFinished && i+1 == s.limit {
			em.Finish = FinishedLength
		}
		s.out = append(s.out, em.Token)
		r.Life.LastToken = end
		r.Life.Output++
		e.counters.GenerationTokens++
		st.Emitted = append(st.Emitted, em)
		if em.Finish != NotFinished {
			e.end(s, em.Finish)
		}
	}
	// end has cleared the seq of every finished request.
	live := e.running[:0]
	for _, s := range e.running {
		if s.r.seq != nil {
			live = append(live, s)
		}
	}
	clear(e.running[len(live):])
	e.running = live
}

// duration is the batch's step time with jitter and freeze.
func (e *Engine) duration(now time.Duration, b Batch) time.Duration {
	d := e.cfg.Profile.StepTime(b)
	if cv := e.cfg.Jitter; cv > 0 {
		// A lognormal factor of mean 1: exp(σZ - σ²/2), σ² = ln(1 + cv²).
		s2 := math.Log1p(float64(cv * cv))
		f := math.Exp(float64(math.Sqrt(s2)*e.rng.NormFloat64()) - s2/2)
		d = time.Duration(float64(d) * f)
	}
	if thaw := e.cfg.FreezeAt + e.cfg.FreezeFor; e.cfg.FreezeFor > 0 && now < thaw && now+d > e.cfg.FreezeAt {
		d += thaw - max(now, e.cfg.FreezeAt)
	}
	return d
}

// Run plays requests through an engine as a discrete-event simulation: next
// returns them in order of arrival, false at the end; observe, if not nil, sees
// every step. It returns when the last request has finished, with the time at
// which it did.
func Run(e *Engine, next func() (at time.Duration, r *Request, ok bool), observe func(*Step)) (time.Duration, error) {
	var now time.Duration
	at, r, ok := next()
	for {
		if e.Idle() {
			if !ok {
				return now, nil
			}
			now = max(now, at)
		}
		for ok && at <= now {
			if err := e.Admit(at, r); err != nil {
				return now, err
			}
			at, r, ok = next()
		}
		st := e.Step(now)
		now = st.End()
		if observe != nil {
			observe(st)
		}
	}
}
