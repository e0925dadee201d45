package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/wire"
)

// memory is a listener of in-memory connections.
type memory struct {
	conns chan net.Conn
	once  sync.Once
	gone  chan struct{}
}

func newMemory() *memory { return &memory{conns: make(chan net.Conn), gone: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.gone:
		return nil, net.ErrClosed
	}
}
func (m *memory) Close() error   { m.once.Do(func() { close(m.gone) }); return nil }
func (m *memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }
func (m *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case m.conns <- server:
		return client, nil
	case <-m.gone:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// overWire runs f in a bubble, with a client of a real HTTP server that h is.
func overWire(t *testing.T, h http.HandlerFunc, cfg Config, f func(t *testing.T, c *Client)) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		server := &http.Server{Handler: h}
		go server.Serve(m)
		client := wire.NewClient(wire.Options{Dial: m.dial})
		cfg.BaseURL = "http://server"
		c, err := New(cfg, client, texts{})
		if err != nil {
			t.Fatal(err)
		}
		f(t, c)
		client.Close()
		server.Close()
		synctest.Wait()
	})
}

func oneTurn(t *testing.T, ctx context.Context, c *Client) *record.Record {
	t.Helper()
	s := &plan.Session{Turns: []plan.Turn{{InputTokens: 10, OutputTokens: 8, Prompt: plan.Prompt{Item: -1}}}}
	send, err := c.Prepare(s, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecord(s, 0)
	rec.Scheduled = c.now()
	send(ctx, rec)
	return rec
}

// timed answers with events at offsets from the request's arrival.
func timed(reads ...read) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for _, e := range reads {
			time.Sleep(time.Until(start.Add(e.at)))
			io.WriteString(w, e.data)
			w.(http.Flusher).Flush()
		}
	}
}

func TestS1_OverWire(t *testing.T) {
	h := timed(read{5 * ms, "data: " + role + "\n\n"}, read{200 * ms, "data: " + hello + "\n\n"}, read{230 * ms, "data: " + there + "\n\ndata: " + stop + "\n\n"},
		read{240 * ms, "data: " + usage5 + "\n\n"}, read{250 * ms, "data: [DONE]\n\n"})
	overWire(t, h, Config{}, func(t *testing.T, c *Client) {
		for i := range 3 { // the connection serves again
			rec := oneTurn(t, t.Context(), c)
			want(t, "outcome", rec.Outcome, record.OK)
			want(t, "TTFT", figure(rec.TTFT), 200*ms)
			want(t, "service TTFT", figure(rec.ServiceTTFT), 200*ms)
			want(t, "headers", rec.Headers-rec.Scheduled, 0)
			want(t, "TPOT", figure(rec.TPOT), 30*ms/4)
			want(t, "done", rec.Done-rec.Scheduled, 250*ms)
			want(t, "output", rec.OutputTokens, 5)
			want(t, "reused", rec.Reused, i > 0)
			if rec.Connected == record.Unset || rec.Written == record.Unset {
				t.Error("connected and written are not set")
			}
		}
	})
}

func TestS11_OverWire(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * time.Second)
		http.Error(w, `{"error":{"message":"boom"}}`, http.StatusInternalServerError)
	}
	overWire(t, h, Config{}, func(t *testing.T, c *Client) {
		rec := oneTurn(t, t.Context(), c)
		want(t, "outcome", rec.Outcome, record.HTTPError)
		want(t, "done", rec.Done-rec.Scheduled, 2*time.Second)
		want(t, "error", rec.Error, "boom")
	})
}

func TestEnds_OverWire(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) {
		timed(read{10 * ms, "data: " + hello + "\n\n"})(w, r)
		<-r.Context().Done()
	}
	overWire(t, hang, Config{}, func(t *testing.T, c *Client) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rec := oneTurn(t, ctx, c)
		want(t, "deadline: outcome", rec.Outcome, record.Pending)
		want(t, "deadline: done", rec.Done-rec.Scheduled, time.Second)
		want(t, "deadline: events kept", len(rec.Events), 1)
	})
	cut := func(w http.ResponseWriter, r *http.Request) {
		timed(read{10 * ms, "data: " + hello + "\n\n"})(w, r)
		panic(http.ErrAbortHandler)
	}
	overWire(t, cut, Config{}, func(t *testing.T, c *Client) {
		rec := oneTurn(t, t.Context(), c)
		want(t, "cut: outcome", rec.Outcome, record.StreamError)
		want(t, "cut: done", rec.Done-rec.Scheduled, 10*ms)
		if !strings.Contains(rec.Error, "cut before its finish reason") {
			t.Errorf("error %q", rec.Error)
		}
	})
	held := func(w http.ResponseWriter, r *http.Request) {
		timed(sse(hello, stop, done)...)(w, r)
		<-r.Context().Done()
	}
	overWire(t, held, Config{}, func(t *testing.T, c *Client) {
		rec := oneTurn(t, t.Context(), c)
		want(t, "held after [DONE]: outcome", rec.Outcome, record.OK)
		want(t, "held after [DONE]: done", rec.Done-rec.Scheduled, 30*ms)
	})
	whole := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(300 * ms)
		fmt.Fprint(w, `{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	}
	overWire(t, whole, Config{Whole: true}, func(t *testing.T, c *Client) {
		rec := oneTurn(t, t.Context(), c)
		want(t, "whole: outcome", rec.Outcome, record.OK)
		want(t, "whole: E2E", figure(rec.E2E), 300*ms)
	})
}

func TestNobodyThere_OverWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.Close()
		client := wire.NewClient(wire.Options{Dial: m.dial})
		defer client.Close()
		c, err := New(Config{BaseURL: "http://server"}, client, texts{})
		if err != nil {
			t.Fatal(err)
		}
		rec := oneTurn(t, t.Context(), c)
		want(t, "outcome", rec.Outcome, record.ConnectError)
		want(t, "sent", rec.Sent, record.Unset)
		if !strings.Contains(rec.Error, "connection refused") {
			t.Errorf("error %q", rec.Error)
		}
	})
}
