package httpapi

import (
	"math"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// metrics are one replica's numbers for its page. The run goroutine writes
// them after each step, so that the page shows the state after the last step
// that has ended, as vLLM's does.
type metrics struct {
	mu       sync.Mutex
	running  int
	waiting  int
	usage    float64
	counters sim.Counters
	late     time.Duration // the largest lateness of a step's tokens
	h        [histograms]histogram
}

// The histograms, in the order of their definitions below.
const (
	hIterationTokens = iota
	hTTFT
	hITL
	hTPOT
	hE2E
	hQueue
	hInference
	hPrefill
	hDecode
	hPromptTokens
	hGenerationTokens
	hMaxTokens
	hComputed
	histograms
)

var (
	stepBuckets    = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	ttftBuckets    = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets     = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

var histogramNames = [histograms]struct{ name, help string }{
	{"iteration_tokens_total", "Histogram of number of tokens per engine_step."},
	{"time_to_first_token_seconds", "Histogram of time to first token in seconds."},
	{"inter_token_latency_seconds", "Histogram of inter-token latency in seconds."},
	{"request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request."},
	{"e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."},
	{"request_queue_time_seconds", "Histogram of time spent in WAITING phase for request."},
	{"request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request."},
	{"request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request."},
	{"request_decode_time_seconds", "Histogram of time spent in DECODE phase for request."},
	{"request_prompt_tokens", "Number of prefill tokens processed."},
	{"request_generation_tokens", "Number of generation tokens processed."},
	{"request_params_max_tokens", "Histogram of the max_tokens request parameter."},
	{"request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens)."},
}

func newMetrics(c sim.Config) *metrics {
	m := &metrics{}
	lengths := oneTwoFive(c.MaxModelLen)
	for i, b := range [histograms][]float64{stepBuckets, ttftBuckets, itlBuckets, itlBuckets, requestBuckets, requestBuckets, requestBuckets, requestBuckets, requestBuckets, lengths, lengths, lengths, lengths} {
		m.h[i] = histogram{bounds: b, counts: make([]int64, len(b)+1)}
	}
	return m
}

// oneTwoFive are the bounds 1, 2, 5, 10, 20, 50, ... up to top.
func oneTwoFive(top int) []float64 {
	var b []float64
	for p := 1; ; p *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*p > top {
				return b
			}
			b = append(b, float64(m*p))
		}
	}
}

type histogram struct {
	bounds []float64
	counts []int64 // one more than bounds: the last is +Inf alone
	sum    float64
}

func (h *histogram) add(v float64) {
	h.counts[sort.SearchFloat64s(h.bounds, v)]++
	h.sum += v
}

// publish takes over the engine's state.
func (m *metrics) publish(e *sim.Engine) {
	m.mu.Lock()
	m.running, m.waiting, m.usage, m.counters = e.Running(), e.Waiting(), e.KVUsage(), e.Counters()
	m.mu.Unlock()
}

// observe counts one step whose tokens left late after their time.
func (m *metrics) observe(st *sim.Step, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = max(m.late, late)
	m.h[hIterationTokens].add(float64(st.Batch.Tokens))
	end := st.End()
	for i := range st.Emitted {
		e := &st.Emitted[i]
		s := e.Request.Tag.(*stream)
		if e.Index == 0 {
			m.h[hTTFT].add((end - e.Request.Life.Queued).Seconds())
		} else {
			m.h[hITL].add((end - s.last).Seconds())
		}
		s.last = end
		if e.Finish != sim.NotFinished {
			m.ended(e.Request)
		}
	}
}

// finished counts a request that was aborted.
func (m *metrics) finished(r *sim.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Life.FirstToken != sim.Unset {
		m.ended(r)
	}
}

// ended observes the figures of one request. The decode time of a single token
// is counted as 0, as vLLM does.
func (m *metrics) ended(r *sim.Request) {
	l := &r.Life
	sec := func(from, to time.Duration) float64 { return (to - from).Seconds() }
	m.h[hE2E].add(sec(l.Queued, l.LastToken))
	m.h[hQueue].add(sec(l.Queued, l.Scheduled))
	m.h[hInference].add(sec(l.Scheduled, l.LastToken))
	m.h[hPrefill].add(sec(l.Scheduled, l.FirstToken))
	decode := sec(l.FirstToken, l.LastToken)
	m.h[hDecode].add(decode)
	m.h[hTPOT].add(decode / math.Max(1, float64(l.Output-1)))
	m.h[hPromptTokens].add(float64(len(r.Prompt)))
	m.h[hGenerationTokens].add(float64(l.Output))
	m.h[hMaxTokens].add(float64(r.MaxTokens))
	m.h[hComputed].add(float64(len(r.Prompt) - l.Cached))
}

