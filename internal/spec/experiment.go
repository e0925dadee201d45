// Package spec is the experiment file: its structs, its defaults, what makes it
// valid, and its JSON Schema. Most people need ReadFile, which reads a file
// strictly and gives an Experiment with every default filled in, and Flags,
// which makes or changes one from the flags of a command line.
//
// It is data only. It draws nothing, opens no trace and no connection, and
// looks at the file system only to see whether a named file exists.
package spec

import (
	"iter"
	"time"

	"github.com/trueload/trueload/internal/unit"
)

// Experiment is one experiment file.
type Experiment struct {
	// What the result is called; empty: its directory's name.
	Name string `yaml:"name,omitempty"`
	// What is measured, and how it is spoken to.
	Target Target `yaml:"target"`
	// Draws the whole plan: the same file and seed give the same plan, bit for bit.
	Seed uint64 `yaml:"seed" jsonschema:"minimum=0"`
	// Stands at the start of every first prompt, so that no earlier run's prefix cache can help; empty: a new one for each run.
	Salt string `yaml:"salt,omitempty"`
	// Your own facts (GPU, precision, engine flags): kept and compared.
	Labels map[string]string `yaml:"labels,omitempty"`
	// What is sent.
	Workload Workload `yaml:"workload"`
	// When it is sent.
	Load Load `yaml:"load"`
	// What good service is; a class overrides it key by key.
	SLO SLO `yaml:"slo,omitempty"`

	source *source // where each value was written; nil: made in code
}

// Target is what users reach: a server, or the router before several.
type Target struct {
	// The base address, such as http://localhost:8000 or unix:///run/llm.sock. ${NAME} is taken from the environment.
	URL string `yaml:"url"`
	// The protocol spoken.
	API string `yaml:"api" jsonschema:"enum=openai-chat,enum=openai-completions"`
	// The served model's name; empty: the only entry of /v1/models.
	Model string `yaml:"model,omitempty"`
	// Extra request headers. ${NAME} is taken from the environment and never written to a result.
	Headers map[string]string `yaml:"headers,omitempty"`
	// A request's deadline, counted from when it was due.
	Timeout time.Duration `yaml:"timeout"`
	// Counts tokens where the server's usage does not: server asks its /tokenize; none does without.
	Tokenizer string `yaml:"tokenizer" jsonschema:"enum=none,enum=server"`
	// How connections are kept: it decides the balancing behind an L4 balancer, and whether users pay for connecting.
	Connections string `yaml:"connections" jsonschema:"enum=pooled,enum=per-session,enum=per-request"`
	// The version of HTTP: auto speaks HTTP/2 where a TLS server offers it, else HTTP/1.1; h1 is HTTP/1.1 always, h2c is HTTP/2 without TLS. Only HTTP/1.1 gives every stream stamps of its own.
	HTTP string `yaml:"http" jsonschema:"enum=auto,enum=h1,enum=h2c"`
	// Whether answers are streamed.
	Stream bool `yaml:"stream"`
	// How planned output lengths are enforced: auto uses ignore_eos where the engine is known to have it, ignore_eos sends it to any; off lets the model stop.
	ForceLength string `yaml:"force_length" jsonschema:"enum=auto,enum=ignore_eos,enum=off"`
	// Extra fields of the request body, such as temperature.
	Body map[string]any `yaml:"body,omitempty"`
	// How TLS certificates are checked.
	TLS TLS `yaml:"tls,omitempty"`
}

// TLS says how the target's certificate is checked.
type TLS struct {
	// Accept any certificate.
	Insecure bool `yaml:"insecure,omitempty"`
	// A PEM file of certificates to trust besides the system's.
	CA string `yaml:"ca,omitempty"`
}

// Workload is what is sent: classes, or a trace.
type Workload struct {
	// What the shares of classes are shares of.
	ShareOf string `yaml:"share_of,omitempty" jsonschema:"enum=sessions"`
	// Kinds of sessions, drawn by their shares.
	Classes []Class `yaml:"classes,omitempty"`
	// A recorded or public trace to replay, instead of classes.
	Trace *Trace `yaml:"trace,omitempty"`
}

