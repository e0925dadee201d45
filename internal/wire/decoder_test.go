package wire

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// answer collects what a Handler is given.
type answer struct {
	status  int
	header  http.Header
	headers Stamp
	body    []byte
	stamps  []Stamp
	pieces  []string
	onData  func(b []byte, s Stamp) error
}

func (a *answer) Headers(status int, h http.Header, s Stamp) error {
	a.status, a.header, a.headers = status, h, s
	return nil
}

func (a *answer) Data(b []byte, s Stamp) error {
	if len(b) == 0 {
		return errors.New("Data was given no bytes")
	}
	a.body = append(a.body, b...)
	a.stamps = append(a.stamps, s)
	a.pieces = append(a.pieces, string(b))
	if a.onData != nil {
		return a.onData(b, s)
	}
	return nil
}

// decode feeds the pieces and, where the answer is not complete, the end of the
// connection. It returns what came out as one line, to be compared.
func decode(method string, pieces ...string) string {
	var a answer
	d := &decoder{method: method, h: &a}
	rest := 0
	for i, p := range pieces {
		n, err := d.feed([]byte(p), Stamp{})
		if err != nil {
			return fmt.Sprintf("%d %q error: %v", a.status, a.body, err)
		}
		if d.state == done {
			rest = len(p) - n
			for _, p := range pieces[i+1:] {
				rest += len(p)
			}
			break
		}
	}
	if err := d.eof(); err != nil {
		return fmt.Sprintf("%d %q error: %v", a.status, a.body, err)
	}
	return fmt.Sprintf("%d %q close=%v rest=%d", a.status, a.body, d.close, rest)
}

