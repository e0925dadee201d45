// Package sim is a continuous-batching inference engine as a pure state
// machine: an Engine takes Requests (Admit, Abort) and turns them into Steps,
// each with the tokens it emits and how long it takes. It schedules as vLLM V1
// does (FCFS, decode first, chunked prefill, paged KV blocks with a prefix
// cache, preemption by recompute), and takes its step times from a Profile.
//
// It has no clock, goroutine or I/O: time comes in as offsets from the run's
// start, so the same engine serves real clients (sim/httpapi), runs inside a
// test bubble, and runs as a discrete-event simulation (Run). The same
// requests at the same times and the same seed give the same steps.
//
// It does not tokenise, does not route between replicas, and its tokens mean
// nothing.
package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Token is a token id, 0 or more.
type Token int32

// EOS is the token that a request emits when it stops by itself. It counts as
// an output token, as it does in a server's usage.
const EOS Token = 0

// Config sizes an engine. The zero value is the default profile on its GPU.
type Config struct {
	// Profile gives step times and the defaults below; zero: DefaultProfile.
	Profile Profile
	// MaxBatchedTokens is the token budget of one step (max_num_batched_tokens);
	// 0: the profile's.
	MaxBatchedTokens int
	// MaxSeqs is the largest number of running requests (max_num_seqs); 0: the
	// profile's.
	MaxSeqs int
	// LongPrefillThreshold caps the prefill tokens of one request in one step;
	// 0: no cap but the budget.
	LongPrefillThreshold int
	// BlockSize is the tokens in one KV block; 0: 16.
	BlockSize int
	// Blocks is the number of KV blocks (num_gpu_blocks). One of them is the
	// null block, so Blocks-1 can be used; 0: the profile's.
	Blocks int
	// MaxModelLen is the longest prompt plus output, in tokens; 0: 131072 or
	// what the blocks hold, whichever is less. It must fit in the blocks, so
	// that one request alone can always go on.
	MaxModelLen int
	// NoPrefixCache switches prefix caching off.
	NoPrefixCache bool
	// AdmitByChunk admits a request when its next chunk fits in the free
	// blocks. The default asks that its whole prompt fits
	// (scheduler_reserve_full_isl), which turns pressure into waiting instead
	// of preemption.
	AdmitByChunk bool
	// RecountBlocked counts the prefix lookup of a blocked request again at
	// every step, as vLLM did before July 2026. The default counts it once.
	RecountBlocked bool
	// Jitter is the coefficient of variation of a lognormal factor of mean 1
	// on every step's duration; 0: none.
	Jitter float64
	// Seed draws the jitter and the ids of output tokens.
	Seed uint64
	// FreezeAt and FreezeFor stop the engine once: the step that runs at
	// FreezeAt, or the next one begun before FreezeAt+FreezeFor, ends later by
	// what is left of the freeze. FreezeFor 0: never.
	FreezeAt, FreezeFor time.Duration
}

// withDefaults fills in what is zero and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Profile.Name == "" {
		c.Profile = DefaultProfile()
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxBatchedTokens, c.Profile.MaxBatchedTokens)
	def(&c.MaxSeqs, c.Profile.MaxSeqs)
	def(&c.BlockSize, 16)
	def(&c.Blocks, c.Profile.Blocks)
	for _, f := range []struct {
		name string
		v    int
		min  int
	}{
		{"MaxBatchedTokens", c.MaxBatchedTokens, 1},
		{"MaxSeqs", c.MaxSeqs, 1},
		{"BlockSize", c.BlockSize, 1},
		{"Blocks", c.Blocks, 2},
		{"LongPrefillThreshold", c.LongPrefillThreshold, 0},
		{"MaxModelLen", c.MaxModelLen, 0},
	} {
		if f.v < f.min {
			return c, fmt.Errorf("sim: %s is %d: it must be at least %d", f.name, f.v, f.min)
		}
	}
	if c.Jitter < 0 || c.FreezeFor < 0 {
		return c, fmt.Errorf("sim: Jitter %v and FreezeFor %v must not be negative", c.Jitter, c.FreezeFor)
	}
	capacity := (c.Blocks - 1) * c.BlockSize
	def(&c.MaxModelLen, min(131072, capacity))
	if c.MaxModelLen < 2 || c.MaxModelLen > capacity {
		return c, fmt.Errorf("sim: MaxModelLen is %d, but the %d usable blocks hold %d tokens: lower it or give more Blocks", c.MaxModelLen, c.Blocks-1, capacity)
	}
	return c, nil
}

