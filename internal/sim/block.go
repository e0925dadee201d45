package sim

import "math/bits"

// A prefix block is known by the chained hash of its tokens and of all before
// it. Engines use a cryptographic hash, since tenants may be hostile; 64 bits
// of a good mixer do here: among a million cached blocks the odds of one
// collision are 3 in 10^8.
const (
	mixA = 0xa0761d6478bd642f
	mixB = 0xe7037ed1a0b428db
)

// mix folds v into h (a 64x64 -> 128 bit product, its halves xored).
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^mixA, (v+1)*mixB^bits.RotateLeft64(h, 32))
	return hi ^ lo
}

// rootHash is the parent of a prompt's first block. Salt and adapter enter here
// and reach every later block through the chain.
func rootHash(keys ...string) uint64 {
	h := uint64(mixB)
	for _, k := range keys {
		for i := 0; i < len(k); i++ {
			h = mix(h, uint64(k[i]))
		}
		h = mix(h, uint64(len(k)))
	}
	return h
}

// block is one KV block. It is in the free list exactly when refs is 0.
type block struct {
	hash       uint64
	cached     bool // reachable by its hash
	refs       int32
	prev, next int32 // in the free list
	twin       int32 // next block with the same hash, or 0
}

// pool owns the KV blocks. Block 0 is the null block: never handed out, and the
// head of the free list, which is a ring in LRU order. A cached block that
// nobody holds stays in the free list and keeps its hash until it is handed out
// again: eviction happens on allocation.
type pool struct {
	blocks []block
	nfree  int
	byHash map[uint64]int32
}

func newPool(n int) pool {
	p := pool{blocks: make([]block, n), nfree: n - 1, byHash: map[uint64]int32{}}
	for i := range p.blocks {
		p.blocks[i].prev = int32((i + n - 1) % n)
		p.blocks[i].next = int32((i + 1) % n)
	}
	return p
}

// alloc hands out the least recently used free block, evicting what it cached.
// There must be one.
func (p *pool) alloc() int32 {
	i := p.blocks[0].next
	if i == 0 {
		panic("sim: no free block")
	}
	p.unlink(i)
	if p.blocks[i].cached {
		p.forget(i)
	}
	p.blocks[i].refs = 1
	return i
}

// hold takes one more reference on a cached block.
func (p *pool) hold(i int32) {
	if p.blocks[i].refs == 0 {
		p.unlink(i)
	}
	p.blocks[i].refs++
}

// free drops one reference. A block that nobody holds any more becomes the most
// recently used free one.
func (p *pool) free(i int32) {
	b := &p.blocks[i]
	b.refs--
	if b.refs > 0 {
		return
	}
	last := p.blocks[0].prev
	b.prev, b.next = last, 0
	p.blocks[last].next = i
	p.blocks[0].prev = i
	p.nfree++
}

func (p *pool) unlink(i int32) {
	b := &p.blocks[i]
	p.blocks[b.prev].next = b.next
	p.blocks[b.next].prev = b.prev
	p.nfree--
}

// cache makes block i reachable by hash h. Two requests that compute the same
// tokens at once leave twins; the older one answers lookups.
func (p *pool) cache(i int32, h uint64) {
	b := &p.blocks[i]
	b.hash, b.cached, b.twin = h, true, 0
	first, ok := p.byHash[h]
	if !ok {
		p.byHash[h] = i
		return
	}
	for p.blocks[first].twin != 0 {
		first = p.blocks[first].twin
	}
	p.blocks[first].twin = i
}

// forget evicts block i from the cache.
func (p *pool) forget(i int32) {
	b := &p.blocks[i]
	b.cached = false
	at := p.byHash[b.hash]
	switch {
	case at == i && b.twin == 0:
		delete(p.byHash, b.hash)
	case at == i:
		p.byHash[b.hash] = b.twin
	default:
		for p.blocks[at].twin != i {
			at = p.blocks[at].twin
		}
		p.blocks[at].twin = b.twin
	}
	b.twin = 0
}

// lookup appends to dst the longest run of cached blocks for the leading hashes.
func (p *pool) lookup(dst []int32, hashes []uint64) []int32 {
	for _, h := range hashes {
		i, ok := p.byHash[h]
		if !ok {
			break
		}
		dst = append(dst, i)
	}
	return dst
}
