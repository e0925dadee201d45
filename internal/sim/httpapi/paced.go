package httpapi

import (
	"bufio"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// Paced is a server without an engine, the reference that a client is measured
// against: every request gets its tokens at exact times after its last byte was
// read,
//
//	token i leaves at arrival + TTFT + i·Gap,
//
// and every chunk says when it was sent, in nanoseconds of CLOCK_REALTIME taken
// just before the write: a chat completion chunk with the extra field "t". One
// pacing thread sends for all streams, straight into the sockets and never
// blocking; a stream whose socket is full is caught up when there is room, and
// counted.
//
// It reads /v1/chat/completions and /v1/completions with max_tokens (or
// max_completion_tokens), always streams, with the chat shape, ends with usage
// and [DONE], and keeps connections alive. The zero value sends 100 tokens at
// once.
type Paced struct {
	TTFT, Gap time.Duration
	// Tokens is the number for requests that do not say; 0: 100.
	Tokens int
	// Model is the served name; empty: "sim".
	Model string
	// Sleepy paces with plain timers instead of a locked thread, for test
	// bubbles and for small loads. Elsewhere than on Linux it is always so.
	Sleepy bool

	once   sync.Once
	mu     sync.Mutex
	inbox  []*pacedStream
	conns  map[net.Conn]bool
	lns    map[net.Listener]bool
	closed bool
	wake   waker
	done   chan struct{}
	report PacedReport
	late   lateness
}

// PacedReport says how exact the reference itself was. Lateness is the time of
// the stamp behind the time a token was due.
type PacedReport struct {
	Requests int64 `json:"requests"`
	Tokens   int64 `json:"tokens"`
	// Late quantiles are upper bounds, at most 4 % above the true ones.
	LateP50  time.Duration `json:"late_p50_ns"`
	LateP99  time.Duration `json:"late_p99_ns"`
	LateP999 time.Duration `json:"late_p999_ns"`
	LateMax  time.Duration `json:"late_max_ns"`
	// Merged counts the tokens whose write could not finish because the
	// client's socket was full.
	Merged int64 `json:"merged"`
}

// waker ends a sleep early.
type waker interface {
	// sleep returns at deadline or when wake was called, whichever is first. A
	// zero deadline means none.
	sleep(deadline time.Time)
	wake()
	close()
}

// pacedStream is one answer under way.
type pacedStream struct {
	conn    net.Conn
	raw     tryWriter
	due     time.Time
	left    int
	gap     time.Duration
	chunk   []byte // the next token's bytes, the stamp at stampAt
	stampAt int
	tail    []byte // what follows the last token
	backlog []byte // what the socket did not take; the first out bytes of it have gone since
	out     int
	done    chan error
}

// tryWriter writes without blocking and returns how much went out.
type tryWriter interface {
	tryWrite(b []byte) (int, error)
}

func (p *Paced) init() {
	p.once.Do(func() {
		if p.Model == "" {
			p.Model = "sim"
		}
		if p.Tokens == 0 {
			p.Tokens = 100
		}
		p.conns, p.lns = map[net.Conn]bool{}, map[net.Listener]bool{}
		p.done = make(chan struct{})
		p.wake = newWaker(p.Sleepy)
		go p.pace()
	})
}

// Serve answers on ln until Close, and then returns nil. It owns ln.
func (p *Paced) Serve(ln net.Listener) error {
	p.init()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ln.Close()
	}
	p.lns[ln] = true
	p.mu.Unlock()
	for {
		c, err := ln.Accept()
		if err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.lns, ln)
			if p.closed {
				return nil
			}
			return fmt.Errorf("httpapi: accepting: %w", err)
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			c.Close()
			continue
		}
		p.conns[c] = true
		p.mu.Unlock()
		go p.serve(c)
	}
}

// Close cuts what is under way and returns the report of all that was sent.
func (p *Paced) Close() PacedReport {
	p.init()
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		for ln := range p.lns {
			ln.Close()
		}
		for c := range p.conns {
			c.Close()
		}
		p.wake.wake()
	}
	p.mu.Unlock()
	<-p.done
	return p.Report()
}

// Report is the report so far; under load it may be 10,000 tokens behind.
func (p *Paced) Report() PacedReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.report
	r.LateP50, r.LateP99, r.LateP999 = p.late.quantile(0.5), p.late.quantile(0.99), p.late.quantile(0.999)
	r.LateMax = p.late.max
	return r
}

