package sim

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// SGLang's constants (srt/environ.py, srt/managers/schedule_policy.py).
const (
	ratioInit  = 0.7              // of the output still allowed, what a running request is taken to need
	ratioMin   = 0.14 * ratioInit // where it decays to
	ratioDecay = (ratioInit - ratioMin) / 600
	clipNew    = 4096 // of a request's allowed output, what admission looks at
	aheadSteps = 20   // decode steps that a retraction looks ahead
)

// radix is SGLang's scheduler over a radix tree of tokens (page size 1):
//
//  1. prefill goes first and alone: waiting requests in order of arrival, while
//     tokens of the chunk size (Config.MaxBatchedTokens), places and memory
//     last. The one that passes the chunk size is cut and goes on in the next
//     batch. Memory must hold a request's prompt and its allowed output, and for
//     each running request a share of its own, the ratio, which decays as
//     long as all goes well;
//  2. if there is nothing to prefill, every running request decodes one token.
//     Where memory is short, requests are retracted, those with the fewest
//     output tokens first, of equals the longest prompt: their KV is dropped,
//     and they go to the queue's end.
//
// After a prefill, and at the end, a request's tokens are inserted in the tree.
// So two requests of one batch do not share what neither had found. Leaves that
// nobody holds are evicted, the least recently used first.
//
// Not modelled: mixed chunks, longest prefix match, priorities, overlap, and
// abortion where one request alone does not fit (MaxModelLen sees to that).
type radix struct {
	e         *Engine
	roots     map[[2]string]*node // by adapter and salt; those with children
	leaves    map[*node]struct{}
	avail     int // tokens of free memory
	evictable int // tokens in nodes that nobody holds
	clock     uint64
	ratio     float64
	end       time.Duration // of the last step
	prefilled bool          // the batch is one of prefill
	chunked   *seq          // running, its prompt cut
	full      bool          // the head did not fit, and nothing has been freed since
}

// node is an edge of the tree with the tokens on it, and the node at its end.
type node struct {
	key      []Token
	parent   *node      // nil: a root
	space    *[2]string // a root's key
	children map[Token]*node
	locks    int // requests that hold it or what lies below
	used     uint64
}

func (p *radix) schedule() {
	if len(p.e.running) == 0 && p.e.step.Start > p.end {
		p.ratio = ratioInit // it was idle
	}
	if p.prefill(); !p.prefilled {
		p.decode()
	}
}

// allowed is the output that s may still give, as admission sees it.
func allowed(s *seq) int { return min(s.limit-len(s.out), clipNew) }

func (p *radix) prefill() {
	e := p.e
	p.prefilled = false
	p.full = p.full && len(e.running) > 0
	if p.chunked == nil && (p.full || e.waiting.len() == 0) {
		return
	}
	budget := e.cfg.MaxBatchedTokens
	promised := 0.0
	for _, s := range e.running {
		if s != p.chunked {
			promised += float64(allowed(s)) * p.ratio
		}
	}
	left := func() float64 { return float64(p.avail+p.evictable) - promised }
	if s := p.chunked; s != nil {
		n := min(s.total()-s.computed, budget, p.avail+p.evictable)
		if l := left(); l >= 1 {
			n = min(n, int(l))
		}
		if n == 0 {
			return
		}
		p.add(s, n)
		budget -= n
		if s.computed+n < s.total() {
			return
		}
		p.chunked = nil
		promised += float64(allowed(s))
	}
	e.runningAdapters()
	for e.waiting.len() > 0 && budget > 0 {
		s := e.waiting.at(0)
		if p.full = len(e.running) == e.cfg.MaxSeqs || !e.adapterFits(s); p.full {
			return
		}
		at, hit := p.root(s), 0
		if !e.cfg.NoPrefixCache {
			at, hit = p.walk(s, s.total()-1)
		}
		p.lock(at)
		n := s.total() - hit
		if p.full = float64(n+allowed(s)) >= left(); p.full {
			p.unlock(at)
			return
		}
		if n > budget {
			n = budget
			p.chunked = s
		} else {
			promised += float64(allowed(s))
		}
		s.node, s.depth, s.computed = at, hit, hit
		if s.r.Life.Preemptions == 0 && !e.cfg.NoPrefixCache {
			e.counters.PrefixQueries += int64(s.total())
			e.counters.PrefixHits += int64(hit)
		}
		e.first(s, hit)
		e.waiting.take(0)
		e.running = append(e.running, s)
		e.adapters = addAdapter(e.adapters, s)
		p.add(s, n)
		budget -= n
	}
}

// add gives s memory for n tokens, which must be there, and puts them into the
// batch.
func (p *radix) add(s *seq, n int) {
	p.evict(n)
	p.avail -= n
	p.prefilled = true
	p.e.chunks = append(p.e.chunks, chunk{s: s, n: n})
}

func (p *radix) decode() {
	e := p.e
	var batch []*seq
	for _, s := range e.running {
		if s != p.chunked {
			batch = append(batch, s)
		}
	}
	if p.avail+p.evictable < len(batch) {
		batch = p.retractFrom(batch)
	} else {
		p.ratio = max(ratioMin, p.ratio-ratioDecay)
	}
	p.evict(len(batch))
	p.avail -= len(batch)
	for _, s := range batch {
		e.chunks = append(e.chunks, chunk{s: s, n: 1})
	}
}

