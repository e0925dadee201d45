package sim

// minSimilarity is the part of a prompt that a slot must hold to be chosen for
// it (slot_prompt_similarity).
const minSimilarity = 0.1

// slots is llama.cpp's server (tools/server): a fixed number of slots
// (Config.MaxSeqs, n_parallel), each with an equal share of the memory and a
// sequence that it keeps after its request has ended.
//
// A request takes the idle slot that holds the longest beginning of its prompt,
// if that is more than a tenth of it, else the one idle for longest. What that
// slot's sequence shares with the prompt is not computed again, but for the last
// token; the rest of the sequence is lost. So hits depend on the order of
// requests. Others wait, first come first served.
//
// One batch of Config.MaxBatchedTokens (n_batch) takes a token for every slot
// that generates and then prompts, in the order of the slots. Memory never runs
// out, and nobody is preempted. A batch has one adapter, that of its first slot.
// Salts are not known.
//
// Not modelled: the prompt cache in host memory, checkpoints, context shift.
type slots struct {
	e     *Engine
	slots []slot
	clock uint64
}

// slot is one place. Its sequence is that of its request, or of its last one.
type slot struct {
	s       *seq
	tokens  []Token // of the last request
	adapter string  // that computed them
	used    uint64  // when it became idle
}

func (p *slots) schedule() {
	e := p.e
	for e.waiting.len() > 0 {
		s := e.waiting.at(0)
		i, hit := p.choose(s)
		if i < 0 {
			break
		}
		if e.cfg.NoPrefixCache {
			hit = 0
		} else {
			e.counters.PrefixQueries += int64(s.total())
			e.counters.PrefixHits += int64(hit)
		}
		p.slots[i].s = s
		s.computed = hit
		e.first(s, hit)
		e.waiting.take(0)
		e.running = append(e.running, s)
	}
	budget := e.cfg.MaxBatchedTokens
	for _, prompts := range []bool{false, true} {
		for i := range p.slots {
			s := p.slots[i].s
			if s == nil || (len(s.out) == 0) != prompts || budget == 0 {
				continue
			}
			if len(e.chunks) > 0 && e.chunks[0].s.r.Adapter != s.r.Adapter {
				continue
			}
			n := min(s.total()-s.computed, budget)
			e.chunks = append(e.chunks, chunk{s: s, n: n})
			budget -= n
		}
	}
}

// choose returns the slot for s, or -1, and how many of s's tokens it holds.
func (p *slots) choose(s *seq) (at, hit int) {
	at = -1
	for i := range p.slots {
		if p.slots[i].s != nil {
			continue
		}
		if l := p.common(i, s); l > hit && float64(l) > minSimilarity*float64(s.total()) {
			at, hit = i, l
		}
	}
	if at < 0 {
		for i := range p.slots {
			if p.slots[i].s == nil && (at < 0 || p.slots[i].used < p.slots[at].used) {
				at = i
			}
		}
		if at >= 0 {
			hit = p.common(at, s)
		}
	}
	return at, min(hit, s.total()-1)
}

// common is how many leading tokens of s slot i holds.
func (p *slots) common(i int, s *seq) int {
	held := p.slots[i].tokens
	if p.slots[i].adapter != s.r.Adapter {
		return 0
	}
	n := 0
	for n < len(held) && n < s.total() && held[n] == s.token(n) {
		n++
	}
	return n
}

func (p *slots) computed(chunk) {}

func (p *slots) release(s *seq) {
	for i := range p.slots {
		if l := &p.slots[i]; l.s == s {
			p.clock++
			l.s, l.used, l.adapter, l.tokens = nil, p.clock, s.r.Adapter, l.tokens[:0]
			for k := range s.computed {
				l.tokens = append(l.tokens, s.token(k))
			}
		}
	}
}

func (p *slots) reset() { p.slots = make([]slot, p.e.cfg.MaxSeqs) }

func (p *slots) free() int {
	n := p.e.cfg.capacity()
	for _, l := range p.slots {
		if l.s != nil {
			n -= max(1, l.s.computed)
		}
	}
	return n
}
