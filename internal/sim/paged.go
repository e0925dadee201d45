package sim

import "slices"

// paged is vLLM V1's scheduler (v1/core/sched/scheduler.py) over paged KV:
//
//  1. running requests, in order, each with its next token or prefill chunk;
//     where no block is free, the last running request (by priority: the
//     lowest, the latest among equals) is preempted, again and again, if need be
//     the one that asked;
//  2. if nobody was preempted, waiting requests from the queue's head, while
//     budget and places last. A head that does not fit blocks those behind it;
//     one whose adapter has no place in the batch is passed over.
//
// A block becomes hittable when its tokens are scheduled, so two requests of
// one step can share it.
type paged struct {
	e    *Engine
	pool pool
	hits []int32
}

func (p *paged) schedule() {
	e := p.e
	for {
		preempted := len(e.step.Preempted)
		budget := p.scheduleRunning(e.cfg.MaxBatchedTokens)
		if len(e.step.Preempted) == preempted {
			p.scheduleWaiting(budget)
			return
		}
		if len(e.chunks) > 0 {
			return
		}
		// By priority, the first running request may have preempted itself. The
		// batch is empty and takes no time; the next one is tried.
	}
}

func (p *paged) computed(chunk) {}

// release frees s's blocks, the tail first, so that the tail is evicted first.
func (p *paged) release(s *seq) {
	for i := len(s.blocks) - 1; i >= 0; i-- {
		p.pool.free(s.blocks[i])
	}
	s.blocks = s.blocks[:0]
	s.cached = 0
	s.computed = 0
}

func (p *paged) reset() { p.pool = newPool(p.e.cfg.Blocks) }

func (p *paged) free() int { return p.pool.nfree * p.e.cfg.BlockSize }

// scheduleRunning adds the running requests' chunks and returns what is left of
// the budget. Until it ends, chunks[i] is the chunk of running[i].
func (p *paged) scheduleRunning(budget int) int {
	e := p.e
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		c := p.chunk(s, s.computed, budget)
		if k := e.cfg.Speculation.Tokens; k > 0 && s.drafted {
			c.drafts = min(k, budget-c.n, e.cfg.MaxModelLen-s.total()-1)
			c.n += c.drafts
		}
		for !p.grow(c, e.cfg.Speculation.Tokens) {
			v := len(e.running) - 1
			if e.cfg.Priority {
				for j, r := range e.running {
					if e.running[v].before(r) {
						v = j
					}
				}
			}
			victim := e.running[v]
			e.running = slices.Delete(e.running, v, v+1)
			if v < i { // it had its chunk already
				budget += e.chunks[v].n
				e.chunks = slices.Delete(e.chunks, v, v+1)
				i--
			}
			p.preempt(victim)
			if victim == s {
				return budget
			}
		}
		e.chunks = append(e.chunks, c)
		budget -= c.n
	}
	return budget
}

// preempt drops s's KV and puts it back in the queue.
func (p *paged) preempt(s *seq) {
	e := p.e
	// Blocks that this step was to fill never come to hold what their hashes say.
	for k := s.computed / e.cfg.BlockSize; k < s.cached; k++ {
		p.pool.forget(s.blocks[k])
	}
	p.release(s)
	e.preempted(s)
	if e.cfg.Priority {
		e.waiting.insert(s)
	} else {
		e.waiting.pushFront(s)
	}
}

func (p *paged) scheduleWaiting(budget int) {
	e := p.e
	size := e.cfg.BlockSize
	e.runningAdapters()
	for i := 0; i < e.waiting.len() && budget > 0 && len(e.running) < e.cfg.MaxSeqs; {
		s := e.waiting.at(i)
		if !e.adapterFits(s) {
			i++
			continue
		}
		p.hits = p.hits[:0]
		if !e.cfg.NoPrefixCache {
			// At most n-1 tokens: the last one must be computed to get its
			// logits, and so a fully cached prompt computes its last block.
			p.hits = p.pool.lookup(p.hits, s.hash((s.total()-1)/size, size))
		}
		hit := len(p.hits) * size
		c := p.chunk(s, hit, budget)
		upTo := s.total()
		if e.cfg.AdmitByChunk {
			upTo = hit + c.n
		}
		need := blocksFor(upTo, size) - len(p.hits)
		for _, b := range p.hits {
			if p.pool.blocks[b].refs == 0 {
				need++ // taking it shortens the free list
			}
		}
		blocked := need > p.pool.nfree
		if (!blocked || e.cfg.RecountBlocked) && s.r.Life.Preemptions == 0 && !e.cfg.NoPrefixCache {
			e.counters.PrefixQueries += int64(s.total())
			e.counters.PrefixHits += int64(hit)
		}
		if blocked {
			return
		}
		for _, b := range p.hits {
			p.pool.hold(b)
		}
		s.blocks = append(s.blocks, p.hits...)
		s.cached = len(p.hits)
		s.computed = hit
		if !p.grow(c, 0) {
			panic("sim: blocks counted as free are not")
		}
		e.first(s, hit)
		e.waiting.take(i)
		e.running = append(e.running, s)
		e.adapters = addAdapter(e.adapters, s)
		e.chunks = append(e.chunks, c)
		budget -= c.n
	}
}

// chunk is what s computes next of its known tokens, after the first computed
// ones.
func (p *paged) chunk(s *seq, computed, budget int) chunk {
	e := p.e
	n := min(s.total()-computed, budget)
	if t := e.cfg.LongPrefillThreshold; t > 0 {
		n = min(n, t)
	}
	return chunk{s: s, n: n}
}

// grow gives c's request the blocks for c's tokens and ahead more, and makes
// those that its known tokens fill hittable. It reports false, doing nothing,
// where too few blocks are free.
func (p *paged) grow(c chunk, ahead int) bool {
	e := p.e
	s, size := c.s, e.cfg.BlockSize
	need := blocksFor(min(s.computed+c.n+ahead, max(s.computed+c.n, e.cfg.MaxModelLen)), size) - len(s.blocks)
	if need > p.pool.nfree {
		return false
	}
	for range need {
		s.blocks = append(s.blocks, p.pool.alloc())
	}
	if e.cfg.NoPrefixCache {
		return true
	}
	full := (s.computed + c.n - c.drafts) / size
	hashes := s.hash(full, size)
	for ; s.cached < full; s.cached++ {
		p.pool.cache(s.blocks[s.cached], hashes[s.cached])
	}
	return true
}

func blocksFor(tokens, size int) int { return (tokens + size - 1) / size }
