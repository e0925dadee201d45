package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

// serve accepts on an address of the loopback and runs f on each connection.
func serve(t testing.TB, network, addr string, f func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		if strings.Contains(addr, "[::1]") {
			t.Skip("no IPv6 here: ", err)
		}
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); f(c) })
		}
	})
	return l
}

// requests reads the requests of a connection and calls f with each, until the
// client hangs up or f returns false.
func requests(c net.Conn, f func(r *http.Request, body []byte) bool) {
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || !f(r, body) {
			return
		}
	}
}

func reply(c net.Conn, body string) bool {
	_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return err == nil
}

func newClient(t testing.TB, o Options) *Client {
	if o.Proxy == nil {
		o.Proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
	}
	c := NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

func get(t testing.TB, c *Client, r *Request) (answer, Timing) {
	t.Helper()
	var a answer
	var tm Timing
	if err := c.Do(t.Context(), r, &tm, &a); err != nil {
		t.Fatal(err)
	}
	return a, tm
}

// What is on the wire, header by header, and what the times are.
func TestRequest(t *testing.T) {
	got := make(chan string, 1)
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		got <- string(b[:n])
		reply(c, "hi")
	})
	c := newClient(t, Options{})
	a, tm := get(t, c, &Request{
		URL:    mustURL("http://" + l.Addr().String() + "/v1/x?a=b%20c"),
		Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer k"}, "Content-Length": {"99"}},
		Body:   []byte(`{}`),
	})
	want := "POST /v1/x?a=b%20c HTTP/1.1\r\nHost: " + l.Addr().String() + "\r\nUser-Agent: trueload\r\nAccept-Encoding: identity\r\nContent-Length: 2\r\n" +
		"Authorization: Bearer k\r\nContent-Type: application/json\r\n\r\n{}"
	if g := <-got; g != want {
		t.Errorf("sent\n%q\nwant\n%q", g, want)
	}
	if a.status != 200 || string(a.body) != "hi" || len(a.stamps) != 1 {
		t.Fatalf("got %+v", a)
	}
	s := a.stamps[0]
	if !(0 < tm.Connected && tm.Connected <= tm.Sent && tm.Sent <= tm.Written && tm.Sent <= s.Earliest && s.Earliest <= s.At && s.At <= s.Read) {
		t.Errorf("times out of order: %+v, %+v", tm, s)
	}
	if tm.Reused || tm.Reconnects != 0 {
		t.Errorf("got %+v", tm)
	}
}

func TestMalformedRequests(t *testing.T) {
	c := newClient(t, Options{})
	for name, r := range map[string]*Request{
		"a line end in a header":  {URL: mustURL("http://x/"), Header: http.Header{"A": {"b\r\nC: d"}}},
		"a blank in a name":       {URL: mustURL("http://x/"), Header: http.Header{"A b": {"c"}}},
		"a method with a blank":   {URL: mustURL("http://x/"), Method: "GET /"},
		"a query with a line end": {URL: &url.URL{Scheme: "http", Host: "x", Path: "/", RawQuery: "a\r\nB: c"}},
		"no URL":                  {},
		"no host":                 {URL: mustURL("http:///x")},
		"another scheme":          {URL: mustURL("ftp://x/")},
		"a unix URL of two slash": {URL: mustURL("unix://run/x.sock")},
	} {
		var tm Timing
		var ce *ConnectError
		if err := c.Do(t.Context(), r, &tm, &answer{}); err == nil || errors.As(err, &ce) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := c.Stats().Dials; n != 0 {
		t.Errorf("%d connections made", n)
	}
}

func TestKeepAlive(t *testing.T) {
	var conns atomic.Int64
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		id := conns.Add(1)
		requests(c, func(r *http.Request, _ []byte) bool {
			switch r.URL.Path {
			case "/close":
				io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				return false
			case "/old":
				io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nhi")
				return false
			case "/stray":
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 500 stray\r\n\r\n")
				return true
			}
			return reply(c, fmt.Sprint(id))
		})
	})
	c := newClient(t, Options{})
	base := "http://" + l.Addr().String()
	for _, s := range []struct {
		name   string
		r      Request
		reused bool
	}{
		{"the first", Request{URL: mustURL(base)}, false},
		{"the pooled one", Request{URL: mustURL(base)}, true},
		{"a fresh one on request", Request{URL: mustURL(base), NoReuse: true}, false},
		{"the pooled one is still there", Request{URL: mustURL(base)}, true},
		{"a session's own", Request{URL: mustURL(base), Session: "a"}, false},
		{"the same session", Request{URL: mustURL(base), Session: "a"}, true},
		{"another session", Request{URL: mustURL(base), Session: "b"}, false},
		{"told to close", Request{URL: mustURL(base + "/close")}, true},
		{"after that", Request{URL: mustURL(base)}, false},
		{"HTTP/1.0", Request{URL: mustURL(base + "/old")}, true},
		{"after that too", Request{URL: mustURL(base)}, false},
		{"bytes that nobody asked for", Request{URL: mustURL(base + "/stray")}, true},
		{"are not the next answer", Request{URL: mustURL(base)}, false},
	} {
		a, tm := get(t, c, &s.r)
		if tm.Reused != s.reused || tm.Reconnects != 0 || a.status != 200 {
			t.Errorf("%s: status %d, %+v", s.name, a.status, tm)
		}
	}
	if s := c.Stats(); s.Open != 3 {
		t.Errorf("%d connections open, want the pooled one and two sessions'", s.Open)
	}
	c.EndSession("a")
	if s := c.Stats(); s.Open != 2 {
		t.Errorf("%d connections open after a session's end, want 2", s.Open)
	}
	if _, tm := get(t, c, &Request{URL: mustURL(base), Session: "a"}); tm.Reused {
		t.Error("an ended session's connection lives on")
	}
	c.Close()
	if s := c.Stats(); s.Open != 0 {
		t.Errorf("%d connections open after Close", s.Open)
	}
}

