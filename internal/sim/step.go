package sim

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Step is one forward pass. Its slices belong to the engine and are valid until
// the next call of Step.
type Step struct {
	Start    time.Duration
	Duration time.Duration // the tokens leave at Start + Duration
	Batch    Batch
	Emitted  []Emitted
	// Scheduled are the requests that left the queue in this step for the
	// first time.
	Scheduled []*Request
	// Preempted requests lost their blocks and went back to the queue.
	Preempted []*Request
	// Cold is what of Duration a later step of the same kind would not take.
	Cold time.Duration
}

// End is when the step's tokens leave.
func (s *Step) End() time.Duration { return s.Start + s.Duration }

// Batch is what one step computes: all that its duration depends on.
type Batch struct {
	Tokens        int   // new tokens in the step, prefill and decode
	Prefills      int   // requests with a prefill chunk
	PrefillTokens int   // their tokens
	Attended      int64 // over prefill chunks of T tokens after kv others: the sum of T·(kv + T/2)
	Decodes       int   // requests with one decode token
	Context       int64 // the sum of their context lengths
	Sampled       int   // requests that get a token
	Drafted       int   // draft tokens among Tokens, to be verified
	Loads         int   // adapters loaded
}

// Emitted is one output token. Tokens of one request that leave in one step
// follow each other and make one event of its stream.
type Emitted struct {
	Request *Request
	Token   Token
	Index   int    // among the request's output tokens, from 0
	Finish  Finish // NotFinished but on the last
}

// chunk is one request's share of a batch: n tokens, the last drafts of which
// may be rejected.
type chunk struct {
	s         *seq
	n, drafts int
}

// Step schedules one batch that begins at now and returns what it does. With
// nothing to do it returns an empty batch of duration 0. In which order requests
// get into the batch is the Policy's.
func (e *Engine) Step(now time.Duration) *Step {
	st := &e.step
	*st = Step{Start: now, Emitted: st.Emitted[:0], Scheduled: st.Scheduled[:0], Preempted: st.Preempted[:0]}
	e.chunks = e.chunks[:0]
	e.policy.schedule()
	if len(e.chunks) == 0 {
		if !e.Idle() {
			// Cannot happen: MaxModelLen fits in the memory, so the first
			// running or waiting request always does.
			panic(fmt.Sprintf("sim: %d running and %d waiting requests, and none fits", len(e.running), e.waiting.len()))
		}
		return st
	}
	b := &st.Batch
	for _, c := range e.chunks {
		b.add(c)
	}
	b.Loads = e.load()
	st.Duration = e.duration(now, *b)
	e.emit(st)
	e.counters.Steps++
	return st
}

// first notes that s leaves the queue with hit tokens cached; where it does so
// again, after a preemption, that is not counted.
func (e *Engine) first(s *seq, hit int) {
	if s.r.Life.Scheduled != Unset {
		return
	}
	s.r.Life.Scheduled = e.step.Start
	s.r.Life.Cached = hit
	e.counters.CachedPromptTokens += int64(hit)
	e.step.Scheduled = append(e.step.Scheduled, s.r)
}

// preempted notes that s has lost its KV. It will compute its prompt and its
// output so far again, as far as they are no longer cached.
func (e *Engine) preempted(s *seq) {
	s.drafted = false
	s.r.Life.Preemptions++
	e.counters.Preemptions++
	e.step.Preempted = append(e.step.Preempted, s.r)
}

// runningAdapters collects the adapters of the running requests.
func (e *Engine) runningAdapters() {
	e.adapters = e.adapters[:0]
	if e.adapted {
		for _, s := range e.running {
			e.adapters = addAdapter(e.adapters, s)
		}
	}
}

// adapterFits tells whether s's adapter is in the batch or still has a place.
func (e *Engine) adapterFits(s *seq) bool {
	a := s.r.Adapter
	return a == "" || len(e.adapters) < e.cfg.MaxLoRAs || slices.Contains(e.adapters, a)
}

// add counts one chunk, before its tokens are computed.
func (b *Batch) add(c chunk) {
	kv := c.s.computed
	b.Tokens += c.n
	if c.n-c.drafts == 1 && len(c.s.out) > 0 && kv == c.s.total()-1 {
		b.Decodes++
		b.Drafted += c.drafts
		b.Context += int64(kv + 1)
	} else {
		b.Prefills++
		b.PrefillTokens += c.n
		b.Attended += int64(c.n)*int64(kv) + int64(c.n)*int64(c.n)/2
	}
	if kv+c.n-c.drafts == c.s.total() {
		b.Sampled++
	}
}

