package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Requests with a body up to this are written before the answer is read: they
// fit into a socket's buffer. Larger ones are written meanwhile, since a server
// may answer 413 or 429 before it has read them.
const writeFirst = 64 << 10

// do sends one request and reads its answer. answered tells whether any byte of
// one came.
func (c *conn) do(ctx context.Context, r *route, req *Request, t *Timing, h Handler) (answered bool, err error) {
	cl := c.client
	if c.watch != nil {
		cl.kernel.begin()
		defer cl.kernel.end()
	}
	// The body is not copied where it goes out by itself.
	head := appendHead(make([]byte, 0, 1<<10), r, req)
	d := &decoder{method: req.method(), h: h}

	stop := context.AfterFunc(ctx, c.interrupt)
	keep := false
	defer func() {
		if !stop() || !keep {
			c.Close()
			return
		}
		cl.pool.put(req.Session, r.key(), c)
	}()

	clock := cl.clock
	t.Sent = clock.Now()
	if c.watch != nil {
		c.watch.silent(t.Sent) // no answer comes before its request
	}
	var sent chan struct{}
	var writeErr error
	written := Unset
	send := func() {
		if writeErr = c.write(head, req.Body); writeErr == nil {
			written = clock.Now()
			return
		}
		// A server that refuses an upload may have said why. The wait is for
		// those that neither say so nor close.
		c.SetReadDeadline(time.Now().Add(time.Second))
		if ctx.Err() != nil {
			c.interrupt()
		}
	}
	if c.watch != nil && len(req.Body) <= writeFirst {
		send()
		t.Written, head = written, nil
	} else {
		sent = make(chan struct{})
		go func() { defer close(sent); send() }()
	}

	extra := false
	for d.state != done && err == nil {
		var b []byte
		var s Stamp
		if b, s, err = c.next(); err == nil {
			var n int
			n, err = d.feed(b, s)
			extra = n < len(b)
		} else if err == io.EOF {
			err = d.eof()
		} else if err == io.ErrUnexpectedEOF {
			if e := d.eof(); e != nil { // says where
				err = e
			}
		}
		c.release()
	}

	if sent != nil {
		// Where the answer ended first, the upload is given up, and the
		// connection with it.
		c.SetWriteDeadline(past)
		<-sent
		t.Written = written
		if writeErr == nil {
			c.SetWriteDeadline(time.Time{})
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil && d.handlerErr == nil:
		err = context.Cause(ctx)
	case writeErr != nil && !d.started:
		err = fmt.Errorf("sending the request: %w", writeErr)
	case !d.started && d.handlerErr == nil:
		err = fmt.Errorf("waiting for the answer: %w", err)
	}
	keep = err == nil && writeErr == nil && !d.close && !extra && !c.pending() && !req.NoReuse && written != Unset
	return d.started, err
}

// appendHead appends the request line and the headers.
func appendHead(b []byte, r *route, req *Request) []byte {
	method := req.method()
	b = append(append(append(append(b, method...), ' '), r.uri...), " HTTP/1.1\r\n"...)
	header := func(name, value string) {
		b = append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
	}
	or := func(name, value string) {
		if len(req.Header[name]) == 0 {
			header(name, value)
		}
	}
	or("Host", r.host)
	or("User-Agent", "trueload")
	or("Accept-Encoding", "identity")
	if req.NoReuse {
		or("Connection", "close")
	}
	if !r.tls && r.proxy != nil {
		if auth := r.proxyAuth(); auth != "" {
			or("Proxy-Authorization", auth)
		}
	}
	if len(req.Body) > 0 || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		header("Content-Length", strconv.Itoa(len(req.Body)))
	}
	names := make([]string, 0, 16)
	for name := range req.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if framing[http.CanonicalHeaderKey(name)] {
			continue
		}
		for _, v := range req.Header[name] {
			header(name, v)
		}
	}
	return append(b, "\r\n"...)
}

// framing headers are ours alone.
var framing = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Trailer": true}