// Request is one prompt to complete. The caller fills the first group of fields
// and leaves it alone from Admit until the request has finished; the engine
// writes Life. A Request is used once.
type Request struct {
	Prompt []Token // at least one
	// Salt keeps the prefix cache of requests with different salts apart.
	Salt string
	// MaxTokens is the most output tokens; 0: up to MaxModelLen.
	MaxTokens int
	// StopAt is the output token, counted from 1, that is EOS; 0: none, as
	// with ignore_eos.
	StopAt int
	// Output returns output token i, counted from 0. It must give the same
	// answer for the same i. nil: ids drawn from the engine's seed.
	Output func(i int) Token
	// Tag is the caller's own.
	Tag any

	// Life is what the engine did with the request so far.
	Life Life

	seq *seq
}

// Life is the engine's record of one request. Times are offsets on the caller's
// clock, Unset (negative) where the moment never came.
type Life struct {
	Queued     time.Duration // Admit
	Scheduled  time.Duration // start of the first step that held it
	FirstToken time.Duration // end of the step that made the first token
	LastToken  time.Duration // end of the step that made the last one so far
	// Cached counts the prompt tokens that the prefix cache spared when the
	// request was first scheduled: whole blocks, at most the prompt less one.
	Cached      int
	Output      int // tokens emitted, EOS included
	Preemptions int
	Finish      Finish
}

// Unset marks a moment of a Life that never came.
const Unset time.Duration = -1 << 63

// Finish says how a request ended.
type Finish uint8

const (
	NotFinished    Finish = iota
	FinishedStop          // it emitted EOS
	FinishedLength        // it reached MaxTokens or MaxModelLen
	FinishedAbort         // the client went away
)

func (f Finish) String() string {
	return [...]string{"", "stop", "length", "abort"}[f]
}

// Counters are totals since the engine was made.
type Counters struct {
	// PromptTokens counts whole prompts, cached tokens included, when their
	// prefill completes.
	PromptTokens int64
	// CachedPromptTokens counts, once per request, what the cache spared.
	CachedPromptTokens int64
	GenerationTokens   int64
	// PrefixQueries and PrefixHits are the tokens looked up and found. Resumed
	// requests are not counted.
	PrefixQueries, PrefixHits int64
	Preemptions               int64
	Steps                     int64
	Finished                  [4]int64 // by Finish
}

// Engine schedules requests and says how long each step takes. It is not safe
// for concurrent use.
type Engine struct {
	cfg      Config
	pool     pool
	waiting  queue
	running  []*seq
	counters Counters
	rng      *rand.Rand
	admitted uint64
	step     Step
	chunks   []chunk
	hits     []int32
}

// New returns an idle engine with an empty cache.
func New(c Config) (*Engine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Engine{cfg: c, pool: newPool(c.Blocks), rng: rand.New(rand.NewPCG(c.Seed, 0x73696d))}, nil
}

// Config returns the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Admit puts r at the end of the waiting queue. It fails where r can never run.
func (e *Engine) Admit(now time.Duration, r *Request) error {
	switch {
	case r.seq != nil || r.Life.Finish != NotFinished:
		return fmt.Errorf("sim: a request was admitted twice")
	case len(r.Prompt) == 0:
		return fmt.Errorf("sim: empty prompt")
	case len(r.Prompt) >= e.cfg.MaxModelLen:
		return fmt.Errorf("sim: a prompt of %d tokens leaves no room for output in a model length of %d", len(r.Prompt), e.cfg.MaxModelLen)
	case r.MaxTokens < 0 || r.StopAt < 0:
		return fmt.Errorf("sim: MaxTokens %d and StopAt %d must not be negative", r.MaxTokens, r.StopAt)
	}
	room := e.cfg.MaxModelLen - len(r.Prompt)
	limit := room
	if r.MaxTokens > 0 {
		limit = min(room, r.MaxTokens)
	}
	s := &seq{r: r, limit: limit, root: rootHash(r.Salt), id: e.admitted}
	e.admitted++
	r.seq = s
	r.Life = Life{Queued: now, Scheduled: Unset, FirstToken: Unset, LastToken: Unset}
	e.waiting.pushBack(s)
	return nil
}

