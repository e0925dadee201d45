package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

const msec = time.Millisecond

// A step ends when the engine's speed, which faults change, has summed up to its
// length.
func TestFaultsStretchSteps(t *testing.T) {
	at := func(kind FaultKind, from, until time.Duration, factor float64) activeFault {
		return activeFault{Fault: Fault{Kind: kind, Replica: AllReplicas, Factor: factor}, from: from, until: until}
	}
	for _, tc := range []struct {
		name     string
		list     []activeFault
		start, d time.Duration
		want     time.Duration
	}{
		{"none", nil, 5, 10, 15},
		{"a freeze over before the step", []activeFault{at(Freeze, 0, 5, 0)}, 5, 10, 15},
		{"a freeze that begins as the step ends", []activeFault{at(Freeze, 15, 20, 0)}, 5, 10, 15},
		{"a freeze inside", []activeFault{at(Freeze, 8, 18, 0)}, 5, 10, 25},
		{"a freeze around the start", []activeFault{at(Freeze, 0, 18, 0)}, 5, 10, 28},
		{"two freezes that overlap", []activeFault{at(Freeze, 6, 10, 0), at(Freeze, 8, 12, 0)}, 5, 10, 21},
		{"a freeze without end", []activeFault{at(Freeze, 6, never, 0)}, 5, 10, never},
		{"slow all along", []activeFault{at(Slow, 0, never, 3)}, 5, 10, 35},
		{"slow over its first half", []activeFault{at(Slow, 0, 15, 2)}, 5, 10, 20},
		{"slow twice", []activeFault{at(Slow, 0, never, 2), at(Slow, 0, never, 3)}, 5, 10, 65},
		{"frozen while slow", []activeFault{at(Slow, 0, never, 2), at(Freeze, 9, 19, 0)}, 5, 10, 35},
		{"so slow that it never ends", []activeFault{at(Slow, 0, never, 1e6), at(Slow, 0, never, 1e6), at(Slow, 0, never, 1e6)}, 5, time.Second, never},
		{"another kind", []activeFault{at(Drop, 0, never, 0)}, 5, 10, 15},
	} {
		fs := &faults{list: tc.list}
		if got := fs.end(0, tc.start, tc.d); got != tc.want {
			t.Errorf("%s: ends at %d, want %d", tc.name, got, tc.want)
		}
	}
	one := &faults{list: []activeFault{{Fault: Fault{Kind: Freeze, Replica: 1}, until: 100}}}
	if got := one.end(0, 0, 10); got != 10 {
		t.Errorf("replica 0 stood still with replica 1: %d", got)
	}
}

func TestFreezeAndSlowByOrder(t *testing.T) {
	for _, tc := range []struct {
		name, order string // posted 35 ms after the request
		want        []time.Duration
	}{
		// Prefill of 20: 30 ms. Each decode: 11 ms, so undisturbed 30, 41, 52.
		{"frozen at once, in mid-step", `{"kind":"freeze","for":"1s"}`, []time.Duration{30 * msec, 1041 * msec, 1052 * msec}},
		{"frozen later", `{"kind":"freeze","at":"10ms","for":"1s"}`, []time.Duration{30 * msec, 41 * msec, 1052 * msec}},
		{"slowed in mid-step", `{"kind":"slow","factor":3}`, []time.Duration{30 * msec, 53 * msec, 86 * msec}},
		{"slowed for a while", `{"kind":"slow","factor":2,"for":"7ms","replica":0}`, []time.Duration{30 * msec, 44500 * time.Microsecond, 55500 * time.Microsecond}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var truth Truth
			_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Truth: func(tr Truth) { truth = tr }})
			var a *answerRead
			var wg sync.WaitGroup
			wg.Go(func() { a = c.stream("/v1/chat/completions", chat(13, 3, "")) })
			time.Sleep(35 * msec)
			if status, b := c.call("/sim/faults", tc.order); status != 200 {
				t.Fatal(status, b)
			}
			wg.Wait()
			synctest.Wait()
			if !slices.Equal(a.at, tc.want) {
				t.Errorf("%s: tokens at %v, want %v", tc.name, a.at, tc.want)
			}
			// The truth has the same times.
			var steps []time.Duration
			for _, s := range truth.Steps {
				steps = append(steps, s.Sub(truth.Arrived))
			}
			if !slices.Equal(steps, tc.want) || truth.FirstToken.Sub(truth.Arrived) != tc.want[0] {
				t.Errorf("%s: true steps at %v, want %v", tc.name, steps, tc.want)
			}
		})
	}
}

func TestFreezeUntilCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Faults: []Fault{{Kind: Freeze, At: 35 * msec}}})
		go func() {
			time.Sleep(time.Hour)
			req, _ := http.NewRequest("DELETE", "http://sim/sim/faults", nil)
			resp, err := c.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			if resp.Body.Close(); resp.StatusCode != 200 {
				t.Error(resp.Status)
			}
		}()
		a := c.stream("/v1/chat/completions", chat(13, 3, ""))
		if want := []time.Duration{30 * msec, time.Hour + 6*msec, time.Hour + 17*msec}; !slices.Equal(a.at, want) {
			t.Errorf("tokens at %v, want %v", a.at, want)
		}
	})
}

// outcome posts and tells how the answer ended.
func (c *client) outcome(body string) string {
	resp, err := c.Post("http://sim/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	switch text := string(b); {
	case err != nil:
		return "cut"
	case resp.StatusCode != 200:
		return resp.Status
	case strings.Contains(text, `"error"`):
		return "error"
	case strings.Contains(text, `"finish_reason":"length"`):
		return "ok"
	default:
		return "unfinished: " + text
	}
}

// A share of the requests fails, in the way asked for, and the engine is rid of
// them.
func TestDropAndMidStream(t *testing.T) {
	whole := strings.NewReplacer(`"stream":true`, `"stream":false`)
	for _, tc := range []struct {
		name   string
		fault  Fault
		body   string
		want   string
		engine [2]float64 // aborted and failed, for each struck one
	}{
		{"dropped before any answer", Fault{Kind: Drop, Share: 1}, chat(3, 5, ""), "no answer", [2]float64{0, 0}},
		{"dropped after three tokens", Fault{Kind: Drop, Share: 1, After: 3}, chat(3, 5, ""), "cut", [2]float64{1, 0}},
		{"dropped, not streamed", Fault{Kind: Drop, Share: 1, After: 3}, whole.Replace(chat(3, 5, "")), "no answer", [2]float64{1, 0}},
		{"an error in the stream", Fault{Kind: MidStream, Share: 1, After: 3}, chat(3, 5, ""), "error", [2]float64{0, 1}},
		{"an error, not streamed", Fault{Kind: MidStream, Share: 1}, whole.Replace(chat(3, 5, "")), "500 Internal Server Error", [2]float64{0, 1}},
		{"the answer is shorter", Fault{Kind: Drop, Share: 1, After: 6}, chat(3, 5, ""), "ok", [2]float64{0, 0}},
		{"a third", Fault{Kind: MidStream, Share: 1. / 3, After: 2}, chat(3, 5, ""), "", [2]float64{0, 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			tc.fault.Replica = AllReplicas
			tc.fault.For = time.Minute
			s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Faults: []Fault{tc.fault}})
			const n = 60
			got := map[string]int{}
			for range n {
				got[c.outcome(tc.body)]++
			}
			struck := n - got["ok"]
			if tc.want == "" {
				// Binomial, n 60 and p 1/3: 20 ± 3.7.
				if got["error"] != struck || struck < 9 || struck > 31 {
					t.Errorf("%s: %v", tc.name, got)
				}
			} else if got[tc.want] != n {
				t.Errorf("%s: %v", tc.name, got)
			}
			p := c.get("/metrics")
			aborted := value(t, p, `vllm:request_success_total{engine="0",model_name="sim",finished_reason="abort"}`)
			failed := value(t, p, `vllm:request_success_total{engine="0",model_name="sim",finished_reason="error"}`)
			if aborted != tc.engine[0]*float64(struck) || failed != tc.engine[1]*float64(struck) {
				t.Errorf("%s: %v aborted and %v failed of %d struck", tc.name, aborted, failed, struck)
			}
			if s.replicas[0].load() != 0 || value(t, p, "vllm:kv_cache_usage_perc"+lbl) != 0 {
				t.Errorf("%s: %d requests are left inside", tc.name, s.replicas[0].load())
			}
			time.Sleep(2 * time.Minute) // over
			if o := c.outcome(tc.body); o != "ok" && tc.body == chat(3, 5, "") {
				t.Errorf("%s: %s after the fault's time", tc.name, o)
			}
		})
	}
}

// The stream's error has vLLM's shape, and comes after the tokens asked for.
func TestMidStreamErrorIsVLLMs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Faults: []Fault{{Kind: MidStream, Share: 1, After: 2}}})
		_, body := c.call("/v1/chat/completions", chat(3, 5, ""))
		events := strings.Split(strings.TrimSpace(body), "\n\n")
		if len(events) != 5 || events[3] != `data: {"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}` || events[4] != "data: [DONE]" {
			t.Errorf("%d events: %s", len(events), body)
		}
	})
}

