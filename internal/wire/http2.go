package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
)

// HTTP/2 is net/http's, over connections of ours. Its streams share the reads
// of a connection, so a stream's bytes cannot always be told to belong to one
// read; history narrows down the reads they may have come with.

// history keeps the stamps of a connection's latest reads. A nil history keeps
// nothing.
type history struct {
	mu      sync.Mutex
	entered int // reads begun: all bytes of the earlier ones are dealt with
	done    int // reads that brought bytes
	stamps  [64]Stamp
}

func (h *history) enter() {
	if h != nil {
		h.mu.Lock()
		h.entered++
		h.mu.Unlock()
	}
}

func (h *history) add(s Stamp) {
	if h != nil {
		h.mu.Lock()
		h.done = h.entered
		h.stamps[h.done%len(h.stamps)] = s
		h.mu.Unlock()
	}
}

// mark returns the first read that may bring bytes which are not here yet.
func (h *history) mark() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entered
}

// since returns the stamp of bytes that came with the reads from first on and
// are here now, and the first read that may bring the next ones. Where several
// reads may have brought them, the stamp is the present time and an interval
// over all of those. A read may have brought other streams' bytes too, so More
// is always set.
func (h *history) since(first int, clock *Clock) (Stamp, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stamps[h.done%len(h.stamps)]
	if first < h.done {
		now := clock.Now()
		oldest := max(first, h.done-len(h.stamps)+1)
		s = Stamp{At: now, Earliest: h.stamps[oldest%len(h.stamps)].Earliest, Read: now}
	}
	s.More = true
	return s, h.entered
}

// stream is a connection that HTTP/2 exchanges share.
type stream struct {
	cn     *conn
	cc     *http.ClientConn
	served atomic.Bool
	known  atomic.Bool // the server has told its limit of streams
	users  int         // exchanges that hold it; shared.mu guards it
}

// unknownLimit is what net/http takes for a limit before the server told one.
const unknownLimit = 100

// limited tells whether the server's limit of streams is known. Before that, a
// second request could be put behind a limit, where it would wait unseen.
func (s *stream) limited() bool {
	if !s.known.Load() {
		available := s.cc.Available()
		limit := available + s.cc.InFlight()
		if limit == unknownLimit || available != s.cc.Available() {
			return false
		}
		s.known.Store(true)
	}
	return true
}

func (s *stream) used() bool { return s.served.Load() }

func (s *stream) close() {
	s.cc.Close()
	s.cn.Close()
}

// shared keeps HTTP/2 connections by session and server. Where all are as busy
// as their server allows, a further one is made.
type shared struct {
	mu     sync.Mutex
	conns  map[string]map[poolKey][]*stream
	closed bool
}

// take returns a connection that has a stream reserved for the caller, or nil.
func (p *shared) take(session string, key poolKey) *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.conns[session][key]
	live := list[:0]
	var found *stream
	for _, s := range list {
		if s.cc.Err() != nil {
			s.cn.Close()
			continue
		}
		live = append(live, s)
		if found == nil && s.limited() && s.cc.Reserve() == nil {
			found = s
			s.users++
		}
	}
	if len(live) < len(list) {
		clear(list[len(live):])
		p.conns[session][key] = live
	}
	return found
}

func (p *shared) put(session string, key poolKey, s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return // its one exchange closes it
	}
	if p.conns == nil {
		p.conns = map[string]map[poolKey][]*stream{}
	}
	if p.conns[session] == nil {
		p.conns[session] = map[poolKey][]*stream{}
	}
	p.conns[session][key] = append(p.conns[session][key], s)
}

func (p *shared) end(session string) {
	p.mu.Lock()
	lists := p.conns[session]
	delete(p.conns, session)
	p.mu.Unlock()
	for _, list := range lists {
		for _, s := range list {
			s.close()
		}
	}
}

// close closes the connections that nobody uses; the others close after their
// exchanges.
func (p *shared) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.conns
	p.conns, p.closed = nil, true
	for _, lists := range all {
		for _, list := range lists {
			for _, s := range list {
				if s.users == 0 {
					s.close()
				}
			}
		}
	}
}

