package sim

import (
	"container/list"
	"fmt"
	"strings"
)

// Routing is a way of spreading requests over replicas.
type Routing uint8

const (
	RoundRobin  Routing = iota
	LeastLoaded         // fewest requests in the replica, ties in turn
	// PrefixAware takes the replica to which the longest leading part of the
	// prompt was sent before, in blocks of 16 tokens, as far as the router
	// remembers: for each replica as much as its cache holds. Ties, and prompts
	// that begin like none, go to the least loaded. A replica with more than 1.5
	// times the requests of the least loaded one, and 8 more, is passed over, so
	// that a prefix which all prompts share does not draw all of them.
	PrefixAware
	// SessionPinned takes the same replica for the same session. While a replica
	// is down its sessions move, and no others.
	SessionPinned
)

var routings = [...]string{"round-robin", "least-loaded", "prefix-aware", "session-pinned"}

func (r Routing) String() string {
	if int(r) < len(routings) {
		return routings[r]
	}
	return fmt.Sprintf("routing(%d)", uint8(r))
}

// ParseRouting reads the name of a routing.
func ParseRouting(s string) (Routing, error) {
	for r, name := range routings {
		if s == name {
			return Routing(r), nil
		}
	}
	return 0, fmt.Errorf("unknown router %q: use one of %s", s, strings.Join(routings[:], ", "))
}

// A Router picks a replica for each request, by what it sent where before. It is
// not safe for concurrent use.
type Router struct {
	how      Routing
	replicas int
	turn     uint64
	seen     []*prefixes // by replica; PrefixAware alone
}

// routerBlock is the router's own measure; it knows nothing of the engine's.
const routerBlock = 16

// NewRouter returns a router of so many replicas, each with this configuration.
func NewRouter(how Routing, replicas int, engine Config) *Router {
	rt := &Router{how: how, replicas: replicas}
	for range replicas {
		if how == PrefixAware {
			rt.seen = append(rt.seen, &prefixes{at: map[uint64]*list.Element{}, limit: max(1, engine.Blocks*engine.BlockSize/routerBlock)})
		}
	}
	return rt
}

// Pick returns the replica for r, or -1 where none is up. load is the number of
// requests in a replica, below 0 where it is down; session is a hash that tells
// sessions apart, for SessionPinned.
func (rt *Router) Pick(r *Request, session uint64, load func(replica int) int64) int {
	least := int64(-1)
	if rt.how == PrefixAware {
		for i := range rt.replicas {
			if l := load(i); l >= 0 && (least < 0 || l < least) {
				least = l
			}
		}
	}
	var chain []uint64
	if rt.how == PrefixAware {
		chain = chainHashes(r)
	}
	// The first with the highest score. In turn, so that ties are broken evenly.
	to, score, tie := -1, int64(0), int64(0)
	for k := range uint64(rt.replicas) {
		i := int((rt.turn + k) % uint64(rt.replicas))
		l := load(i)
		if l < 0 {
			continue
		}
		var a, b int64
		switch rt.how {
		case LeastLoaded:
			a = -l
		case PrefixAware:
			if a, b = -1, -l; 2*l <= 3*least+16 { // l <= 1.5·least + 8
				a = int64(rt.seen[i].match(chain))
			}
		case SessionPinned:
			// The highest hash of session and replica together wins.
			a = int64(fold(session, uint64(i)) >> 1)
		}
		if to < 0 || a > score || a == score && b > tie {
			to, score, tie = i, a, b
		}
		if rt.how == RoundRobin {
			break
		}
	}
	rt.turn++
	if to >= 0 && rt.how == PrefixAware {
		rt.seen[to].add(chain)
	}
	return to
}

// fold mixes v into a hash.
func fold(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

func foldText(h uint64, s string) uint64 {
	for i := 0; i < len(s); i++ {
		h = fold(h, uint64(s[i]))
	}
	return fold(h, uint64(len(s)))
}

// chainHashes are the hashes of the prompt's full blocks, each of a block and of
// all before it.
func chainHashes(q *Request) []uint64 {
	h := foldText(foldText(1, q.Salt), q.Adapter)
	chain := make([]uint64, 0, len(q.Prompt)/routerBlock)
	for i, t := range q.Prompt {
		h = fold(h, uint64(t))
		if (i+1)%routerBlock == 0 {
			chain = append(chain, h)
		}
	}
	return chain
}

// prefixes is what the router believes to be in a replica's cache: the blocks
// that it sent there, the least recently sent forgotten first.
type prefixes struct {
	at    map[uint64]*list.Element
	lru   list.List // of uint64, the last sent in front
	limit int
}

// match is how many leading blocks are known.
func (p *prefixes) match(chain []uint64) int {
	for i, h := range chain {
		if p.at[h] == nil {
			return i
		}
	}
	return len(chain)
}

func (p *prefixes) add(chain []uint64) {
	// The tail first, so that it is forgotten before what it hangs on.
	for i := len(chain) - 1; i >= 0; i-- {
		if e := p.at[chain[i]]; e != nil {
			p.lru.MoveToFront(e)
		} else {
			p.at[chain[i]] = p.lru.PushFront(chain[i])
		}
	}
	for len(p.at) > p.limit {
		delete(p.at, p.lru.Remove(p.lru.Back()).(uint64))
	}
}