// Class is one kind of session.
type Class struct {
	// Names the class in every result.
	Name string `yaml:"name"`
	// Its weight among all classes; the weights need not sum to 1.
	Share float64 `yaml:"share"`
	// Where prompt text comes from.
	Text Text `yaml:"text"`
	// Tokens each turn adds to the prompt, as the server counts them. Left out with sharegpt or jsonl text: the text's own length.
	InputTokens *Counts `yaml:"input_tokens,omitempty"`
	// Tokens of each answer. Left out with sharegpt or jsonl text: the recorded answer's length.
	OutputTokens *Counts `yaml:"output_tokens,omitempty"`
	// Input and output drawn together, so that they stay correlated; instead of input_tokens and output_tokens.
	Lengths *Lengths `yaml:"lengths,omitempty"`
	// A shared text, such as a system prompt, before each session's own; its tokens come on top of input_tokens.
	Prefix *Prefix `yaml:"prefix,omitempty"`
	// How many turns a session has, and what lies between them.
	Session Session `yaml:"session"`
	// Who the sessions belong to: a slice of the report.
	Tenant string `yaml:"tenant,omitempty"`
	// Sent as the request's priority, and a slice of the report.
	Priority int `yaml:"priority,omitempty" spec:"signed"`
	// Another served model than the target's.
	Model string `yaml:"model,omitempty"`
	// The name of a served adapter (LoRA), sent as the model.
	Adapter string `yaml:"adapter,omitempty"`
	// Users who give up.
	HangUp *HangUp `yaml:"hang_up,omitempty"`
	// The requests' deadline, counted from when each was due; left out: the target's timeout.
	Deadline time.Duration `yaml:"deadline,omitempty"`
	// Objectives that override the experiment's, key by key.
	SLO SLO `yaml:"slo,omitempty"`
}

// ServedModel is the model its requests name: Model or Adapter; empty: the target's.
func (c *Class) ServedModel() string {
	if c.Adapter != "" {
		return c.Adapter
	}
	return c.Model
}

// Text says where prompt text comes from; exactly one field is set.
type Text struct {
	// Text made up of words of one token each, or of token ids where the API takes them.
	Random string `yaml:"random,omitempty" jsonschema:"enum=words,enum=token_ids"`
	// A ShareGPT JSON file of conversations.
	ShareGPT string `yaml:"sharegpt,omitempty"`
	// A JSON Lines file of prompts or conversations.
	JSONL string `yaml:"jsonl,omitempty"`
}

// Counts is a distribution of whole numbers: tokens or turns.
type Counts = Dist[float64]

// Times is a distribution of durations.
type Times = Dist[time.Duration]

// Dist is a distribution; exactly one of its kinds is set. Values outside Min
// and Max are drawn again, so that no mass piles up at the bounds.
type Dist[T float64 | time.Duration] struct {
	// Always the same value.
	Fixed *T `yaml:"fixed,omitempty"`
	// All values between two, both included, equally likely.
	Uniform *Uniform[T] `yaml:"uniform,omitempty"`
	// The normal distribution.
	Normal *Normal[T] `yaml:"normal,omitempty"`
	// The lognormal distribution.
	LogNormal *LogNormal[T] `yaml:"lognormal,omitempty"`
	// The exponential distribution.
	Exponential *Mean[T] `yaml:"exponential,omitempty"`
	// The geometric distribution on 1, 2, 3, ...; counts only.
	Geometric *Mean[T] `yaml:"geometric,omitempty"`
	// The values of a trace's column, drawn with replacement; tokens only.
	Empirical *Empirical `yaml:"empirical,omitempty"`
	// Values below are drawn again.
	Min *T `yaml:"min,omitempty"`
	// Values above are drawn again.
	Max *T `yaml:"max,omitempty"`
}

// Uniform is a uniform distribution.
type Uniform[T float64 | time.Duration] struct {
	// The smallest value.
	Min T `yaml:"min"`
	// The largest value.
	Max T `yaml:"max"`
}

// Normal is a normal distribution; SD or CV is set.
type Normal[T float64 | time.Duration] struct {
	// The mean.
	Mean T `yaml:"mean"`
	// The standard deviation.
	SD T `yaml:"sd,omitempty"`
	// The standard deviation as a share of the mean, instead of sd.
	CV float64 `yaml:"cv,omitempty"`
}

// LogNormal is a lognormal distribution, by its median and one more quantile or
// sigma, or by Mu and Sigma: ln X is normal with mean Mu and deviation Sigma.
// For durations, X is in seconds.
type LogNormal[T float64 | time.Duration] struct {
	// The median.
	P50 T `yaml:"p50,omitempty"`
	// The 90th percentile.
	P90 T `yaml:"p90,omitempty"`
	// The 95th percentile.
	P95 T `yaml:"p95,omitempty"`
	// The 99th percentile.
	P99 T `yaml:"p99,omitempty"`
	// The mean of the logarithm.
	Mu *float64 `yaml:"mu,omitempty" spec:"signed"`
	// The standard deviation of the logarithm.
	Sigma float64 `yaml:"sigma,omitempty"`
}

// Mean is a distribution that its mean alone describes.
type Mean[T float64 | time.Duration] struct {
	// The mean.
	Mean T `yaml:"mean"`
}

