// Package simulate answers a plan's requests with simulated engines in virtual
// time: capacity planning on paper. New makes a Cluster, replicas behind a
// router, which loadgen.Simulate drives as it would drive a server over HTTP,
// without sockets or goroutines, as fast as it can be computed.
//
// A Cluster and the server of sim/httpapi are the same engines: the same plan
// has the same prompt lengths, shared prefixes and step times, and so the same
// latencies, to the nanosecond, as that server has in a bubble of virtual time.
//
// No text is made: prompts are token ids drawn from the plan, equal where the
// texts would be equal. So texts from a file have the length that the plan
// takes them to have, not what a tokenizer would count; and answers have the
// length that the plan asks for, whatever target.force_length says. There is no
// network: connecting and sending take no time. The models that sessions name
// are not told apart.
package simulate

import (
	"container/heap"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
)

// Options describe a cluster. The zero value is one replica of the default
// profile that queues without bound and speaks the completions API.
type Options struct {
	// Engine sizes every replica. Its seed is Seed plus the replica's index; its
	// freeze counts from the run's start.
	Engine sim.Config
	// Replicas is the number of engines; 0: 1.
	Replicas int
	// Router picks the replica of a request; SessionPinned keeps a session's
	// turns together.
	Router sim.Routing
	// MaxQueue is the most requests that wait for a first place in one replica's
	// batch; one more is refused with 429. 0: no limit.
	MaxQueue int
	Seed     uint64

	// Chat wraps prompts into the chat template: TemplateTokens that all share,
	// 4 for each message and 3 at the end. As in a real run messages are so much
	// shorter that prompts have the length asked for.
	Chat           bool
	TemplateTokens int
	// WarmUp names the phases whose sessions have a salt of their own, so that
	// they warm no prefix of the others.
	WarmUp map[string]bool
	// SaltTokens of salt stand first in every session, as in a real run whose
	// target was not seen to take the cache_salt field (one behind a router, say).
	// 0: the salt is no part of the prompt.
	SaltTokens int
	// Whole answers at once instead of streaming.
	Whole bool
	// Model stands in the records of sessions that name none.
	Model string
}

// refusal is how long a refused request takes: in no time at all, a closed loop
// would ask again for ever.
const refusal = time.Millisecond

// StampSource is that of every record: the times are the engine's own.
const StampSource = "simulated"

// Cluster is a set of replicas behind a router: a loadgen.Server. It is not safe
// for concurrent use.
type Cluster struct {
	opt      Options
	maxLen   int
	replicas []*replica
	busy     agenda // the replicas that do something by themselves
	router   *sim.Router
	refused  []refusedCall // in order
	prompts  prompts
}

// New returns idle replicas with empty caches.
func New(o Options) (*Cluster, error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Replicas < 0 || o.MaxQueue < 0 || o.TemplateTokens < 0 || o.SaltTokens < 0 {
		return nil, errors.New("simulate: Replicas, MaxQueue, TemplateTokens and SaltTokens must not be negative")
	}
	if o.Router > sim.SessionPinned {
		return nil, fmt.Errorf("simulate: unknown router %v", o.Router)
	}
	c := &Cluster{opt: o, prompts: prompts{chat: o.Chat, preface: o.TemplateTokens, salt: o.SaltTokens, warmUp: o.WarmUp}}
	for i := range o.Replicas {
		cfg := o.Engine
		cfg.Seed = o.Seed + uint64(i)
		e, err := sim.New(cfg)
		if err != nil {
			return nil, err
		}
		c.opt.Engine, c.maxLen = e.Config(), e.Config().MaxModelLen
		c.replicas = append(c.replicas, &replica{index: i, engine: e, place: -1})
	}
	c.router = sim.NewRouter(o.Router, o.Replicas, c.opt.Engine)
	return c, nil
}

// Options returns the options with their defaults filled in.
func (c *Cluster) Options() Options { return c.opt }

// TemplateTokens is what the chat template adds to a prompt of one message, and
// to each later turn.
func (c *Cluster) TemplateTokens() (first, later int) { return c.prompts.template() }

// Floored is how many prompts so far were asked to be shorter than what they
// share and the chat template allow: they are longer than the plan asks.
func (c *Cluster) Floored() int64 { return c.prompts.floored }

