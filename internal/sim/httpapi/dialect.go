package httpapi

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// SGLang's buckets (observability/metrics_collector.py, 2026).
var (
	sglangTTFT  = []float64{0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	sglangE2E   = append(append([]float64(nil), sglangTTFT...), 600, 1200, 1800, 2400)
	sglangITL   = []float64{0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8}
	sglangQueue = []float64{0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000}
)

// sglangNumbers are what SGLang counts otherwise than vLLM: tokens when their
// request has finished, and gauges as they were at the last report.
type sglangNumbers struct {
	requests, aborted, prompt, cached, generated int64

	// Since the last report, and until it.
	pending [3]int64 // prefill computed, prefill from the cache, decode
	decodes int
	report  sglangReport
}

// sglangReport is what the scheduler logs: at each step with a prefill, and at
// every 40th of the others.
type sglangReport struct {
	stale    bool // running, waiting and usage are those of the step that ends now
	at       time.Duration
	running  int
	waiting  int
	usage    float64
	hitRate  float64 // of the last prefill batch; a decode report says 0
	gen      float64 // decoded tokens per second since the last decode report
	realtime [3]int64
}

const sglangDecodeInterval = 40

func (n *sglangNumbers) ended(r *sim.Request) {
	n.requests++
	n.prompt += int64(len(r.Prompt))
	n.cached += int64(r.Life.Cached)
	n.generated += int64(r.Life.Output)
}

func (n *sglangNumbers) step(st *sim.Step) {
	var cached int64
	for _, r := range st.Scheduled {
		cached += int64(r.Life.Cached)
	}
	n.pending[0] += int64(st.Batch.PrefillTokens)
	n.pending[1] += cached
	for i := range st.Emitted {
		if st.Emitted[i].Index > 0 {
			n.pending[2]++
		}
	}
	r := &n.report
	switch {
	case st.Batch.Prefills > 0:
		r.hitRate = float64(cached) / float64(max(1, cached+int64(st.Batch.PrefillTokens)))
	case n.decodes+1 < sglangDecodeInterval:
		n.decodes++
		return
	default:
		n.decodes = 0
		r.hitRate = 0
		if since := (st.End() - r.at).Seconds(); since > 0 {
			r.gen = float64(n.pending[2]) / since
		}
	}
	r.at = st.End()
	r.stale = true
	for i := range n.pending {
		r.realtime[i] += n.pending[i]
	}
	n.pending = [3]int64{}
}

// publish completes a report with the state after its step. An idle scheduler
// reports too, which is shown at once rather than after 30 s.
func (n *sglangNumbers) publish(running, waiting int, usage float64) {
	if r := &n.report; r.stale || running+waiting == 0 {
		// token_usage is rounded to 0.01.
		r.running, r.waiting, r.usage, r.stale = running, waiting, math.Round(usage*100)/100, false
	}
}

func (s *Server) sglangPage(snap []shown) []byte {
	p := &page{noCreated: true} // SGLang always runs in several processes
	model := escapeLabel(s.opt.Model)
	scheduler := make([]string, len(snap)) // scheduler and tokenizer processes label differently
	for i := range snap {
		scheduler[i] = `dp_rank="` + snap[i].rank + `",engine_type="unified",model_name="` + model + `",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"`
	}
	gauge := func(name, help string, v func(n *shown) float64) {
		p.family("sglang:"+name, help, "gauge")
		for i := range snap {
			p.sample("sglang:"+name, scheduler[i], v(&snap[i]))
		}
	}
	gauge("num_running_reqs", "The number of running requests.", func(n *shown) float64 { return float64(n.sglang.report.running) })
	gauge("num_queue_reqs", "The number of requests in the waiting queue.", func(n *shown) float64 { return float64(n.sglang.report.waiting) })
	gauge("token_usage", "The token usage.", func(n *shown) float64 { return n.sglang.report.usage })
	gauge("cache_hit_rate", "The prefix cache hit rate.", func(n *shown) float64 { return n.sglang.report.hitRate })
	gauge("gen_throughput", "The generation throughput (token/s).", func(n *shown) float64 { return n.sglang.report.gen })
	gauge("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", func(n *shown) float64 { return float64((n.size.Blocks - 1) * n.size.BlockSize) })
	gauge("page_size", "The KV cache page size, in tokens.", func(n *shown) float64 {
		if n.size.Policy == sim.SGLang {
			return 1
		}
		return float64(n.size.BlockSize)
	})
	p.family("sglang:fwd_occupancy", "Forward pass GPU occupancy percentage.", "gauge")
	for i := range snap {
		p.b = append(p.b, "sglang:fwd_occupancy{"+scheduler[i]+"} NaN\n"...)
	}
	counter := func(name, help, more string, labels func(i int) string, v func(n *shown) int64) {
		p.family("sglang:"+name, help, "counter")
		for i := range snap {
			// A label set appears with its first use.
			if n := v(&snap[i]); n > 0 {
				p.sample("sglang:"+name, more+labels(i), float64(n))
			}
		}
	}
	ofScheduler := func(i int) string { return scheduler[i] }
	// The processes of the tokenizer know no ranks. Behind the router the
	// replicas are added up.
	joined := func(int) string { return `engine_type="unified",model_name="` + model + `",priority=""` }
	all := snap
	if len(snap) > 1 {
		sum := snap[0]
		for k := range sum.h {
			sum.h[k].counts = slices.Clone(sum.h[k].counts)
		}
		for i := 1; i < len(snap); i++ {
			sum.sglang.add(&snap[i].sglang)
			for k := range sum.h {
				sum.h[k].merge(&snap[i].h[k])
			}
		}
		all = []shown{sum}
	}
	p.family("sglang:realtime_tokens_total", "Total number of tokens processed (updated on each log interval). mode: prefill_compute, prefill_cache, decode.", "counter")
	for i := range snap {
		for k, mode := range []string{"prefill_compute", "prefill_cache", "decode"} {
			if n := snap[i].sglang.report.realtime[k]; n > 0 {
				p.sample("sglang:realtime_tokens_total", `mode="`+mode+`",`+scheduler[i], float64(n))
			}
		}
	}
	counter("num_retracted_requests_total", "Total number of retracted requests.", "", ofScheduler, func(n *shown) int64 { return n.counters.Preemptions })
	p.family("sglang:queue_time_seconds", "Histogram of queueing time in seconds.", "histogram")
	for i := range snap {
		p.histogram("sglang:queue_time_seconds", scheduler[i], &snap[i].h[hSGLangQueue])
	}
	snap = all
	counter("prompt_tokens_total", "Number of prefill tokens processed.", "", joined, func(n *shown) int64 { return n.sglang.prompt })
	counter("generation_tokens_total", "Number of generation tokens processed.", "", joined, func(n *shown) int64 { return n.sglang.generated })
	counter("cached_tokens_total", "Number of cached prompt tokens by source (device/host/storage).", `cache_source="device",`, joined, func(n *shown) int64 { return n.sglang.cached })
	counter("num_requests_total", "Number of requests processed.", "", joined, func(n *shown) int64 { return n.sglang.requests })
	counter("num_aborted_requests_total", "Number of requests aborted.", "", joined, func(n *shown) int64 { return n.sglang.aborted })
	for _, d := range []struct {
		name, help string
		h          int
	}{
		{"time_to_first_token_seconds", "Histogram of time to first token in seconds.", hSGLangTTFT},
		{"inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", hSGLangITL},
		{"e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", hSGLangE2E},
	} {
		p.family("sglang:"+d.name, d.help, "histogram")
		for i := range snap {
			p.histogram("sglang:"+d.name, joined(i), &snap[i].h[d.h])
		}
	}
	return p.b
}

func (n *sglangNumbers) add(o *sglangNumbers) {
	n.requests += o.requests
	n.aborted += o.aborted
	n.prompt += o.prompt
	n.cached += o.cached
	n.generated += o.generated
}

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.sum += o.sum
}

