package wire

import (
	"sync"
	"time"
)

// pool keeps idle HTTP/1.1 connections, last in first out, by session and
// server. It has no limits but the idle time.
type pool struct {
	clock   *Clock
	timeout time.Duration

	mu     sync.Mutex
	idle   map[string]map[poolKey][]*conn
	closed bool
}

// take returns a live idle connection, or nil.
func (p *pool) take(session string, key poolKey) *conn {
	for {
		p.mu.Lock()
		list := p.idle[session][key]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		c := list[len(list)-1]
		list[len(list)-1] = nil
		p.set(session, key, list[:len(list)-1])
		p.mu.Unlock()
		if p.clock.Now()-c.idle <= p.timeout && !c.dead() {
			return c
		}
		c.Close()
	}
}

// put keeps c for later, and closes those that were idle for too long.
func (p *pool) put(session string, key poolKey, c *conn) {
	now := p.clock.Now()
	c.served, c.idle = true, now
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.Close()
		return
	}
	list := p.idle[session][key]
	stale := 0
	for stale < len(list) && now-list[stale].idle > p.timeout {
		stale++
	}
	old := append([]*conn(nil), list[:stale]...)
	p.set(session, key, append(list[stale:], c))
	p.mu.Unlock()
	for _, c := range old {
		c.Close()
	}
}

// set is called with mu held.
func (p *pool) set(session string, key poolKey, list []*conn) {
	if len(list) > 0 {
		if p.idle == nil {
			p.idle = map[string]map[poolKey][]*conn{}
		}
		if p.idle[session] == nil {
			p.idle[session] = map[poolKey][]*conn{}
		}
		p.idle[session][key] = list
		return
	}
	delete(p.idle[session], key)
	if len(p.idle[session]) == 0 {
		delete(p.idle, session)
	}
}

// end closes the idle connections of one session.
func (p *pool) end(session string) {
	p.mu.Lock()
	lists := p.idle[session]
	delete(p.idle, session)
	p.mu.Unlock()
	for _, list := range lists {
		for _, c := range list {
			c.Close()
		}
	}
}

// close closes all idle connections, and those that are put back later.
func (p *pool) close() {
	p.mu.Lock()
	all := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, lists := range all {
		for _, list := range lists {
			for _, c := range list {
				c.Close()
			}
		}
	}
}
