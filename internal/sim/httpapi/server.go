// Package httpapi serves simulated engines over the OpenAI API, with the shapes
// of a vLLM server: chat and plain completions, streamed or whole, the model
// list, health, version, load, tokenizer, prefix-cache reset, and the metrics
// page. A Server runs one or more replicas behind a router; Options says what
// they are, and Fault what is to go wrong with them, at once or at a time. Paced is another server without an engine, which sends tokens at exact
// times and stamps each, for measuring the client.
//
// It never makes text with a meaning, has no TLS and no authentication, and is
// meant for loopback.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	// SessionHeader names the session for SessionPinned; empty: X-Session-Id.
	SessionHeader string
	// MaxQueue is the most requests that wait for a first place in one
	// replica's batch; one more is turned away as Overload says. 0: no limit,
	// as vLLM.
	MaxQueue int
	Overload Overload
	// RetryAfter is sent with a 429, in whole seconds rounded up; 0: not sent.
	RetryAfter time.Duration
	// Model is the served name; empty: "sim".
	Model string
	// Adapters are the names of LoRA adapters: asked for as a model, listed
	// beside the base model. Engine says what they cost.
	Adapters []string
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
	// SilentReset answers /reset_prefix_cache as vLLM did before 0.26: 200 and
	// nothing else, even where it was refused.
	SilentReset bool
	// Metrics is whose names /metrics has; all else stays vLLM's.
	Metrics Dialect
	// APIServers above 1 shows vLLM's page as several API server processes
	// wrote it for some months of 2025: a copy of the cache usage for each,
	// told apart by pid, all but one 0; no creation times and no start time.
	APIServers int
	// Faults are ordered at the start.
	Faults []Fault
	Seed   uint64
	// Truth is called once for every accepted request when its answer has
	// ended, from several goroutines; nil: not.
	Truth func(Truth)
}

// Overload is how a request is turned away that finds the queue full.
type Overload uint8

const (
	Reject429 Overload = iota // HTTP 429, with Retry-After where Options has it
	// InBand503 is SGLang's way: a stream begins with HTTP 200 and has one event,
	// an error of code 503; an answer that is not streamed is an HTTP 503.
	InBand503
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
	// Steps is, for each output token, when the step that made it ended.
	Steps                                                 []time.Time
	PromptTokens, CachedTokens, OutputTokens, Preemptions int
	// Finish is NotFinished where the replica stopped or restarted under it.
	Finish sim.Finish
	// Fault is Drop or MidStream where one of these ended the answer.
	Fault FaultKind
}

// Server is a set of replicas behind a router. As an http.Handler it is the
// router; ReplicaHandler gives a replica's own address.
type Server struct {
	opt      Options
	start    time.Time
	replicas []*replica
	faults   faults
	router   router
	count    atomic.Uint64
	pages    atomic.Uint64
	words    vocabulary
	stop     chan struct{}
	stopOnce sync.Once

	mu       sync.Mutex
	servers  []*http.Server
	closed   bool
	underway sync.WaitGroup // accepted requests; none is added once closed
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
	if o.SessionHeader == "" {
		o.SessionHeader = "X-Session-Id"
	}
	if o.Replicas < 0 || o.MaxQueue < 0 || o.MeanOutput < 0 || o.TemplateTokens < 0 || o.RetryAfter < 0 || o.APIServers < 0 {
		return nil, fmt.Errorf("httpapi: Replicas, MaxQueue, MeanOutput, TemplateTokens, RetryAfter and APIServers must not be negative")
	}
	if o.Router > SessionPinned || o.Overload > InBand503 || o.Metrics > LlamaCPP {
		return nil, fmt.Errorf("httpapi: unknown router %d, overload %d or dialect %d", o.Router, o.Overload, o.Metrics)
	}
	s := &Server{opt: o, start: time.Now(), stop: make(chan struct{})}
	s.faults.rng = rand.New(rand.NewPCG(o.Seed, 0x6661756c74))
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
		s.replicas = append(s.replicas, newReplica(i, e, s.start, &s.faults, o.Truth != nil, s.stop))
	}
	s.router.Router = sim.NewRouter(s.opt.Router, s.opt.Replicas, s.opt.Engine)
	for _, r := range s.replicas {
		go r.run()
	}
	for _, f := range o.Faults {
		if err := s.Inject(f); err != nil {
			s.Close()
			return nil, err
		}
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

// enter counts a request in, unless the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.underway.Add(1)
	}
	return !s.closed
}

// Close stops the replicas, cuts the answers under way and closes the
// listeners. With Options.Truth, it returns after the last call of that.
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
	if s.opt.Truth != nil {
		s.underway.Wait()
	}
	return err
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
	if r.URL.Path == "/sim/faults" {
		s.admin(w, r)
		return
	}
	if only != nil && !only.up() {
		panic(http.ErrAbortHandler) // there is no process that could answer
	}
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
			if s.opt.SilentReset {
				w.WriteHeader(http.StatusOK)
				return
			}
			writeJSON(w, http.StatusOK, map[string]bool{"success": ok})
		}
	case "/v1/models":
		method, h = http.MethodGet, func() { s.models(w) }
	case "/version":
		method, h = http.MethodGet, func() { writeJSON(w, http.StatusOK, map[string]string{"version": "trueload-sim"}) }
	case "/health":
		method, h = http.MethodGet, func() { w.WriteHeader(http.StatusOK) }
	case "/load":
		method, h = http.MethodGet, func() {
			var n int64
			for _, r := range replicas {
				n += r.life.Load().load.Load()
			}
			writeJSON(w, http.StatusOK, map[string]int64{"server_load": n})
		}
	case "/metrics":
		method, h = http.MethodGet, func() {
			if d := s.faults.stall(replicas, time.Since(s.start)); d > 0 {
				select {
				case <-time.After(d):
				case <-r.Context().Done():
					return
				case <-s.stop:
					panic(http.ErrAbortHandler)
				}
			}
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			w.Write(s.page(only))
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