// A restart kills what is in flight, forgets the cache, and sets every counter
// back.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var truths []Truth
		s, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 1}, Truth: func(tr Truth) {
			mu.Lock()
			truths = append(truths, tr)
			mu.Unlock()
		}})
		body := chat(50, 200, "")
		if o := c.outcome(chat(50, 2, "")); o != "ok" {
			t.Fatal(o)
		}
		before := c.get("/metrics")
		var wg sync.WaitGroup
		for range 3 { // one runs, two wait
			wg.Go(func() {
				if o := c.outcome(body); o != "cut" {
					t.Errorf("in flight: %s", o)
				}
			})
		}
		time.Sleep(100 * msec)
		if status, b := c.call("/sim/faults", `{"kind":"restart","for":"30s"}`); status != 200 {
			t.Fatal(status, b)
		}
		wg.Wait()
		if o := c.outcome(body); o != "503 Service Unavailable" {
			t.Errorf("the router, with nobody behind it: %s", o)
		}
		func() {
			defer func() {
				if recover() != http.ErrAbortHandler {
					t.Error("a replica that is down answered at its own address")
				}
			}()
			s.ReplicaHandler(0).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/health", nil))
		}()
		time.Sleep(30 * time.Second)
		p := c.get("/metrics")
		for _, name := range []string{"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds_count"} {
			if v := value(t, p, name+lbl); v != 0 {
				t.Errorf("%s is %v after a restart", name, v)
			}
		}
		if value(t, p, "process_start_time_seconds") < value(t, before, "process_start_time_seconds")+30 || value(t, p, "vllm:prompt_tokens_created"+lbl) == value(t, before, "vllm:prompt_tokens_created"+lbl) {
			t.Error("the start and creation times did not move")
		}
		if a := c.stream("/v1/chat/completions", chat(50, 2, "")); a.usage.Cached != nil || a.finish != "length" {
			t.Errorf("after the restart: cached %+v, finish %q", a.usage.Cached, a.finish)
		}
		if l := s.replicas[0].life.Load(); l.load.Load() != 0 || l.queued.Load() != 0 {
			t.Errorf("load %d, queued %d", l.load.Load(), l.queued.Load())
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		var died int
		for _, tr := range truths {
			if tr.Finish == sim.NotFinished {
				died++
			}
		}
		if died != 3 || len(truths) != 5 {
			t.Errorf("%d of %d truths died, want 3 of 5", died, len(truths))
		}
	})
}

// While one replica is down, the router's requests go to the other; those of
// its sessions come back afterwards.
func TestRestartOfOne(t *testing.T) {
	for router := RoundRobin; router <= SessionPinned; router++ {
		synctest.Test(t, func(t *testing.T) {
			s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 2, Router: router})
			if err := s.Inject(Fault{Kind: Restart, Replica: 1, At: time.Second, For: 10 * time.Second}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			for i := range 20 {
				if o := c.outcome(chat(i+1, 2, "")); o != "ok" {
					t.Errorf("router %d: %s", router, o)
				}
			}
			p := c.get("/metrics")
			if strings.Contains(p, `engine="1"`) || value(t, p, `vllm:generation_tokens_total{engine="0",model_name="sim"}`) != 40 {
				t.Errorf("router %d: the page of the one that is up:\n%s", router, p)
			}
			time.Sleep(10 * time.Second)
			for i := range 20 {
				c.outcome(chat(i+1, 2, ""))
			}
			if got := value(t, c.get("/metrics"), `vllm:generation_tokens_total{engine="1",model_name="sim"}`); got == 0 && router != PrefixAware || got == 40 {
				t.Errorf("router %d: replica 1 made %v tokens of 40 after it came back", router, got)
			}
		})
	}
}

