package wire

import (
	"context"
	"errors"
)

// Client sends requests and stamps what comes back. It is safe for concurrent
// use.
type Client struct {
	opt   Options
	clock *Clock
}

// NewClient returns a client; Close it in the end.
func NewClient(opt Options) *Client {
	if opt.Clock == nil {
		opt.Clock = NewClock()
	}
	return &Client{opt: opt, clock: opt.Clock}
}

// Clock returns the clock that every stamp is an offset of.
func (c *Client) Clock() *Clock { return c.clock }

// Do sends req and hands the answer to h; it returns when the answer ended. It
// returns nil for a complete answer of whatever status, *ConnectError where no
// connection came about, context.Cause(ctx) where ctx ended first, h's own
// error, and else what went wrong. t is filled in as things happen, also when
// Do fails.
func (c *Client) Do(ctx context.Context, req *Request, t *Timing, h Handler) error {
	return errors.New("not there yet")
}

// EndSession closes the idle connections that are kept for the session key.
// Call it when the session's last Do has returned.
func (c *Client) EndSession(key string) {}

// Stats returns the counts so far.
func (c *Client) Stats() Stats { return Stats{} }

// Close closes idle connections and releases what the client holds. Exchanges
// still open run on.
func (c *Client) Close() error { return nil }