// Last in, first out; what was idle for too long is not used.
func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipeClient(t, func(c net.Conn) {
			requests(c, func(*http.Request, []byte) bool { return reply(c, "hi") })
		})
		r := &Request{URL: mustURL("http://llm.test/")}
		get(t, c, r)
		time.Sleep(90 * time.Second)
		if _, tm := get(t, c, r); !tm.Reused {
			t.Error("not reused after 90 s")
		}
		time.Sleep(90*time.Second + 1)
		if _, tm := get(t, c, r); tm.Reused || tm.Reconnects != 0 {
			t.Errorf("after more than 90 s: %+v", tm)
		}
	})
}

// pipeClient is a client in a test bubble: its connections are in memory.
func pipeClient(t *testing.T, server func(net.Conn)) *Client {
	return newClient(t, Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() { defer theirs.Close(); server(theirs) }()
		return ours, nil
	}})
}

// C8: a server that says Keep-Alive: timeout=5, max=100 and closes after each
// streamed answer. Nothing is lost, nothing is sent twice unsaid.
func TestC8_ClosesAfterEachAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		// late: the close comes when the next request is already on its way.
		late bool
	}{{"at once", false}, {"when the next request comes", true}} {
		t.Run(c.name, func(t *testing.T) {
			var answered, dropped atomic.Int64
			l := serve(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
				br := bufio.NewReader(conn)
				for n := 0; ; n++ {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					if n > 0 { // the request of a client that believed the promise
						dropped.Add(1)
						return
					}
					answered.Add(1)
					io.WriteString(conn, "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nTransfer-Encoding: chunked\r\n\r\n")
					for range 3 {
						io.WriteString(conn, "7\r\ndata: x\r\n")
					}
					io.WriteString(conn, "0\r\n\r\n")
					if !c.late {
						return
					}
				}
			})
			cl := newClient(t, Options{})
			r := &Request{URL: mustURL("http://" + l.Addr().String()), Body: []byte(`{"stream":true}`)}
			const clients, each = 8, 50
			var reconnects atomic.Int64
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for range each {
						var a answer
						var tm Timing
						if err := cl.Do(t.Context(), r, &tm, &a); err != nil || string(a.body) != "data: xdata: xdata: x" {
							t.Errorf("lost: %v, %q", err, a.body)
							return
						}
						if tm.Reconnects > 1 || tm.Reconnects == 1 && tm.Reused {
							t.Errorf("got %+v", tm)
						}
						reconnects.Add(int64(tm.Reconnects))
					}
				})
			}
			wg.Wait()
			if n := answered.Load(); n != clients*each {
				t.Errorf("the server answered %d requests, want %d", n, clients*each)
			}
			if n := cl.Stats().Reconnects; n != reconnects.Load() || dropped.Load() > n {
				t.Errorf("%d requests were dropped, %d reconnects told, %d counted", dropped.Load(), reconnects.Load(), n)
			}
			if c.late && reconnects.Load() == 0 {
				t.Error("no connection died: the case shows nothing")
			}
		})
	}
}

