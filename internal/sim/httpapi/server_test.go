package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// pipeListener is a listener without sockets: real ones do not work in bubbles.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// client talks to a server in memory.
type client struct {
	t testing.TB
	http.Client
}

// start serves o on an in-memory listener until the test ends.
func start(t testing.TB, o Options) (*Server, *client) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ln := newPipeListener()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	tr := &http.Transport{DialContext: ln.dial}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, &client{t, http.Client{Transport: tr}}
}

func (c *client) post(ctx context.Context, path, body string) *http.Response {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://sim"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		c.t.Error(err)
		return nil
	}
	return resp
}

// call posts and returns the status and the whole body.
func (c *client) call(path, body string) (int, string) {
	resp := c.post(context.Background(), path, body)
	if resp == nil {
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Error(err)
	}
	return resp.StatusCode, string(b)
}

func (c *client) get(path string) string {
	resp, err := c.Get("http://sim" + path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Cached     *struct {
		Tokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type chunkJSON struct {
	Choices []struct {
		Delta struct {
			Role    string
			Content *string
		}
		Message      struct{ Content string }
		Text         string
		FinishReason *string     `json:"finish_reason"`
		TokenIDs     []sim.Token `json:"token_ids"`
	}
	Usage *usage
	T     int64
}

// answerRead is a stream as a client sees it.
type answerRead struct {
	raw     []string
	text    string
	role    time.Duration // since the request
	at      []time.Duration
	ids     []sim.Token
	finish  string
	usage   *usage
	done    bool
	headers time.Duration
}

// stream posts and reads events until the end.
func (c *client) stream(path, body string) *answerRead {
	begin := time.Now()
	resp := c.post(context.Background(), path, body)
	if resp == nil {
		return &answerRead{}
	}
	defer resp.Body.Close()
	a := &answerRead{headers: time.Since(begin)}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		c.t.Errorf("status %d: %s", resp.StatusCode, b)
		return a
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if !ok {
			if sc.Text() != "" {
				c.t.Errorf("line %q", sc.Text())
			}
			continue
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		a.raw = append(a.raw, data)
		var ch chunkJSON
		if err := json.Unmarshal([]byte(data), &ch); err != nil {
			c.t.Errorf("chunk %s: %v", data, err)
			continue
		}
		if ch.Usage != nil && len(ch.Choices) == 0 {
			a.usage = ch.Usage
		}
		for _, x := range ch.Choices {
			if x.Delta.Role != "" {
				a.role = time.Since(begin)
				continue
			}
			if x.Delta.Content != nil {
				a.text += *x.Delta.Content
			}
			a.text += x.Text
			a.at = append(a.at, time.Since(begin))
			a.ids = append(a.ids, x.TokenIDs...)
			if x.FinishReason != nil {
				a.finish = *x.FinishReason
			}
		}
	}
	if err := sc.Err(); err != nil {
		c.t.Error(err)
	}
	return a
}

// chat is a request of n words, forced to out tokens, streamed.
func chat(words, out int, more string) string {
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":%q}],"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}%s}`,
		strings.TrimSpace(strings.Repeat(" about", words)), out, more)
}

// flat takes 10 ms a step and 1 ms for each token in it.
var flat = sim.Profile{Name: "flat", Base: 10e-3, PerToken: 1e-3, MaxBatchedTokens: 512, MaxSeqs: 64, Blocks: 513}

// shape reduces JSON to its keys, in order, and the types of its values.
func shape(t *testing.T, s string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	var value func() string
	value = func() string {
		tok, err := d.Token()
		if err != nil {
			t.Fatalf("%v in %s", err, s)
		}
		switch v := tok.(type) {
		case json.Delim:
			var parts []string
			for d.More() {
				if v == '{' {
					k, _ := d.Token()
					parts = append(parts, fmt.Sprintf("%v:%s", k, value()))
				} else {
					parts = append(parts, value())
				}
			}
			d.Token()
			if v == '{' {
				return "{" + strings.Join(parts, " ") + "}"
			}
			return "[" + strings.Join(slices.Compact(parts), " ") + "]"
		case nil:
			return "null"
		default:
			return fmt.Sprintf("%T", v)
		}
	}
	return value()
}

// The events of a stream have the keys and types, in the order, of those that
// vLLM's code makes.
func TestStreamHasVLLMsShape(t *testing.T) {
	for _, tc := range []struct{ fixture, path, body, warm string }{
		{"vllm-chat.sse", "/v1/chat/completions", chat(40, 4, ""), chat(40, 1, "")},
		{"vllm-chat-continuous-usage-token-ids.sse", "/v1/chat/completions",
			strings.Replace(chat(40, 4, `,"return_token_ids":true`), `"include_usage":true`, `"include_usage":true,"continuous_usage_stats":true`, 1), ""},
		{"vllm-completions.sse", "/v1/completions", `{"model":"sim","prompt":"able above","max_tokens":4,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`, ""},
	} {
		t.Run(tc.fixture, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := os.ReadFile("testdata/" + tc.fixture)
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]bool{}
				for line := range strings.Lines(string(b)) {
					if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {"); ok {
						want[shape(t, "{"+data)] = true
					}
				}
				_, c := start(t, Options{Engine: sim.Config{Profile: flat}})
				if tc.warm != "" {
					c.stream(tc.path, tc.warm)
				}
				a := c.stream(tc.path, tc.body)
				got := map[string]bool{}
				for _, r := range a.raw {
					got[shape(t, r)] = true
				}
				for s := range got {
					if !want[s] {
						t.Errorf("not of vLLM: %s", s)
					}
				}
				for s := range want {
					if !got[s] {
						t.Errorf("missing: %s", s)
					}
				}
				if !a.done || a.finish != "length" || a.usage == nil || a.usage.Completion != 4 {
					t.Errorf("done %v, finish %q, usage %+v", a.done, a.finish, a.usage)
				}
			})
		})
	}
}

func TestTextAndUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, TemplateTokens: 20})
		a := c.stream("/v1/chat/completions", chat(50, 9, `,"return_token_ids":true`))
		// 20 of the template, 50 words, 4 for the message, 3 for the answer.
		if a.usage.Prompt != 77 || a.usage.Completion != 9 || a.usage.Total != 86 || a.usage.Cached != nil {
			t.Errorf("usage %+v", a.usage)
		}
		if n := len(strings.Fields(a.text)); n != 9 || len(a.at) != 9 || len(a.ids) != 9 {
			t.Errorf("%q: %d words in %d events with %d ids", a.text, n, len(a.at), len(a.ids))
		}
		if got := encode(nil, a.text); !slices.Equal(got, a.ids) {
			t.Errorf("the text's own tokens are %v, the ids sent %v", got, a.ids)
		}
		// Again, whole: the same text, and all whole blocks from the cache.
		status, body := c.call("/v1/chat/completions", strings.Replace(chat(50, 9, ""), `"stream":true,`, "", 1))
		var w chunkJSON
		if err := json.Unmarshal([]byte(body), &w); err != nil || status != 200 {
			t.Fatalf("%d %v: %s", status, err, body)
		}
		if w.Choices[0].Message.Content != a.text || w.Usage.Completion != 9 || w.Usage.Cached == nil || w.Usage.Cached.Tokens != 64 {
			t.Errorf("whole answer: %s", body)
		}
		// Another question behind the same template: its one whole block.
		b := c.stream("/v1/chat/completions", strings.Replace(chat(50, 9, ""), "about about", "before about", 1))
		if b.usage.Cached == nil || b.usage.Cached.Tokens != 16 || b.text == a.text {
			t.Errorf("template floor: %+v", b.usage.Cached)
		}
		if s := c.stream("/v1/chat/completions", chat(50, 9, `,"cache_salt":"x"`)); s.usage.Cached != nil {
			t.Errorf("a salted request hit %+v", s.usage.Cached)
		}
		// The reply carried into the next turn: the whole first turn is known,
		// up to its last token, which was never computed.
		next := fmt.Sprintf(`{"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":"and then"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true}`,
			strings.TrimSpace(strings.Repeat(" about", 50)), a.text)
		if n := c.stream("/v1/chat/completions", next); n.usage.Cached == nil || n.usage.Cached.Tokens != (77+8)/16*16 || n.usage.Prompt != 20+3*4+50+9+2+3 {
			t.Errorf("second turn: %+v", n.usage)
		}
		if ok := c.stream("/v1/completions", `{"prompt":[5,6,7],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}, "ignore_eos":true}`); ok.usage.Prompt != 3 || !strings.HasPrefix(ok.text, " ") {
			t.Errorf("prompt of ids: %+v %q", ok.usage, ok.text)
		}
	})
}

func TestHideCachedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, HideCachedTokens: true})
		for range 2 {
			if a := c.stream("/v1/chat/completions", chat(50, 2, "")); a.usage.Cached != nil {
				t.Errorf("cached tokens shown: %+v", a.usage.Cached)
			}
		}
	})
}

// Without ignore_eos some answers stop early, geometrically around the mean.
func TestEarlyStop(t *testing.T) {
	const n = 4000
	var sum, below float64
	for i := range uint64(n) {
		v := stopAt(i*0x9e3779b97f4a7c15, 50, 0)
		sum += float64(v)
		if v <= 50 {
			below++
		}
		if m := stopAt(i, 50, 30); m <= 30 {
			t.Fatalf("EOS at token %d with min_tokens 30", m)
		}
	}
	// P(X <= 50) = 1 - (1 - 1/50)^50 = 0.636
	if mean := sum / n; mean < 47 || mean > 53 || below/n < 0.61 || below/n > 0.66 {
		t.Errorf("mean %.1f, %.3f at or below it", mean, below/n)
	}
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, MeanOutput: 5})
		finishes := map[string]int{}
		for i := range 20 {
			body := strings.Replace(chat(i+1, 6, ""), `"ignore_eos":true,`, "", 1)
			a := c.stream("/v1/chat/completions", body)
			finishes[a.finish]++
			if a.finish == "stop" && len(strings.Fields(a.text)) != a.usage.Completion-1 {
				t.Errorf("%d tokens for %q and EOS", a.usage.Completion, a.text)
			}
			if again := c.stream("/v1/chat/completions", body); again.text != a.text {
				t.Errorf("the same prompt gave %q, then %q", a.text, again.text)
			}
		}
		if finishes["stop"] == 0 || finishes["length"] == 0 {
			t.Errorf("finish reasons %v", finishes)
		}
	})
}

// In a bubble, what the client sees is what the engine planned, to the
// nanosecond.
func TestTimesAreTheEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		truths := map[string]Truth{}
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 1}, Truth: func(tr Truth) {
			mu.Lock()
			truths[tr.ID] = tr
			mu.Unlock()
		}})
		ask := func(id string, words, out int) *answerRead {
			begin := time.Now()
			req, _ := http.NewRequest("POST", "http://sim/v1/chat/completions", strings.NewReader(chat(words, out, "")))
			req.Header.Set("X-Request-Id", id)
			resp, err := c.Do(req)
			if err != nil {
				t.Error(err)
				return nil
			}
			defer resp.Body.Close()
			a := &answerRead{headers: time.Since(begin)}
			sc := bufio.NewScanner(resp.Body)
			for sc.Scan() {
				if strings.Contains(sc.Text(), `"role"`) {
					a.role = time.Since(begin)
				} else if strings.Contains(sc.Text(), `"content"`) {
					a.at = append(a.at, time.Since(begin))
				}
			}
			return a
		}
		var first, second *answerRead
		var wg sync.WaitGroup
		wg.Go(func() { first = ask("one", 13, 3) }) // 20 tokens
		wg.Go(func() {
			time.Sleep(5 * time.Millisecond)
			second = ask("two", 33, 2) // 40 tokens
		})
		wg.Wait()
		// Prefill of 20: 10 + 20 ms. Each decode: 11 ms.
		if want := []time.Duration{30 * time.Millisecond, 41 * time.Millisecond, 52 * time.Millisecond}; !slices.Equal(first.at, want) {
			t.Errorf("first: tokens at %v, want %v", first.at, want)
		}
		// The second waits for the only place until 52 ms, and came at 5 ms:
		// queue 47 ms, prefill of 40 (the first block hits: 24 computed) 34 ms.
		if want := []time.Duration{81 * time.Millisecond, 92 * time.Millisecond}; !slices.Equal(second.at, want) {
			t.Errorf("second: tokens at %v, want %v", second.at, want)
		}
		if second.headers != 0 || second.role != second.at[0] {
			t.Errorf("headers after %v (want at once), role chunk at %v (want with the first token)", second.headers, second.role)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		tr := truths["two"]
		if tr.FirstWrite.Sub(tr.Arrived) != 81*time.Millisecond || tr.LastWrite.Sub(tr.FirstWrite) != 11*time.Millisecond ||
			tr.Scheduled.Sub(tr.Arrived) != 47*time.Millisecond || !tr.FirstToken.Equal(tr.FirstWrite) ||
			tr.PromptTokens != 40 || tr.CachedTokens != 16 || tr.OutputTokens != 2 || tr.Finish != sim.FinishedLength {
			t.Errorf("truth %+v", tr)
		}
	})
}

func TestFreezeStopsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, FreezeAt: 35 * time.Millisecond, FreezeFor: time.Second}})
		a := c.stream("/v1/chat/completions", chat(13, 3, ""))
		if want := []time.Duration{30 * time.Millisecond, 1041 * time.Millisecond, 1052 * time.Millisecond}; !slices.Equal(a.at, want) {
			t.Errorf("tokens at %v, want %v", a.at, want)
		}
	})
}

func value(t *testing.T, page, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no sample %s in\n%s", name, page)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const lbl = `{engine="0",model_name="sim"}`

func TestDisconnectFreesBlocks(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		synctest.Test(t, func(t *testing.T) {
			var got []Truth
			var mu sync.Mutex
			s, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 1}, Truth: func(tr Truth) {
				mu.Lock()
				got = append(got, tr)
				mu.Unlock()
			}})
			var wg sync.WaitGroup
			for range 2 { // one runs, one waits
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
					defer cancel()
					req, _ := http.NewRequestWithContext(ctx, "POST", "http://sim/v1/chat/completions", strings.NewReader(strings.Replace(chat(13, 1000, ""), `"stream":true`, `"stream":`+stream, 1)))
					resp, err := c.Do(req)
					if err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					if err == nil {
						t.Error("the answer ended by itself")
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			p := c.get("/metrics")
			if value(t, p, "vllm:num_requests_running"+lbl) != 1 || value(t, p, "vllm:num_requests_waiting"+lbl) != 1 || value(t, p, "vllm:kv_cache_usage_perc"+lbl) == 0 {
				t.Errorf("before: %s", p)
			}
			wg.Wait()
			time.Sleep(50 * time.Millisecond)
			p = c.get("/metrics")
			if value(t, p, "vllm:num_requests_running"+lbl) != 0 || value(t, p, "vllm:num_requests_waiting"+lbl) != 0 || value(t, p, "vllm:kv_cache_usage_perc"+lbl) != 0 ||
				value(t, p, `vllm:request_success_total{engine="0",model_name="sim",finished_reason="abort"}`) != 2 {
				t.Errorf("after: %s", p)
			}
			if s.replicas[0].load() != 0 || s.replicas[0].life.Load().queued.Load() != 0 {
				t.Errorf("load %d, queued %d", s.replicas[0].load(), s.replicas[0].life.Load().queued.Load())
			}
			mu.Lock()
			defer mu.Unlock()
			if len(got) != 2 || got[0].Finish != sim.FinishedAbort || got[1].Finish != sim.FinishedAbort {
				t.Errorf("truth %+v", got)
			}
		})
	}
}

// Above capacity the queue grows without bound, or the surplus is turned away.
func TestOverload(t *testing.T) {
	for _, limit := range []int{0, 5} {
		synctest.Test(t, func(t *testing.T) {
			_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxSeqs: 2}, MaxQueue: limit, RetryAfter: 1500 * time.Millisecond})
			var wg sync.WaitGroup
			var mu sync.Mutex
			var ttft []time.Duration
			rejected := 0
			for range 60 {
				wg.Go(func() {
					resp := c.post(context.Background(), "/v1/chat/completions", chat(3, 20, ""))
					defer resp.Body.Close()
					begin := time.Now()
					switch resp.StatusCode {
					case 200:
						io.ReadFull(resp.Body, make([]byte, 1))
						mu.Lock()
						ttft = append(ttft, time.Since(begin))
						mu.Unlock()
						io.Copy(io.Discard, resp.Body)
					case 429:
						b, _ := io.ReadAll(resp.Body)
						if resp.Header.Get("Retry-After") != "2" || !bytes.Contains(b, []byte(`"code":429`)) {
							t.Errorf("429: %v %s", resp.Header, b)
						}
						mu.Lock()
						rejected++
						mu.Unlock()
					default:
						t.Errorf("status %d", resp.StatusCode)
					}
				})
				time.Sleep(20 * time.Millisecond)
			}
			if limit == 0 {
				if w := value(t, c.get("/metrics"), "vllm:num_requests_waiting"+lbl); w < 30 {
					t.Errorf("%v waiting after 60 arrivals at several times the capacity", w)
				}
			}
			wg.Wait()
			if limit == 0 && (rejected > 0 || ttft[59] < 5*ttft[10]) {
				t.Errorf("%d rejected, TTFT %v ... %v", rejected, ttft[10], ttft[59])
			}
			if limit == 5 && (rejected < 30 || rejected+len(ttft) != 60) {
				t.Errorf("%d rejected, %d served", rejected, len(ttft))
			}
		})
	}
}

func TestReplicasShareLoad(t *testing.T) {
	for router, want := range map[Router][]int64{
		// Every second request is long: in turn, one replica gets all of them.
		RoundRobin:  {20*400 + 0*10, 20 * 10},
		LeastLoaded: nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, c := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 2, Router: router})
			var wg sync.WaitGroup
			for i := range 40 {
				out := 10
				if i%2 == 0 {
					out = 400
				}
				wg.Go(func() { c.stream("/v1/chat/completions", chat(3, out, "")) })
				time.Sleep(70 * time.Millisecond)
			}
			wg.Wait()
			p := c.get("/metrics")
			got := []int64{int64(value(t, p, `vllm:generation_tokens_total{engine="0",model_name="sim"}`)), int64(value(t, p, `vllm:generation_tokens_total{engine="1",model_name="sim"}`))}
			if want != nil && !slices.Equal(got, want) {
				t.Errorf("round robin: tokens %v, want %v", got, want)
			}
			if want == nil && (min(got[0], got[1]) < 3000 || got[0]+got[1] != 20*410) {
				t.Errorf("least loaded: tokens %v", got)
			}
			// A replica's own page shows itself alone.
			rec := &recorder{header: http.Header{}}
			req, _ := http.NewRequest("GET", "/metrics", nil)
			s.ReplicaHandler(1).ServeHTTP(rec, req)
			if own := rec.String(); int64(value(t, own, "vllm:generation_tokens_total"+lbl)) != got[1] || strings.Contains(own, `engine="1"`) {
				t.Errorf("replica 1's own page:\n%s", own)
			}
		})
	}
}

type recorder struct {
	bytes.Buffer
	header http.Header
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(int)     {}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxModelLen: 100}})
		const ch, co = "/v1/chat/completions", "/v1/completions"
		for _, tc := range []struct {
			name, path, body string
			status           int
			want             string
		}{
			{"JSON cut short", ch, `{"model":`, 400, "JSON"},
			{"a wrong type", ch, `{"messages":3}`, 400, "JSON"},
			{"unknown model", ch, strings.Replace(chat(3, 3, ""), `"sim"`, `"other"`, 1), 404, "other"},
			{"prompt too long", ch, chat(93, 1, ""), 400, "maximum context length of 100"},
			{"prompt and output one too long", ch, chat(53, 41, ""), 400, "maximum context length of 100"},
			{"prompt and output just fit", ch, strings.Replace(chat(53, 40, ""), `"stream":true`, `"stream":false`, 1), 200, ""},
			{"max_completion_tokens wins over max_tokens", ch, chat(53, 40, `,"max_completion_tokens":41`), 400, "max_completion_tokens"},
			{"no messages", ch, `{"messages":[]}`, 400, "messages"},
			{"an image", ch, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "image_url"},
			{"n of 2", ch, chat(3, 3, `,"n":2`), 400, "only 1"},
			{"an empty salt", ch, chat(3, 3, `,"cache_salt":""`), 400, "cache_salt"},
			{"max_tokens 0", ch, chat(3, 0, ""), 400, "at least 1"},
			{"min_tokens above max_tokens", ch, chat(3, 3, `,"min_tokens":4`), 400, "min_tokens"},
			{"no prompt", co, `{}`, 400, "prompt"},
			{"an empty prompt", co, `{"prompt":""}`, 400, "empty"},
			{"two prompts", co, `{"prompt":["a","b"]}`, 400, "one prompt"},
			{"a prompt of objects", co, `{"prompt":[{}]}`, 400, "prompt"},
			{"a negative id", co, `{"prompt":[-1]}`, 400, "negative"},
			{"one prompt in a list", co, `{"prompt":["a b c"],"max_tokens":1}`, 200, ""},
			{"one list of ids in a list", co, `{"prompt":[[1,2,3]],"max_tokens":1}`, 200, ""},
			{"text parts", ch, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":" b"}]},{"role":"assistant","content":null}],"max_tokens":1}`, 200, `"prompt_tokens":13`},
			{"unknown path", "/v1/nothing", `{}`, 404, "Not Found"},
			{"wrong method", "/v1/models", `{}`, 405, "Not Allowed"},
			{"no tokenize input", "/tokenize", `{}`, 400, "prompt"},
		} {
			status, body := c.call(tc.path, tc.body)
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("%s: %d %s; want %d and %q", tc.name, status, body, tc.status, tc.want)
			}
			if status >= 400 && strings.HasPrefix(tc.path, "/v1/c") {
				if s := shape(t, body); !strings.HasPrefix(s, "{error:{message:string type:string param:") || !strings.HasSuffix(s, "code:float64}}") {
					t.Errorf("%s: error of shape %s", tc.name, s)
				}
			}
		}
	})
}

func TestOtherEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat, MaxModelLen: 1000}})
		if s := c.get("/v1/models"); !strings.Contains(s, `"id":"sim"`) || !strings.Contains(s, `"max_model_len":1000`) {
			t.Error(s)
		}
		if s := c.get("/version"); !strings.Contains(s, "version") {
			t.Error(s)
		}
		if s := c.get("/health"); s != "" {
			t.Error(s)
		}
		text := "Hello world, it's 12345  degrees\n\nabove zero"
		_, tk := c.call("/tokenize", fmt.Sprintf(`{"prompt":%q}`, text))
		var r struct {
			Count  int
			Tokens []sim.Token
		}
		if err := json.Unmarshal([]byte(tk), &r); err != nil || r.Count != len(r.Tokens) || r.Count != 12 {
			t.Errorf("%v: %s", err, tk)
		}
		ids, _ := json.Marshal(r.Tokens)
		var back struct{ Prompt string }
		if _, d := c.call("/detokenize", fmt.Sprintf(`{"tokens":%s}`, ids)); json.Unmarshal([]byte(d), &back) != nil || back.Prompt != text {
			t.Errorf("%q came back as %s", text, d)
		}
		if _, d := c.call("/detokenize", `{"tokens":[2000000000]}`); d != "{\"prompt\":\"\ufffd\"}" {
			t.Errorf("an unknown token is %s", d)
		}
		if _, m := c.call("/tokenize", `{"messages":[{"role":"system","content":"a b"},{"role":"user","content":"c"}]}`); !strings.Contains(m, `"count":14`) {
			t.Error(m)
		}
		// A reset makes the second of two equal prompts miss again.
		c.stream("/v1/chat/completions", chat(50, 1, ""))
		if st, b := c.call("/reset_prefix_cache", ""); st != 200 || b != `{"success":true}` {
			t.Error(st, b)
		}
		if a := c.stream("/v1/chat/completions", chat(50, 1, "")); a.usage.Cached != nil {
			t.Errorf("hit %+v after a reset", a.usage.Cached)
		}
		go c.stream("/v1/chat/completions", chat(50, 50, ""))
		time.Sleep(100 * time.Millisecond)
		if _, b := c.call("/reset_prefix_cache", ""); b != `{"success":false}` {
			t.Errorf("reset while a request runs: %s", b)
		}
		time.Sleep(10 * time.Second)
	})
}

