package wire

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"time"
)

// Client sends requests and stamps what comes back. It is safe for concurrent
// use.
type Client struct {
	opt    Options
	clock  *Clock
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	proxy  func(*url.URL) (*url.URL, error)
	pool   pool
	shared shared // HTTP/2
	kernel kernel
	count  counts
}

// counts are what Stats sums up.
type counts struct {
	open, dials, reused, reconnects, reads atomic.Int64
	missing, refused                       atomic.Int64
	retransmits, outOfOrder, peerWindow    atomic.Int64
}

// NewClient returns a client; Close it in the end. Without Options.Dial it takes
// some 20 ms on Linux, in which the kernel begins to stamp packets.
func NewClient(opt Options) *Client {
	c := &Client{opt: opt, clock: opt.Clock, dial: opt.Dial, proxy: opt.Proxy}
	if c.clock == nil {
		c.clock = NewClock()
	}
	if c.opt.IdleTimeout == 0 {
		c.opt.IdleTimeout = 90 * time.Second
	}
	if c.proxy == nil {
		c.proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
		if c.dial == nil {
			c.proxy = environmentProxy()
		}
	}
	c.pool = pool{clock: c.clock, timeout: c.opt.IdleTimeout}
	c.kernel.init(c.clock, &c.count)
	if c.dial == nil {
		c.kernel.hold()
		c.kernel.settle()
		c.dial = (&net.Dialer{Control: c.kernel.control}).DialContext
	}
	return c
}

// Clock returns the clock that every stamp is an offset of.
func (c *Client) Clock() *Clock { return c.clock }

// link is a connection that can do exchanges: conn, or the shared one of HTTP/2.
type link interface {
	do(ctx context.Context, r *route, req *Request, t *Timing, h Handler) (answered bool, err error)
	used() bool
}

func (c *conn) used() bool { return c.served }

// Do sends req and hands the answer to h; it returns when the answer ended. It
// returns nil for a complete answer of whatever status, *ConnectError where no
// connection came about, context.Cause(ctx) where ctx ended first, h's own
// error, and else what went wrong. t is filled in also when Do fails.
//
// A connection that had served before and dies before any byte of the answer
// (the server closed it just then) is replaced by a fresh one and the request
// sent again, once; t.Reconnects says so.
func (c *Client) Do(ctx context.Context, req *Request, t *Timing, h Handler) error {
	*t = Timing{Connected: Unset, Sent: Unset, Written: Unset}
	if err := req.check(); err != nil {
		return err
	}
	r, err := c.route(req.URL)
	if err != nil {
		return err
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l, err := c.acquire(ctx, r, req, t.Reconnects > 0)
		if err != nil {
			return err
		}
		t.Connected, t.Reused = c.clock.Now(), l.used()
		if t.Reused {
			c.count.reused.Add(1)
		}
		answered, err := l.do(ctx, r, req, t, h)
		if err == nil || answered || !t.Reused || ctx.Err() != nil {
			return err
		}
		t.Reconnects++
		c.count.reconnects.Add(1)
		t.Connected, t.Sent, t.Written = Unset, Unset, Unset
	}
}

// acquire returns a connection for req: an idle one, unless it must be fresh.
func (c *Client) acquire(ctx context.Context, r *route, req *Request, fresh bool) (link, error) {
	if !fresh && !req.NoReuse {
		if s := c.shared.take(req.Session, r.key()); s != nil {
			return s, nil
		}
		if cn := c.pool.take(req.Session, r.key()); cn != nil {
			return cn, nil
		}
	}
	cn, err := c.connect(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.h2c || cn.tls != nil && cn.tls.ConnectionState().NegotiatedProtocol == "h2" {
		return c.share(ctx, cn, r, req)
	}
	return cn, nil
}

// EndSession closes the idle connections that are kept for the session key.
// Call it when the session's last Do has returned.
func (c *Client) EndSession(key string) {
	if key != "" {
		c.pool.end(key)
		c.shared.end(key)
	}
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	s := Stats{
		Open:          c.count.open.Load(),
		Dials:         c.count.dials.Load(),
		Reused:        c.count.reused.Load(),
		Reconnects:    c.count.reconnects.Load(),
		Reads:         c.count.reads.Load(),
		KernelMissing: c.count.missing.Load(),
		Refused:       c.count.refused.Load(),
		ClockSteps:    c.clock.Steps(),
		Retransmits:   c.count.retransmits.Load(),
		OutOfOrder:    c.count.outOfOrder.Load(),
		PeerWindow:    time.Duration(c.count.peerWindow.Load()) * time.Microsecond,
	}
	c.kernel.stats(&s)
	return s
}

// Close closes idle connections and releases what the client holds. Exchanges
// still open run on.
func (c *Client) Close() error {
	c.pool.close()
	c.shared.close()
	c.kernel.close()
	return nil
}