// Counters sums the engines' totals.
func (c *Cluster) Counters() sim.Counters {
	var sum sim.Counters
	for _, r := range c.replicas {
		n := r.engine.Counters()
		sum.PromptTokens += n.PromptTokens
		sum.CachedPromptTokens += n.CachedPromptTokens
		sum.GenerationTokens += n.GenerationTokens
		sum.PrefixQueries += n.PrefixQueries
		sum.PrefixHits += n.PrefixHits
		sum.Preemptions += n.Preemptions
		sum.Steps += n.Steps
		for i, f := range n.Finished {
			sum.Finished[i] += f
		}
	}
	return sum
}

// replica is one engine on its timeline: idle, about to begin a step, or in one.
type replica struct {
	index  int
	engine *sim.Engine
	step   *sim.Step     // that runs; nil: none
	next   time.Duration // its end; where none runs, when one begins
	place  int           // in the agenda; -1: idle
	load   int           // requests inside, waiting or running
	queued int           // of these, not yet scheduled
	// left went away while the step ran. The engine hears of it when it looks up
	// from its work, as a real one does.
	left []*request
}

// request is a call inside an engine.
type request struct {
	sim.Request
	call    *loadgen.Call
	replica *replica
	events  []record.Event
	tokens  int // in the events
	gone    bool
}

type refusedCall struct {
	at   time.Duration
	call *loadgen.Call
}

// Send implements loadgen.Server.
func (c *Cluster) Send(now time.Duration, call *loadgen.Call) {
	rec := call.Record
	rec.Connected, rec.Sent, rec.Written = now, now, now
	rec.Streamed, rec.StampSource = !c.opt.Whole, StampSource
	if rec.Model == "" {
		rec.Model = c.opt.Model
	}
	s, t := call.Session, &call.Session.Turns[call.Turn]
	q := &request{call: call}
	q.Tag = q
	q.Prompt = c.prompts.of(s, call.Turn)
	if !s.Scripted && call.Turn+1 < len(s.Turns) {
		q.Output = reply(s, t)
	}
	q.MaxTokens, q.Priority = max(t.OutputTokens, 1), s.Priority
	if c.opt.WarmUp[s.Phase] {
		q.Salt = "warm-up"
	}
	if n := len(q.Prompt); n+q.MaxTokens > c.maxLen {
		c.refuse(now, call, http.StatusBadRequest, fmt.Sprintf("the prompt's %d tokens and max_tokens of %d are longer than this model's maximum context length of %d tokens", n, q.MaxTokens, c.maxLen))
		return
	}
	r := c.replicas[c.router.Pick(&q.Request, uint64(s.Seq), c.load)]
	if c.opt.MaxQueue > 0 && r.queued >= c.opt.MaxQueue {
		c.refuse(now, call, http.StatusTooManyRequests, fmt.Sprintf("the engine is overloaded: %d requests are waiting", c.opt.MaxQueue))
		return
	}
	if err := r.engine.Admit(now, &q.Request); err != nil {
		c.refuse(now, call, http.StatusBadRequest, err.Error())
		return
	}
	q.replica, call.State = r, q
	r.load++
	r.queued++
	rec.HTTPStatus = http.StatusOK
	if rec.Streamed {
		rec.Headers = now // an engine sends them at once, before any token
		q.events = make([]record.Event, 0, q.MaxTokens)
	}
	if r.place < 0 {
		r.next = now
		heap.Push(&c.busy, r)
	}
}

func (c *Cluster) load(replica int) int64 { return int64(c.replicas[replica].load) }

// refuse answers with an error, a moment later.
func (c *Cluster) refuse(now time.Duration, call *loadgen.Call, status int, message string) {
	rec := call.Record
	rec.HTTPStatus, rec.Error = status, message
	c.refused = append(c.refused, refusedCall{now + refusal, call})
}

// Next implements loadgen.Server.
func (c *Cluster) Next() (time.Duration, bool) {
	switch {
	case len(c.refused) > 0 && (len(c.busy) == 0 || c.refused[0].at < c.busy[0].next):
		return c.refused[0].at, true
	case len(c.busy) > 0:
		return c.busy[0].next, true
	}
	return 0, false
}

// Advance implements loadgen.Server: one step ends or begins.
func (c *Cluster) Advance(ended []*loadgen.Call) []*loadgen.Call {
	if len(c.refused) > 0 && (len(c.busy) == 0 || c.refused[0].at < c.busy[0].next) {
		return c.endRefused(ended)
	}
	r := c.busy[0]
	if r.step != nil {
		ended = c.emit(r, ended)
		for i, q := range r.left {
			r.leave(q)
			r.left[i] = nil
		}
		r.left = r.left[:0]
		r.step = nil
	}
	if r.engine.Idle() {
		heap.Pop(&c.busy)
		return ended
	}
	r.step = r.engine.Step(r.next)
	r.queued -= len(r.step.Scheduled)
	r.next = r.step.End()
	heap.Fix(&c.busy, 0)
	return ended
}