// Orders, kills and requests from all sides leave nothing hanging.
func TestRestartsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 4}, Replicas: 2, MaxQueue: 5, Seed: 3})
		rng := rand.New(rand.NewPCG(1, 2))
		var wg sync.WaitGroup
		for i := range 400 {
			out := 1 + rng.IntN(60)
			patience := time.Duration(rng.IntN(4000)) * msec
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://sim/v1/chat/completions", strings.NewReader(chat(1+i%30, out, "")))
				if resp, err := c.Do(req); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
			if i%20 == 0 {
				f := Fault{Kind: Restart, Replica: i / 20 % 3 % 2, For: time.Duration(i%40/20) * 50 * msec}
				if i%60 == 0 {
					f = Fault{Kind: Freeze, Replica: AllReplicas, For: 100 * msec}
				}
				if err := s.Inject(f); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Duration(rng.IntN(40)) * msec)
		}
		wg.Wait()
		time.Sleep(time.Second)
		for _, r := range s.replicas {
			if l := r.life.Load(); l.load.Load() != 0 || l.queued.Load() != 0 {
				t.Errorf("replica %d: load %d, queued %d with nothing under way", r.index, l.load.Load(), l.queued.Load())
			}
		}
		p := c.get("/metrics")
		for _, e := range []string{"0", "1"} {
			if v := value(t, p, `vllm:kv_cache_usage_perc{engine="`+e+`",model_name="sim"}`); v != 0 {
				t.Errorf("replica %s: %v of its blocks are held by nobody", e, v)
			}
		}
		if o := c.outcome(chat(3, 3, "")); o != "ok" {
			t.Error(o)
		}
	})
}

// One slow replica of two: its own requests take longer, the other's do not,
// and a router that looks at loads sends it less.
func TestOneSlowReplica(t *testing.T) {
	for router, most := range map[Router]int64{RoundRobin: 50, LeastLoaded: 30} {
		synctest.Test(t, func(t *testing.T) {
			got := map[int]int64{}
			var mu sync.Mutex
			_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 2, Router: router,
				Faults: []Fault{{Kind: Slow, Replica: 1, Factor: 5}},
				Truth: func(tr Truth) {
					mu.Lock()
					defer mu.Unlock()
					got[tr.Replica]++
					// Alone, 30 ms and 19 decodes of 11 ms.
					if took := tr.LastWrite.Sub(tr.Arrived); tr.Replica == 0 && took > 500*msec || tr.Replica == 1 && took < 5*200*msec {
						t.Errorf("replica %d: %v", tr.Replica, took)
					}
				}})
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { c.stream("/v1/chat/completions", chat(13, 20, "")) })
				time.Sleep(50 * msec)
			}
			wg.Wait()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got[0]+got[1] != 100 || got[1] > most || router == RoundRobin && got[1] != 50 {
				t.Errorf("router %d: %v", router, got)
			}
		})
	}
}

func TestStalledMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 2, Faults: []Fault{{Kind: StallMetrics, Replica: 1, Delay: 10 * time.Second, For: time.Minute}}})
		own := func(i int) time.Duration {
			begin := time.Now()
			s.ReplicaHandler(i).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil))
			return time.Since(begin)
		}
		if a, b := own(0), own(1); a != 0 || b != 10*time.Second {
			t.Errorf("pages after %v and %v, want 0s and 10s", a, b)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://sim/metrics", nil)
		if resp, err := c.Do(req); err == nil {
			t.Errorf("the router's page came within 1 s: %s", resp.Status)
		}
		if a := c.stream("/v1/chat/completions", chat(13, 2, "")); a.at[0] != 30*msec {
			t.Errorf("the stall held up an answer: %v", a.at)
		}
		time.Sleep(time.Minute)
		if b := own(1); b != 0 {
			t.Errorf("%v after its time", b)
		}
	})
}

func TestAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 2})
		for _, tc := range []struct{ name, body, want string }{
			{"no JSON", `{`, "JSON"},
			{"no kind", `{}`, "unknown kind"},
			{"an unknown kind", `{"kind":"melt"}`, "melt"},
			{"an unknown key", `{"kind":"freeze","how":"hard"}`, "unknown key"},
			{"a replica that is not there", `{"kind":"freeze","replica":2}`, "no replica 2"},
			{"a negative replica", `{"kind":"freeze","replica":-2}`, "count from 0"},
			{"a wrong duration", `{"kind":"freeze","for":5}`, "does not parse"},
			{"a negative duration", `{"kind":"freeze","for":"-5s"}`, "between"},
			{"a time beyond all", `{"kind":"freeze","for":"2000000h"}`, "between"},
			{"slow without a factor", `{"kind":"slow"}`, "factor"},
			{"slow by not a number", `{"kind":"slow","factor":"NaN"}`, "factor"},
			{"a share above 1", `{"kind":"drop","share":1.5}`, "share"},
			{"a negative after", `{"kind":"error","after":-1}`, "after"},
			{"a stall of nothing", `{"kind":"stall"}`, "delay"},
		} {
			if status, b := c.call("/sim/faults", tc.body); status != 400 || !strings.Contains(b, tc.want) {
				t.Errorf("%s: %d %s", tc.name, status, b)
			}
		}
		for _, order := range []string{
			`{"kind":"slow","replica":1,"factor":2.5,"for":"1m"}`, `{"kind":"drop","share":0.25,"at":"1h"}`, `{"kind":"stall","delay":"3s","replica":"all"}`,
		} {
			if status, b := c.call("/sim/faults", order); status != 200 {
				t.Error(status, b)
			}
		}
		list := func() string {
			var v struct {
				Now    string
				Faults json.RawMessage
			}
			if err := json.Unmarshal([]byte(c.get("/sim/faults")), &v); err != nil {
				t.Error(err)
			}
			return string(v.Faults)
		}
		if got, want := list(), `[{"kind":"slow","replica":1,"from":"0s","until":"1m0s","factor":2.5},{"kind":"drop","replica":"all","from":"1h0m0s","until":"cleared","share":0.25},{"kind":"stall","replica":"all","from":"0s","until":"cleared","delay":"3s"}]`; got != want {
			t.Errorf("listed %s, want %s", got, want)
		}
		time.Sleep(time.Minute)
		if got := list(); strings.Contains(got, "slow") || !strings.Contains(got, "drop") {
			t.Errorf("after a minute %s", got)
		}
		s.ClearFaults()
		if got := list(); got != "[]" {
			t.Errorf("after clearing %s", got)
		}
		// A cleared restart does not come.
		if err := s.Inject(Fault{Kind: Restart, Replica: 0, At: time.Second, For: time.Hour}); err != nil {
			t.Fatal(err)
		}
		s.ClearFaults()
		time.Sleep(2 * time.Second)
		if !s.replicas[0].up() {
			t.Error("a restart came that had been cleared")
		}
		for range faultLimit {
			if err := s.Inject(Fault{Kind: Freeze, At: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Inject(Fault{Kind: Freeze, At: time.Hour}); err == nil {
			t.Error("faults without bound")
		}

		for _, tc := range []struct {
			addr, origin string
			status       int
		}{
			{"127.0.0.1:5", "", 200}, {"[::1]:5", "", 200}, {"127.8.9.1:5", "", 200}, {"@", "", 200},
			{"10.0.0.1:5", "", 403}, {"[2001:db8::1]:5", "", 403}, {"127.0.0.1:5", "http://example.com", 403},
		} {
			r := httptest.NewRequest("GET", "/sim/faults", nil)
			r.RemoteAddr = tc.addr
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != tc.status {
				t.Errorf("from %s %s: %d, want %d", tc.addr, tc.origin, w.Code, tc.status)
			}
		}
	})
}

func TestParseFault(t *testing.T) {
	for _, tc := range []struct {
		s    string
		want Fault
	}{
		{"freeze,at=30s,for=5s", Fault{Kind: Freeze, Replica: AllReplicas, At: 30 * time.Second, For: 5 * time.Second, Share: 1}},
		{"slow,replica=1,factor=3", Fault{Kind: Slow, Replica: 1, Factor: 3, Share: 1}},
		{"error,share=0.1,after=5", Fault{Kind: MidStream, Replica: AllReplicas, Share: 0.1, After: 5}},
		{"restart", Fault{Kind: Restart, Replica: AllReplicas, Share: 1}},
		{"stall,delay=10s,replica=all", Fault{Kind: StallMetrics, Replica: AllReplicas, Delay: 10 * time.Second, Share: 1}},
	} {
		if got, err := ParseFault(tc.s); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v", tc.s, got, err)
		}
	}
	for _, s := range []string{"", "melt", "freeze,for", "freeze,for=5", "slow,factor=1", "slow,factor=Inf", "drop,share=0", "freeze,replica=x"} {
		if f, err := ParseFault(s); err == nil {
			t.Errorf("%q was taken for %+v", s, f)
		}
	}
}

func FuzzFault(f *testing.F) {
	f.Add("slow,replica=1,factor=3,for=30s,at=1s", `{"kind":"drop","share":0.5}`)
	f.Fuzz(func(t *testing.T, flag, body string) {
		a, errA := ParseFault(flag)
		var b Fault
		errB := json.Unmarshal([]byte(body), &b)
		for _, v := range []struct {
			f   Fault
			err error
		}{{a, errA}, {b, errB}} {
			if v.err == nil && body != "null" && v.f.check() != nil {
				t.Fatalf("%q %q: accepted %+v, which is no fault", flag, body, v.f)
			}
		}
	})
}