func (p *Paced) serve(c net.Conn) {
	defer func() {
		c.Close()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	br := bufio.NewReaderSize(c, 16<<10)
	raw := newTryWriter(c, p.Sleepy)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		b, err := io.ReadAll(io.LimitReader(req.Body, bodyLimit+1))
		arrived := time.Now()
		if err != nil || len(b) > bodyLimit {
			return
		}
		tokens, apiErr := p.parse(req, b)
		if apiErr != nil {
			m := quote(apiErr.message)
			body := fmt.Sprintf(`{"error":{"message":%s,"type":%q,"param":null,"code":%d}}`, m, apiErr.kind, apiErr.status)
			if _, err := fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", apiErr.status, http.StatusText(apiErr.status), len(body), body); err != nil {
				return
			}
			continue
		}
		if tokens < 0 { // a GET that needs no stream
			body := fmt.Sprintf(`{"object":"list","data":[{"id":%s,"object":"model","owned_by":"vllm"}]}`, quote(p.Model))
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
				return
			}
			continue
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
			return
		}
		s := p.newStream(c, raw, arrived, tokens)
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return
		}
		p.report.Requests++
		p.inbox = append(p.inbox, s)
		p.mu.Unlock()
		p.wake.wake()
		if err := <-s.done; err != nil || req.Close {
			return
		}
	}
}

// parse returns the number of tokens asked for, or -1 for a GET.
func (p *Paced) parse(req *http.Request, b []byte) (int, *apiError) {
	switch req.URL.Path {
	case "/v1/models", "/health":
		return -1, nil
	case "/v1/chat/completions", "/v1/completions":
	default:
		return 0, &apiError{http.StatusNotFound, "NotFoundError", "", "no such path"}
	}
	var q struct {
		MaxTokens           int `json:"max_tokens"`
		MaxCompletionTokens int `json:"max_completion_tokens"`
	}
	if err := json.Unmarshal(b, &q); err != nil {
		return 0, badRequest("", "invalid JSON body: %v", err)
	}
	n := p.Tokens
	if q.MaxTokens > 0 {
		n = q.MaxTokens
	}
	if q.MaxCompletionTokens > 0 {
		n = q.MaxCompletionTokens
	}
	return n, nil
}

const stampDigits = 19 // of CLOCK_REALTIME in ns, from 2001 to 2286

func (p *Paced) newStream(c net.Conn, raw tryWriter, arrived time.Time, tokens int) *pacedStream {
	s := &pacedStream{conn: c, raw: raw, due: arrived.Add(p.TTFT), gap: p.Gap, left: tokens, done: make(chan error, 1)}
	head := `data: {"id":"chatcmpl-paced","object":"chat.completion.chunk","created":` + strconv.FormatInt(arrived.Unix(), 10) + `,"model":` + string(quote(p.Model)) + `,"choices":[`
	framed := func(dst []byte, event string) []byte {
		dst = strconv.AppendInt(dst, int64(len(event)), 16)
		dst = append(dst, "\r\n"...)
		dst = append(dst, event...)
		return append(dst, "\r\n"...)
	}
	const zeros = "0000000000000000000"
	event := head + `{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"t":` + zeros + "}\n\n"
	s.chunk = framed(nil, event)
	s.stampAt = len(s.chunk) - len(zeros+"}\n\n\r\n")
	// The finish comes with the last token, in the same write.
	s.tail = framed(nil, head+`{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}`+"\n\n")
	s.tail = framed(s.tail, head+`],"usage":{"prompt_tokens":1,"total_tokens":`+strconv.Itoa(tokens+1)+`,"completion_tokens":`+strconv.Itoa(tokens)+"}}\n\n")
	s.tail = framed(s.tail, "data: [DONE]\n\n")
	s.tail = append(s.tail, "0\r\n\r\n"...)
	return s
}

// pace sends every token of every stream when it is due.
func (p *Paced) pace() {
	defer close(p.done)
	if !p.Sleepy {
		runtime.LockOSThread() // never unlocked: the thread's timer slack is changed
	}
	defer p.wake.close()
	var due dueHeap
	var local lateness
	var tokens, merged int64
	flush := func() {
		p.mu.Lock()
		p.late.merge(&local)
		p.report.Tokens += tokens
		p.report.Merged += merged
		p.mu.Unlock()
		local, tokens, merged = lateness{}, 0, 0
	}
	defer flush()
	var fresh []*pacedStream
	for {
		p.mu.Lock()
		fresh = append(fresh[:0], p.inbox...)
		clear(p.inbox)
		p.inbox = p.inbox[:0]
		closed := p.closed
		p.mu.Unlock()
		for _, s := range fresh {
			heap.Push(&due, s)
		}
		if closed {
			for _, s := range due {
				s.done <- errClosed
			}
			return
		}
		if len(due) == 0 {
			flush()
			p.wake.sleep(time.Time{})
			continue
		}
		s := due[0]
		now := time.Now()
		if now.Before(s.due) {
			if s.due.Sub(now) > 5*time.Millisecond || tokens > 10_000 {
				flush()
			}
			p.wake.sleep(s.due)
			continue
		}
		// All that is due now, without looking at the inbox in between: at most
		// 64, so that a new stream's first token is not kept waiting.
		for range 64 {
			sent, err := s.send(now)
			if sent {
				local.add(now.Sub(s.due))
				tokens++
				if len(s.backlog) > 0 {
					merged++
				}
			}
			if err != nil || s.left == 0 && len(s.backlog) == 0 {
				heap.Pop(&due)
				s.done <- err
			} else {
				if sent && s.left > 0 {
					s.due = s.due.Add(s.gap)
				} else {
					s.due = now.Add(time.Millisecond) // a full socket: look again
				}
				heap.Fix(&due, 0)
			}
			if len(due) == 0 {
				break
			}
			s, now = due[0], time.Now()
			if now.Before(s.due) {
				break
			}
		}
	}
}

