package sim

import (
	"fmt"
	"testing"
)

// The router forgets what it sent longest ago, the tail of a prompt first.
func TestPrefixesAreBounded(t *testing.T) {
	p := NewRouter(PrefixAware, 1, Config{BlockSize: 16, Blocks: 10}).seen[0]
	chain := func(salt string, tokens int) []uint64 {
		return chainHashes(&Request{Salt: salt, Prompt: make([]Token, tokens)})
	}
	a, b := chain("a", 6*16+15), chain("b", 6*16)
	if len(a) != 6 || len(b) != 6 || a[0] == b[0] {
		t.Fatalf("chains %v and %v", a, b)
	}
	p.add(a)
	if p.match(a) != 6 || p.match(b) != 0 || p.match(chain("a", 3*16)) != 3 || p.match(chain("a", 20*16)) != 6 {
		t.Error("matches after one prompt")
	}
	p.add(b)
	if len(p.at) != 10 || p.lru.Len() != 10 || p.match(b) != 6 || p.match(a) != 4 {
		t.Errorf("%d blocks; %d of the last and %d of the first prompt are left, want 10, 6 and 4", len(p.at), p.match(b), p.match(a))
	}
	for i := range 1000 {
		p.add(chain(fmt.Sprint(i), 32*16))
	}
	if len(p.at) != 10 || p.lru.Len() != 10 {
		t.Errorf("%d blocks, %d in the list, want 10", len(p.at), p.lru.Len())
	}
}