// C8, the other side: a fresh connection that dies is an error, and a second
// death is not tried a third time; an answer begun is never sent for again.
func TestC8_NotARetry(t *testing.T) {
	var conns, reqs atomic.Int64
	var mode atomic.Value
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		conns.Add(1)
		requests(c, func(*http.Request, []byte) bool {
			reqs.Add(1)
			switch mode.Load() {
			case "die":
				return false
			case "cut":
				io.WriteString(c, "HTTP/1.1 200 OK\r\nConten")
				return false
			}
			return reply(c, "hi")
		})
	})
	cl := newClient(t, Options{})
	r := &Request{URL: mustURL("http://" + l.Addr().String())}
	do := func() (Timing, error) {
		var tm Timing
		return tm, cl.Do(t.Context(), r, &tm, &answer{})
	}
	check := func(name string, wantReqs int64, wantReconnects int) {
		t.Helper()
		reqs.Store(0)
		tm, err := do()
		if err == nil || reqs.Load() != wantReqs || tm.Reconnects != wantReconnects {
			t.Errorf("%s: %v, %d requests, %+v", name, err, reqs.Load(), tm)
		}
	}
	mode.Store("die")
	check("a fresh connection dies", 1, 0)
	mode.Store("live")
	do()
	mode.Store("die")
	check("a reused one dies, then a fresh one", 2, 1)
	mode.Store("live")
	do()
	mode.Store("cut")
	check("a reused one dies within the answer", 1, 0)
}

// L8: 2,000 streams asked are 2,000 on the server.
func TestL8_NoHiddenCap(t *testing.T) {
	if testing.Short() {
		t.Skip("2,000 connections")
	}
	const n = 2000
	var open sync.WaitGroup
	open.Add(n)
	release := make(chan struct{})
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			open.Done()
			<-release
			io.WriteString(c, "1\r\nb\r\n0\r\n\r\n")
			return true
		})
	})
	cl := newClient(t, Options{})
	r := &Request{URL: mustURL("http://" + l.Addr().String()), Body: []byte("{}")}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var good atomic.Int64
	for range n {
		wg.Go(func() {
			var a answer
			var tm Timing
			if err := cl.Do(ctx, r, &tm, &a); err != nil {
				t.Error(err)
			} else if string(a.body) == "ab" {
				good.Add(1)
			}
		})
	}
	all := make(chan struct{})
	go func() { open.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
		t.Error("the server never saw all streams at once")
	}
	close(release)
	wg.Wait()
	if good.Load() != n {
		t.Errorf("%d of %d complete", good.Load(), n)
	}
}

// L12: a server that accepts and never answers; a deadline ends it, to the
// nanosecond.
func TestL12_NeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipeClient(t, func(c net.Conn) { io.Copy(io.Discard, c) })
		cause := errors.New("its own deadline")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, cause)
		defer cancel()
		var tm Timing
		err := c.Do(ctx, &Request{URL: mustURL("http://llm.test/"), Body: []byte("{}")}, &tm, &answer{})
		if err != cause || c.Clock().Now() != 30*time.Second {
			t.Errorf("got %v at %v", err, c.Clock().Now())
		}
		if tm.Sent != 0 || tm.Written != 0 || c.Stats().Open != 0 {
			t.Errorf("got %+v, %d open", tm, c.Stats().Open)
		}
	})
}

