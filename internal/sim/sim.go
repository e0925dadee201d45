// Package sim is a continuous-batching inference engine as a pure state
// machine: an Engine takes Requests (Admit, Abort) and turns them into Steps,
// each with the tokens it emits and how long it takes. It schedules as vLLM V1
// does (first come first served or by priority, decode first, chunked prefill,
// paged KV blocks with a prefix cache, preemption by recompute, speculative
// decoding, LoRA adapters) or after another Policy, and takes its step times
// from a Profile.
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
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// Token is a token id, 0 or more.
type Token int32

// EOS is the token that a request emits when it stops by itself. It counts as
// an output token, as it does in a server's usage.
const EOS Token = 0

// Policy names the engine whose scheduler and cache are followed. Of Config,
// LongPrefillThreshold, AdmitByChunk, RecountBlocked, Priority and Speculation
// belong to VLLM; the first three change nothing elsewhere, the last two are
// refused.
type Policy string

const (
	VLLM   Policy = "vllm"   // vLLM V1: decode first, chunked prefill beside it, KV in blocks
	SGLang Policy = "sglang" // prefill first and alone, KV by token in a radix tree, retraction
	// LlamaCpp is llama.cpp's server: slots that keep their last sequence. The
	// defaults of MaxSeqs and MaxBatchedTokens are then its own, 4 and 2048.
	LlamaCpp Policy = "llama.cpp"
)

// Config sizes an engine. The zero value is the default profile on its GPU.
type Config struct {
	// Policy is the engine to follow; empty: VLLM.
	Policy Policy
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

	// Priority serves requests in order of Request.Priority instead of first
	// come first served, and preempts the lowest (--scheduling-policy priority).
	Priority bool
	// Speculation is speculative decoding; zero: none.
	Speculation Speculation
	// OutputInterval is how many tokens leave together (--stream-interval): the
	// first alone, then this many at a time, and the rest at the end; 0: 1. It
	// delays tokens on their way out, not the making of them, which is what
	// Life and Counters tell of.
	OutputInterval int
	// MaxLoRAs is the largest number of adapters in one batch, and of those
	// resident on the GPU (max_loras); 0: 1.
	MaxLoRAs int
	// LoRALoad is added to a step for every adapter in it that is not resident;
	// 0: loading is free. An adapter of rank 16 on all linear layers of an 8B
	// model is 84 MB in bf16, 3.4 ms at 25 GB/s; a loader that moves layer by
	// layer took 0.5 to 1 s (predibase/lorax issue 433).
	LoRALoad time.Duration
	// Cold is what the first steps cost above later ones; zero: nothing.
	Cold ColdStart
}

// Speculation is speculative decoding: at each decode step the target model
// verifies Tokens drafts, keeps those up to the first rejected one, and adds a
// token of its own. Accepted tokens leave together. With acceptances p1, p2, …
// a step yields 1 + p1 + p1·p2 + … tokens on average. What is generated does not
// change.
//
// The step verifies all drafts as tokens of its batch, reads each context once,
// and computes the head for each draft. Then it makes the next drafts, in Tokens
// passes of a draft model one after the other, each Share of a decode pass of
// the target without its context.
type Speculation struct {
	Tokens int // drafts per request and step, at most MaxDraft; 0: none
	// Accept[i] is the probability that draft i, from 0, is accepted where all
	// before it were. The last one stands for all that follow.
	Accept []float64
	// Share is a draft pass's part of a target pass, by bytes of weights: 0.1
	// for an EAGLE head on an 8B model (one of 32 layers and the output head),
	// 0 for n-grams.
	Share float64
}

// MaxDraft is the largest Speculation.Tokens.
const MaxDraft = 16

// accept is the probability that draft i is accepted.
func (s Speculation) accept(i int) float64 { return s.Accept[min(i, len(s.Accept)-1)] }

// ColdStart is what an engine pays when something runs for the first time:
// kernels loaded or compiled lazily, CUDA graphs captured, autotuning. It is
// what a warm-up is for.
type ColdStart struct {
	First time.Duration // added to the very first step
	// Shape is added to the first Steps steps of every batch size, sizes being
	// the powers of two up to which the step's tokens are padded.
	Shape time.Duration
	Steps int // 0: 1
}

