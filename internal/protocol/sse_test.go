package protocol

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// readAll returns the events of reads, printed, and the reader.
func readAll(reads ...string) ([]string, *SSE, error) {
	var r SSE
	var out []string
	show := func(ev Event) {
		data := string(ev.Data)
		if ev.Data == nil {
			data = "(no data)"
		}
		out = append(out, fmt.Sprintf("%s|%s|%s|%s", ev.Name, ev.ID, ev.Comment, data))
	}
	for _, read := range reads {
		for b := []byte(read); len(b) > 0; {
			ev, rest, ok, err := r.Next(b)
			if err != nil {
				return out, &r, err
			}
			if ok {
				show(ev)
			}
			b = rest
		}
	}
	if ev, ok := r.End(); ok {
		show(ev)
	}
	return out, &r, nil
}

var sseCases = []struct{ name, in, want string }{
	{"LF", "data: a\n\ndata: b\n\n", "|||a ; |||b"},
	{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", "|||a ; |||b"},
	{"CR", "data: a\r\rdata: b\r\r", "|||a ; |||b"},
	{"line ends mixed", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", "|||a ; |||b ; |||c"},
	{"no space after the colon", "data:{\"a\":1}\n\n", `|||{"a":1}`},
	{"only one space goes", "data:  a \n\n", "||| a "},
	{"several data lines with CRLF", "data: {\r\ndata: }\r\nid: 1\r\n\r\ndata: b\r\n\r\n", "|1||{\n} ; |1||b"},
	{"several data lines", "data: {\ndata: \"a\":1\ndata: }\n\n", "|||{\n\"a\":1\n}"},
	{"comments, pings and unknown fields", ": hello\n\n:\n\nfoo: bar\ndata: a\n\n: ping\n\n", "|||a"},
	{"a comment inside an event", ": note\ndata: a\n\n", "||note|a"},
	{"event, id and retry", "event: add\nid: 7\nretry: 1500\ndata: a\n\ndata: b\n\n", "add|7||a ; |7||b"},
	{"an id with NUL is ignored", "id: a\x00b\ndata: a\n\n", "|||a"},
	{"a field without a colon", "data\n\ndata\ndata\n\n", "||| ; |||\n"},
	{"no event without data", "event: add\n\ndata: b\n\n", "|||b"},
	{"but an error may have its text in a comment", "event: error\n: worker lost\n\ndata: [DONE]\n\n", "error||worker lost|(no data) ; |||[DONE]"},
	{"no final blank line", "data: a\n\ndata: b", "|||a ; |||b"},
	{"no final blank line, but a line end", "data: a\n\ndata: b\r\n", "|||a ; |||b"},
	{"a leading byte order mark goes", "\ufeffdata: a\n\n", "|||a"},
	{"a later one does not", "data: \ufeffa\n\n", "|||\ufeffa"},
	{"half a mark is text", "\xef\xbbdata: a\n\ndata: b\n\n", "|||b"},
	{"U+2028, U+2029 and U+0085 are no line ends", "data: a\u2028b\u2029c\u0085d\v\fe\n\n", "|||a\u2028b\u2029c\u0085d\v\fe"},
	{"blank lines alone", "\n\n\r\n\r\r", ""},
	{"nothing", "", ""},
}

// S8: the same events however the stream is cut into reads.
func TestS8_FramingCutAnywhere(t *testing.T) {
	for _, c := range sseCases {
		check := func(reads ...string) {
			t.Helper()
			got, _, err := readAll(reads...)
			if err != nil || strings.Join(got, " ; ") != c.want {
				t.Errorf("%s: %q gives %q (%v), want %q", c.name, reads, strings.Join(got, " ; "), err, c.want)
			}
		}
		check(c.in)
		check(strings.Split(c.in, "")...) // by rune
		for i := range len(c.in) + 1 {
			check(c.in[:i], c.in[i:])
			for k := i; k <= len(c.in); k++ {
				check(c.in[:i], c.in[i:k], c.in[k:])
			}
		}
	}
}

func TestSSE_Retry(t *testing.T) {
	_, r, _ := readAll("retry: 1500\nretry: 5s\nretry: -1\n\n")
	if r.Retry != 1500*time.Millisecond {
		t.Errorf("retry %v, want 1.5s", r.Retry)
	}
}

func TestSSE_Limit(t *testing.T) {
	fill := strings.Repeat("x", 1000)
	for name, reads := range map[string][]string{
		"one long line":          {"data: " + fill, fill, fill, fill, fill},
		"one long line, at once": {"data: " + strings.Repeat(fill, 5) + "\n\n"},
		"many lines":             {strings.Repeat("data: "+fill+"\n", 5)},
	} {
		r := SSE{Limit: 3000}
		var err error
		for _, read := range reads {
			for b := []byte(read); len(b) > 0 && err == nil; {
				_, b, _, err = r.Next(b)
			}
		}
		var long *EventTooLong
		if !errors.As(err, &long) || !strings.Contains(err.Error(), "3000") {
			t.Errorf("%s: error %v, want one that names the limit", name, err)
		}
	}
	// Just inside, again and again.
	r := SSE{Limit: 3000}
	for range 10 {
		if _, _, ok, err := r.Next([]byte("data: " + strings.Repeat("x", 2990) + "\n\n")); !ok || err != nil {
			t.Fatalf("an event inside the limit: %v %v", ok, err)
		}
	}
}

func TestSSE_AllocatesNothing(t *testing.T) {
	var r SSE
	stream := []byte("data: " + strings.Repeat("x", 270) + "\n\nid: 3\nevent: add\ndata: a\n: c\ndata: b\n\n")
	run := func() {
		for b := stream; len(b) > 0; {
			_, b, _, _ = r.Next(b)
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations for two events, want 0", n)
	}
}

// The same events when cut in two anywhere, and byte by byte.
func FuzzSSE(f *testing.F) {
	for _, c := range sseCases {
		f.Add([]byte(c.in), 3)
	}
	names, _ := filepath.Glob("testdata/streams/*.sse")
	for _, name := range names {
		b, _ := os.ReadFile(name)
		f.Add(b[:min(len(b), 600)], 100)
	}
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		want, _, err := readAll(string(b))
		if err != nil {
			t.Fatal(err)
		}
		at = min(max(at, 0), len(b))
		if got, _, _ := readAll(string(b[:at]), string(b[at:])); !slices.Equal(got, want) {
			t.Fatalf("%q cut at %d: %q, want %q", b, at, got, want)
		}
		bytewise := make([]string, len(b))
		for i := range b {
			bytewise[i] = string(b[i : i+1])
		}
		if got, _, _ := readAll(bytewise...); !slices.Equal(got, want) {
			t.Fatalf("%q byte by byte: %q, want %q", b, got, want)
		}
	})
}

func BenchmarkSSE(b *testing.B) {
	event := []byte("data: " + strings.Repeat("x", 270) + "\n\n")
	var r SSE
	b.ReportAllocs()
	for b.Loop() {
		r.Next(event)
	}
}
