package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

var sample = regexp.MustCompile(`(?m)^([a-zA-Z0-9_:]+)(?:\{(.*)\})? (\S+)$`)

// labelSets maps a page's families to the label names of their samples, and its
// TYPE lines to true.
func labelSets(page string) (types map[string]bool, labels map[string]string) {
	types, labels = map[string]bool{}, map[string]string{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "# TYPE") {
			types[line] = true
		}
		if m := sample.FindStringSubmatch(line); m != nil {
			labels[m[1]] = regexp.MustCompile(`="[^"]*"`).ReplaceAllString(m[2], "")
		}
	}
	return types, labels
}

// Every family of a page of the real engine is there, of the same type and with
// the same label names.
func TestPagesOfOtherEngines(t *testing.T) {
	for _, tc := range []struct {
		fixture string
		dialect Dialect
		least   int
	}{{"sglang-2026-constructed.prom", SGLang, 8}, {"llamacpp-live.prom", LlamaCPP, 11}} {
		synctest.Test(t, func(t *testing.T) {
			b, err := os.ReadFile("testdata/" + tc.fixture)
			if err != nil {
				t.Fatal(err)
			}
			_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Metrics: tc.dialect})
			for range 2 {
				c.stream("/v1/chat/completions", chat(50, 45, ""))
			}
			types, labels := labelSets(string(b))
			if len(types) < tc.least {
				t.Fatalf("%d types in the fixture", len(types))
			}
			p := c.get("/metrics")
			gotTypes, gotLabels := labelSets(p)
			for line := range types {
				if !gotTypes[line] {
					t.Errorf("missing %q in\n%s", line, p)
				}
			}
			sorted := func(s string) string {
				set := map[string]bool{}
				for _, l := range strings.Split(s, ",") {
					set[l] = true
				}
				b, _ := json.Marshal(set) // whose keys are sorted
				return string(b)
			}
			for name, set := range labels {
				if sorted(gotLabels[name]) != sorted(set) {
					t.Errorf("%s has the labels %q, want %q", name, gotLabels[name], set)
				}
			}
		})
	}
}

const (
	sgScheduler = `{dp_rank="0",engine_type="unified",model_name="sim",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"}`
	sgTokenizer = `{engine_type="unified",model_name="sim",priority=""}`
)

// SGLang counts tokens when their request finishes, and reports its state with
// each prefill and each fortieth decode step.
func TestSGLangsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Metrics: SGLang})
		c.stream("/v1/chat/completions", chat(50, 5, "")) // 57 tokens
		p := c.get("/metrics")
		mode := func(p, m string) float64 {
			return value(t, p, `sglang:realtime_tokens_total{mode="`+m+`",`+sgScheduler[1:])
		}
		if value(t, p, "sglang:prompt_tokens_total"+sgTokenizer) != 57 || value(t, p, "sglang:generation_tokens_total"+sgTokenizer) != 5 || value(t, p, "sglang:num_requests_total"+sgTokenizer) != 1 {
			t.Errorf("after one request\n%s", p)
		}
		if strings.Contains(p, "sglang:cached_tokens_total{") || strings.Contains(p, `mode="prefill_cache"`) || strings.Contains(p, "_created") || strings.Contains(p, "process_") {
			t.Errorf("series that are not there before their first use, or never\n%s", p)
		}
		var wg sync.WaitGroup
		wg.Go(func() { c.stream("/v1/chat/completions", chat(50, 100, "")) })
		time.Sleep(200 * time.Millisecond)
		p = c.get("/metrics")
		if mode(p, "prefill_compute") != 57+9 || mode(p, "prefill_cache") != 48 {
			t.Errorf("prefill: %v computed and %v cached, want 66 and 48", mode(p, "prefill_compute"), mode(p, "prefill_cache"))
		}
		// 48 of 57 tokens in the last prefill batch; the request has not finished.
		if r := value(t, p, "sglang:cache_hit_rate"+sgScheduler); r != 48./57 || value(t, p, "sglang:prompt_tokens_total"+sgTokenizer) != 57 || value(t, p, "sglang:num_running_reqs"+sgScheduler) != 1 {
			t.Errorf("during the second: hit rate %v\n%s", r, p)
		}
		time.Sleep(450 * time.Millisecond) // past 40 decode steps of 11 ms, counted with the four before
		p = c.get("/metrics")
		if value(t, p, "sglang:cache_hit_rate"+sgScheduler) != 0 || mode(p, "decode") != 40 || value(t, p, "sglang:gen_throughput"+sgScheduler) < 50 {
			t.Errorf("after a decode report\n%s", p)
		}
		wg.Wait()
		p = c.get("/metrics")
		if value(t, p, "sglang:cached_tokens_total{cache_source=\"device\","+sgTokenizer[1:]) != 48 || value(t, p, "sglang:num_running_reqs"+sgScheduler) != 0 ||
			value(t, p, "sglang:time_to_first_token_seconds_count"+sgTokenizer) != 2 || value(t, p, "sglang:inter_token_latency_seconds_count"+sgTokenizer) != 4+99 ||
			value(t, p, `sglang:inter_token_latency_seconds_bucket{engine_type="unified",le="0.015",model_name="sim",priority=""}`) != 103 ||
			value(t, p, "sglang:queue_time_seconds_count"+sgScheduler) != 2 {
			t.Errorf("at the end\n%s", p)
		}
	})
}

func TestRouterPagesOfOtherEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Metrics: SGLang, Replicas: 2})
		for range 3 {
			c.stream("/v1/chat/completions", chat(50, 5, ""))
		}
		p := c.get("/metrics")
		if value(t, p, "sglang:prompt_tokens_total"+sgTokenizer) != 3*57 || value(t, p, "sglang:e2e_request_latency_seconds_count"+sgTokenizer) != 3 ||
			value(t, p, "sglang:queue_time_seconds_count"+sgScheduler) != 2 || value(t, p, "sglang:queue_time_seconds_count"+strings.Replace(sgScheduler, `dp_rank="0"`, `dp_rank="1"`, 1)) != 1 {
			t.Errorf("SGLang's router\n%s", p)
		}
		if again := c.get("/metrics"); again != p {
			t.Error("a second look at the same state shows other numbers")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Metrics: LlamaCPP, Replicas: 2})
		for range 3 {
			c.stream("/v1/chat/completions", chat(50, 5, ""))
		}
		seen := map[float64]int{}
		for range 4 {
			seen[value(t, c.get("/metrics"), "llamacpp:tokens_predicted_total")]++
		}
		if seen[10] != 2 || seen[5] != 2 {
			t.Errorf("four looks through the router showed %v, want each replica twice", seen)
		}
		w := httptest.NewRecorder()
		s.ReplicaHandler(0).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		p := w.Body.String()
		// The second of its two prompts had 48 of 57 tokens cached: 66 computed,
		// in 10 + 57 ms and 10 + 9 ms.
		for name, want := range map[string]float64{
			"prompt_tokens_total": 66, "prompt_seconds_total": 0.086, "tokens_predicted_total": 10, "tokens_predicted_seconds_total": 0.088,
			"n_decode_total": 10, "n_tokens_max": 62, "n_busy_slots_per_decode": 1, "prompt_tokens_seconds": 767.442, "predicted_tokens_seconds": 113.636,
			"requests_processing": 0, "requests_deferred": 0,
		} {
			if got := value(t, p, "llamacpp:"+name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// The quirk of 2025: a copy of the usage for each API server, one of them true.
func TestPIDLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, APIServers: 3})
		go c.stream("/v1/chat/completions", chat(50, 20, ""))
		time.Sleep(100 * time.Millisecond)
		p := c.get("/metrics")
		var got []float64
		for _, pid := range []string{"1001", "1002", "1003"} {
			got = append(got, value(t, p, `vllm:kv_cache_usage_perc{engine="0",model_name="sim",pid="`+pid+`"}`))
		}
		if got[0] == 0 || got[1] != 0 || got[2] != 0 || strings.Contains(p, "vllm:kv_cache_usage_perc"+lbl) {
			t.Errorf("usage %v", got)
		}
		if strings.Contains(p, "_created") || strings.Contains(p, "process_start") {
			t.Error("several processes show creation times")
		}
		time.Sleep(time.Second)
	})
}

// The quirk of vLLM until July 2026: what waits for blocks is looked up again
// and again.
func TestRecountQuirk(t *testing.T) {
	queries := map[bool]float64{}
	for _, recount := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, c := start(t, Options{Engine: sim.Config{Profile: flat, Blocks: 9, RecountBlocked: recount}})
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { c.stream("/v1/chat/completions", chat(73, 10, `,"cache_salt":"`+time.Now().String()+`"`)) })
				time.Sleep(time.Millisecond)
			}
			wg.Wait()
			queries[recount] = value(t, c.get("/metrics"), "vllm:prefix_cache_queries_total"+lbl)
		})
	}
	if queries[false] != 3*80 || queries[true] < 10*80 {
		t.Errorf("tokens looked up: %v", queries)
	}
}

// SGLang tells a full queue inside a 200, where the answer is a stream.
func TestOverloadInBand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 1}, MaxQueue: 1, Overload: InBand503, RetryAfter: time.Second})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { c.stream("/v1/chat/completions", chat(3, 50, "")) })
			time.Sleep(50 * time.Millisecond)
		}
		if s := c.get("/load"); s != `{"server_load":2}` {
			t.Errorf("load %s", s)
		}
		resp := c.post(t.Context(), "/v1/chat/completions", chat(3, 3, ""))
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		const want = `data: {"error":{"object":"error","message":"The request queue is full.","type":"ServiceUnavailableError","param":null,"code":503}}` + "\n\ndata: [DONE]\n\n"
		if resp.StatusCode != 200 || string(b) != want || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			t.Errorf("streamed: %s %s", resp.Status, b)
		}
		if status, b := c.call("/v1/chat/completions", strings.Replace(chat(3, 3, ""), `"stream":true`, `"stream":false`, 1)); status != 503 || !strings.Contains(b, "queue is full") {
			t.Errorf("whole: %d %s", status, b)
		}
		wg.Wait()
		if s := c.get("/load"); s != `{"server_load":0}` {
			t.Errorf("load %s", s)
		}
	})
}

