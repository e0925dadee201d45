// Package httpapi serves simulated engines over the OpenAI API, with the shapes
// of a vLLM server: chat and plain completions, streamed or whole, the model
// list, health, version, tokenizer, prefix-cache reset, and the metrics page.
// A Server runs one or more replicas behind a router; Options says what they
// are. Paced is another server without an engine, which sends tokens at exact
// times and stamps each, for measuring the client.
//
// It never makes text with a meaning, has no TLS and no authentication, and is
// meant for loopback.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// Options describes a server. The zero value is one replica of the default
// profile that queues without bound.
type Options struct {
	// Engine sizes every replica. Its seed is Seed plus the replica's index.
	Engine sim.Config
	// Replicas is the number of engines; 0: 1.
	Replicas int
	// Router picks the replica of a request; zero: round robin.
	Router Router
	// MaxQueue is the most requests that wait for a first place in one
	// replica's batch; one more is answered with 429. 0: no limit, as vLLM.
	MaxQueue int
	// RetryAfter is sent with a 429, in whole seconds rounded up; 0: not sent.
	RetryAfter time.Duration
	// Model is the served name; empty: "sim".
	Model string
	// MeanOutput is the mean of the geometric distribution that output lengths
	// are drawn from where the request does not say ignore_eos; 0: 200. The
	// same prompt and Seed give the same output.
	MeanOutput int
	// TemplateTokens is how many tokens the chat template puts before the first
	// message: a prefix that all prompts share.
	TemplateTokens int
	// HideCachedTokens leaves prompt_tokens_details out of usage, as vLLM does
	// without --enable-prompt-tokens-details.
	HideCachedTokens bool
	Seed             uint64
	// Truth is called once for every accepted request when its answer has
	// ended, from several goroutines; nil: not.
	Truth func(Truth)
}

// Router is a way of spreading requests over replicas.
type Router uint8

const (
	RoundRobin  Router = iota
	LeastLoaded        // fewest requests in the replica, ties in turn
)

// Truth is what a server knows of one answered request. Times that never came
// are zero.
type Truth struct {
	// ID is the request's X-Request-Id, or the id of the answer where it had
	// none.
	ID      string
	Replica int
	// Arrived is when the request was read and handed to the engine; Scheduled
	// and FirstToken are the engine's own times; FirstWrite and LastWrite were
	// taken just before the first and the last token were written.
	Arrived, Scheduled, FirstToken, FirstWrite, LastWrite time.Time
	PromptTokens, CachedTokens, OutputTokens, Preemptions int
	Finish                                                sim.Finish
}

// Server is a set of replicas behind a router. As an http.Handler it is the
// router; ReplicaHandler gives a replica's own address.
type Server struct {
	opt      Options
	start    time.Time
	replicas []*replica
	turn     atomic.Uint64
	count    atomic.Uint64
	words    vocabulary
	stop     chan struct{}
	stopOnce sync.Once

	mu      sync.Mutex
	servers []*http.Server
	closed  bool
}

// New starts the replicas. Close ends them.
func New(o Options) (*Server, error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Model == "" {
		o.Model = "sim"
	}
	if o.MeanOutput == 0 {
		o.MeanOutput = 200
	}
	if o.Replicas < 0 || o.MaxQueue < 0 || o.MeanOutput < 0 || o.TemplateTokens < 0 || o.RetryAfter < 0 {
		return nil, fmt.Errorf("httpapi: Replicas, MaxQueue, MeanOutput, TemplateTokens and RetryAfter must not be negative")
	}
	if o.Router > LeastLoaded {
		return nil, fmt.Errorf("httpapi: unknown router %d", o.Router)
	}
	s := &Server{opt: o, start: time.Now(), stop: make(chan struct{})}
	for i := range o.Replicas {
		c := o.Engine
		c.Seed = o.Seed + uint64(i)
		e, err := sim.New(c)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			s.opt.Engine = e.Config()
		}
		s.replicas = append(s.replicas, newReplica(i, e, s.start, s.stop))
	}
	for _, r := range s.replicas {
		go r.run()
	}
	return s, nil
}

// Options returns the options with their defaults filled in.
func (s *Server) Options() Options { return s.opt }

// Serve answers on ln as the router until Close or Shutdown, and then returns
// nil. It owns ln.
func (s *Server) Serve(ln net.Listener) error { return s.serve(ln, s) }

// ServeReplica answers on ln as replica i alone.
func (s *Server) ServeReplica(i int, ln net.Listener) error {
	return s.serve(ln, s.ReplicaHandler(i))
}

func (s *Server) serve(ln net.Listener, h http.Handler) error {
	hs := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		ln.Close()
		return nil
	}
	s.servers = append(s.servers, hs)
	s.mu.Unlock()
	if err := hs.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown takes no more requests, waits until those under way have been
// answered or ctx ends, and closes the server.
func (s *Server) Shutdown(ctx context.Context) error {
	var err error
	for _, hs := range s.halt() {
		err = errors.Join(err, hs.Shutdown(ctx))
	}
	return errors.Join(err, s.Close())
}

func (s *Server) halt() []*http.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.servers
}

// Close stops the replicas, cuts the answers under way and closes the
// listeners.
func (s *Server) Close() error {
	servers := s.halt()
	s.stopOnce.Do(func() { close(s.stop) })
	for _, r := range s.replicas {
		<-r.done
	}
	var err error
	for _, hs := range servers {
		err = errors.Join(err, hs.Close())
	}
	return err
}

// pick is the router.
func (s *Server) pick() *replica {
	n := uint64(len(s.replicas))
	first := s.turn.Add(1) - 1
	best := s.replicas[first%n]
	if s.opt.Router == LeastLoaded {
		for i := uint64(1); i < n; i++ {
			if r := s.replicas[(first+i)%n]; r.load.Load() < best.load.Load() {
				best = r
			}
		}
	}
	return best
}

// ServeHTTP answers as the router. Its metrics page shows every replica, told
// apart by the engine label.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.route(w, r, nil) }

// ReplicaHandler answers as replica i, counted from 0.
func (s *Server) ReplicaHandler(i int) http.Handler {
	only := s.replicas[i]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.route(w, r, only) })
}

// route answers one request; only is nil at the router.
func (s *Server) route(w http.ResponseWriter, r *http.Request, only *replica) {
	replicas := s.replicas
	if only != nil {
		replicas = []*replica{only}
	}
	method := http.MethodPost
	var h func()
	switch r.URL.Path {
	case "/v1/chat/completions":
		h = func() { s.complete(w, r, only, true) }
	case "/v1/completions":
		h = func() { s.complete(w, r, only, false) }
	case "/tokenize":
		h = func() { s.tokenize(w, r) }
	case "/detokenize":
		h = func() { s.detokenize(w, r) }
	case "/reset_prefix_cache":
		h = func() {
			ok := true
			for _, r := range replicas {
				ok = r.reset() && ok
			}
			writeJSON(w, http.StatusOK, map[string]bool{"success": ok})
		}
	case "/v1/models":
		method, h = http.MethodGet, func() { s.models(w) }
	case "/version":
		method, h = http.MethodGet, func() { writeJSON(w, http.StatusOK, map[string]string{"version": "trueload-sim"}) }
	case "/health":
		method, h = http.MethodGet, func() { w.WriteHeader(http.StatusOK) }
	case "/metrics":
		method, h = http.MethodGet, func() {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			w.Write(s.page(replicas))
		}
	default:
		writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
		return
	}
	if r.Method != method {
		w.Header().Set("Allow", method)
		writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	h()
}
