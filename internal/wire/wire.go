// Package wire is an HTTP client whose reads carry arrival stamps. A Client
// sends a Request and hands the answer, piece by piece as the socket gave it,
// to a Handler; each piece comes with a Stamp that says when it arrived and how
// surely that is known (measurement contract, section 1). On Linux the time is
// the kernel's own, so the scheduling of this process is not in it.
//
// It speaks HTTP/1.1 by itself and HTTP/2 through net/http, over TCP, TLS,
// HTTP proxies and Unix sockets. It never holds a connection back: there is no
// cap on connections anywhere. It does not retry, follow redirects, decompress,
// keep cookies, or know what the bytes mean.
package wire

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Unset is an offset that does not exist: the same value as plan.Unset.
const Unset time.Duration = -1 << 63

// Stamp says when the bytes of one read arrived. All times are offsets of the
// Client's Clock, and Earliest <= At <= Read.
type Stamp struct {
	// At is the arrival time to use for bytes of this read.
	At time.Duration
	// Earliest: no byte of this read arrived before this. On connections that
	// the kernel does not let us watch (other systems than Linux, and whatever
	// Options.Dial makes up) nothing is known and Earliest = At.
	Earliest time.Duration
	// Read is when the read returned; Read - At is the read lag.
	Read time.Duration
	// Kernel: At is the kernel's time of the last segment of the read.
	Kernel bool
	// Refused: the kernel gave a time outside [Earliest, Read]; At = Read.
	Refused bool
	// More: further bytes of the same read follow after these, so that At may
	// be theirs. The bytes that merely end an HTTP chunk do not count.
	More bool
}

// Width is the width of the interval that the arrival of the stamp's last byte
// lies in: 0 where the kernel timed that very byte.
func (s Stamp) Width() time.Duration {
	if s.Kernel && !s.More {
		return 0
	}
	return s.At - s.Earliest
}

// Request is one HTTP request. Client.Do does not change it, so it may be
// prepared long before it is sent and sent more than once.
type Request struct {
	Method string // "": GET, or POST where there is a Body
	// URL is http, https, or unix. A Unix socket's URL holds both paths,
	// unix:///run/llm.sock/v1/models: the socket's ends at the first ".sock",
	// or else at the first ":" (unix:///run/llm:/v1/models).
	URL *url.URL
	// Header is sent as it is, after Host, User-Agent, Accept-Encoding and
	// Content-Length, each of which it may override except the last.
	Header http.Header
	Body   []byte
	// Session keeps connections for the requests of this key alone, until
	// EndSession; "": connections are pooled.
	Session string
	// NoReuse takes a fresh connection and closes it afterwards.
	NoReuse bool
}

// Handler receives an answer. Its methods are called from the goroutine that
// called Do, in order: Headers once, then Data any number of times. An error
// stops the exchange, closes the connection and is returned by Do.
type Handler interface {
	Headers(status int, h http.Header, s Stamp) error
	// Data hands over bytes of the body, never none. They are valid only
	// during the call.
	Data(b []byte, s Stamp) error
}

// Timing is when a request went out. Offsets are Unset where the moment never
// came.
type Timing struct {
	Connected time.Duration // the connection was ready: DNS, connect, proxy and TLS lie before it
	Sent      time.Duration // just before the first byte was handed to the socket
	Written   time.Duration // the last byte was handed to the socket
	Reused    bool          // the connection had served before
	// Reconnects is 1 where a reused connection died before any byte of the
	// answer and was replaced; Connected and Sent are then the second ones.
	Reconnects int
}

// Options tune a Client; the zero value works.
type Options struct {
	// Clock is the run's clock; nil: a new one.
	Clock *Clock
	// Dial makes connections in place of a net.Dialer, such as in-memory ones
	// in tests. With it, proxies of the environment are not used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is the base of every TLS configuration (CAs, client certificates).
	// Nil: the system's CAs. ServerName and NextProtos are filled in.
	TLS *tls.Config
	// Insecure accepts any certificate.
	Insecure bool
	// HTTP1 offers servers no HTTP/2. Otherwise https URLs use it where the
	// server picks it. Streams of one HTTP/2 connection share its reads, so
	// their stamps are wider.
	HTTP1 bool
	// H2C speaks HTTP/2 to http and unix URLs, without asking.
	H2C bool
	// Proxy returns the proxy to use for a URL, or nil. Nil: as HTTP_PROXY,
	// HTTPS_PROXY and NO_PROXY say; loopback addresses are then never proxied.
	Proxy func(*url.URL) (*url.URL, error)
	// IdleTimeout closes connections that were idle for longer; 0: 90 s.
	IdleTimeout time.Duration
}

// Stats counts what a Client did since it was made.
type Stats struct {
	Open       int64 `json:"open"`       // connections open now, idle ones included
	Dials      int64 `json:"dials"`      // connections made or tried
	Reused     int64 `json:"reused"`     // exchanges that began on a connection that had served before
	Reconnects int64 `json:"reconnects"` // reused connections that died before any byte of an answer and were replaced
	Reads      int64 `json:"reads"`      // reads that brought bytes
	// KernelMissing counts reads of TCP bytes that bore no kernel time,
	// Refused those whose kernel time lay outside the interval. Linux only.
	KernelMissing int64 `json:"kernel_missing"`
	Refused       int64 `json:"refused"`
	// WitnessMax is the longest time between two looks of the thread that
	// bounds arrival times from below, while exchanges were open; normally
	// little above 1 ms. 0: it never ran.
	WitnessMax time.Duration `json:"witness_max_ns"`
	// ClockSteps counts steps of the system's wall clock.
	ClockSteps int64 `json:"clock_steps"`
	// Retransmits (segments of ours sent again), OutOfOrder (segments that
	// came out of order, a sign of loss on the way here) and PeerWindow (time
	// that uploads waited for the peer's receive window, zero windows
	// included) are summed over TCP connections when they close. Linux only.
	Retransmits int64         `json:"retransmits"`
	OutOfOrder  int64         `json:"out_of_order"`
	PeerWindow  time.Duration `json:"peer_window_ns"`
}

// ConnectError: no connection came about, and nothing was sent.
type ConnectError struct {
	Addr string // what was connected to: host:port, or a socket's path
	Hint string // what to do, or ""
	Err  error
}

func (e *ConnectError) Error() string {
	s := "connect to " + e.Addr + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func (e *ConnectError) Unwrap() error { return e.Err }