// The page holds every family that a live vLLM server shows, of the same type
// and with the same labels.
func TestMetricsPageIsVLLMs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}})
		c.stream("/v1/chat/completions", chat(50, 5, ""))
		c.stream("/v1/chat/completions", chat(50, 5, ""))
		c.stream("/v1/chat/completions", chat(50, 1, ""))
		p := c.get("/metrics")
		b, err := os.ReadFile("testdata/vllm-v1-2026-04-idle.prom")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "# TYPE") {
				n++
				if !strings.Contains(p, line+"\n") {
					t.Errorf("missing %q", line)
				}
			}
		}
		if n < 8 {
			t.Fatalf("only %d types in the fixture", n)
		}
		for name, want := range map[string]float64{
			"vllm:prompt_tokens_total" + lbl:                                                         3 * 57,
			"vllm:prompt_tokens_cached_total" + lbl:                                                  2 * 48,
			"vllm:generation_tokens_total" + lbl:                                                     11,
			"vllm:prefix_cache_queries_total" + lbl:                                                  3 * 57,
			"vllm:prefix_cache_hits_total" + lbl:                                                     2 * 48,
			"vllm:num_preemptions_total" + lbl:                                                       0,
			`vllm:prompt_tokens_by_source_total{engine="0",model_name="sim",source="local_compute"}`: 3*57 - 2*48,
			`vllm:request_success_total{engine="0",model_name="sim",finished_reason="length"}`:       3,
			"vllm:time_to_first_token_seconds_count" + lbl:                                           3,
			"vllm:inter_token_latency_seconds_count" + lbl:                                           8,
			"vllm:inter_token_latency_seconds_sum" + lbl:                                             8 * 0.011,
			`vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="sim"}`:         0,
			`vllm:inter_token_latency_seconds_bucket{engine="0",le="0.025",model_name="sim"}`:        8,
			`vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="sim"}`:         8,
			"vllm:request_time_per_output_token_seconds_count" + lbl:                                 3,
			"vllm:iteration_tokens_total_count" + lbl:                                                11,
			`vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="8192",num_gpu_blocks="513"}`: 1,
		} {
			if got := value(t, p, name); got < want-1e-9 || got > want+1e-9 {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		for line := range strings.Lines(p) {
			if !strings.HasPrefix(line, "# ") && !regexp.MustCompile(`^[a-z0-9_:]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?[0-9.]+(e[+-][0-9]+)?\n$`).MatchString(line) {
				t.Errorf("line %q", line)
			}
		}
	})
}

func TestShutdownAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat}})
		var a *answerRead
		done := make(chan struct{})
		go func() { a = c.stream("/v1/chat/completions", chat(3, 100, "")); close(done) }()
		time.Sleep(100 * time.Millisecond)
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-done
		if !a.done || a.usage.Completion != 100 {
			t.Error("Shutdown cut an answer")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, c := start(t, Options{Engine: sim.Config{Profile: flat}})
		resp := c.post(context.Background(), "/v1/chat/completions", chat(3, 100, ""))
		go func() { time.Sleep(100 * time.Millisecond); s.Close() }()
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil || bytes.Contains(b, []byte("[DONE]")) {
			t.Errorf("Close did not cut the stream: %v, %d bytes", err, len(b))
		}
	})
}

func TestTokenizer(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"one", []string{"one"}},
		{"one two three", []string{"one", " two", " three"}},
		{" one", []string{" one"}},
		{"one, two.", []string{"one", ",", " two", "."}},
		{"don't", []string{"don", "'t"}},
		{"12345", []string{"123", "45"}},
		{"a  b", []string{"a", " ", " b"}},
		{"a\n\n b ", []string{"a", "\n\n", " b", " "}},
		{"über 東京", []string{"über", " 東", "京"}},
		{"abcdefghijklmnopqrstuvwxyz", []string{"abcdefghijklmnopqrst", "uvwxyz"}},
		{"\xff!", []string{"\xff", "!"}},
	} {
		var got []string
		for s := tc.text; len(s) > 0; {
			n := piece(s)
			got = append(got, s[:n])
			s = s[n:]
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
	}
	seen := map[string]bool{}
	for _, w := range spoken {
		if piece(" "+w) != len(w)+1 || seen[w] {
			t.Errorf("%q is not one token, or stands twice", w)
		}
		seen[w] = true
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("one two,  three\n\n 42", " four")
	f.Add("\xff \u2028", "x")
	f.Fuzz(func(t *testing.T, a, b string) {
		var back strings.Builder
		for s := a; len(s) > 0; {
			n := piece(s)
			if n < 1 || n > len(s) {
				t.Fatalf("piece of %d of %q", n, s)
			}
			if id := pieceID(s[:n]); id < tokenWord {
				t.Fatalf("%q has the id %d of a special token", s[:n], id)
			}
			back.WriteString(s[:n])
			s = s[n:]
		}
		if back.String() != a {
			t.Fatalf("%q came back as %q", a, back.String())
		}
		// Text cut before a word is additive.
		if joined := encode(nil, a+" word"); a != "" && len(joined) != len(encode(nil, a))+1 {
			t.Fatalf("%q and a word: %d tokens, apart %d", a, len(joined), len(encode(nil, a))+1)
		}
	})
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(chat(3, 3, "")))
	f.Add([]byte(`{"prompt":[[1,2]]}`))
	f.Add([]byte(`{"messages":[{"content":[{"type":"text","text":"a"}]}],"stream_options":null}`))
	s, err := New(Options{Engine: sim.Config{Profile: flat}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, chat := range []bool{true, false} {
			var v body
			if json.Unmarshal(b, &v) != nil {
				return
			}
			q, e := s.parse(&v, chat)
			if e == nil && (len(q.Prompt) == 0 || q.MaxTokens < 1 || len(q.Prompt)+q.MaxTokens > s.modelLen()) {
				t.Fatalf("accepted %d prompt tokens and %d output tokens", len(q.Prompt), q.MaxTokens)
			}
		}
	})
}