// Empirical draws from a column of a trace: its input lengths where it stands
// under input_tokens, its output lengths under output_tokens.
type Empirical struct {
	// The trace file.
	Trace string `yaml:"trace"`
	// The file's format; left out: auto, which looks at its first lines.
	Format string `yaml:"format,omitempty" jsonschema:"enum=auto,enum=azure,enum=burstgpt,enum=mooncake"`
}

// Lengths draws input and output length together.
type Lengths struct {
	// Rows of a trace, drawn with replacement.
	Joint Empirical `yaml:"joint"`
}

// Prefix is a text that sessions share.
type Prefix struct {
	// Its length.
	Tokens int `yaml:"tokens"`
	// How many different ones there are.
	Pool int `yaml:"pool"`
	// How often each of the pool is used.
	Popularity Popularity `yaml:"popularity"`
}

// Popularity is how often each of a pool is used.
type Popularity struct {
	// The k-th most popular is used in proportion to 1/k^s; 0: all alike (uniform).
	Zipf float64 `yaml:"zipf"`
}

// Session is what one user does.
type Session struct {
	// How many turns; at least 1.
	Turns *Counts `yaml:"turns,omitempty"`
	// The pause between an answer's end and the next turn.
	Think *Times `yaml:"think,omitempty"`
	// What later turns carry: the server's own replies (live), or planned ones (scripted).
	History string `yaml:"history" jsonschema:"enum=live,enum=scripted"`
}

// HangUp is the share of requests whose user gives up, and when.
type HangUp struct {
	// The share of requests.
	Share unit.Share `yaml:"share"`
	// How long after the request was due.
	After time.Duration `yaml:"after"`
}

// Trace is a trace to replay.
type Trace struct {
	// The trace file.
	File string `yaml:"file"`
	// The file's format; auto looks at its first lines.
	Format string `yaml:"format" jsonschema:"enum=auto,enum=azure,enum=burstgpt,enum=mooncake"`
	// How much faster than recorded its times are replayed.
	Speed float64 `yaml:"speed"`
	// Which rows are used.
	Rows Rows `yaml:"rows"`
	// Begin again at the trace's end, until the load ends.
	Repeat bool `yaml:"repeat"`
	// For times cut to whole seconds or so: each row is moved by a random time below this.
	Spread time.Duration `yaml:"spread,omitempty"`
	// Tokens per prefix block of the trace's hash ids; left out: the format's own (512 for Mooncake, 16 for Bailian).
	Block int `yaml:"block,omitempty"`
	// What later turns of a session carry; scripted also keeps the trace's own time for every row.
	History string `yaml:"history" jsonschema:"enum=live,enum=scripted"`
	// The prompts' text; random only.
	Text Text `yaml:"text"`
}

// Rows is which rows of a trace are used; the zero value is all of them.
type Rows struct {
	// The first n rows; 0: all.
	Count int `yaml:"count,omitempty"`
	// The rows of the trace's first stretch, in the trace's own time; 0: all.
	First time.Duration `yaml:"first,omitempty"`
}

// Load is when the workload is sent: open (Rate, or the trace's times) or Closed.
type Load struct {
	// How arrivals are spread around the rate.
	Arrivals Arrivals `yaml:"arrivals,omitempty"`
	// How many arrive; left out in closed loop and where arrivals are the trace's.
	Rate *Rate `yaml:"rate,omitempty"`
	// Closed loop: clients that wait for their answer.
	Closed *Closed `yaml:"closed,omitempty"`
	// How many requests may be under way at once.
	MaxInFlight MaxInFlight `yaml:"max_in_flight"`
	// The stretches of the run, in order.
	Phases []Phase `yaml:"phases,omitempty"`
	// How long the window's last requests may take after it, before they are unfinished; left out: the target's timeout.
	Drain time.Duration `yaml:"drain,omitempty"`
}

// The arrival processes.
const (
	Constant = "constant" // equal gaps
	Poisson  = "poisson"  // independent users
	Gamma    = "gamma"    // gamma-distributed gaps of a given cv
	Weibull  = "weibull"  // Weibull-distributed gaps of a given cv
	ByTrace  = "trace"    // the trace's own times
)

// Arrivals is an arrival process. "Burstiness" b of other tools is cv = 1/√b.
type Arrivals struct {
	// One of the constants above.
	Process string `yaml:"-"`
	// The gaps' standard deviation over their mean; for gamma and weibull.
	CV float64 `yaml:"-"`
}

// Rate is how many sessions (or turns) arrive: a number, or one curve over time.
type Rate struct {
	// A constant rate.
	Value unit.Rate `yaml:"value,omitempty"`
	// From one rate to another in a straight line.
	Ramp *Ramp `yaml:"ramp,omitempty"`
	// One rate after another; the last one stays.
	Steps []Step `yaml:"steps,omitempty"`
	// A wave around a mean.
	Sine *Sine `yaml:"sine,omitempty"`
	// One peak on a constant base.
	Spike *Spike `yaml:"spike,omitempty"`
	// What is counted: sessions, or all their turns.
	Per string `yaml:"per" jsonschema:"enum=sessions,enum=turns"`
}