// A context ends whatever an exchange waits for, and the connection.
func TestCancel(t *testing.T) {
	block := make(chan struct{})
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(r *http.Request, _ []byte) bool {
			if r.URL.Path == "/stream" {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			}
			<-block
			return false
		})
	})
	silent := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { <-block }) // reads nothing
	defer close(block)
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	for _, c := range []struct {
		name string
		opt  Options
		r    Request
	}{
		{"while it waits for an answer", Options{}, Request{URL: mustURL("http://" + l.Addr().String())}},
		{"in mid-stream", Options{}, Request{URL: mustURL("http://" + l.Addr().String() + "/stream")}},
		{"while it dials", Options{Dial: hang}, Request{URL: mustURL("http://x.test/")}},
		{"in the TLS handshake", Options{}, Request{URL: mustURL("https://" + silent.Addr().String())}},
		{"while it uploads", Options{}, Request{URL: mustURL("http://" + silent.Addr().String()), Body: make([]byte, 32<<20)}},
		{"while a proxy thinks", Options{Proxy: func(*url.URL) (*url.URL, error) { return mustURL("http://" + silent.Addr().String()), nil }}, Request{URL: mustURL("https://x.test/")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newClient(t, c.opt)
			cause := errors.New("hung up")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(30*ms, func() { cancel(cause) })
			var tm Timing
			start := time.Now()
			if err := cl.Do(ctx, &c.r, &tm, &answer{}); err != cause {
				t.Errorf("got %v", err)
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("took %v", d)
			}
			if n := cl.Stats().Open; n != 0 {
				t.Errorf("%d connections left open", n)
			}
		})
	}
	// Before anything began.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	cl := newClient(t, Options{})
	if err := cl.Do(ctx, &Request{URL: mustURL("http://127.0.0.1:1/")}, new(Timing), &answer{}); err != io.ErrNoProgress || cl.Stats().Dials != 0 {
		t.Errorf("ended before: %v, %d dials", err, cl.Stats().Dials)
	}
}

// A handler's error comes out as it is and closes the connection.
func TestHandlerError(t *testing.T) {
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool { return reply(c, "hello") })
	})
	cl := newClient(t, Options{})
	stop := errors.New("enough")
	a := answer{onData: func([]byte, Stamp) error { return stop }}
	if err := cl.Do(t.Context(), &Request{URL: mustURL("http://" + l.Addr().String())}, new(Timing), &a); err != stop {
		t.Errorf("got %v", err)
	}
	if n := cl.Stats().Open; n != 0 {
		t.Errorf("%d connections left open", n)
	}
}

// A server answers 429 to a large upload that it does not read.
func TestEarlyAnswer(t *testing.T) {
	const head = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow"
	check := func(t *testing.T, c *Client, u string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var a answer
		var tm Timing
		if err := c.Do(ctx, &Request{URL: mustURL(u), Body: make([]byte, 32<<20)}, &tm, &a); err != nil {
			t.Fatal(err)
		}
		if a.status != 429 || string(a.body) != "slow" || a.header.Get("Retry-After") != "7" || tm.Written != Unset || tm.Sent == Unset {
			t.Errorf("got %d %q %+v", a.status, a.body, tm)
		}
		if n := c.Stats().Open; n != 0 {
			t.Errorf("a half-used connection is kept")
		}
	}
	early := func(hold <-chan struct{}) func(net.Conn) {
		return func(c net.Conn) {
			c.Read(make([]byte, 100))
			io.WriteString(c, head)
			<-hold
		}
	}
	hold, none := make(chan struct{}), make(chan struct{})
	close(none)
	l := serve(t, "tcp", "127.0.0.1:0", early(hold))
	t.Run("and waits", func(t *testing.T) { check(t, newClient(t, Options{}), "http://"+l.Addr().String()) })
	close(hold)
	t.Run("in memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { check(t, pipeClient(t, early(none)), "http://llm.test/") })
	})
}

// S11: an error status after 2 s is an answer at 2 s.
func TestS11_LateError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipeClient(t, func(c net.Conn) {
			requests(c, func(*http.Request, []byte) bool {
				time.Sleep(2 * time.Second)
				io.WriteString(c, "HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad")
				return true
			})
		})
		a, tm := get(t, c, &Request{URL: mustURL("http://llm.test/")})
		if a.status != 500 || a.headers.At != 2*time.Second || a.headers.Width() != 0 || tm.Written != 0 {
			t.Errorf("got %d %+v %+v", a.status, a.headers, tm)
		}
	})
}

func TestCloseDelimited(t *testing.T) {
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhello")
			return false
		})
	})
	a, _ := get(t, newClient(t, Options{}), &Request{URL: mustURL("http://" + l.Addr().String())})
	if string(a.body) != "hello" {
		t.Errorf("got %q", a.body)
	}
}

