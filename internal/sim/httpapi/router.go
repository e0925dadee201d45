package httpapi

import (
	"encoding/binary"
	"hash/fnv"
	"net/http"
	"sync"

	"github.com/trueload/trueload/internal/sim"
)

// Router is a way of spreading requests over replicas. SessionPinned tells
// sessions by the value of Options.SessionHeader, or where there is none, by the
// conversation up to its first user message (of a plain prompt, its first 64
// tokens).
type Router = sim.Routing

const (
	RoundRobin    = sim.RoundRobin
	LeastLoaded   = sim.LeastLoaded
	PrefixAware   = sim.PrefixAware
	SessionPinned = sim.SessionPinned
)

// router is a sim.Router for many handlers at once.
type router struct {
	mu sync.Mutex
	*sim.Router
}

// pick is the router. It returns nil where no replica is up.
func (s *Server) pick(r *http.Request, b *body, q *sim.Request) *replica {
	var session uint64
	if s.opt.Router == SessionPinned {
		session = sessionKey(r.Header.Get(s.opt.SessionHeader), b, q)
	}
	s.router.mu.Lock()
	defer s.router.mu.Unlock()
	i := s.router.Pick(q, session, func(i int) int64 {
		if r := s.replicas[i]; r.up() {
			return r.load()
		}
		return -1
	})
	if i < 0 {
		return nil
	}
	return s.replicas[i]
}

func (r *replica) load() int64 { return r.life.Load().load.Load() }

func sessionKey(header string, b *body, q *sim.Request) uint64 {
	h := fnv.New64a()
	add := func(kind byte, text string) {
		h.Write(binary.LittleEndian.AppendUint64([]byte{kind}, uint64(len(text))))
		h.Write([]byte(text))
	}
	if header != "" {
		add('h', header)
		return h.Sum64()
	}
	for _, m := range b.Messages {
		for _, t := range m.Content {
			add('m', t)
		}
		if m.Role == "user" {
			return h.Sum64()
		}
	}
	for _, t := range q.Prompt[:min(64, len(q.Prompt))] {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(t)))
	}
	return h.Sum64()
}