// emit computes the chunks and samples for each request whose known tokens are
// all computed: one token, and before it the drafts that were accepted.
func (e *Engine) emit(st *Step) {
	end := st.End()
	for _, c := range e.chunks {
		s, r := c.s, c.s.r
		s.computed += c.n - c.drafts
		e.policy.computed(c)
		if s.computed < s.total() {
			continue
		}
		if len(s.out) == 0 {
			r.Life.FirstToken = end
			e.counters.PromptTokens += int64(len(r.Prompt))
		}
		accepted := e.verify(s, c.drafts)
		s.computed += accepted
		finish := NotFinished
		for n := 0; n <= accepted && finish == NotFinished; n++ {
			finish = e.sample(s)
		}
		s.drafted = true
		r.Life.LastToken = end
		r.Life.Output = len(s.out)
		if finish != NotFinished || s.told == 0 || len(s.out)-s.told >= e.cfg.OutputInterval {
			for ; s.told < len(s.out); s.told++ {
				st.Emitted = append(st.Emitted, Emitted{Request: r, Token: s.out[s.told], Index: s.told})
			}
			st.Emitted[len(st.Emitted)-1].Finish = finish
		}
		if finish != NotFinished {
			e.end(s, finish)
		}
	}
	// end has cleared the seq of every finished request.
	live := e.running[:0]
	for _, s := range e.running {
		if s.r.seq != nil {
			live = append(live, s)
		}
	}
	clear(e.running[len(live):])
	e.running = live
}

// sample adds one output token to s and tells whether s ends with it.
func (e *Engine) sample(s *seq) Finish {
	r, i := s.r, len(s.out)
	var token Token
	finish := NotFinished
	switch {
	case i+1 == r.StopAt:
		token, finish = EOS, FinishedStop
	case r.Output != nil:
		token = r.Output(i)
	default:
		token = Token(mix(mix(e.cfg.Seed, s.id), uint64(i))>>33) | 1
	}
	if finish == NotFinished && i+1 == s.limit {
		finish = FinishedLength
	}
	s.out = append(s.out, token)
	e.counters.GenerationTokens++
	return finish
}

// verify is how many of s's drafts are accepted. The draw depends on the seed,
// the request and the token's place only, so that other requests do not change
// it.
func (e *Engine) verify(s *seq, drafts int) int {
	if drafts == 0 {
		return 0
	}
	n := 0
	for ; n < drafts; n++ {
		u := float64(mix(mix(e.cfg.Seed^0xd2af7, s.id), uint64(len(s.out)+n))>>11) / (1 << 53)
		if u >= e.cfg.Speculation.accept(n) {
			break
		}
		e.counters.AcceptedAt[n]++
	}
	e.counters.Drafts++
	e.counters.DraftTokens += int64(drafts)
	e.counters.AcceptedTokens += int64(n)
	return n
}

// load makes the batch's adapters resident and returns how many were not. The
// least recently used make room.
func (e *Engine) load() (loads int) {
	if !e.adapted {
		return 0
	}
	e.adapters = e.adapters[:0]
	for _, c := range e.chunks {
		e.adapters = addAdapter(e.adapters, c.s)
	}
	for _, a := range e.adapters {
		if i := slices.Index(e.resident, a); i >= 0 {
			e.resident = slices.Delete(e.resident, i, i+1)
		} else {
			loads++
		}
		e.resident = append(e.resident, a)
	}
	// This step's are the last ones now, and no more than there are places.
	e.resident = slices.Delete(e.resident, 0, max(0, len(e.resident)-e.cfg.MaxLoRAs))
	e.counters.LoRALoads += int64(loads)
	return loads
}

// cold is what batch b costs because it is among the first.
func (e *Engine) cold(b Batch) (d time.Duration) {
	c := e.cfg.Cold
	if e.counters.Steps == 0 {
		d = c.First
	}
	if n := &e.shapes[bits.Len(uint(b.Tokens-1))]; *n < c.Steps {
		*n++
		d += c.Shape
	}
	return d
}

// duration is the batch's step time with drafting, jitter, adapters, cold start
// and freeze.
func (e *Engine) duration(now time.Duration, b Batch) time.Duration {
	d := e.cfg.Profile.StepTime(b)
	if sp := e.cfg.Speculation; sp.Tokens > 0 && sp.Share > 0 && b.Sampled > 0 {
		d += time.Duration(float64(sp.Tokens) * sp.Share * float64(e.cfg.Profile.pass(b.Sampled)))
	}
	if cv := e.cfg.Jitter; cv > 0 {
		// A lognormal factor of mean 1: exp(σZ - σ²/2), σ² = ln(1 + cv²).
		s2 := math.Log1p(float64(cv * cv))
		f := math.Exp(float64(math.Sqrt(s2)*e.rng.NormFloat64()) - s2/2)
		d = time.Duration(float64(d) * f)
	}
	e.step.Cold = e.cold(b)
	d += e.step.Cold + time.Duration(b.Loads)*e.cfg.LoRALoad
	if thaw := e.cfg.FreezeAt + e.cfg.FreezeFor; e.cfg.FreezeFor > 0 && now < thaw && now+d > e.cfg.FreezeAt {
		d += thaw - max(now, e.cfg.FreezeAt)
	}
	return d
}

// Run plays requests through an engine as a discrete-event simulation: next
// returns them in order of arrival, false at the end; observe, if not nil, sees
// every step. It returns when the last request has finished, with the time at
// which it did.
func Run(e *Engine, next func() (at time.Duration, r *Request, ok bool), observe func(*Step)) (time.Duration, error) {
	var now time.Duration
	at, r, ok := next()
	for {
		if e.Idle() {
			if !ok {
				return now, nil
			}
			now = max(now, at)
		}
		for ok && at <= now {
			if err := e.Admit(at, r); err != nil {
				return now, err
			}
			at, r, ok = next()
		}
		st := e.Step(now)
		now = st.End()
		if observe != nil {
			observe(st)
		}
	}
}