// The reset of old says nothing, and is refused all the same.
func TestSilentReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, SilentReset: true})
		go c.stream("/v1/chat/completions", chat(50, 50, ""))
		time.Sleep(100 * time.Millisecond)
		if status, b := c.call("/reset_prefix_cache", ""); status != 200 || b != "" {
			t.Errorf("%d %q", status, b)
		}
		time.Sleep(time.Second)
		if a := c.stream("/v1/chat/completions", chat(50, 1, "")); a.usage.Cached == nil {
			t.Error("the cache is empty after a reset that should have been refused")
		}
		c.call("/reset_prefix_cache", "")
		if a := c.stream("/v1/chat/completions", chat(50, 1, "")); a.usage.Cached != nil {
			t.Error("the cache is full after a reset")
		}
	})
}

func TestTokenStrs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxModelLen: 100}})
		for body, want := range map[string]string{
			`{"prompt":"one, two"}`:                            `"token_strs":null`,
			`{"prompt":"one, two","return_token_strs":true}`:   `"token_strs":["one",","," two"]`,
			`{"prompt":"","return_token_strs":true}`:           `"tokens":[]`,
			`{"prompt":"one, two","add_special_tokens":false}`: `"count":3,"max_model_len":100`,
		} {
			if status, b := c.call("/tokenize", body); status != 200 || !strings.Contains(b, want) {
				t.Errorf("%s: %d %s", body, status, b)
			}
		}
	})
}

type slowWriter struct {
	mu sync.Mutex
	bytes.Buffer
	delay time.Duration
	fail  error
}

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(w.delay)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return 0, w.fail
	}
	return w.Buffer.Write(b)
}

func (w *slowWriter) lines() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Count(w.Bytes(), []byte("\n"))
}

// The log has a line for each accepted request, with times that the client's own
// agree with.
func TestTruthLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w slowWriter
		log := NewTruthLog(&w)
		s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Truth: log.Add})
		a := c.stream("/v1/chat/completions", chat(13, 3, ""))
		if err := s.Inject(Fault{Kind: Drop, Replica: AllReplicas, Share: 1, After: 2}); err != nil {
			t.Fatal(err)
		}
		c.outcome(chat(13, 3, ""))
		time.Sleep(time.Second)
		if n := w.lines(); n != 2 {
			t.Errorf("%d lines a second later, want 2", n)
		}
		s.ClearFaults()
		go c.outcome(chat(13, 300, ""))
		time.Sleep(100 * time.Millisecond)
		s.Close()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		type line struct {
			ID, Arrived, Finish  string
			Scheduled            *int64  `json:"scheduled_ns"`
			FirstWrite           *int64  `json:"first_write_ns"`
			Steps                []int64 `json:"steps_ns"`
			Prompt, Cached, Outs int
			Output               int `json:"output_tokens"`
		}
		var got []line
		for l := range bytes.Lines(w.Bytes()) {
			var v line
			if err := json.Unmarshal(l, &v); err != nil {
				t.Fatalf("%v: %s", err, l)
			}
			got = append(got, v)
		}
		if len(got) != 3 || got[0].Finish != "length" || got[1].Finish != "drop" || got[2].Finish != "died" {
			t.Fatalf("%s", w.Bytes())
		}
		first := got[0]
		if len(first.Steps) != 3 || first.Output != 3 || *first.Scheduled != 0 || *first.FirstWrite != int64(a.at[0]) || got[1].Output != 2 || got[2].Scheduled != nil {
			t.Errorf("%s", w.Bytes())
		}
		for i, at := range a.at {
			if first.Steps[i] != int64(at) {
				t.Errorf("token %d: made at %d ns, seen at %d ns", i, first.Steps[i], at)
			}
		}
		if _, err := time.Parse(time.RFC3339Nano, first.Arrived); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// A slow disk loses nothing.
		w := slowWriter{delay: 100 * time.Millisecond}
		log := NewTruthLog(&w)
		for range 20000 {
			log.Add(Truth{})
		}
		if err := log.Close(); err != nil || w.lines() != 20000 {
			t.Errorf("%d lines, %v", w.lines(), err)
		}
		if err := log.Close(); err != nil {
			t.Error("a second Close:", err)
		}
		for range 10000 {
			log.Add(Truth{}) // does not block
		}
		full := errors.New("disk full")
		log = NewTruthLog(&slowWriter{fail: full})
		for range 20000 {
			log.Add(Truth{})
		}
		if err := log.Close(); !errors.Is(err, full) {
			t.Errorf("the disk's error came back as %v", err)
		}
	})
}

var _ http.Handler = (*Server)(nil)