// TypicalColdStart gives figures seen on real engines: 57 ms for each CUDA graph
// captured on demand (vllm-project/vllm pull request 22897), and a first request
// of 2.9 s against 0.08 s afterwards, on an H100, although the engine had warmed
// up (pull request 39822; 31 s where it had not).
func TypicalColdStart() ColdStart {
	return ColdStart{First: 2800 * time.Millisecond, Shape: 57 * time.Millisecond}
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
	if c.Policy == LlamaCpp {
		def(&c.MaxSeqs, 4)
		def(&c.MaxBatchedTokens, 2048)
	}
	def(&c.MaxBatchedTokens, c.Profile.MaxBatchedTokens)
	def(&c.MaxSeqs, c.Profile.MaxSeqs)
	def(&c.BlockSize, 16)
	def(&c.Blocks, c.Profile.Blocks)
	def(&c.OutputInterval, 1)
	def(&c.MaxLoRAs, 1)
	def(&c.Cold.Steps, 1)
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
		{"OutputInterval", c.OutputInterval, 1},
		{"MaxLoRAs", c.MaxLoRAs, 1},
		{"Cold.Steps", c.Cold.Steps, 1},
		{"Speculation.Tokens", c.Speculation.Tokens, 0},
	} {
		if f.v < f.min {
			return c, fmt.Errorf("sim: %s is %d: it must be at least %d", f.name, f.v, f.min)
		}
	}
	if c.Jitter < 0 || c.FreezeFor < 0 {
		return c, fmt.Errorf("sim: Jitter %v and FreezeFor %v must not be negative", c.Jitter, c.FreezeFor)
	}
	if c.LoRALoad < 0 || c.Cold.First < 0 || c.Cold.Shape < 0 || c.Speculation.Share < 0 {
		return c, fmt.Errorf("sim: LoRALoad %v, Cold.First %v, Cold.Shape %v and Speculation.Share %v must not be negative", c.LoRALoad, c.Cold.First, c.Cold.Shape, c.Speculation.Share)
	}
	if k := c.Speculation.Tokens; k > MaxDraft || k > 0 && len(c.Speculation.Accept) == 0 {
		return c, fmt.Errorf("sim: Speculation has %d drafts and %d probabilities: use at most %d drafts and give Accept", k, len(c.Speculation.Accept), MaxDraft)
	}
	for _, p := range c.Speculation.Accept {
		if !(p >= 0 && p <= 1) {
			return c, fmt.Errorf("sim: Speculation.Accept holds %v: a probability is 0 to 1", p)
		}
	}
	capacity := c.capacity()
	switch c.Policy {
	case "":
		c.Policy = VLLM
	case VLLM:
	case SGLang:
		capacity-- // it asks for more than it needs
	case LlamaCpp:
		capacity /= c.MaxSeqs
	default:
		return c, fmt.Errorf("sim: unknown Policy %q: use %s, %s or %s", c.Policy, VLLM, SGLang, LlamaCpp)
	}
	if c.Policy != VLLM && (c.Priority || c.Speculation.Tokens > 0) {
		return c, fmt.Errorf("sim: Priority and Speculation are not modelled for the policy %s", c.Policy)
	}
	def(&c.MaxModelLen, min(131072, capacity))
	if c.MaxModelLen < 2 || c.MaxModelLen > capacity {
		return c, fmt.Errorf("sim: MaxModelLen is %d, but the %d usable blocks hold %d tokens for one request: lower it or give more Blocks", c.MaxModelLen, c.Blocks-1, capacity)
	}
	return c, nil
}

// capacity is the tokens that the usable blocks hold.
func (c *Config) capacity() int { return (c.Blocks - 1) * c.BlockSize }

// Request is one prompt to complete. The caller fills the first group of fields
// and leaves it alone from Admit until the request has finished; the engine
// writes Life. A Request is used once.
type Request struct {
	Prompt []Token // at least one
	// Salt keeps the prefix cache of requests with different salts apart, except
	// with the policy LlamaCpp, which knows no salts.
	Salt string
	// Adapter names the LoRA adapter; empty: the base model. KV is not shared
	// between adapters.
	Adapter string
	// Priority counts where the engine serves by priority: lower first, and
	// first come first served among equals.
	Priority int
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
	// Drafts counts verifications, DraftTokens what they verified, and
	// AcceptedTokens and, by position, AcceptedAt what they kept, tokens past
	// the request's end included.
	Drafts, DraftTokens, AcceptedTokens int64
	AcceptedAt                          [MaxDraft]int64
	// LoRALoads counts adapters brought to the GPU.
	LoRALoads int64
}

// policy decides who goes into a batch, and keeps the KV. It works on its
// engine's queue, running requests and step.
type policy interface {
	// schedule fills chunks, and moves their requests from waiting to running.
	schedule()
	// computed is told of each chunk when its tokens are, before its request
	// samples.
	computed(chunk)
	// release frees the KV of a request that ends, wherever it is.
	release(s *seq)
	// reset empties memory and cache. Nothing is held.
	reset()
	// free is the tokens that are free or could be evicted.
	free() int
}

