package httpapi

import (
	"container/list"
	"net/http"
	"sync"

	"github.com/trueload/trueload/internal/sim"
)

// Router is a way of spreading requests over replicas.
type Router uint8

const (
	RoundRobin  Router = iota
	LeastLoaded        // fewest requests in the replica, ties in turn
	// PrefixAware takes the replica to which the longest leading part of the
	// prompt was sent before, in blocks of 16 tokens, as far as the router
	// remembers: for each replica as much as its cache holds. Ties, and prompts that begin like
	// none, go to the least loaded. A replica with more than 1.5 times the
	// requests of the least loaded one, and 8 more, is passed over, so that a
	// prefix which all prompts share does not draw all of them.
	PrefixAware
	// SessionPinned takes the same replica for the same session: the value of
	// Options.SessionHeader, or where there is none, the conversation up to its
	// first user message (of a plain prompt, its first 64 tokens). While a
	// replica is down its sessions move, and no others.
	SessionPinned
)

type router struct {
	mu   sync.Mutex
	turn uint64
	seen []*prefixes // by replica; PrefixAware alone
}

// routerBlock is the router's own measure; it knows nothing of the engine's.
const routerBlock = 16

func (rt *router) init(o Options) {
	if o.Router != PrefixAware {
		return
	}
	for range o.Replicas {
		rt.seen = append(rt.seen, &prefixes{at: map[uint64]*list.Element{}, limit: max(1, o.Engine.Blocks*o.Engine.BlockSize/routerBlock)})
	}
}

// pick is the router. It returns nil where no replica is up.
func (s *Server) pick(r *http.Request, b *body, q *sim.Request) *replica {
	rt := &s.router
	rt.mu.Lock()
	defer rt.mu.Unlock()
	// In turn, so that ties are broken evenly.
	var up []*replica
	least := int64(1) << 62
	n := uint64(len(s.replicas))
	for i := range n {
		if r := s.replicas[(rt.turn+i)%n]; r.up() {
			up = append(up, r)
			least = min(least, r.load())
		}
	}
	rt.turn++
	if len(up) == 0 {
		return nil
	}
	switch s.opt.Router {
	case LeastLoaded:
		return best(up, func(r *replica) (int64, int64) { return -r.load(), 0 })
	case PrefixAware:
		chain := chainHashes(q)
		to := best(up, func(r *replica) (int64, int64) {
			load := r.load()
			if 2*load > 3*least+16 { // load > 1.5·least + 8
				return -1, -load
			}
			return int64(rt.seen[r.index].match(chain)), -load
		})
		rt.seen[to.index].add(chain)
		return to
	case SessionPinned:
		key := sessionKey(r.Header.Get(s.opt.SessionHeader), b, q)
		// The highest hash of session and replica together wins.
		return best(up, func(r *replica) (int64, int64) { return int64(fold(key, uint64(r.index)) >> 1), 0 })
	}
	return up[0]
}

func (r *replica) load() int64 { return r.life.Load().load.Load() }

// best is the first replica with the highest score.
func best(list []*replica, score func(*replica) (int64, int64)) *replica {
	to := list[0]
	a, b := score(to)
	for _, r := range list[1:] {
		if c, d := score(r); c > a || c == a && d > b {
			to, a, b = r, c, d
		}
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
func chainHashes(q *sim.Request) []uint64 {
	h := foldText(foldText(1, q.Salt), q.Adapter)
	var chain []uint64
	for i, t := range q.Prompt {
		h = fold(h, uint64(t))
		if (i+1)%routerBlock == 0 {
			chain = append(chain, h)
		}
	}
	return chain
}

func sessionKey(header string, b *body, q *sim.Request) uint64 {
	if header != "" {
		return foldText(2, header)
	}
	h := uint64(3)
	for _, m := range b.Messages {
		for _, t := range m.Content {
			h = foldText(h, t)
		}
		if m.Role == "user" {
			return h
		}
	}
	for _, t := range q.Prompt[:min(64, len(q.Prompt))] {
		h = fold(h, uint64(t))
	}
	return h
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
