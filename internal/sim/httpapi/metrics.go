package httpapi

import (
	"math"
	"slices"
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
	mu sync.Mutex
	numbers
}

// numbers are what a page is made of.
type numbers struct {
	born     time.Time
	running  int
	waiting  int
	usage    float64
	counters sim.Counters
	failed   int64         // of the aborted ones, by an error
	late     time.Duration // the largest lateness of a step's tokens
	h        [histograms]histogram
	lora     []loraInfo
	sglang   sglangNumbers
	llamacpp llamacppNumbers
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
	hSGLangTTFT
	hSGLangITL
	hSGLangE2E
	hSGLangQueue
	histograms
)

var (
	stepBuckets    = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	ttftBuckets    = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets     = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// vllmHistograms are those on vLLM's page, the first of the above.
var vllmHistograms = [...]struct{ name, help string }{
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

func newMetrics(c sim.Config, born time.Time) *metrics {
	m := &metrics{}
	lengths := oneTwoFive(c.MaxModelLen)
	for i, b := range [histograms][]float64{stepBuckets, ttftBuckets, itlBuckets, itlBuckets, requestBuckets, requestBuckets, requestBuckets, requestBuckets, requestBuckets, lengths, lengths, lengths, lengths, sglangTTFT, sglangITL, sglangE2E, sglangQueue} {
		m.h[i].bounds = b
	}
	m.reset(born)
	return m
}

// reset forgets all, as a process that starts anew at born.
func (m *metrics) reset(born time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.h
	for i := range h {
		h[i] = histogram{bounds: h[i].bounds, counts: make([]int64, len(h[i].bounds)+1)}
	}
	m.numbers = numbers{born: born, h: h}
}

// snapshot copies the numbers.
func (m *metrics) snapshot() numbers {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.numbers
	for k, h := range n.h {
		n.h[k].counts = slices.Clone(h.counts)
	}
	n.lora = slices.Clone(n.lora)
	return n
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

func (h *histogram) add(v float64) { h.addN(v, 1) }

// addN observes v n times.
func (h *histogram) addN(v float64, n int) {
	h.counts[sort.SearchFloat64s(h.bounds, v)] += int64(n)
	h.sum += v * float64(n)
}

// publish takes over the engine's state.
func (m *metrics) publish(e *sim.Engine) {
	m.mu.Lock()
	m.running, m.waiting, m.usage, m.counters = e.Running(), e.Waiting(), e.KVUsage(), e.Counters()
	m.sglang.publish(m.running, m.waiting, m.usage)
	if running, waiting := e.Adapters(); len(running)+len(waiting)+len(m.lora) > 0 {
		m.adapters(strings.Join(running, ","), strings.Join(waiting, ","))
	}
	m.mu.Unlock()
}

// loraInfo is a set of labels of vLLM's adapter gauge, with the time it held
// last, which is its value. Old sets stay on the page.
type loraInfo struct {
	running, waiting string
	at               time.Time
}

func (m *metrics) adapters(running, waiting string) {
	const limit = 100
	i := slices.IndexFunc(m.lora, func(l loraInfo) bool { return l.running == running && l.waiting == waiting })
	switch {
	case i >= 0:
		m.lora[i].at = time.Now()
		return
	case len(m.lora) == limit:
		m.lora = slices.Delete(m.lora, 0, 1)
	}
	m.lora = append(m.lora, loraInfo{running, waiting, time.Now()})
}

// observe counts one step whose tokens left late after their time.
func (m *metrics) observe(st *sim.Step, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = max(m.late, late)
	m.sglang.step(st)
	m.llamacpp.step(st)
	m.h[hIterationTokens].add(float64(st.Batch.Tokens))
	end := st.End()
	for event := range events(st) {
		r := event[0].Request
		s := r.Tag.(*stream)
		n := len(event)
		if event[0].Index == 0 {
			ttft := (end - r.Life.Queued).Seconds()
			m.h[hTTFT].add(ttft)
			m.h[hSGLangTTFT].add(ttft)
		} else {
			// vLLM observes an event's gap once; SGLang its share of a token, for
			// each token.
			gap := (end - s.last).Seconds()
			m.h[hITL].add(gap)
			m.h[hSGLangITL].addN(gap/float64(n), n)
		}
		s.last = end
		if event[n-1].Finish != sim.NotFinished {
			m.ended(r)
		}
	}
}

// aborted counts a request that was aborted, by its client or by an error.
func (m *metrics) aborted(r *sim.Request, failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if failed {
		m.failed++
	}
	m.sglang.aborted++
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
	m.h[hSGLangE2E].add(sec(l.Queued, l.LastToken))
	m.h[hQueue].add(sec(l.Queued, l.Scheduled))
	m.h[hSGLangQueue].add(sec(l.Queued, l.Scheduled))
	m.h[hInference].add(sec(l.Scheduled, l.LastToken))
	m.h[hPrefill].add(sec(l.Scheduled, l.FirstToken))
	decode := sec(l.FirstToken, l.LastToken)
	m.h[hDecode].add(decode)
	m.h[hTPOT].add(decode / math.Max(1, float64(l.Output-1)))
	m.h[hPromptTokens].add(float64(len(r.Prompt)))
	m.h[hGenerationTokens].add(float64(l.Output))
	m.h[hMaxTokens].add(float64(r.MaxTokens))
	m.h[hComputed].add(float64(len(r.Prompt) - l.Cached))
	m.sglang.ended(r)
	m.llamacpp.ended(r)
}

// Dialect is whose metric names a page has.
type Dialect uint8

const (
	VLLM Dialect = iota
	SGLang
	LlamaCPP
)

// shown is a replica on a page, under the number that its labels have.
type shown struct {
	numbers
	rank string
	size sim.Config
}

// page is the metrics page of replica only, or the router's, where that is nil.
// The router shows every replica that is up, each under its own rank; a replica
// alone calls itself 0, as every server does.
func (s *Server) page(only *replica) []byte {
	var list []shown
	for _, r := range s.replicas {
		switch {
		case r == only:
			list = append(list, shown{r.metrics.snapshot(), "0", r.size})
		case only == nil && r.up():
			list = append(list, shown{r.metrics.snapshot(), strconv.Itoa(r.index), r.size})
		}
	}
	if s.opt.Metrics == LlamaCPP && len(list) > 1 {
		// Its page has no labels to tell replicas apart by: whoever scrapes it
		// through a balancer sees now one, now another.
		i := s.pages.Add(1) - 1
		list = list[i%uint64(len(list)):][:1]
	}
	switch s.opt.Metrics {
	case SGLang:
		return s.sglangPage(list)
	case LlamaCPP:
		return llamacppPage(list)
	}
	return s.vllmPage(list)
}

func (s *Server) vllmPage(snap []shown) []byte {
	p := &page{noCreated: s.opt.APIServers > 1}
	for i := range snap {
		p.add(`engine="`+snap[i].rank+`",model_name="`+escapeLabel(s.opt.Model)+`"`, snap[i].born)
	}
	gauge := func(name, help string, v func(m *numbers) float64) {
		p.family(name, help, "gauge")
		for i := range snap {
			p.sample(name, p.labels[i], v(&snap[i].numbers))
		}
	}
	counter := func(name, help string, v func(m *numbers) int64) {
		p.counter(name, help, []string{""}, func(i, _ int) int64 { return v(&snap[i].numbers) })
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.", func(m *numbers) float64 { return float64(m.running) })
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", func(m *numbers) float64 { return float64(m.waiting) })
	p.family("vllm:num_requests_waiting_by_reason", "Number of requests waiting to be processed by reason.", "gauge")
	for i := range snap {
		p.sample("vllm:num_requests_waiting_by_reason", p.labels[i]+`,reason="capacity"`, float64(snap[i].waiting))
		p.sample("vllm:num_requests_waiting_by_reason", p.labels[i]+`,reason="deferred"`, 0)
	}
	if p.noCreated {
		// Without a rule for joining processes each shows its own copy, and only
		// the one that logs has the value.
		const name = "vllm:kv_cache_usage_perc"
		p.family(name, "KV-cache usage. 1 means 100 percent usage.", "gauge")
		for i := range snap {
			for k := range s.opt.APIServers {
				v := 0.0
				if k == 0 {
					v = snap[i].usage
				}
				p.sample(name, p.labels[i]+`,pid="`+strconv.Itoa(1001+k)+`"`, v)
			}
		}
	} else {
		gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", func(m *numbers) float64 { return m.usage })
	}
	counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", func(m *numbers) int64 { return m.counters.PrefixQueries })
	counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", func(m *numbers) int64 { return m.counters.PrefixHits })
	counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", func(m *numbers) int64 { return m.counters.Preemptions })
	counter("vllm:prompt_tokens", "Number of prefill tokens processed.", func(m *numbers) int64 { return m.counters.PromptTokens })
	counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", func(m *numbers) int64 { return m.counters.CachedPromptTokens })
	p.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", []string{`,source="local_compute"`, `,source="local_cache_hit"`, `,source="external_kv_transfer"`}, func(i, k int) int64 {
		c := snap[i].counters
		return [...]int64{c.PromptTokens - c.CachedPromptTokens, c.CachedPromptTokens, 0}[k]
	})
	counter("vllm:generation_tokens", "Number of generation tokens processed.", func(m *numbers) int64 { return m.counters.GenerationTokens })
	p.counter("vllm:request_success", "Count of successfully processed requests.", []string{`,finished_reason="stop"`, `,finished_reason="length"`, `,finished_reason="abort"`, `,finished_reason="error"`, `,finished_reason="repetition"`}, func(i, k int) int64 {
		c := snap[i].counters.Finished
		return [...]int64{c[sim.FinishedStop], c[sim.FinishedLength], c[sim.FinishedAbort] - snap[i].failed, snap[i].failed, 0}[k]
	})
	if k := s.opt.Engine.Speculation.Tokens; k > 0 {
		counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", func(m *numbers) int64 { return m.counters.Drafts })
		counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", func(m *numbers) int64 { return m.counters.DraftTokens })
		counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", func(m *numbers) int64 { return m.counters.AcceptedTokens })
		var positions []string
		for i := range k {
			positions = append(positions, `,position="`+strconv.Itoa(i)+`"`)
		}
		p.counter("vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position.", positions, func(i, k int) int64 { return snap[i].counters.AcceptedAt[k] })
	}
	if len(s.opt.Adapters) > 0 {
		p.family("vllm:lora_requests_info", "Running stats on lora requests.", "gauge")
		for i := range snap {
			for _, l := range snap[i].lora {
				p.sample("vllm:lora_requests_info", `max_lora="`+strconv.Itoa(snap[i].size.MaxLoRAs)+`",running_lora_adapters="`+escapeLabel(l.running)+`",waiting_lora_adapters="`+escapeLabel(l.waiting)+`"`, float64(l.at.UnixMicro())/1e6)
			}
		}
	}
	for k, d := range vllmHistograms {
		p.family("vllm:"+d.name, d.help, "histogram")
		for i := range snap {
			p.histogram("vllm:"+d.name, p.labels[i], &snap[i].h[k])
		}
		p.createdTimes("vllm:"+d.name, d.help, []string{""})
	}
	p.family("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
	for i := range snap {
		c := snap[i].size
		p.sample("vllm:cache_config_info", `block_size="`+strconv.Itoa(c.BlockSize)+`",enable_prefix_caching="`+map[bool]string{true: "False", false: "True"}[c.NoPrefixCache]+
			`",engine="`+snap[i].rank+`",kv_cache_size_tokens="`+strconv.Itoa((c.Blocks-1)*c.BlockSize)+`",num_gpu_blocks="`+strconv.Itoa(c.Blocks)+`"`, 1)
	}
	gauge("trueload_sim:step_lateness_max_seconds", "Largest lateness of a step's tokens behind the simulated time.", func(m *numbers) float64 { return m.late.Seconds() })
	if !p.noCreated && len(snap) > 0 {
		p.family("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge")
		p.sample("process_start_time_seconds", "", p.created[0])
	}
	return p.b
}

// page is a Prometheus text as Python's client writes it.
type page struct {
	b         []byte
	labels    []string  // of each replica
	created   []float64 // the same, in seconds of Unix time
	noCreated bool      // several processes write the page: there are no creation times
}

func (p *page) add(labels string, born time.Time) {
	p.labels = append(p.labels, labels)
	p.created = append(p.created, float64(born.UnixMicro())/1e6)
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
	if p.noCreated {
		return
	}
	p.family(name+"_created", help, "gauge")
	for i := range p.labels {
		for _, set := range sets {
			p.sample(name+"_created", p.labels[i]+set, p.created[i])
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