// Engine schedules requests and says how long each step takes. It is not safe
// for concurrent use.
type Engine struct {
	cfg      Config
	policy   policy
	waiting  queue
	running  []*seq
	counters Counters
	rng      *rand.Rand
	admitted uint64
	step     Step
	chunks   []chunk
	adapters []string // of the running requests of this step, each once
	adapted  bool     // a request with an adapter has come
	resident []string // adapters on the GPU, the least recently used first
	shapes   [64]int  // cold steps taken, by batch size
}

// New returns an idle engine with an empty cache.
func New(c Config) (*Engine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: c, rng: rand.New(rand.NewPCG(c.Seed, 0x73696d))}
	switch c.Policy {
	case SGLang:
		e.policy = &radix{e: e}
	case LlamaCpp:
		e.policy = &slots{e: e}
	default:
		e.policy = &paged{e: e}
	}
	e.policy.reset()
	return e, nil
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
	s := &seq{r: r, limit: limit, root: rootHash(r.Salt, r.Adapter), id: e.admitted}
	e.admitted++
	e.adapted = e.adapted || r.Adapter != ""
	r.seq = s
	r.Life = Life{Queued: now, Scheduled: Unset, FirstToken: Unset, LastToken: Unset}
	if e.cfg.Priority {
		e.waiting.insert(s)
	} else {
		e.waiting.pushBack(s)
	}
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
	e.policy.release(s)
	s.r.Life.Finish = f
	s.r.seq = nil
	e.counters.Finished[f]++
}

// ResetPrefixCache forgets every cached block. It reports false, doing nothing,
// where a block is in use.
func (e *Engine) ResetPrefixCache() bool {
	if e.policy.free() != e.cfg.capacity() {
		return false
	}
	e.policy.reset()
	return true
}

// Idle tells whether nothing runs and nothing waits.
func (e *Engine) Idle() bool { return len(e.running) == 0 && e.waiting.len() == 0 }

// Running is the number of requests with KV blocks, after the last step.
func (e *Engine) Running() int { return len(e.running) }

// Waiting is the number of requests in the queue, preempted ones included.
func (e *Engine) Waiting() int { return e.waiting.len() }

// KVUsage is the part of the memory that running requests hold, 0..1: for blocks
// 1 - free/(Blocks-1). What is cached and held by nobody counts as free.
func (e *Engine) KVUsage() float64 {
	return 1 - float64(e.policy.free())/float64(e.cfg.capacity())
}

// FreeBlocks is the number of blocks that no request holds, cached or not.
func (e *Engine) FreeBlocks() int { return e.policy.free() / e.cfg.BlockSize }

// Adapters lists the adapters of running and of waiting requests, each once, in
// the order of their first request.
func (e *Engine) Adapters() (running, waiting []string) {
	for _, s := range e.running {
		running = addAdapter(running, s)
	}
	for i := range e.waiting.len() {
		waiting = addAdapter(waiting, e.waiting.at(i))
	}
	return running, waiting
}

func addAdapter(names []string, s *seq) []string {
	if a := s.r.Adapter; a != "" && !slices.Contains(names, a) {
		names = append(names, a)
	}
	return names
}

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
	told     int      // output tokens that have left
	drafted  bool     // drafts follow the last token

	// Of the policy SGLang: the end of its prefix in the tree, and its length.
	node  *node
	depth int
}

// before tells whether s is served before t under scheduling by priority.
func (s *seq) before(t *seq) bool {
	return cmp.Or(cmp.Compare(s.r.Priority, t.r.Priority), cmp.Compare(s.r.Life.Queued, t.r.Life.Queued), cmp.Compare(s.id, t.id)) < 0
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

// queue is the waiting queue: FCFS, with preempted requests put in front, or in
// order of priority.
type queue struct {
	q    []*seq
	head int
}

func (w *queue) len() int        { return len(w.q) - w.head }
func (w *queue) at(i int) *seq   { return w.q[w.head+i] }
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

// insert puts s behind all that are served before it.
func (w *queue) insert(s *seq) {
	i := sort.Search(w.len(), func(i int) bool { return s.before(w.at(i)) })
	w.q = slices.Insert(w.q, w.head+i, s)
}

// take removes the one at i.
func (w *queue) take(i int) {
	if i > 0 {
		w.q = slices.Delete(w.q, w.head+i, w.head+i+1)
		return
	}
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
	i := slices.Index(w.q[w.head:], s)
	if i >= 0 {
		w.take(i)
	}
	return i >= 0
}
