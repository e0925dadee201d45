package plan

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBlockCacheCounts(t *testing.T) {
	type add struct {
		blocks []uint64
		tokens int
		k      int
	}
	for _, c := range []struct {
		name     string
		capacity int
		adds     []add
		want     Reuse
	}{
		{"the same prompt again, its last block partial", 0,
			[]add{{[]uint64{1, 2, 3}, 40, 0}, {[]uint64{1, 2, 3}, 40, 3}},
			Reuse{Requests: 2, Blocks: 6, HitBlocks: 3, Tokens: 80, HitTokens: 40, FullBlocks: 4, HitFullBlocks: 2, SkippableTokens: 32}},
		{"the same prompt again, all blocks full: the last one is never skipped", 0,
			[]add{{[]uint64{1, 2}, 32, 0}, {[]uint64{1, 2}, 32, 2}},
			Reuse{Requests: 2, Blocks: 4, HitBlocks: 2, Tokens: 64, HitTokens: 32, FullBlocks: 4, HitFullBlocks: 2, SkippableTokens: 16}},
		{"a miss in the middle hides what follows", 0,
			[]add{{[]uint64{1, 2, 3}, 48, 0}, {[]uint64{1, 9, 3}, 48, 1}},
			Reuse{Requests: 2, Blocks: 6, HitBlocks: 1, Tokens: 96, HitTokens: 16, FullBlocks: 6, HitFullBlocks: 1, SkippableTokens: 16}},
		{"two blocks of room: the first of three is gone", 2,
			[]add{{[]uint64{1, 2, 3}, 48, 0}, {[]uint64{1}, 16, 0}, {[]uint64{3}, 16, 1}},
			Reuse{Requests: 3, Blocks: 5, HitBlocks: 1, Tokens: 80, HitTokens: 16, FullBlocks: 5, HitFullBlocks: 1}},
		{"an empty prompt and one without ids", 0,
			[]add{{nil, 0, 0}, {nil, 20, 0}},
			Reuse{Requests: 2, Tokens: 20, FullBlocks: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := NewBlockCache(c.capacity)
			for i, a := range c.adds {
				if k := cache.Add(a.blocks, a.tokens, 16); k != a.k {
					t.Errorf("prompt %d: k = %d, want %d", i, k, a.k)
				}
			}
			if got := cache.Reuse(); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// The linked ring must do what a list in order of use does.
func TestBlockCacheAgainstList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, capacity := range []int{1, 2, 7, 50} {
		cache := NewBlockCache(capacity)
		var list []uint64
		for range 3000 {
			blocks := make([]uint64, rng.IntN(9))
			for i := range blocks {
				blocks[i] = rng.Uint64N(80)
			}
			want := 0
			for want < len(blocks) && slices.Contains(list, blocks[want]) {
				want++
			}
			for _, id := range blocks {
				if i := slices.Index(list, id); i >= 0 {
					list = slices.Delete(list, i, i+1)
				} else if len(list) == capacity {
					list = list[1:]
				}
				list = append(list, id)
			}
			if k := cache.Add(blocks, 16*len(blocks), 16); k != want {
				t.Fatalf("capacity %d: k = %d, want %d", capacity, k, want)
			}
			if cache.Len() != len(list) {
				t.Fatalf("capacity %d: holds %d blocks, want %d", capacity, cache.Len(), len(list))
			}
		}
	}
}

func BenchmarkBlockCache(b *testing.B) {
	for _, c := range []struct {
		name     string
		capacity int
	}{{"infinite", 0}, {"lru", 10000}} {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			cache := NewBlockCache(c.capacity)
			blocks := make([]uint64, 32)
			b.ReportAllocs()
			for b.Loop() {
				for i := range blocks {
					blocks[i] = rng.Uint64N(100000)
				}
				cache.Add(blocks, 512*32-3, 512)
			}
		})
	}
}