func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	for name, sep := range map[string]string{"llm.sock": "", "llm": ":"} {
		path := filepath.Join(dir, name)
		serve(t, "unix", path, func(c net.Conn) {
			requests(c, func(r *http.Request, _ []byte) bool { return reply(c, r.Host+r.RequestURI) })
		})
		cl := newClient(t, Options{})
		a, _ := get(t, cl, &Request{URL: mustURL("unix://" + path + sep + "/v1/models?x=1")})
		if string(a.body) != "localhost/v1/models?x=1" {
			t.Errorf("%s: got %q", name, a.body)
		}
		a, tm := get(t, cl, &Request{URL: mustURL("unix://" + path)})
		if string(a.body) != "localhost/" || !tm.Reused {
			t.Errorf("%s: got %q, %+v", name, a.body, tm)
		}
		if s := a.stamps[0]; s.Kernel || s.Refused {
			t.Errorf("a Unix socket has no kernel times: %+v", s)
		}
	}
}

func TestSplitSocket(t *testing.T) {
	for in, want := range map[string][2]string{
		"/run/llm.sock":             {"/run/llm.sock", "/"},
		"/run/llm.sock/v1/models":   {"/run/llm.sock", "/v1/models"},
		"/run/llm.sock:/v1":         {"/run/llm.sock", "/v1"},
		"/run/a.socket/llm.sock/v1": {"/run/a.socket/llm.sock", "/v1"},
		"/run/llm:/v1":              {"/run/llm", "/v1"},
		"/run/llm":                  {"/run/llm", "/"},
		"":                          {"", "/"},
	} {
		if sock, path := splitSocket(in); sock != want[0] || path != want[1] {
			t.Errorf("%q: got %q and %q", in, sock, path)
		}
	}
}

func TestConnectErrors(t *testing.T) {
	closed := serve(t, "tcp", "127.0.0.1:0", func(net.Conn) {})
	closed.Close()
	plainHTTP := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		c.Read(make([]byte, 1000))
		io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	})
	expired := serveTLS(t, certificate(t, time.Now().Add(-time.Hour)), nil)
	unknown := serveTLS(t, certificate(t, time.Now().Add(time.Hour)), nil)
	roots := x509.NewCertPool()
	roots.AddCert(expired.cert)
	for _, c := range []struct {
		name, url, want string
		is              error
	}{
		{"nothing listens", "http://" + closed.Addr().String(), "connection refused (nothing listens there)", syscall.ECONNREFUSED},
		{"no TLS there", "https://" + plainHTTP.Addr().String(), "the server does not speak TLS (is its URL http:// rather than https://?)", nil},
		{"an expired certificate", "https://" + expired.Addr().String(), "the server's certificate expired on ", nil},
		{"an unknown authority", "https://" + unknown.Addr().String(), "the server's certificate is signed by an authority that is not known here", nil},
		{"no such socket", "unix://" + t.TempDir() + "/x.sock", "no such file or directory", syscall.ENOENT},
	} {
		cl := newClient(t, Options{TLS: &tls.Config{RootCAs: roots}})
		var tm Timing
		err := cl.Do(t.Context(), &Request{URL: mustURL(c.url)}, &tm, &answer{})
		var ce *ConnectError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if tm.Connected != Unset || tm.Sent != Unset || cl.Stats().Open != 0 {
			t.Errorf("%s: %+v, %d open", c.name, tm, cl.Stats().Open)
		}
	}
	if _, tm := get(t, newClient(t, Options{Insecure: true}), &Request{URL: mustURL("https://" + expired.Addr().String())}); tm.Connected == Unset {
		t.Error("Insecure")
	}
}

// certificate makes a self-signed one for the loopback.
func certificate(t testing.TB, until time.Time) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: until.Add(-24 * time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"llm.test"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

type tlsServer struct {
	net.Listener
	cert *x509.Certificate
}

// serveTLS answers every request; nil: with "hi". Before the handshake it waits
// for delay.
func serveTLS(t testing.TB, cert tls.Certificate, f func(net.Conn), delay ...time.Duration) tlsServer {
	if f == nil {
		f = func(c net.Conn) { requests(c, func(*http.Request, []byte) bool { return reply(c, "hi") }) }
	}
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		for _, d := range delay {
			time.Sleep(d)
		}
		f(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}}))
	})
	return tlsServer{l, cert.Leaf}
}

