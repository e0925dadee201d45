package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/wire"
)

// An engine is a server of canned behaviour, asked through Do. Its prompts'
// counts are honest: one token a word, and the template.
type engine struct {
	pages     map[string]string // by path; status 200
	header    http.Header
	noUsage   bool
	perEvent  bool // continuous_usage_stats
	caches    bool // says cached_tokens from the second time on
	stopsAt   int  // tokens, unless forced; 0: never early
	forces    bool
	refuses   string // a field that makes a 400
	template  int
	perWord   int // tokens; 0: 1
	atOnce    bool
	lateFirst time.Duration // first output after the headers
	down      error

	now   time.Duration
	seen  int
	paths []string
}

func (e *engine) clock() time.Duration { return e.now }

func (e *engine) Do(ctx context.Context, req *wire.Request, t *wire.Timing, h wire.Handler) error {
	if e.down != nil {
		return e.down
	}
	e.paths = append(e.paths, req.URL.Path)
	r := httptest.NewRequest(req.Method, "http://h"+req.URL.Path, strings.NewReader(string(req.Body)))
	r.Header = req.Header
	w := httptest.NewRecorder()
	e.serve(w, r)
	t.Sent = e.now
	e.now += ms
	stamp := func() wire.Stamp { return wire.Stamp{At: e.now, Earliest: e.now - ms, Read: e.now, Kernel: true} }
	if err := h.Headers(w.Code, w.Header(), stamp()); err != nil {
		return err
	}
	e.now += e.lateFirst
	for _, b := range strings.SplitAfter(w.Body.String(), "\n\n") {
		if b == "" {
			continue
		}
		e.now += ms
		if err := h.Data([]byte(b), stamp()); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	for k, v := range e.header {
		w.Header()[k] = v
	}
	if !strings.HasSuffix(r.URL.Path, "/completions") {
		page, ok := e.pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, page)
		return
	}
	var q struct {
		Messages  []Message
		MaxTokens int  `json:"max_tokens"`
		IgnoreEOS bool `json:"ignore_eos"`
		Stream    bool
		Options   struct {
			Usage bool `json:"include_usage"`
			Event bool `json:"continuous_usage_stats"`
		} `json:"stream_options"`
	}
	var raw map[string]any
	d := json.NewDecoder(r.Body)
	var body json.RawMessage
	d.Decode(&body)
	json.Unmarshal(body, &q)
	json.Unmarshal(body, &raw)
	if _, ok := raw[e.refuses]; ok && e.refuses != "" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"message":"Unrecognized request argument supplied: %s","code":400}}`, e.refuses)
		return
	}
	n := q.MaxTokens
	if e.stopsAt > 0 && !(e.forces && q.IgnoreEOS) {
		n = min(n, e.stopsAt)
	}
	prompt := len(strings.Fields(q.Messages[0].Content))*max(e.perWord, 1) + e.template
	e.seen++
	usage := func(n int) string {
		cached := ""
		if e.caches && e.seen > 1 {
			cached = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, 16*e.seen)
		}
		return fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d%s}`, prompt, n, cached)
	}
	if e.atOnce {
		fmt.Fprintf(w, `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],%s}`, usage(n))
		return
	}
	for i := range n {
		extra := ""
		if e.perEvent && q.Options.Event {
			extra = "," + usage(i+1)
		}
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{"content":" x"}}]%s}`+"\n\n", extra)
	}
	fmt.Fprintf(w, "data: %s\n\n", stop)
	if q.Options.Usage && !e.noUsage {
		fmt.Fprintf(w, "data: {\"choices\":[],%s}\n\n", usage(n))
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func models(owner string) map[string]string {
	return map[string]string{"/v1/models": `{"object":"list","data":[{"id":"llama","owned_by":"` + owner + `","max_model_len":8192}]}`}
}

func with(pages map[string]string, path, body string) map[string]string {
	pages[path] = body
	return pages
}

func prober(t *testing.T, e *engine, cfg Config) *Client {
	t.Helper()
	cfg.BaseURL, cfg.Now = "http://h:8000", e.clock
	if cfg.Header == nil {
		cfg.Header = http.Header{"Authorization": {"Bearer sk-12345678"}}
	}
	c, err := New(cfg, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestIdentify(t *testing.T) {
	for _, c := range []struct {
		name    string
		e       *engine
		dialect Dialect
		version string
		length  int
	}{
		{"vLLM", &engine{pages: with(models("vllm"), "/version", `{"version":"0.21.0"}`)}, VLLM, "0.21.0", 8192},
		{"SGLang", &engine{pages: with(models("sglang"), "/server_info", `{"version":"0.5","internal_states":[]}`)}, SGLang, "0.5", 8192},
		{"SGLang by its address", &engine{pages: with(models("me"), "/get_server_info", `{"version":"0.4","internal_states":[]}`)}, SGLang, "0.4", 8192},
		{"llama.cpp", &engine{header: http.Header{"Server": {"llama.cpp"}}, pages: with(map[string]string{}, "/props", `{"default_generation_settings":{"n_ctx":4096},"build_info":"b9000"}`)}, LlamaCPP, "b9000", 4096},
		{"TGI", &engine{pages: map[string]string{"/info": `{"model_id":"x","max_total_tokens":4096,"version":"3.3.6"}`}}, TGI, "3.3.6", -1},
		{"Ollama", &engine{pages: with(models("library"), "/api/version", `{"version":"0.12"}`)}, Ollama, "0.12", 8192},
		{"LMDeploy", &engine{pages: models("lmdeploy")}, LMDeploy, "", 8192},
		{"TensorRT-LLM", &engine{pages: with(models("tensorrt_llm"), "/version", `{"version":"1.2"}`)}, TRTLLM, "1.2", 8192},
		{"LiteLLM, though its models are others'", &engine{header: http.Header{"X-Litellm-Version": {"1.80"}}, pages: with(models("openai"), "/version", `{"version":"9"}`)}, LiteLLM, "1.80", 8192},
		{"OpenAI", &engine{header: http.Header{"Openai-Version": {"2020-10-01"}}, pages: models("system")}, OpenAI, "", 8192},
		{"a stranger with a version", &engine{pages: with(models("acme"), "/version", `{"version":"9"}`)}, Unknown, "", 8192},
		{"pages that are no JSON", &engine{pages: map[string]string{"/v1/models": "<html>", "/props": "<html>", "/info": "[", "/version": ""}}, Unknown, "", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := prober(t, c.e, Config{}).Identify(t.Context())
			want(t, "reached", id.Reached, true)
			want(t, "dialect", id.Dialect, c.dialect)
			want(t, "version", id.Version, c.version)
			want(t, "longest", id.MaxModelLen, c.length)
			if id.Dialect != Unknown && len(id.Evidence) == 0 {
				t.Error("no evidence")
			}
			for _, p := range c.e.paths {
				if strings.HasSuffix(p, "completions") {
					t.Errorf("%s makes tokens", p)
				}
			}
		})
	}
	e := &engine{down: &wire.ConnectError{Addr: "h:8000", Err: errors.New("refused, sk-12345678")}}
	id := prober(t, e, Config{}).Identify(t.Context())
	want(t, "down", id.Reached, false)
	want(t, "its error", id.Error, "connect to h:8000: refused, [redacted]")
}

func TestProbe(t *testing.T) {
	t.Run("an engine that does everything", func(t *testing.T) {
		e := &engine{pages: models("vllm"), perEvent: true, caches: true, forces: true, stopsAt: 3, template: 23, lateFirst: 100 * ms}
		r := prober(t, e, Config{}).Probe(t.Context())
		want(t, "model", r.Model, "llama")
		want(t, "answered", r.Answered, true)
		want(t, "streams", r.Streams, true)
		want(t, "usage", r.Usage, true)
		want(t, "usage on events", r.EventUsage, true)
		want(t, "cached", r.CachedTokens, true)
		want(t, "hit", r.CacheHit, 48)
		want(t, "forces", r.ForcesLength, true)
		want(t, "got", r.LengthGot, probeOutput)
		want(t, "template", r.TemplateTokens, 23)
		want(t, "later turns", r.LaterTokens, 0)
		want(t, "tokens per word", r.TokensPerWord, 1)
		want(t, "headers early", r.HeadersEarly, true)
		want(t, "headers after", r.HeadersAfter, ms)
		want(t, "first output after", r.FirstOutputAfter, 102*ms)
		wantAdvice(t, r, "headers come before the first token")
		want(t, "requests", e.seen, 4)
	})
	t.Run("one that does little", func(t *testing.T) {
		e := &engine{pages: models("library"), noUsage: true, stopsAt: 3}
		r := prober(t, e, Config{}).Probe(t.Context())
		want(t, "usage", r.Usage, false)
		want(t, "template", r.TemplateTokens, -1)
		want(t, "headers early", r.HeadersEarly, false)
		wantAdvice(t, r, "counts no tokens", "cannot be forced here")
	})
	t.Run("one that stops early, and says nothing of its cache", func(t *testing.T) {
		e := &engine{pages: models("vllm"), stopsAt: 3, perWord: 2}
		r := prober(t, e, Config{}).Probe(t.Context())
		want(t, "forces", r.ForcesLength, false)
		want(t, "got", r.LengthGot, 3)
		want(t, "tokens per word", r.TokensPerWord, 2)
		wantAdvice(t, r, "events carry no token counts", "--enable-prompt-tokens-details", "came out as 3", "2.00 tokens for a word")
	})
	t.Run("one that does not stream", func(t *testing.T) {
		r := prober(t, &engine{pages: models("acme"), atOnce: true}, Config{}).Probe(t.Context())
		want(t, "streams", r.Streams, false)
		wantAdvice(t, r, "did not come in pieces", "no answer said how much", "cannot be forced here")
	})
	for field, check := range map[string]func(ProbeReport) bool{
		"stream_options": func(r ProbeReport) bool { return r.RefusesUsage && !r.RefusesForcing && r.ForcesLength == false },
		"ignore_eos":     func(r ProbeReport) bool { return r.RefusesForcing && !r.RefusesUsage && r.Usage },
	} {
		t.Run("one that refuses "+field, func(t *testing.T) {
			r := prober(t, &engine{pages: models("vllm"), refuses: field}, Config{}).Probe(t.Context())
			if !r.Answered || !check(r) {
				t.Errorf("report %+v", r)
			}
			wantAdvice(t, r, "refuses")
		})
	}
	t.Run("one that refuses everything", func(t *testing.T) {
		r := prober(t, &engine{pages: models("vllm"), refuses: "messages"}, Config{Model: "other"}).Probe(t.Context())
		want(t, "answered", r.Answered, false)
		wantAdvice(t, r, "got no good answer: Unrecognized request argument supplied: messages", `"other" is not among`)
	})
	t.Run("nobody there", func(t *testing.T) {
		r := prober(t, &engine{down: &wire.ConnectError{Addr: "h:8000", Err: errors.New("refused")}}, Config{}).Probe(t.Context())
		want(t, "reached", r.Reached, false)
		wantAdvice(t, r, "not reached: connect to h:8000: refused")
	})
	t.Run("several models", func(t *testing.T) {
		e := &engine{pages: map[string]string{"/v1/models": `{"data":[{"id":"a"},{"id":"b"}]}`}}
		r := prober(t, e, Config{}).Probe(t.Context())
		wantAdvice(t, r, "set target.model to one of a, b")
	})
}

func wantAdvice(t *testing.T, r ProbeReport, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !slices.ContainsFunc(r.Advice, func(a string) bool { return strings.Contains(a, text) }) {
			t.Errorf("no advice %q in %q", text, r.Advice)
		}
	}
}

func TestLine(t *testing.T) {
	for _, c := range []struct {
		w1, t1, w2, t2 int
		slope          float64
		floor          int
	}{
		{64, 64 + 35, 256, 256 + 35, 1, 35},
		{64, 128 + 1, 256, 512 + 1, 2, 1},
		{64, 64, 256, 257, 193.0 / 192, 0},
	} {
		slope, floor := line(c.w1, c.t1, c.w2, c.t2)
		want(t, "slope", slope, c.slope)
		want(t, "floor", floor, c.floor)
	}
}

func TestCountTokens(t *testing.T) {
	for _, c := range []struct {
		dialect Dialect
		page    string
		n       int
	}{
		{VLLM, `{"count":3,"max_model_len":8192,"tokens":[1,2,3]}`, 3},
		{SGLang, `{"tokens":[1,2],"count":2,"max_model_len":1e30}`, 2},
		{LlamaCPP, `{"tokens":[1,2,3,4]}`, 4},
		{TGI, `[{"id":1,"text":"a"},{"id":2,"text":"b"}]`, 2},
		{VLLM, `{"tokens":[1]}`, -1},
		{VLLM, `<html>`, -1},
		{Ollama, ``, -1},
	} {
		e := &engine{pages: map[string]string{"/tokenize": c.page}}
		n, err := prober(t, e, Config{Dialect: c.dialect}).CountTokens(t.Context(), "a b")
		if err != nil {
			n = -1
		}
		want(t, string(c.dialect)+" "+c.page, n, c.n)
	}
}