// retractFrom makes room for the next token of a batch, and returns what stays
// of it. What is evictable goes ahead for 20 steps. The ratio becomes what those
// that stay have made, and 20 more each, of all that they may.
func (p *radix) retractFrom(batch []*seq) []*seq {
	order := slices.Clone(batch) // the last goes first
	slices.SortStableFunc(order, func(a, b *seq) int {
		return cmp.Or(cmp.Compare(len(b.out), len(a.out)), cmp.Compare(len(a.r.Prompt), len(b.r.Prompt)))
	})
	for len(order) > 1 {
		p.retract(order[len(order)-1])
		order = order[:len(order)-1]
		p.evict(min(len(order)*aheadSteps, p.avail+p.evictable))
		if p.avail >= len(order) {
			break
		}
	}
	if p.avail+p.evictable < len(order) {
		p.retract(p.chunked) // it holds what the last one needs
	}
	made, allow := 0, 0
	for _, s := range order {
		made += len(s.out) + aheadSteps
		allow += s.limit
	}
	p.ratio = math.Min(1, float64(made)/float64(allow+1))
	return slices.DeleteFunc(batch, func(s *seq) bool { return s.node == nil })
}

// retract drops s's KV, without keeping it in the tree, and queues s last.
func (p *radix) retract(s *seq) {
	e := p.e
	p.drop(s)
	e.running = slices.DeleteFunc(e.running, func(r *seq) bool { return r == s })
	e.preempted(s)
	e.waiting.pushBack(s)
}

// drop frees what s holds.
func (p *radix) drop(s *seq) {
	p.avail += s.computed - s.depth
	p.unlock(s.node)
	s.node, s.depth, s.computed = nil, 0, 0
	p.full = false
	if p.chunked == s {
		p.chunked = nil
	}
}

func (p *radix) computed(c chunk) {
	p.end = p.e.step.End()
	if p.prefilled {
		p.keep(c.s)
	}
}

// keep hands the tokens that s has computed to the tree, and holds them there.
func (p *radix) keep(s *seq) {
	if p.e.cfg.NoPrefixCache {
		return
	}
	at, known := p.walk(s, s.computed)
	p.avail += known - s.depth // computed twice
	if known < s.computed {
		n := &node{parent: at, used: p.tick()}
		for i := known; i < s.computed; i++ {
			n.key = append(n.key, s.token(i))
		}
		p.attach(n)
		p.evictable += len(n.key)
		at = n
	}
	p.lock(at)
	p.unlock(s.node)
	s.node, s.depth = at, s.computed
}

func (p *radix) release(s *seq) {
	if s.node != nil {
		p.keep(s)
		p.drop(s)
	}
}

func (p *radix) reset() {
	p.roots, p.leaves = map[[2]string]*node{}, map[*node]struct{}{}
	p.avail, p.evictable, p.ratio = p.e.cfg.capacity(), 0, ratioInit
}

func (p *radix) free() int { return p.avail + p.evictable }

func (p *radix) tick() uint64 { p.clock++; return p.clock }

// root is the tree of s's adapter and salt; where there is none yet, a new one,
// which counts once a node is attached to it.
func (p *radix) root(s *seq) *node {
	k := [2]string{s.r.Adapter, s.r.Salt}
	if r := p.roots[k]; r != nil {
		return r
	}
	return &node{space: &k}
}

// walk follows s's first n tokens as far as the tree has them and returns where
// it ends, having split the edge if it ends within one, and how far it came.
func (p *radix) walk(s *seq, n int) (*node, int) {
	at, d := p.root(s), 0
	for d < n {
		next := at.children[s.token(d)]
		if next == nil {
			break
		}
		next.used = p.tick()
		l := 1
		for l < len(next.key) && d+l < n && next.key[l] == s.token(d+l) {
			l++
		}
		d += l
		if at = next; l < len(next.key) {
			at = p.split(next, l)
			break
		}
	}
	return at, d
}

// split cuts n's edge after l tokens and returns the new node there.
func (p *radix) split(n *node, l int) *node {
	up := &node{key: n.key[:l:l], parent: n.parent, locks: n.locks, used: n.used, children: map[Token]*node{n.key[l]: n}}
	up.parent.children[up.key[0]] = up
	n.key, n.parent = n.key[l:], up
	return up
}

func (p *radix) attach(n *node) {
	if n.parent.children == nil {
		n.parent.children = map[Token]*node{}
	}
	n.parent.children[n.key[0]] = n
	if n.parent.parent == nil {
		p.roots[*n.parent.space] = n.parent
	}
	delete(p.leaves, n.parent)
	p.leaves[n] = struct{}{}
}

func (p *radix) lock(n *node) {
	for ; n.parent != nil; n = n.parent {
		if n.locks == 0 {
			p.evictable -= len(n.key)
		}
		n.locks++
	}
}

func (p *radix) unlock(n *node) {
	for ; n.parent != nil; n = n.parent {
		if n.locks--; n.locks == 0 {
			p.evictable += len(n.key)
		}
	}
}

// evict drops leaves, whole ones, until n tokens are free.
func (p *radix) evict(n int) {
	for p.avail < n {
		var oldest *node
		for l := range p.leaves {
			if l.locks == 0 && (oldest == nil || l.used < oldest.used) {
				oldest = l
			}
		}
		delete(p.leaves, oldest)
		p.avail += len(oldest.key)
		p.evictable -= len(oldest.key)
		up := oldest.parent
		delete(up.children, oldest.key[0])
		switch {
		case len(up.children) > 0:
		case up.parent == nil:
			delete(p.roots, *up.space) // so that old salts leave nothing behind
		default:
			p.leaves[up] = struct{}{}
		}
	}
}