// Abort ends r, wherever it is, and frees its blocks. It reports false, doing
// nothing, where r has already finished or was never admitted.
func (e *Engine) Abort(r *Request) bool {
	s := r.seq
	if s == nil {
		return false
	}
	if !e.waiting.remove(s) {
		for i, q := range e.running {
			if q == s {
				e.running = append(e.running[:i], e.running[i+1:]...)
				break
			}
		}
	}
	e.end(s, FinishedAbort)
	return true
}

// end frees s's blocks and closes its request.
func (e *Engine) end(s *seq, f Finish) {
	e.release(s)
	s.r.Life.Finish = f
	s.r.seq = nil
	e.counters.Finished[f]++
}

// release frees s's blocks, the tail first, so that the tail is evicted first.
func (e *Engine) release(s *seq) {
	for i := len(s.blocks) - 1; i >= 0; i-- {
		e.pool.free(s.blocks[i])
	}
	s.blocks = s.blocks[:0]
	s.cached = 0
	s.computed = 0
}

// ResetPrefixCache forgets every cached block. It reports false, doing nothing,
// where a block is in use.
func (e *Engine) ResetPrefixCache() bool {
	if e.pool.nfree != e.cfg.Blocks-1 {
		return false
	}
	e.pool = newPool(e.cfg.Blocks)
	return true
}

// Idle tells whether nothing runs and nothing waits.
func (e *Engine) Idle() bool { return len(e.running) == 0 && e.waiting.len() == 0 }

// Running is the number of requests with KV blocks, after the last step.
func (e *Engine) Running() int { return len(e.running) }

// Waiting is the number of requests in the queue, preempted ones included.
func (e *Engine) Waiting() int { return e.waiting.len() }

// KVUsage is 1 - free/(Blocks-1), in 0..1. Cached blocks that no running
// request holds count as free.
func (e *Engine) KVUsage() float64 {
	return 1 - float64(e.pool.nfree)/float64(e.cfg.Blocks-1)
}

// FreeBlocks is the number of blocks that no request holds, cached or not.
func (e *Engine) FreeBlocks() int { return e.pool.nfree }

// Counters returns the totals so far.
func (e *Engine) Counters() Counters { return e.counters }

// seq is a request inside the engine.
type seq struct {
	r        *Request
	id       uint64 // order of admission
	root     uint64
	limit    int     // output tokens at most
	out      []Token // output so far
	computed int     // tokens whose KV is in blocks
	blocks   []int32
	hashes   []uint64 // of the full blocks of prompt + output, chained
	cached   int      // leading blocks that carry their hash in the pool
}

// total is the tokens known: prompt and output.
func (s *seq) total() int { return len(s.r.Prompt) + len(s.out) }

func (s *seq) token(i int) Token {
	if p := len(s.r.Prompt); i >= p {
		return s.out[i-p]
	}
	return s.r.Prompt[i]
}

// hash extends the chained hashes to the first n blocks, all of whose tokens
// must be known.
func (s *seq) hash(n, blockSize int) []uint64 {
	for k := len(s.hashes); k < n; k++ {
		h := s.root
		if k > 0 {
			h = s.hashes[k-1]
		}
		for i := k * blockSize; i < (k+1)*blockSize; i++ {
			h = mix(h, uint64(s.token(i)))
		}
		s.hashes = append(s.hashes, h)
	}
	return s.hashes[:n]
}

// queue is the waiting queue: FCFS, with preempted requests put in front.
type queue struct {
	q    []*seq
	head int
}

func (w *queue) len() int        { return len(w.q) - w.head }
func (w *queue) front() *seq     { return w.q[w.head] }
func (w *queue) pushBack(s *seq) { w.q = append(w.q, s) }

func (w *queue) pushFront(s *seq) {
	if w.head == 0 {
		w.q = append(w.q, nil)
		copy(w.q[1:], w.q)
		w.head = 1
	}
	w.head--
	w.q[w.head] = s
}

func (w *queue) popFront() {
	w.q[w.head] = nil
	w.head++
	// Compact when more than half is spent, so that the cost stays constant
	// per request.
	if w.head > 64 && w.head*2 > len(w.q) {
		n := copy(w.q, w.q[w.head:])
		clear(w.q[n:])
		w.q, w.head = w.q[:n], 0
	}
}

func (w *queue) remove(s *seq) bool {
	for i := w.head; i < len(w.q); i++ {
		if w.q[i] == s {
			copy(w.q[i:], w.q[i+1:])
			w.q[len(w.q)-1] = nil
			w.q = w.q[:len(w.q)-1]
			return true
		}
	}
	return false
}