func (s tlsServer) options() Options {
	roots := x509.NewCertPool()
	roots.AddCert(s.cert)
	return Options{TLS: &tls.Config{RootCAs: roots}}
}

// C7: IPv6 works.
func TestC7_IPv6(t *testing.T) {
	l := serve(t, "tcp", "[::1]:0", func(c net.Conn) {
		requests(c, func(r *http.Request, _ []byte) bool { return reply(c, r.Host) })
	})
	a, _ := get(t, newClient(t, Options{}), &Request{URL: mustURL("http://" + l.Addr().String() + "/")})
	if string(a.body) != l.Addr().String() {
		t.Errorf("Host was %q", a.body)
	}
}

// C7: a handshake of 100 ms is connect time, not service time.
func TestC7_HandshakeIsConnect(t *testing.T) {
	s := serveTLS(t, certificate(t, time.Now().Add(time.Hour)), nil, 100*ms)
	c := newClient(t, s.options())
	start := c.Clock().Now()
	a, tm := get(t, c, &Request{URL: mustURL("https://" + s.Addr().String())})
	if connect := tm.Connected - start; connect < 100*ms {
		t.Errorf("connect took %v, want 100 ms or more", connect)
	}
	if service := a.stamps[0].At - tm.Sent; service > 80*ms {
		t.Errorf("service time %v holds the handshake", service)
	}
}

// Streams beneath TLS: the bytes are right however records and reads fall, and
// the stamps are those of the raw reads.
func TestTLSStream(t *testing.T) {
	var want bytes.Buffer
	for i := range 200 {
		fmt.Fprintf(&want, "data: %d %s\n\n", i, strings.Repeat("x", i*i))
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		s := serveTLS(t, certificate(t, time.Now().Add(time.Hour)), func(c net.Conn) {
			requests(c, func(r *http.Request, _ []byte) bool {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for b := want.Bytes(); len(b) > 0; {
					n := min(len(b), 5000)
					fmt.Fprintf(c, "%x\r\n%s\r\n", n, b[:n])
					b = b[n:]
				}
				io.WriteString(c, "0\r\n\r\n")
				return true
			})
		})
		o := s.options()
		o.TLS.MaxVersion = version
		c := newClient(t, o)
		for i := range 3 {
			a, tm := get(t, c, &Request{URL: mustURL("https://" + s.Addr().String())})
			if !bytes.Equal(a.body, want.Bytes()) {
				t.Fatalf("TLS %x: the body differs", version)
			}
			if tm.Reused != (i > 0) {
				t.Errorf("TLS %x, request %d: %+v", version, i, tm)
			}
			last := tm.Sent
			for _, s := range a.stamps {
				if s.At < last || s.Earliest > s.At || s.Read < s.At {
					t.Fatalf("stamps out of order: %+v after %v", s, last)
				}
				last = s.At
			}
		}
	}
}

// recordEnds never gives out bytes of two records at once.
func TestRecordEnds(t *testing.T) {
	in := []byte{23, 3, 3, 0, 2, 'a', 'b', 23, 3, 3, 1, 0}
	in = append(in, bytes.Repeat([]byte{'c'}, 256)...)
	in = append(in, 21, 3, 3, 0, 0, 23, 3, 3, 0, 1, 'd')
	ends := map[int]bool{5: true, 7: true, 12: true, 268: true, 273: true, 278: true, 279: true}
	for step := 1; step < 300; step++ {
		var r recordEnds
		at := 0
		for at < len(in) {
			b := r.next(in[at:min(at+step, len(in))], 100)
			if len(b) == 0 {
				t.Fatal("no bytes")
			}
			for i := at + 1; i < at+len(b); i++ {
				if ends[i] {
					t.Fatalf("step %d: bytes %d to %d pass the end at %d", step, at, at+len(b), i)
				}
			}
			at += len(b)
		}
		if r.left != 0 || r.have != 0 {
			t.Fatalf("step %d: %+v", step, r)
		}
	}
}