// llamacppNumbers are what llama.cpp counts otherwise: prompts without what the
// cache spared, and output when its slot is released.
type llamacppNumbers struct {
	promptTime, outputTime time.Duration
	prompt, output         int64
	longest                int   // tokens of one sequence
	busy                   int64 // slots, summed over the steps
}

func (n *llamacppNumbers) ended(r *sim.Request) {
	l := &r.Life
	n.output += int64(l.Output)
	n.outputTime += l.LastToken - l.FirstToken
	n.longest = max(n.longest, len(r.Prompt)+l.Output)
}

func (n *llamacppNumbers) step(st *sim.Step) {
	n.busy += int64(st.Batch.Prefills + st.Batch.Decodes)
	for i := range st.Emitted {
		if e := &st.Emitted[i]; e.Index == 0 {
			l := &e.Request.Life
			n.prompt += int64(len(e.Request.Prompt) - l.Cached)
			n.promptTime += l.FirstToken - l.Scheduled
		}
	}
}

// llamacppPage has no labels. Its numbers have six digits.
func llamacppPage(list []shown) []byte {
	p := &page{}
	if len(list) == 0 {
		return nil
	}
	n := &list[0]
	l := &n.llamacpp
	rate := func(v int64, d time.Duration) float64 { return float64(v) / math.Max(d.Seconds(), 1e-9) }
	for _, m := range []struct {
		name, kind, help string
		v                float64
	}{
		{"prompt_tokens_total", "counter", "Number of prompt tokens processed.", float64(l.prompt)},
		{"prompt_seconds_total", "counter", "Prompt process time", l.promptTime.Seconds()},
		{"tokens_predicted_total", "counter", "Number of generation tokens processed.", float64(l.output)},
		{"tokens_predicted_seconds_total", "counter", "Predict process time", l.outputTime.Seconds()},
		{"n_decode_total", "counter", "Total number of llama_decode() calls", float64(n.counters.Steps)},
		{"n_tokens_max", "counter", "Largest observed n_tokens.", float64(l.longest)},
		{"n_busy_slots_per_decode", "counter", "Average number of busy slots per llama_decode() call", float64(l.busy) / math.Max(1, float64(n.counters.Steps))},
		{"prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s.", rate(l.prompt, l.promptTime)},
		{"predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s.", rate(l.output, l.outputTime)},
		{"requests_processing", "gauge", "Number of requests processing.", float64(n.running)},
		{"requests_deferred", "gauge", "Number of requests deferred.", float64(n.waiting)},
	} {
		p.family("llamacpp:"+m.name, m.help, m.kind)
		p.b = append(p.b, "llamacpp:"+m.name+" "+strconv.FormatFloat(m.v, 'g', 6, 64)+"\n"...)
	}
	return p.b
}