var errClosed = errors.New("httpapi: the server is closed")

// send writes one token, or what is left of earlier ones. It reports whether a
// token was stamped and handed to the socket (or its backlog).
func (s *pacedStream) send(now time.Time) (bool, error) {
	if s.left == 0 {
		return false, s.flush()
	}
	stamp := uint64(now.UnixNano())
	for i := stampDigits - 1; i >= 0; i-- {
		if s.chunk[s.stampAt+i] = byte('0' + stamp%10); stamp == 0 {
			s.chunk[s.stampAt+i] = ' ' // a bubble's clock begins in 2000
		}
		stamp /= 10
	}
	s.left--
	b := s.chunk
	if s.left == 0 {
		b = append(b, s.tail...)
	}
	if len(s.backlog) > 0 {
		s.backlog = append(s.backlog, b...)
		return true, s.flush()
	}
	n, err := s.raw.tryWrite(b)
	if n < len(b) && err == nil {
		s.backlog = append(s.backlog, b[n:]...)
	}
	return true, err
}

// backlogLimit ends a stream whose client has stopped reading.
const backlogLimit = 8 << 20

func (s *pacedStream) flush() error {
	n, err := s.raw.tryWrite(s.backlog[s.out:])
	if s.out += n; s.out == len(s.backlog) {
		s.backlog, s.out = s.backlog[:0], 0
	}
	if err == nil && len(s.backlog) > backlogLimit {
		err = errors.New("httpapi: the client does not read")
	}
	return err
}

// dueHeap orders streams by their next token.
type dueHeap []*pacedStream

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(*pacedStream)) }
func (h *dueHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}

// lateness counts durations in buckets of 1/32 of a power of two of ns.
type lateness struct {
	counts [64 * 32]uint32
	n      int64
	max    time.Duration
}

func (l *lateness) add(d time.Duration) {
	d = max(d, 0)
	l.counts[bucket(uint64(d))]++
	l.n++
	l.max = max(l.max, d)
}

// bucket is the identity below 32, then 32 steps per doubling.
func bucket(v uint64) int {
	e := bits.Len64(v)
	if e <= 5 {
		return int(v)
	}
	return (e-5)*32 + int(v>>(e-6)&31)
}

// bucketTop is the largest value of a bucket.
func bucketTop(b int) uint64 {
	if b < 32 {
		return uint64(b)
	}
	e := b/32 + 5
	return (32+uint64(b%32)+1)<<(e-6) - 1
}

func (l *lateness) merge(o *lateness) {
	if o.n == 0 {
		return
	}
	for i, c := range o.counts {
		l.counts[i] += c
	}
	l.n += o.n
	l.max = max(l.max, o.max)
}

// quantile is the nearest rank's bucket's largest value; 0 of nothing.
func (l *lateness) quantile(p float64) time.Duration {
	rank := int64(p*float64(l.n)) + 1
	var n int64
	for b, c := range l.counts {
		if n += int64(c); c > 0 && n >= min(rank, l.n) {
			return min(time.Duration(bucketTop(b)), l.max)
		}
	}
	return 0
}

// timerWaker sleeps on a runtime timer.
type timerWaker struct {
	c chan struct{}
	t *time.Timer
}

func newTimerWaker() *timerWaker {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &timerWaker{c: make(chan struct{}, 1), t: t}
}

func (w *timerWaker) sleep(deadline time.Time) {
	if deadline.IsZero() {
		<-w.c
		return
	}
	w.t.Reset(time.Until(deadline))
	select {
	case <-w.t.C:
	case <-w.c:
		w.t.Stop()
	}
}

func (w *timerWaker) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

func (w *timerWaker) close() {}

// blockingWriter is the tryWriter of connections that are not sockets.
type blockingWriter struct{ net.Conn }

func (w blockingWriter) tryWrite(b []byte) (int, error) { return w.Write(b) }
