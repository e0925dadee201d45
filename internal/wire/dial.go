package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// environmentProxy reads the proxy settings once.
func environmentProxy() func(*url.URL) (*url.URL, error) {
	return httpproxy.FromEnvironment().ProxyFunc()
}

// connect makes a new connection along the route, ready for a request.
func (c *Client) connect(ctx context.Context, r *route) (*conn, error) {
	c.count.dials.Add(1)
	fail := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &ConnectError{Addr: r.addr, Hint: hint(err), Err: plain(err)}
	}
	raw, err := c.dial(ctx, r.network, r.addr)
	if err != nil {
		return nil, fail(err)
	}
	cn := &conn{Conn: raw, client: c, watch: c.kernel.socket(raw)}
	c.count.open.Add(1)
	if r.proxy != nil && r.tls {
		err = cn.tunnel(ctx, r)
	}
	if err == nil && r.tls {
		err = cn.secure(ctx, c.tlsConfig(r))
	}
	if err != nil {
		cn.Close()
		return nil, fail(err)
	}
	return cn, nil
}

// tunnel asks the proxy for a connection to the server.
func (c *conn) tunnel(ctx context.Context, r *route) error {
	stop := context.AfterFunc(ctx, c.interrupt)
	defer stop()
	ask := "CONNECT " + r.origin + " HTTP/1.1\r\nHost: " + r.origin + "\r\nUser-Agent: trueload\r\n"
	if auth := r.proxyAuth(); auth != "" {
		ask += "Proxy-Authorization: " + auth + "\r\n"
	}
	if _, err := io.WriteString(c.Conn, ask+"\r\n"); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	var head []byte
	end := -1
	for end < 0 {
		b, _, err := c.next()
		if err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
		from := max(0, len(head)-2)
		head = append(head, b...)
		c.release()
		if end = headEnd(head, from); end < 0 && len(head) > maxHead {
			return errors.New("proxy: its answer's headers are too long")
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head[:end])), &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
		return fmt.Errorf("proxy: malformed answer: %w", err)
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("proxy: it answered %s to CONNECT %s", resp.Status, r.origin)
	case end < len(head):
		return errors.New("proxy: bytes came before TLS began")
	}
	return nil
}

// secure does the TLS handshake.
func (c *conn) secure(ctx context.Context, config *tls.Config) error {
	c.tls = tls.Client(c, config)
	return c.tls.HandshakeContext(ctx)
}

func (c *Client) tlsConfig(r *route) *tls.Config {
	config := c.opt.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	if config.ServerName == "" {
		config.ServerName = r.name
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	if c.opt.HTTP1 {
		config.NextProtos = config.NextProtos[1:]
	}
	config.InsecureSkipVerify = config.InsecureSkipVerify || c.opt.Insecure
	return config
}

// plain says in plain words what went wrong.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		var dns *net.DNSError
		if !errors.As(err, &dns) { // whose own words are best
			err = op.Err
		}
	}
	var bad x509.CertificateInvalidError
	if errors.As(err, &bad) && bad.Reason == x509.Expired && bad.Cert != nil {
		if now := time.Now(); now.Before(bad.Cert.NotBefore) {
			return &worded{"the server's certificate is not valid before " + bad.Cert.NotBefore.UTC().Format(time.DateTime) + " UTC", err}
		}
		return &worded{"the server's certificate expired on " + bad.Cert.NotAfter.UTC().Format(time.DateTime) + " UTC", err}
	}
	if u := new(x509.UnknownAuthorityError); errors.As(err, u) {
		return &worded{"the server's certificate is signed by an authority that is not known here", err}
	}
	if h := new(tls.RecordHeaderError); errors.As(err, h) {
		return &worded{"the server does not speak TLS", err}
	}
	return err
}

// worded is an error in other words.
type worded struct {
	text string
	err  error
}

func (e *worded) Error() string { return e.text }
func (e *worded) Unwrap() error { return e.err }

// hint says what to do about a failure to connect, where that is plain.
func hint(err error) string {
	var h tls.RecordHeaderError
	var u x509.UnknownAuthorityError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no local port is free: one source address has about 28,000 to one target"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "too few file descriptors: raise ulimit -n"
	case errors.As(err, &h):
		return "is its URL http:// rather than https://?"
	case errors.As(err, &u):
		return "give its CA, or accept any certificate"
	}
	return ""
}
