package httpapi

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// Tokens that leave the engine together leave the server in one event.
func TestTokensOfAStepAreOneEvent(t *testing.T) {
	for _, tc := range []struct {
		name   string
		engine sim.Config
		want   []int // tokens by event, of ten
	}{
		{"three drafts, all accepted", sim.Config{Speculation: sim.Speculation{Tokens: 3, Accept: []float64{1}}}, []int{1, 4, 4, 1}},
		{"an output interval of three", sim.Config{OutputInterval: 3}, []int{1, 3, 3, 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			tc.engine.Profile = flat
			var truth Truth
			_, c := start(t, Options{Engine: tc.engine, Truth: func(tr Truth) { truth = tr }})
			a := c.stream("/v1/chat/completions", chat(13, 10, `,"return_token_ids":true`))
			var got []int
			for _, raw := range a.raw {
				if _, ids, ok := strings.Cut(raw, `"token_ids":[`); ok && !strings.Contains(raw, `"role"`) {
					ids, _, _ = strings.Cut(ids, "]")
					got = append(got, strings.Count(ids, ",")+1)
				}
			}
			if !slices.Equal(got, tc.want) || len(strings.Fields(a.text)) != 10 || a.usage.Completion != 10 {
				t.Errorf("%s: tokens by event %v, want %v; %q", tc.name, got, tc.want, a.text)
			}
			p := c.get("/metrics")
			if n := value(t, p, "vllm:inter_token_latency_seconds_count"+lbl); n != float64(len(tc.want)-1) {
				t.Errorf("%s: vLLM observed %v gaps, want one for each event after the first", tc.name, n)
			}
			synctest.Wait()
			if len(truth.Steps) != 10 || truth.Steps[1] != truth.Steps[2] || truth.Steps[0] == truth.Steps[1] {
				t.Errorf("%s: true steps %v", tc.name, truth.Steps)
			}
			if k := tc.engine.Speculation.Tokens; k > 0 {
				// Three verifications; the last one's surplus counts as well.
				if value(t, p, "vllm:spec_decode_num_drafts_total"+lbl) != 3 || value(t, p, "vllm:spec_decode_num_draft_tokens_total"+lbl) != 9 ||
					value(t, p, "vllm:spec_decode_num_accepted_tokens_total"+lbl) != 9 || value(t, p, `vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="sim",position="2"}`) != 3 {
					t.Errorf("%s:\n%s", tc.name, p)
				}
			} else if strings.Contains(p, "spec_decode") {
				t.Errorf("%s: the page tells of drafts", tc.name)
			}
		})
	}
	// SGLang observes each token with its share of the gap.
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, OutputInterval: 3}, Metrics: SGLang})
		c.stream("/v1/chat/completions", chat(13, 10, ""))
		p := c.get("/metrics")
		if value(t, p, "sglang:inter_token_latency_seconds_count"+sgTokenizer) != 9 || value(t, p, `sglang:inter_token_latency_seconds_bucket{engine_type="unified",le="0.015",model_name="sim",priority=""}`) != 9 {
			t.Errorf("SGLang's gaps\n%s", p)
		}
	})
}

// With a fault in mid-stream, a step's tokens past the place do not get out.
func TestFaultCutsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, OutputInterval: 5}, Faults: []Fault{{Kind: MidStream, Share: 1, After: 3}}})
		_, body := c.call("/v1/chat/completions", chat(13, 10, `,"return_token_ids":true`))
		n := 0
		for _, part := range strings.Split(body, `"token_ids":[`)[1:] {
			ids, _, _ := strings.Cut(part, "]")
			n += strings.Count(ids, ",") + 1
		}
		if n != 3 || !strings.Contains(body, `"error"`) {
			t.Errorf("%d ids: %s", n, body)
		}
	})
}

func TestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 1, Priority: true}})
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i, priority := range []int{0, 5, -1, 2} {
			wg.Go(func() {
				c.stream("/v1/chat/completions", chat(3, 10, fmt.Sprintf(`,"priority":%d`, priority)))
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if !slices.Equal(order, []int{0, 2, 3, 1}) {
			t.Errorf("ended in the order %v", order)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}})
		if status, b := c.call("/v1/chat/completions", chat(3, 3, `,"priority":1`)); status != 400 || !strings.Contains(b, "not enabled") {
			t.Errorf("first come first served: %d %s", status, b)
		}
	})
}

func TestAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, LoRALoad: time.Second}, Adapters: []string{"sql", "law"}})
		with := func(model string) string { return strings.Replace(chat(50, 5, ""), `"sim"`, `"`+model+`"`, 1) }
		if m := c.get("/v1/models"); strings.Count(m, `"parent":"sim"`) != 2 || !strings.Contains(m, `"id":"law"`) {
			t.Errorf("models %s", m)
		}
		c.stream("/v1/chat/completions", with("sim"))
		first := c.stream("/v1/chat/completions", with("sql"))
		again := c.stream("/v1/chat/completions", with("sql"))
		if first.at[0] < time.Second || again.at[0] > time.Second || first.usage.Cached != nil || again.usage.Cached == nil {
			t.Errorf("first tokens after %v and %v; cached %+v and %+v", first.at[0], again.at[0], first.usage.Cached, again.usage.Cached)
		}
		if !strings.Contains(again.raw[0], `"model":"sql"`) {
			t.Errorf("the answer is from %s", again.raw[0])
		}
		if status, b := c.call("/v1/chat/completions", with("none")); status != 404 {
			t.Errorf("an unknown adapter: %d %s", status, b)
		}
		go c.stream("/v1/chat/completions", with("law"))
		time.Sleep(2 * time.Second)
		p := c.get("/metrics")
		now := value(t, p, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""}`)
		old := value(t, p, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="law",waiting_lora_adapters=""}`)
		if old >= now {
			t.Errorf("the set that holds was seen at %v, one that held before at %v", now, old)
		}
	})
}

// A restarted engine is cold again.
func TestRestartIsCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat, Cold: sim.ColdStart{First: time.Second}}})
		var got []time.Duration
		for i := range 3 {
			if i == 2 {
				if err := s.Inject(Fault{Kind: Restart, Replica: 0}); err != nil {
					t.Fatal(err)
				}
			}
			got = append(got, c.stream("/v1/completions", fmt.Sprintf(`{"prompt":"a","max_tokens":1,"stream":true,"cache_salt":"%d"}`, i)).at[0])
		}
		if want := []time.Duration{1011 * msec, 11 * msec, 1011 * msec}; !slices.Equal(got, want) {
			t.Errorf("first tokens after %v, want %v", got, want)
		}
	})
}

// SGLang's policy over HTTP: hits by token, all but the last, and its counters.
func TestSGLangsPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, Policy: sim.SGLang}, Metrics: SGLang})
		c.stream("/v1/chat/completions", chat(50, 5, ""))
		a := c.stream("/v1/chat/completions", chat(50, 5, ""))
		if a.usage.Cached == nil || a.usage.Cached.Tokens != 56 {
			t.Errorf("cached %+v of a prompt of 57 tokens seen before, want 56", a.usage.Cached)
		}
		p := c.get("/metrics")
		if value(t, p, `sglang:cached_tokens_total{cache_source="device",`+sgTokenizer[1:]) != 56 || value(t, p, "sglang:page_size"+sgScheduler) != 1 || value(t, p, "sglang:max_total_num_tokens"+sgScheduler) != 8192 {
			t.Errorf("the page:\n%s", p)
		}
		if status, b := c.call("/reset_prefix_cache", ""); status != 200 || b != `{"success":true}` {
			t.Errorf("reset: %d %s", status, b)
		}
		if a := c.stream("/v1/chat/completions", chat(50, 5, "")); a.usage.Cached != nil {
			t.Errorf("cached %+v after a reset", a.usage.Cached)
		}
	})
}
