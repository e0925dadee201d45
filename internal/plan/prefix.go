package plan

// Reuse counts what prompts share with earlier ones. With B tokens a block, L
// tokens a prompt, and k leading blocks of it already in the cache:
type Reuse struct {
	Requests int64
	// Blocks is the sum of the prompts' blocks and HitBlocks the sum of k.
	Blocks, HitBlocks int64
	// Tokens is the sum of L and HitTokens the sum of min(kB, L).
	Tokens, HitTokens int64
	// FullBlocks is the sum of floor(L/B) and HitFullBlocks the sum of
	// min(k, floor(L/B)): engines keep full blocks only.
	FullBlocks, HitFullBlocks int64
	// SkippableTokens is the sum of B min(k, floor((L-1)/B)): an engine always
	// computes the last token, so this is what it could skip at most.
	SkippableTokens int64
}

// BlockHit is the share of blocks that were hit, 0 to 1; 0 where there are none.
func (r Reuse) BlockHit() float64 { return ratio(r.HitBlocks, r.Blocks) }

// TokenHit is the share of prompt tokens that lie in hit blocks.
func (r Reuse) TokenHit() float64 { return ratio(r.HitTokens, r.Tokens) }

// FullBlockHit is the share of full blocks that were hit.
func (r Reuse) FullBlockHit() float64 { return ratio(r.HitFullBlocks, r.FullBlocks) }

// Skippable is the share of prompt tokens that an engine could skip.
func (r Reuse) Skippable() float64 { return ratio(r.SkippableTokens, r.Tokens) }

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// BlockCache replays prompts, in the order they are added, through a cache of
// prefix blocks that is infinite or drops the least recently used block. It
// takes no time into account: prompts that really overlap share less than this.
// It is not safe for concurrent use.
type BlockCache struct {
	capacity int
	slots    map[uint64]int32
	lru      []lruSlot // ring around slot 0: next is more recently used
	reuse    Reuse
}

type lruSlot struct {
	id         uint64
	prev, next int32
}

// NewBlockCache returns an empty cache of so many blocks; 0: infinite.
func NewBlockCache(capacity int) *BlockCache {
	c := &BlockCache{capacity: capacity, slots: map[uint64]int32{}}
	if capacity > 0 {
		c.lru = make([]lruSlot, 1, min(capacity, 1<<16)+1)
	}
	return c
}

// Add counts one prompt of inputTokens tokens whose blocks of blockTokens tokens
// have these ids, puts them into the cache, and returns k, how many leading ones
// were there. k is counted before any of them is put in; then they are used in
// order, the first being the least recent.
func (c *BlockCache) Add(blocks []uint64, inputTokens, blockTokens int) (k int) {
	for k < len(blocks) {
		if _, ok := c.slots[blocks[k]]; !ok {
			break
		}
		k++
	}
	for _, id := range blocks {
		c.use(id)
	}
	r := &c.reuse
	r.Requests++
	r.Blocks += int64(len(blocks))
	r.HitBlocks += int64(k)
	r.Tokens += int64(inputTokens)
	if blockTokens > 0 && inputTokens > 0 {
		r.HitTokens += min(int64(k)*int64(blockTokens), int64(inputTokens))
		r.FullBlocks += int64(inputTokens / blockTokens)
		r.HitFullBlocks += int64(min(k, inputTokens/blockTokens))
		r.SkippableTokens += int64(blockTokens) * int64(min(k, (inputTokens-1)/blockTokens))
	}
	return k
}

// Reuse returns the counts over all prompts added so far.
func (c *BlockCache) Reuse() Reuse { return c.reuse }

// Len returns how many blocks the cache holds: in an infinite one, how many
// different ones were added.
func (c *BlockCache) Len() int { return len(c.slots) }

// use makes id the most recently used block, dropping the least recently used
// one where there is no room.
func (c *BlockCache) use(id uint64) {
	if c.capacity <= 0 {
		c.slots[id] = 0
		return
	}
	i, ok := c.slots[id]
	switch {
	case ok:
		c.unlink(i)
	case len(c.lru) <= c.capacity:
		i = int32(len(c.lru))
		c.lru = append(c.lru, lruSlot{id: id})
		c.slots[id] = i
	default:
		i = c.lru[0].next // the ring's oldest
		c.unlink(i)
		delete(c.slots, c.lru[i].id)
		c.lru[i].id = id
		c.slots[id] = i
	}
	newest := c.lru[0].prev
	c.lru[i].prev, c.lru[i].next = newest, 0
	c.lru[newest].next = i
	c.lru[0].prev = i
}

func (c *BlockCache) unlink(i int32) {
	s := c.lru[i]
	c.lru[s.prev].next = s.next
	c.lru[s.next].prev = s.prev
}