func TestProxy(t *testing.T) {
	s := serveTLS(t, certificate(t, time.Now().Add(time.Hour)), nil)
	var asked sync.Map
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		br := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			asked.Store(r.Method+" "+r.RequestURI+" "+r.Host, r.Header.Get("Proxy-Authorization"))
			if r.Method != http.MethodConnect {
				reply(c, "by proxy")
				continue
			}
			if r.Header.Get("Proxy-Authorization") == "" {
				io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
				return
			}
			up, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				return
			}
			defer up.Close()
			io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
			go func() { io.Copy(up, br); up.(*net.TCPConn).CloseWrite() }()
			io.Copy(c, up)
			return
		}
	})
	proxy := "http://u:p@" + l.Addr().String()
	o := s.options()
	o.Proxy = func(*url.URL) (*url.URL, error) { return mustURL(proxy), nil }
	o.TLS.ServerName = "llm.test"
	c := newClient(t, o)
	if a, _ := get(t, c, &Request{URL: mustURL("http://llm.test/v1?x=1")}); string(a.body) != "by proxy" {
		t.Errorf("http: got %q", a.body)
	}
	if _, tm := get(t, c, &Request{URL: mustURL("http://other.test/")}); !tm.Reused {
		t.Error("a proxy's connection serves any http server")
	}
	a, tm := get(t, c, &Request{URL: mustURL("https://llm.test/v1")})
	if string(a.body) != "hi" || tm.Reused {
		t.Errorf("https: got %q %+v", a.body, tm)
	}
	if _, tm := get(t, c, &Request{URL: mustURL("https://llm.test/v1")}); !tm.Reused {
		t.Error("a tunnel is not reused")
	}
	const auth = "Basic dTpw"
	for _, k := range []string{"GET http://llm.test/v1?x=1 llm.test", "CONNECT llm.test:443 llm.test:443"} {
		if got, ok := asked.Load(k); !ok || got != auth {
			t.Errorf("%s: asked %v with %q", k, ok, got)
		}
	}
	proxy = "http://" + l.Addr().String()
	err := newClient(t, o).Do(t.Context(), &Request{URL: mustURL("https://llm.test/v1")}, new(Timing), &answer{})
	var ce *ConnectError
	if !errors.As(err, &ce) || !strings.Contains(err.Error(), "proxy: it answered 407 Proxy Authentication Required to CONNECT llm.test:443") {
		t.Errorf("refused: got %v", err)
	}
}

func TestProxyFromEnvironment(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://proxy.test:3128")
	t.Setenv("HTTPS_PROXY", "http://secure.test:3128")
	t.Setenv("NO_PROXY", "direct.test")
	c := NewClient(Options{})
	defer c.Close()
	for u, want := range map[string]string{
		"http://llm.test/":      "proxy.test:3128",
		"https://llm.test/":     "secure.test:3128",
		"http://direct.test/":   "direct.test:80",
		"http://127.0.0.1:8/":   "127.0.0.1:8",
		"http://[::1]:8/":       "[::1]:8",
		"https://localhost:80/": "localhost:80",
	} {
		if r, err := c.route(mustURL(u)); err != nil || r.addr != want {
			t.Errorf("%s goes to %v (%v), want %s", u, r, err, want)
		}
	}
}

// HTTP/2, picked by the server or known before, streams as it comes.
func TestHTTP2(t *testing.T) {
	cert := certificate(t, time.Now().Add(time.Hour))
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	step := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lt, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Protocols: &protocols, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", fmt.Sprintf("%s %s %s %s %s %s", r.Proto, r.Method, r.RequestURI, r.UserAgent(), r.Header.Get("Accept-Encoding"), body))
		w.WriteHeader(200)
		for i := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-step:
			case <-r.Context().Done():
				return
			}
		}
	})}
	go srv.Serve(l)
	go srv.ServeTLS(lt, "", "")
	t.Cleanup(func() { srv.Close() })
	o := tlsServer{lt, cert.Leaf}.options()
	h2c := o
	h2c.H2C = true
	h1 := o
	h1.HTTP1 = true
	for _, c := range []struct {
		name, url, proto string
		o                Options
	}{
		{"picked by the server", "https://" + lt.Addr().String(), "HTTP/2.0", o},
		{"known before", "http://" + l.Addr().String(), "HTTP/2.0", h2c},
		{"not offered", "https://" + lt.Addr().String(), "HTTP/1.1", h1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newClient(t, c.o)
			for i := range 2 {
				a := answer{onData: func([]byte, Stamp) error {
					time.Sleep(2 * ms) // real: what comes next shall come in a read of its own
					step <- struct{}{}
					return nil
				}}
				var tm Timing
				if err := cl.Do(t.Context(), &Request{URL: mustURL(c.url + "/v1/x?y=z"), Body: []byte("{}")}, &tm, &a); err != nil {
					t.Fatal(err)
				}
				want := c.proto + " POST /v1/x?y=z trueload identity {}"
				if got := a.header.Get("X-Seen"); got != want || a.status != 200 {
					t.Errorf("the server saw %q, want %q", got, want)
				}
				if string(a.body) != "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n" || len(a.pieces) != 5 {
					t.Errorf("got %q in %d pieces", a.body, len(a.pieces))
				}
				if tm.Reused != (i > 0) || tm.Written == Unset || tm.Written < tm.Sent || tm.Connected > tm.Sent {
					t.Errorf("got %+v", tm)
				}
				last := tm.Sent
				for _, s := range a.stamps {
					if s.At < last || s.Earliest > s.At || s.Read < s.At {
						t.Errorf("stamps out of order: %+v after %v", s, last)
					}
					last = s.At
				}
			}
			cause := errors.New("hung up")
			ctx, cancel := context.WithCancelCause(t.Context())
			a := answer{onData: func([]byte, Stamp) error { cancel(cause); return nil }}
			if err := cl.Do(ctx, &Request{URL: mustURL(c.url)}, new(Timing), &a); err != cause {
				t.Errorf("hung up: %v", err)
			}
		})
	}
}