// page is the Prometheus text of replicas, one value of the engine label each;
// a page with one replica alone calls it 0, as every vLLM server does.
func (s *Server) page(replicas []*replica) []byte {
	snap := make([]metrics, len(replicas))
	for i, r := range replicas {
		m := r.metrics
		m.mu.Lock()
		snap[i] = metrics{running: m.running, waiting: m.waiting, usage: m.usage, counters: m.counters, late: m.late}
		for k, h := range m.h {
			snap[i].h[k] = histogram{bounds: h.bounds, counts: append([]int64(nil), h.counts...), sum: h.sum}
		}
		m.mu.Unlock()
	}
	p := &page{created: float64(s.start.UnixMicro()) / 1e6}
	for i := range replicas {
		p.labels = append(p.labels, `engine="`+strconv.Itoa(i)+`",model_name="`+escapeLabel(s.opt.Model)+`"`)
	}
	gauge := func(name, help string, v func(m *metrics) float64) {
		p.family(name, help, "gauge")
		for i := range snap {
			p.sample(name, p.labels[i], v(&snap[i]))
		}
	}
	counter := func(name, help string, v func(m *metrics) int64) {
		p.counter(name, help, []string{""}, func(i, _ int) int64 { return v(&snap[i]) })
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.", func(m *metrics) float64 { return float64(m.running) })
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", func(m *metrics) float64 { return float64(m.waiting) })
	p.family("vllm:num_requests_waiting_by_reason", "Number of requests waiting to be processed by reason.", "gauge")
	for i := range snap {
		p.sample("vllm:num_requests_waiting_by_reason", p.labels[i]+`,reason="capacity"`, float64(snap[i].waiting))
		p.sample("vllm:num_requests_waiting_by_reason", p.labels[i]+`,reason="deferred"`, 0)
	}
	gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", func(m *metrics) float64 { return m.usage })
	counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", func(m *metrics) int64 { return m.counters.PrefixQueries })
	counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", func(m *metrics) int64 { return m.counters.PrefixHits })
	counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", func(m *metrics) int64 { return m.counters.Preemptions })
	counter("vllm:prompt_tokens", "Number of prefill tokens processed.", func(m *metrics) int64 { return m.counters.PromptTokens })
	counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", func(m *metrics) int64 { return m.counters.CachedPromptTokens })
	p.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", []string{`,source="local_compute"`, `,source="local_cache_hit"`, `,source="external_kv_transfer"`}, func(i, k int) int64 {
		c := snap[i].counters
		return [...]int64{c.PromptTokens - c.CachedPromptTokens, c.CachedPromptTokens, 0}[k]
	})
	counter("vllm:generation_tokens", "Number of generation tokens processed.", func(m *metrics) int64 { return m.counters.GenerationTokens })
	p.counter("vllm:request_success", "Count of successfully processed requests.", []string{`,finished_reason="stop"`, `,finished_reason="length"`, `,finished_reason="abort"`, `,finished_reason="error"`, `,finished_reason="repetition"`}, func(i, k int) int64 {
		if k > 2 {
			return 0
		}
		return snap[i].counters.Finished[1+k]
	})
	for k, d := range histogramNames {
		p.family("vllm:"+d.name, d.help, "histogram")
		for i := range snap {
			p.histogram("vllm:"+d.name, p.labels[i], &snap[i].h[k])
		}
		p.createdTimes("vllm:"+d.name, d.help, []string{""})
	}
	p.family("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
	for i, r := range replicas {
		c := r.size
		p.sample("vllm:cache_config_info", `block_size="`+strconv.Itoa(c.BlockSize)+`",enable_prefix_caching="`+map[bool]string{true: "False", false: "True"}[c.NoPrefixCache]+
			`",engine="`+strconv.Itoa(i)+`",kv_cache_size_tokens="`+strconv.Itoa((c.Blocks-1)*c.BlockSize)+`",num_gpu_blocks="`+strconv.Itoa(c.Blocks)+`"`, 1)
	}
	gauge("trueload_sim:step_lateness_max_seconds", "Largest lateness of a step's tokens behind the simulated time.", func(m *metrics) float64 { return m.late.Seconds() })
	p.family("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge")
	p.sample("process_start_time_seconds", "", p.created)
	return p.b
}

type page struct {
	b       []byte
	labels  []string
	created float64
}

func (p *page) family(name, help, kind string) {
	p.b = append(p.b, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

func (p *page) sample(name, labels string, v float64) {
	p.b = append(p.b, name...)
	if labels != "" {
		p.b = append(p.b, "{"+labels+"}"...)
	}
	p.b = append(p.b, ' ')
	p.b = append(p.b, goFloat(v)...)
	p.b = append(p.b, '\n')
}

// counter writes the family name_total for each replica and label set, and the
// creation times beside it that Python's client adds.
func (p *page) counter(name, help string, sets []string, v func(replica, set int) int64) {
	p.family(name+"_total", help, "counter")
	for i := range p.labels {
		for k, set := range sets {
			p.sample(name+"_total", p.labels[i]+set, float64(v(i, k)))
		}
	}
	p.createdTimes(name, help, sets)
}

func (p *page) createdTimes(name, help string, sets []string) {
	p.family(name+"_created", help, "gauge")
	for i := range p.labels {
		for _, set := range sets {
			p.sample(name+"_created", p.labels[i]+set, p.created)
		}
	}
}

func (p *page) histogram(name, labels string, h *histogram) {
	var n int64
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(h.bounds) {
			le = goFloat(h.bounds[i])
		}
		p.sample(name+"_bucket", strings.Replace(labels, ",model_name", `,le="`+le+`",model_name`, 1), float64(n))
	}
	p.sample(name+"_count", labels, float64(n))
	p.sample(name+"_sum", labels, h.sum)
}

// goFloat prints as Python's client does: 148.0, 1.7769e+09.
func goFloat(v float64) string {
	if a := math.Abs(v); a >= 1e6 || a != 0 && a < 1e-4 {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