// share makes an HTTP/2 connection of cn, with a stream reserved for the caller.
func (c *Client) share(ctx context.Context, cn *conn, r *route, req *Request) (*stream, error) {
	cn.history = &history{}
	tr := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	scheme := "http"
	if r.tls {
		scheme = "https"
		tr.Protocols.SetHTTP2(true)
		tr.DialTLSContext = func(context.Context, string, string) (net.Conn, error) { return cn.tls, nil }
	} else {
		tr.Protocols.SetUnencryptedHTTP2(true)
		tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return cn, nil }
	}
	addr := r.origin
	if r.network == "unix" {
		addr = "localhost:80"
	}
	cc, err := tr.NewClientConn(ctx, scheme, addr)
	if err == nil {
		if err = cc.Reserve(); err != nil {
			cc.Close()
		}
	}
	if err != nil {
		cn.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &ConnectError{Addr: r.addr, Err: fmt.Errorf("HTTP/2: %w", err)}
	}
	s := &stream{cn: cn, cc: cc, users: 1}
	if !req.NoReuse {
		c.shared.put(req.Session, r.key(), s)
	}
	return s, nil
}

// do sends one request as a stream of its own and reads its answer.
func (s *stream) do(ctx context.Context, r *route, req *Request, t *Timing, h Handler) (answered bool, err error) {
	s.served.Store(true)
	cl, clock := s.cn.client, s.cn.client.clock
	if s.cn.watch != nil {
		cl.kernel.begin()
		defer cl.kernel.end()
	}
	defer func() {
		cl.shared.mu.Lock()
		s.users--
		over := req.NoReuse || cl.shared.closed && s.users == 0
		cl.shared.mu.Unlock()
		if over || s.cc.Err() != nil {
			s.close()
		}
	}()

	var mu sync.Mutex
	written := Unset
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) {
		if i.Err == nil {
			mu.Lock()
			written = clock.Now()
			mu.Unlock()
		}
	}})
	defer func() {
		mu.Lock()
		t.Written = written
		mu.Unlock()
	}()
	failed := func(what string, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", what, err)
	}

	hr := s.request(traced, r, req)
	first := s.cn.history.mark()
	t.Sent = clock.Now()
	resp, err := s.cc.RoundTrip(hr)
	if err != nil {
		// A stream that is reset is an answer: its connection lives, and only what
		// died with a connection is sent again.
		return isStreamError(err), failed("waiting for the answer", err)
	}
	s.known.Store(true) // settings come before any answer
	defer resp.Body.Close()
	stamp, _ := s.cn.history.since(first, clock)
	if err := h.Headers(resp.StatusCode, resp.Header, stamp); err != nil {
		return true, err
	}
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	n := int64(0)
	for {
		k, err := resp.Body.Read(b.bytes[:])
		stamp, next := s.cn.history.since(first, clock)
		if k < len(b.bytes) { // none of it is left
			first = next
		}
		if n += int64(k); k > 0 {
			if err := h.Data(b.bytes[:k], stamp); err != nil {
				return true, err
			}
		}
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			return true, failed(fmt.Sprintf("the answer was cut after %d bytes of its body", n), err)
		}
	}
}

// request makes net/http's request of ours.
func (s *stream) request(ctx context.Context, r *route, req *Request) *http.Request {
	scheme := "http"
	if r.tls {
		scheme = "https"
	}
	u := &url.URL{Scheme: scheme, Host: r.host, Opaque: r.uri}
	hr := (&http.Request{Method: req.method(), URL: u, Host: r.host, Header: req.Header.Clone()}).WithContext(ctx)
	if hr.Header == nil {
		hr.Header = http.Header{}
	}
	for name, value := range map[string]string{"User-Agent": "trueload", "Accept-Encoding": "identity"} {
		if hr.Header[name] == nil {
			hr.Header.Set(name, value)
		}
	}
	for _, name := range []string{"Connection", "Content-Length", "Transfer-Encoding", "Trailer"} {
		hr.Header.Del(name)
	}
	if host := hr.Header.Get("Host"); host != "" {
		hr.Host = host
		hr.Header.Del("Host")
	}
	if len(req.Body) > 0 {
		hr.Body, hr.ContentLength = io.NopCloser(bytes.NewReader(req.Body)), int64(len(req.Body))
	}
	return hr
}

// isStreamError tells the reset of one stream from the death of its connection.
func isStreamError(err error) bool {
	var reset streamReset
	return errors.As(err, &reset)
}

// streamReset has the fields of net/http's own error for a reset stream, which
// is not exported and offers itself to errors.As by them.
type streamReset struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (r streamReset) Error() string { return fmt.Sprintf("stream %d was reset", r.StreamID) }