// L8 over HTTP/2: a server's limit of streams per connection is met with more
// connections.
func TestL8_HTTP2(t *testing.T) {
	const limit, n = 10, 35
	var open sync.WaitGroup
	open.Add(n)
	release := make(chan struct{})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: limit}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			open.Done()
			<-release
		}
		io.WriteString(w, "hi")
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	cl := newClient(t, Options{H2C: true})
	base := "http://" + l.Addr().String()
	get(t, cl, &Request{URL: mustURL(base)}) // the first connection now knows the limit
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var a answer
			if err := cl.Do(ctx, &Request{URL: mustURL(base + "/hold")}, new(Timing), &a); err != nil || string(a.body) != "hi" {
				t.Errorf("got %q, %v", a.body, err)
			}
		})
	}
	all := make(chan struct{})
	go func() { open.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
		t.Error("the server never saw all streams at once")
	}
	close(release)
	wg.Wait()
	if s := cl.Stats(); s.Dials < (n+limit-1)/limit {
		t.Errorf("%d connections for %d streams of at most %d", s.Dials, n, limit)
	}
	cl.Close()
	if n := cl.Stats().Open; n != 0 {
		t.Errorf("%d connections open after Close", n)
	}
}

// C8 over HTTP/2: a reused connection that died is replaced.
// A stream that the server resets on a living connection is a failure of that
// request, not a dead connection: it is not sent again.
func TestC8_HTTP2Reset(t *testing.T) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var asked atomic.Int64
	srv := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reset" {
			asked.Add(1)
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, "hi")
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	cl := newClient(t, Options{H2C: true})
	get(t, cl, &Request{URL: mustURL("http://" + l.Addr().String())})
	var tm Timing
	err = cl.Do(t.Context(), &Request{URL: mustURL("http://" + l.Addr().String() + "/reset"), Body: []byte("x")}, &tm, &answer{})
	if err == nil || asked.Load() != 1 || tm.Reconnects != 0 {
		t.Errorf("asked %d times, %d reconnects, %v", asked.Load(), tm.Reconnects, err)
	}
}

func TestC8_HTTP2(t *testing.T) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var mu sync.Mutex
	var conns []net.Conn
	srv := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/die" {
			mu.Lock()
			if len(conns) == 1 {
				conns[0].Close()
			}
			mu.Unlock()
		}
		io.WriteString(w, "hi")
	}), ConnState: func(c net.Conn, s http.ConnState) {
		if s == http.StateNew {
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	cl := newClient(t, Options{H2C: true})
	get(t, cl, &Request{URL: mustURL("http://" + l.Addr().String())})
	a, tm := get(t, cl, &Request{URL: mustURL("http://" + l.Addr().String() + "/die"), Body: []byte("x")})
	if string(a.body) != "hi" || tm.Reconnects != 1 || tm.Reused || cl.Stats().Reconnects != 1 {
		t.Errorf("got %q, %+v", a.body, tm)
	}
}