// Curve tells whether the rate changes over time.
func (r *Rate) Curve() bool {
	return r.Ramp != nil || r.Steps != nil || r.Sine != nil || r.Spike != nil
}

// Ramp is a straight line between two rates.
type Ramp struct {
	// The rate at the start; may be 0/s.
	From unit.Rate `yaml:"from"`
	// The rate at the end.
	To unit.Rate `yaml:"to"`
	// How long it takes; left out: the whole phase.
	Over time.Duration `yaml:"over,omitempty"`
}

// Step is a rate for a while.
type Step struct {
	// The rate.
	Rate unit.Rate `yaml:"rate"`
	// How long.
	For time.Duration `yaml:"for"`
}

// Sine is mean + amplitude·sin(2πt/period).
type Sine struct {
	// The rate in the middle.
	Mean unit.Rate `yaml:"mean"`
	// How far it goes up and down; at most the mean.
	Amplitude unit.Rate `yaml:"amplitude"`
	// How long one wave takes.
	Period time.Duration `yaml:"period"`
}

// Spike is one peak, all counted from the phase's start.
type Spike struct {
	// The rate before and after.
	Base unit.Rate `yaml:"base"`
	// The rate during the peak.
	Peak unit.Rate `yaml:"peak"`
	// When the peak begins.
	At time.Duration `yaml:"at"`
	// How long it lasts.
	For time.Duration `yaml:"for"`
}

// Closed is a closed loop.
type Closed struct {
	// How many clients there are, each with one session at a time.
	Clients int `yaml:"clients"`
	// The pause between a client's session and its next; left out: none.
	Think *Times `yaml:"think,omitempty"`
}

// MaxInFlight is a cap on requests under way.
type MaxInFlight struct {
	// The cap; 0: unlimited.
	N int `yaml:"n"`
	// What happens above it: queue (the wait is charged to the request) or shed (counted).
	Policy string `yaml:"policy" jsonschema:"enum=queue,enum=shed"`
}

// Phase is a stretch of the run, by time or by a number of sessions. In a
// replay the last phase may have neither: it lasts as long as the trace.
type Phase struct {
	// Names the phase in every result.
	Name string `yaml:"name"`
	// How long it lasts.
	For time.Duration `yaml:"for,omitempty"`
	// Lasts until this many requests (turns) were planned, instead of a time.
	Requests int `yaml:"requests,omitempty"`
	// Whether its requests count.
	Measured bool `yaml:"measured"`
	// Another rate than the load's.
	Rate *Rate `yaml:"rate,omitempty"`
	// Other arrivals than the load's.
	Arrivals *Arrivals `yaml:"arrivals,omitempty"`
	// Other shares than the classes' own, by class; a class left out has none.
	Shares map[string]float64 `yaml:"shares,omitempty"`
}

// SLO is a set of objectives.
type SLO struct {
	// Time to first token, from when the request was due.
	TTFT *Objective `yaml:"ttft,omitempty"`
	// The same for the first output that is not reasoning.
	FirstAnswer *Objective `yaml:"first_answer,omitempty"`
	// Time per output token after the first.
	TPOT *Objective `yaml:"tpot,omitempty"`
	// Inter-token latency.
	ITL *Objective `yaml:"itl,omitempty"`
	// From when the request was due to its last output.
	E2E *Objective `yaml:"e2e,omitempty"`
	// The largest gap of a request.
	Stall *Objective `yaml:"stall,omitempty"`
	// The share of requests that must be good.
	Attainment unit.Share `yaml:"attainment,omitempty"`
}

// Objective is a limit for each request, or limits on quantiles of the run.
type Objective struct {
	// For each request; 0: none.
	Limit time.Duration
	// For quantiles, in rising order of P.
	Quantiles []Quantile
}

// Quantile is a limit on a quantile of the run.
type Quantile struct {
	P     float64 // between 0 and 1: 0.99 for p99
	Limit time.Duration
}

// Objectives ranges over the objectives that are set, by their names in the file.
func (s *SLO) Objectives() iter.Seq2[string, *Objective] {
	return func(yield func(string, *Objective) bool) {
		for _, o := range []struct {
			name string
			o    *Objective
		}{{"ttft", s.TTFT}, {"first_answer", s.FirstAnswer}, {"tpot", s.TPOT}, {"itl", s.ITL}, {"e2e", s.E2E}, {"stall", s.Stall}} {
			if o.o != nil && !yield(o.name, o.o) {
				return
			}
		}
	}
}