func (c *Cluster) endRefused(ended []*loadgen.Call) []*loadgen.Call {
	f := c.refused[0]
	c.refused[0] = refusedCall{}
	c.refused = c.refused[1:]
	if f.call == nil {
		return ended // it was cut meanwhile
	}
	rec := f.call.Record
	rec.Headers, rec.Done = f.at, f.at
	rec.Outcome = record.HTTPError
	if rec.HTTPStatus == http.StatusTooManyRequests {
		rec.Outcome = record.Rejected
	}
	return append(ended, f.call)
}

// emit delivers the tokens of the step that ends.
func (c *Cluster) emit(r *replica, ended []*loadgen.Call) []*loadgen.Call {
	at := r.next
	for i := range r.step.Emitted {
		e := &r.step.Emitted[i]
		q := e.Request.Tag.(*request)
		done := e.Finish != sim.NotFinished
		if done {
			r.load--
		}
		if q.gone {
			continue
		}
		if !c.opt.Whole {
			q.deliver(at)
		}
		if done {
			q.end(at, e.Finish)
			ended = append(ended, q.call)
		}
	}
	return ended
}

// deliver adds one token; those of one step leave in one event.
func (q *request) deliver(at time.Duration) {
	q.tokens++
	if n := len(q.events); n > 0 && q.events[n-1].At == at {
		q.events[n-1].Tokens++
		return
	}
	q.events = append(q.events, record.Event{At: at, Tokens: 1})
}

// end completes the record of an answer.
func (q *request) end(at time.Duration, f sim.Finish) {
	rec := q.call.Record
	if !rec.Streamed {
		rec.Headers = at
		q.events = []record.Event{{At: at, Tokens: -1}}
	}
	q.fill()
	rec.OutputTokens, rec.CachedTokens = q.Life.Output, q.Life.Cached // which a server says at the end
	rec.TokenSource = record.TokensFromUsage
	rec.Outcome, rec.Done, rec.FinishReason = record.OK, at, f.String()
}

// fill puts what came of the answer into the record.
func (q *request) fill() {
	rec, n := q.call.Record, len(q.events)
	q.call.State = nil
	if n == 0 {
		return
	}
	rec.Events = q.events
	rec.FirstOutput, rec.LastOutput = q.events[0].At, q.events[n-1].At
	rec.FirstAnswer = rec.FirstOutput
	rec.InputTokens, rec.OutputTokens = len(q.Prompt), q.tokens
	rec.TokenSource = record.TokensFromEventUsage
}

// Cut implements loadgen.Server.
func (c *Cluster) Cut(now time.Duration, call *loadgen.Call) {
	q, inside := call.State.(*request)
	if !inside { // it was refused, and has not heard of it
		for i := range c.refused {
			if c.refused[i].call == call {
				c.refused[i].call = nil
			}
		}
		call.Record.HTTPStatus, call.Record.Error = 0, ""
		return
	}
	q.gone = true
	q.fill()
	if !call.Record.Streamed {
		call.Record.HTTPStatus = 0
	}
	if r := q.replica; r.step != nil {
		r.left = append(r.left, q)
	} else {
		r.leave(q)
	}
}

// leave takes a request that went away out of the engine.
func (r *replica) leave(q *request) {
	if !r.engine.Abort(&q.Request) {
		return // it finished meanwhile
	}
	r.load--
	if q.Life.Scheduled == sim.Unset {
		r.queued--
	}
}

// agenda is a heap of replicas, the one that does something next in front. Of
// the same instant, steps end before others begin.
type agenda []*replica

func (h agenda) Len() int { return len(h) }
func (h agenda) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.next != b.next {
		return a.next < b.next
	}
	if (a.step != nil) != (b.step != nil) {
		return a.step != nil
	}
	return a.index < b.index
}
func (h agenda) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *agenda) Push(x any) {
	r := x.(*replica)
	r.place = len(*h)
	*h = append(*h, r)
}
func (h *agenda) Pop() any {
	n := len(*h) - 1
	r := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	r.place = -1
	return r
}