func TestFraming(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	const chunked = ok + "Transfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct{ name, method, in, want string }{
		{"a known length", "GET", ok + "Content-Length: 5\r\n\r\nhello", `200 "hello" close=false rest=0`},
		{"a known length, with bytes behind it", "GET", ok + "Content-Length: 5\r\n\r\nhelloHTTP", `200 "hello" close=false rest=4`},
		{"no body", "GET", ok + "Content-Length: 0\r\n\r\n", `200 "" close=false rest=0`},
		{"bare line feeds", "GET", "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", `200 "hi" close=false rest=0`},
		{"the end of the connection ends the body", "GET", ok + "\r\nhello", `200 "hello" close=true rest=0`},
		{"HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", `200 "hi" close=true rest=0`},
		{"HTTP/1.0 that stays", "GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", `200 "hi" close=false rest=0`},
		{"Connection: close", "GET", ok + "Connection: close\r\nContent-Length: 2\r\n\r\nhi", `200 "hi" close=true rest=0`},
		{"a head request", "HEAD", ok + "Content-Length: 5\r\n\r\n", `200 "" close=false rest=0`},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", `204 "" close=false rest=0`},
		{"304 with a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", `304 "" close=false rest=0`},
		{"100 and 103 come before", "POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nhi", `200 "hi" close=false rest=0`},
		{"no reason phrase", "GET", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", `200 "hi" close=false rest=0`},
		{"chunks", "GET", chunked + "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", `200 "hello!" close=false rest=0`},
		{"chunks with bytes behind them", "GET", chunked + "1\r\n!\r\n0\r\n\r\nx", `200 "!" close=false rest=1`},
		{"chunk sizes in both cases and with leading zeros", "GET", chunked + "00A\r\n0123456789\r\na\r\n0123456789\r\n000\r\n\r\n", `200 "01234567890123456789" close=false rest=0`},
		{"chunk extensions and blanks", "GET", chunked + "5;a=\"b\";c\r\nhello\r\n1 \t;x\r\n!\r\n2 \r\nhi\r\n0;last\r\n\r\n", `200 "hello!hi" close=false rest=0`},
		{"chunks with bare line feeds", "GET", chunked + "5\nhello\n0\n\n", `200 "hello" close=false rest=0`},
		{"trailers", "GET", chunked + "2\r\nhi\r\n0\r\nA: b\r\nC: d\r\n\r\n", `200 "hi" close=false rest=0`},
		{"line ends inside a chunk", "GET", chunked + "8\r\n\r\n0\r\n\r\nx\r\n0\r\n\r\n", `200 "\r\n0\r\n\r\nx" close=false rest=0`},
		{"chunked wins over a length", "GET", ok + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", `200 "hi" close=false rest=0`},
		{"an error status with a body", "GET", "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nslow", `429 "slow" close=false rest=0`},

		{"nothing", "GET", "", `0 "" error: the server closed the connection without an answer: unexpected EOF`},
		{"a cut head", "GET", "HTTP/1.1 200", `0 "" error: the server closed the connection within the answer's headers: unexpected EOF`},
		{"a cut length", "GET", ok + "Content-Length: 5\r\n\r\nhell", `200 "hell" error: the answer was cut after 4 bytes of its body: unexpected EOF`},
		{"a cut chunk", "GET", chunked + "5\r\nhel", `200 "hel" error: the answer was cut after 3 bytes of its body: unexpected EOF`},
		{"no last chunk", "GET", chunked + "5\r\nhello\r\n", `200 "hello" error: the answer was cut after 5 bytes of its body: unexpected EOF`},
		{"no end of the trailers", "GET", chunked + "5\r\nhello\r\n0\r\n", `200 "hello" error: the answer was cut after 5 bytes of its body: unexpected EOF`},
		{"a size that is no number", "GET", chunked + "x\r\n", `200 "" error: malformed chunk: 'x' in its size line`},
		{"an empty size", "GET", chunked + "\r\n", `200 "" error: malformed chunk: '\r' in its size line`},
		{"a blank within a size", "GET", chunked + "1 1\r\n", `200 "" error: malformed chunk: '1' in its size line`},
		{"a size with a sign", "GET", chunked + "-1\r\n", `200 "" error: malformed chunk: '-' in its size line`},
		{"the largest size that fits is cut, not refused", "GET", chunked + "7fffffffffffffff\r\nx", `200 "x" error: the answer was cut after 1 bytes of its body: unexpected EOF`},
		{"a size that does not fit", "GET", chunked + "8000000000000000\r\nx", `200 "" error: malformed chunk: its size is too large`},
		{"a chunk longer than its size", "GET", chunked + "2\r\nhi!\r\n", `200 "hi" error: malformed chunk: no line end after its bytes`},
		{"a size line without end", "GET", chunked + "1;" + strings.Repeat("x", maxLine), `200 "" error: malformed chunk: its size line is too long`},
		{"two lengths", "GET", ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", `0 "" error: malformed answer: http: message cannot contain multiple Content-Length headers; got ["5" "6"]`},
		{"not HTTP", "GET", "SSH-2.0-OpenSSH\r\n\r\n", `0 "" error: malformed answer: malformed HTTP response "SSH-2.0-OpenSSH"`},
		{"101", "GET", "HTTP/1.1 101 Switching Protocols\r\n\r\n", `0 "" error: the server switched protocols, which nobody asked for`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := decode(c.method, c.in); got != c.want {
				t.Fatalf("whole:\n got %s\nwant %s", got, c.want)
			}
			for i := range len(c.in) + 1 {
				if got := decode(c.method, c.in[:i], c.in[i:]); got != c.want {
					t.Fatalf("cut at %d:\n got %s\nwant %s", i, got, c.want)
				}
			}
			if got := decode(c.method, strings.Split(c.in, "")...); got != c.want {
				t.Fatalf("byte by byte:\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// A head just within the bound is read, one byte more is refused.
func TestHugeHead(t *testing.T) {
	const line, end = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ", "\r\n\r\n"
	for extra, want := range map[int]string{
		0: `200 "" close=false rest=0`,
		1: `0 "" error: the answer's headers exceed 1048576 bytes`,
	} {
		in := line + strings.Repeat("x", maxHead-len(line)-len(end)+extra) + end
		var pieces []string
		for b := in; b != ""; b = b[min(len(b), 10000):] {
			pieces = append(pieces, b[:min(len(b), 10000)])
		}
		for _, p := range [][]string{{in}, pieces} {
			if got := decode("GET", p...); got != want {
				t.Errorf("%d bytes over the bound, in %d pieces: got %s, want %s", extra, len(p), got, want)
			}
		}
	}
	if got, want := decode("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"+strings.Repeat("A: b\r\n", maxHead/6+1)), `200 "" error: the answer's trailers exceed 1048576 bytes`; got != want {
		t.Errorf("trailers: got %s, want %s", got, want)
	}
}

// More says whether the kernel's time may be that of later bytes.
func TestMore(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, c := range []struct {
		name  string
		reads []string
		want  string // of Headers, then of every Data
	}{
		{"the head alone", []string{chunked, "1\r\na\r\n"}, "false false"},
		{"the head and a chunk", []string{chunked + "1\r\na\r\n"}, "true false"},
		{"two chunks in a read", []string{chunked, "1\r\na\r\n1\r\nb\r\n"}, "false true false"},
		{"a chunk and its line end apart", []string{chunked, "1\r\na", "\r\n1\r\nb\r", "\n"}, "false false false"},
		{"the last chunk in the same read", []string{chunked, "1\r\na\r\n0\r\n\r\n"}, "false true"},
		{"a length", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", "b"}, "true false false"},
	} {
		var a answer
		d := &decoder{method: "GET", h: &a}
		for _, r := range c.reads {
			if _, err := d.feed([]byte(r), Stamp{}); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		got := fmt.Sprint(a.headers.More)
		for _, s := range a.stamps {
			got += fmt.Sprint(" ", s.More)
		}
		if got != c.want {
			t.Errorf("%s: More is %s, want %s", c.name, got, c.want)
		}
	}
}

// The handler's error stops the decoder at once and comes out as it is.
func TestHandlerStops(t *testing.T) {
	stop := errors.New("enough")
	a := answer{onData: func([]byte, Stamp) error { return stop }}
	d := &decoder{method: "GET", h: &a}
	_, err := d.feed([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"), Stamp{})
	if err != stop || string(a.body) != "a" {
		t.Fatalf("got %v after %q", err, a.body)
	}
}

// Whatever comes in: no panic, the same outcome in one piece and in two, and
// never more bytes out than in.
func FuzzDecoder(f *testing.F) {
	f.Add("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nA: b\r\n\r\n", 40)
	f.Add("POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\n\nhi", 3)
	f.Add("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 17)
	f.Fuzz(func(t *testing.T, method, in string, at int) {
		if len(in) > 1<<16 {
			return
		}
		at = min(max(at, 0), len(in))
		whole, cut := decode(method, in), decode(method, in[:at], in[at:])
		if whole != cut {
			t.Fatalf("whole: %s\n  cut: %s", whole, cut)
		}
		var a answer
		d := &decoder{method: method, h: &a}
		n, err := d.feed([]byte(in), Stamp{})
		if len(a.body) > len(in) || n > len(in) || err == nil && n < len(in) && d.state != done {
			t.Fatalf("%d bytes in, %d used, %d out, state %d", len(in), n, len(a.body), d.state)
		}
		if e := d.eof(); e != nil && !errors.Is(e, io.ErrUnexpectedEOF) {
			t.Fatal(e)
		}
	})
}
