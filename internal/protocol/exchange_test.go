package protocol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/wire"
)

const ms = time.Millisecond

// A read is bytes that come at a time.
type read struct {
	at   time.Duration
	data string
}

// A script is a Doer that answers from its fields and keeps what was asked.
type script struct {
	status  int // 0: 200
	header  http.Header
	headers time.Duration // when they come
	reads   []read
	end     time.Duration // when the body ends
	err     error         // what ends it, instead of its proper end
	hold    bool          // the body never ends

	timing wire.Timing // its Reused and Reconnects

	// stamp, where not nil, changes the stamp of read i.
	stamp func(i int, s *wire.Stamp)

	now   time.Duration
	asked *wire.Request
}

func (d *script) clock() time.Duration { return d.now }

func (d *script) Do(ctx context.Context, req *wire.Request, t *wire.Timing, h wire.Handler) error {
	d.asked = req
	t.Connected, t.Sent, t.Written = 1*ms, 2*ms, 3*ms
	t.Reused, t.Reconnects = d.timing.Reused, d.timing.Reconnects
	if d.status >= 0 {
		status := d.status
		if status == 0 {
			status = http.StatusOK
		}
		d.now = d.headers
		if err := h.Headers(status, d.header, wire.Stamp{At: d.headers, Earliest: d.headers, Read: d.headers, Kernel: true}); err != nil {
			return err
		}
	}
	before := d.headers
	for i, r := range d.reads {
		s := wire.Stamp{At: r.at, Earliest: before, Read: r.at, Kernel: true}
		if d.stamp != nil {
			d.stamp(i, &s)
		}
		d.now, before = r.at, r.at
		if err := h.Data([]byte(r.data), s); err != nil {
			return err
		}
	}
	d.now = max(d.now, d.end)
	if d.hold {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return d.err
}

// exchangeWith sends one turn of a two-turn live session through d.
func exchangeWith(t testing.TB, d *script, cfg Config) (*record.Record, string) {
	return exchangeIn(context.Background(), t, d, cfg)
}

func exchangeIn(ctx context.Context, t testing.TB, d *script, cfg Config) (*record.Record, string) {
	t.Helper()
	cfg.BaseURL, cfg.Now = "http://server", d.clock
	c, err := New(cfg, d, texts{})
	if err != nil {
		t.Fatal(err)
	}
	s := &plan.Session{Scheduled: 0, Turns: []plan.Turn{{InputTokens: 10, OutputTokens: 8, At: plan.Unset, Prompt: plan.Prompt{Item: -1}}, {Index: 1, InputTokens: 5, OutputTokens: 8, At: plan.Unset, Prompt: plan.Prompt{Item: -1}}}}
	send, err := c.Prepare(s, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := record.New(s, &s.Turns[0])
	rec.Scheduled, rec.AskedInput = 0, s.AskedInput(0)
	reply := send(ctx, rec)
	return rec, reply
}

// sse makes an event of each argument, each in a read of its own, 10 ms apart
// from 10 ms on.
func sse(data ...string) []read {
	var r []read
	for i, d := range data {
		r = append(r, read{time.Duration(i+1) * 10 * ms, "data: " + d + "\n\n"})
	}
	return r
}

const (
	role     = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	hello    = `{"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}`
	there    = `{"choices":[{"index":0,"delta":{"content":" there"},"finish_reason":null}]}`
	thinking = `{"choices":[{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null}]}`
	stop     = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	usage5   = `{"choices":[],"usage":{"prompt_tokens":35,"completion_tokens":5,"total_tokens":40}}`
	done     = `[DONE]`
)

func figure(f func() (time.Duration, bool)) time.Duration {
	d, ok := f()
	if !ok {
		return record.Unset
	}
	return d
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestS1_RoleIsNoToken(t *testing.T) {
	d := &script{reads: []read{{5 * ms, "data: " + role + "\n\n"}, {200 * ms, "data: " + hello + "\n\n"},
		{210 * ms, "data: " + stop + "\n\n"}, {220 * ms, "data: " + usage5 + "\n\n"}, {230 * ms, "data: [DONE]\n\n"}}, end: 231 * ms}
	rec, reply := exchangeWith(t, d, Config{})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "TTFT", figure(rec.TTFT), 200*ms)
	want(t, "first answer", rec.FirstAnswer, 200*ms)
	want(t, "done", rec.Done, 231*ms)
	want(t, "events", len(rec.Events), 1)
	want(t, "reply", reply, "Hello")
	want(t, "sent", rec.Sent, 2*ms)
}

func TestS1_ProgressIsNoToken(t *testing.T) {
	progress := `{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":100,"cache":0,"processed":50},"timings":{"cache_n":90,"prompt_n":9,"predicted_n":77}}`
	rec, _ := exchangeWith(t, &script{reads: sse(progress, progress, hello, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{"cache_n":7,"prompt_n":9,"predicted_n":1}}`)}, Config{})
	want(t, "TTFT", figure(rec.TTFT), 30*ms)
	want(t, "cached, not of the request before", rec.CachedTokens, 7)
	want(t, "input", rec.InputTokens, 16)
	want(t, "output", rec.OutputTokens, 1)
}

func TestS2_ReasoningIsOutput(t *testing.T) {
	for _, field := range []string{"reasoning", "reasoning_content"} {
		think := `{"choices":[{"index":0,"delta":{"` + field + `":"hm"}}]}`
		rec, reply := exchangeWith(t, &script{reads: sse(role, think, think, hello, stop, usage5, done)}, Config{})
		want(t, field+" TTFT", figure(rec.TTFT), 20*ms)
		want(t, field+" first answer", rec.FirstAnswer, 40*ms)
		want(t, field+" events", len(rec.Events), 3)
		want(t, field+" output", rec.OutputTokens, 5)
		want(t, field+" reply", reply, "Hello")
		want(t, field+" outcome", rec.Outcome, record.OK)

		rec, _ = exchangeWith(t, &script{reads: sse(role, think, think, stop, usage5, done)}, Config{})
		want(t, field+" alone: outcome", rec.Outcome, record.OK)
		want(t, field+" alone: TTFT", figure(rec.TTFT), 20*ms)
		want(t, field+" alone: first answer", rec.FirstAnswer, record.Unset)
	}
	both := `{"choices":[{"index":0,"delta":{"reasoning":"hm","reasoning_content":"hm","content":"Hello"}}]}`
	rec, _ := exchangeWith(t, &script{reads: sse(both, stop)}, Config{CountTokens: func(s string) (int, error) { return len(s), nil }})
	want(t, "reasoning and content: events", len(rec.Events), 1)
	want(t, "reasoning under two names is counted once", rec.OutputTokens, len("hmHello"))
}

func TestS3_ErrorAfter200(t *testing.T) {
	failure := `{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}`
	for _, c := range []struct {
		name    string
		reads   []read
		outcome record.Outcome
		text    string
	}{
		{"token, error, [DONE]", sse(hello, failure, done), record.StreamError, "Internal server error"},
		{"error alone", sse(failure), record.StreamError, "Internal server error"},
		{"error after the finish reason", sse(hello, stop, failure, done), record.StreamError, "Internal server error"},
		{"error as a string", sse(hello, `{"error":"boom"}`), record.StreamError, "boom"},
		{"error null", sse(hello, `{"error":null,"choices":[]}`, stop), record.OK, ""},
		{"the older error object", sse(`{"object":"error","message":"bad luck","type":"BadRequestError","param":null,"code":400}`, done), record.StreamError, "bad luck"},
		{"SGLang's full queue inside a 200", sse(`{"error":{"object":"error","message":"The request queue is full.","type":"ServiceUnavailableError","param":null,"code":503}}`, done), record.Rejected, "The request queue is full."},
		{"a code that is a string", sse(`{"error":{"message":"slow down","type":"None","param":"None","code":"429"}}`), record.Rejected, "slow down"},
		{"overload by its type", sse(`{"error":{"message":"try later","type":"overloaded_error"}}`), record.Rejected, "try later"},
		{"TGI's overload", sse(`{"error":{"message":"Model is overloaded","http_status_code":429}}`), record.Rejected, "Model is overloaded"},
		{"TGI's other errors", sse(`{"error":{"message":"Input validation error","http_status_code":422}}`, done), record.StreamError, "Input validation error"},
		{"a bad request that speaks of rate limits", sse(`{"error":{"message":"rate limit must be a number","code":400}}`), record.StreamError, "rate limit must be a number"},
		{"an error event with data", []read{{ms, "event: error\ndata: {\"error\":{\"message\":\"lost\"}}\n\n"}}, record.StreamError, "lost"},
		{"Dynamo's error in a comment", []read{{ms, "data: " + hello + "\n\n"}, {2 * ms, "event: error\n: worker lost\n\ndata: [DONE]\n\n"}}, record.StreamError, "worker lost"},
		{"a bare error object with a stream's type", []read{{ms, failure}}, record.StreamError, "Internal server error"},
		{"finish reason abort", sse(hello, `{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, done), record.StreamError, "finish_reason abort"},
		{"finish reason parse_error", sse(hello, `{"choices":[{"index":0,"delta":{},"finish_reason":"parse_error"}]}`, done), record.StreamError, "finish_reason parse_error"},
		{"[DONE] proves nothing", sse(hello, done), record.StreamError, "the stream says [DONE] without a finish reason"},
		{"an empty finish reason is none", sse(hello, `{"choices":[{"index":0,"text":"","finish_reason":""}]}`, done), record.StreamError, "the stream says [DONE] without a finish reason"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec, _ := exchangeWith(t, &script{reads: c.reads, header: http.Header{"Content-Type": {"text/event-stream"}}}, Config{})
			want(t, "outcome", rec.Outcome, c.outcome)
			want(t, "error", rec.Error, c.text)
			want(t, "status", rec.HTTPStatus, 200)
			if rec.Done == record.Unset {
				t.Error("done is not set")
			}
		})
	}
}

func TestS4_EmptyStream(t *testing.T) {
	rec, _ := exchangeWith(t, &script{reads: sse(role, stop, done)}, Config{})
	want(t, "outcome", rec.Outcome, record.Empty)
	want(t, "TTFT", figure(rec.TTFT), record.Unset)
	want(t, "E2E", figure(rec.E2E), record.Unset)

	rec, _ = exchangeWith(t, &script{end: 10 * ms}, Config{})
	want(t, "no body at all", rec.Outcome, record.StreamError)
	want(t, "its error", rec.Error, "the answer has no body")
}

func withUsage(data string, completion string) string {
	return strings.TrimSuffix(data, "}") + `,"usage":{"prompt_tokens":35,"completion_tokens":` + completion + `}}`
}

func TestS5_ChunksAreNoTokens(t *testing.T) {
	eight := `{"choices":[],"usage":{"prompt_tokens":35,"completion_tokens":8}}`
	itl := func(rec *record.Record) (sum time.Duration, n int, ok bool) {
		ok = rec.ITL(func(d time.Duration, k int) { sum, n = sum+d, n+k })
		return
	}
	rec, _ := exchangeWith(t, &script{reads: sse(hello, there, stop, eight, done)}, Config{})
	want(t, "output", rec.OutputTokens, 8)
	want(t, "source", rec.TokenSource, record.TokensFromUsage)
	want(t, "gaps", len(slices.Collect(rec.Gaps)), 1)
	want(t, "TPOT", figure(rec.TPOT), 10*ms/7)
	_, _, ok := itl(rec)
	want(t, "ITL is known", ok, false)

	rec, _ = exchangeWith(t, &script{reads: sse(withUsage(hello, "4"), withUsage(there, "8"), withUsage(stop, "8"), eight, done)}, Config{EventUsage: true})
	want(t, "output", rec.OutputTokens, 8)
	want(t, "first event", rec.Events[0].Tokens, 4)
	want(t, "second event", rec.Events[1].Tokens, 4)
	sum, n, ok := itl(rec)
	want(t, "ITL is known", ok, true)
	want(t, "ITL", sum, 10*ms/4)
	want(t, "counted", n, 4)
	want(t, "TPOT", figure(rec.TPOT), 10*ms/4)
}

func TestS6_FirstChunkOfEight(t *testing.T) {
	rec, _ := exchangeWith(t, &script{reads: sse(withUsage(role, "0"), withUsage(hello, "8"), withUsage(there, "9"), withUsage(there, "10"), withUsage(stop, "10"), done)}, Config{})
	want(t, "output", rec.OutputTokens, 10)
	want(t, "source", rec.TokenSource, record.TokensFromUsage)
	want(t, "TPOT", figure(rec.TPOT), 20*ms/2)
}

func TestS7_AllInOneChunk(t *testing.T) {
	rec, _ := exchangeWith(t, &script{reads: sse(hello, stop, `{"choices":[],"usage":{"prompt_tokens":35,"completion_tokens":100}}`, done)}, Config{})
	want(t, "output", rec.OutputTokens, 100)
	want(t, "TPOT", figure(rec.TPOT), record.Unset)
	want(t, "outcome", rec.Outcome, record.OK)
}

func TestS9_EarlyStop(t *testing.T) {
	rec, _ := exchangeWith(t, &script{reads: sse(hello, stop, usage5, done)}, Config{})
	want(t, "asked", rec.AskedOutput, 8)
	want(t, "delivered", rec.OutputTokens, 5)
}

func TestS10_TokenizeTheJoinedTextOnce(t *testing.T) {
	calls := 0
	count := func(text string) (int, error) { calls++; return len(text) + 1, nil } // + BOS
	reads := sse(`{"choices":[{"index":0,"delta":{"reasoning_content":"x"}}]}`)
	for range 9 {
		reads = append(reads, sse(`{"choices":[{"index":0,"delta":{"content":"y"}}]}`)...)
	}
	reads = append(reads, sse(stop, done)...)
	rec, _ := exchangeWith(t, &script{reads: reads}, Config{CountTokens: count})
	want(t, "calls", calls, 1)
	want(t, "output", rec.OutputTokens, 11)
	want(t, "source", rec.TokenSource, record.TokensFromTokenizer)

	rec, _ = exchangeWith(t, &script{reads: reads}, Config{})
	want(t, "output without a tokenizer", rec.OutputTokens, 10)
	want(t, "its source", rec.TokenSource, record.TokensFromEvents)

	rec, _ = exchangeWith(t, &script{reads: reads}, Config{CountTokens: func(string) (int, error) { return 0, errors.New("down") }})
	want(t, "source when the tokenizer fails", rec.TokenSource, record.TokensFromEvents)

	calls = 0
	rec, _ = exchangeWith(t, &script{reads: sse(hello, stop, usage5)}, Config{CountTokens: count})
	want(t, "calls when the server counts", calls, 0)
	want(t, "source", rec.TokenSource, record.TokensFromUsage)
}

func TestS11_ErrorStatus(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
		header     http.Header
		outcome    record.Outcome
		text       string
		retry      time.Duration
	}{
		{"500 after 2 s", `{"error":{"message":"boom","code":500}}`, 500, nil, record.HTTPError, "boom", 0},
		{"429 with seconds", `{"error":"slow"}`, 429, http.Header{"Retry-After": {"7"}}, record.Rejected, "slow", 7 * time.Second},
		{"429 with milliseconds", `{"error":"slow"}`, 429, http.Header{"Retry-After": {"7"}, "Retry-After-Ms": {"1500"}}, record.Rejected, "slow", 1500 * ms},
		{"503 with a date", ``, 503, http.Header{"Retry-After": {"Wed, 21 Oct 2026 07:28:10 GMT"}, "Date": {"Wed, 21 Oct 2026 07:28:00 GMT"}}, record.Rejected, "Service Unavailable", 10 * time.Second},
		{"a date in the past", `no`, 503, http.Header{"Retry-After": {"Wed, 21 Oct 2020 07:28:10 GMT"}}, record.Rejected, "no", 0},
		{"text", "upstream\n  connect error\x00", 502, nil, record.HTTPError, "upstream connect error", 0},
		{"nothing that can be printed", "\x00 \x01", 500, nil, record.HTTPError, "Internal Server Error", 0},
		{"HTML", "<html><head><title>502 Bad Gateway</title></head>...", 502, nil, record.HTTPError, "HTML: 502 Bad Gateway", 0},
		{"FastAPI", `{"detail":[{"loc":["body","model"],"msg":"field required"}]}`, 422, nil, record.HTTPError, `field required at ["body","model"]`, 0},
		{"llama.cpp", `{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":8192}}`, 400, nil, record.HTTPError, "too long", 0},
		{"a redirect", ``, 307, nil, record.HTTPError, "Temporary Redirect", 0},
		{"very long", strings.Repeat("é", 80<<10), 500, nil, record.HTTPError, strings.Repeat("é", 250), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &script{status: c.status, header: c.header, headers: 1999 * ms, end: 2 * time.Second}
			for b := c.body; len(b) > 0; {
				n := min(len(b), 8<<10)
				d.reads = append(d.reads, read{2 * time.Second, b[:n]})
				b = b[n:]
			}
			rec, _ := exchangeWith(t, d, Config{})
			want(t, "outcome", rec.Outcome, c.outcome)
			want(t, "status", rec.HTTPStatus, c.status)
			want(t, "done", rec.Done, 2*time.Second)
			want(t, "error", rec.Error, c.text)
			want(t, "retry after", rec.RetryAfter, c.retry)
			want(t, "first output", rec.FirstOutput, record.Unset)
		})
	}
}

func TestS12_MalformedFrame(t *testing.T) {
	for _, frame := range []string{`{"choices":[{"index":0,"delta":{"content":"x"}`, `hello`, `{"a":1} trailing`, `[1]`, `5`, `{"choices":[{"delta":{"content":"\q"}}]}`} {
		rec, _ := exchangeWith(t, &script{reads: sse(hello, frame, there, stop, usage5, done)}, Config{})
		want(t, frame+": outcome", rec.Outcome, record.StreamError)
		want(t, frame+": done, at the failure", rec.Done, 20*ms)
		want(t, frame+": events before it", len(rec.Events), 1)
		if !strings.Contains(rec.Error, "malformed") {
			t.Errorf("%s: error %q", frame, rec.Error)
		}
	}
}

func TestC8_ReconnectsAreCounted(t *testing.T) {
	rec, _ := exchangeWith(t, &script{reads: sse(hello, stop), timing: wire.Timing{Reused: true, Reconnects: 1}}, Config{})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "reconnects", rec.Reconnects, 1)
	want(t, "reused", rec.Reused, true)
	want(t, "retries", rec.Retries, 0)
}

func TestC9_UsagePerIndex(t *testing.T) {
	text := func(i, text string) string {
		return `{"choices":[{"text":"` + text + `","index":` + i + `,"finish_reason":null}]}`
	}
	last := func(i string) string {
		return `{"choices":[{"text":"","index":` + i + `,"finish_reason":"length"}],"usage":{"completion_tokens":3,"prompt_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`
	}
	n2 := Config{API: OpenAICompletions, Body: map[string]any{"n": 2}}
	rec, reply := exchangeWith(t, &script{reads: sse(text("1", "a"), text("0", "b"), last("1"), text("0", "c"), last("0"), done)}, n2)
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "output", rec.OutputTokens, 6)
	want(t, "input", rec.InputTokens, 4)
	want(t, "cached", rec.CachedTokens, 2)
	want(t, "source", rec.TokenSource, record.TokensFromUsage)
	want(t, "reply of choice 0", reply, "bc")
	for _, e := range rec.Events {
		want(t, "tokens of an event", e.Tokens, -1)
	}

	rec, _ = exchangeWith(t, &script{reads: sse(text("0", "a"), last("0"), done)}, n2)
	want(t, "one of two finished", rec.Outcome, record.StreamError)
	rec, _ = exchangeWith(t, &script{reads: sse(text("1", "x"), text("0", "a"), last("0"), done)}, Config{})
	want(t, "a choice seen and not finished", rec.Outcome, record.StreamError)

	// Continuous usage of two choices: each choice's count so far, over the one
	// prompt. It must not be summed over events, and the prompt not over choices.
	running := func(i, text, n, reason string) string {
		return `{"choices":[{"text":"` + text + `","index":` + i + `,"finish_reason":` + reason + `}],"usage":{"prompt_tokens":35,"completion_tokens":` + n + `}}`
	}
	reads := sse(running("0", "a", "1", "null"), running("1", "b", "2", "null"), running("0", "c", "3", "null"), running("1", "", "3", `"stop"`), running("0", "", "4", `"stop"`), done)
	rec, _ = exchangeWith(t, &script{reads: reads}, n2)
	want(t, "output", rec.OutputTokens, 7)
	want(t, "input", rec.InputTokens, 35)
	want(t, "third event", rec.Events[2].Tokens, 2)
	rec, _ = exchangeWith(t, &script{reads: append(reads[:5:5], sse(`{"choices":[],"usage":{"prompt_tokens":35,"completion_tokens":7}}`, done)...)}, n2)
	want(t, "output with a total", rec.OutputTokens, 7)
	// Cut before the end: the last running counts.
	rec, _ = exchangeWith(t, &script{reads: reads[:3], err: errors.New("reset")}, n2)
	want(t, "cut: output", rec.OutputTokens, 5)
	want(t, "cut: source", rec.TokenSource, record.TokensFromEventUsage)
}

func TestUsage_OnTheFinishEventThatHasText(t *testing.T) {
	last := `{"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":20}}`
	rec, _ := exchangeWith(t, &script{reads: sse(hello, there, last, done)}, Config{})
	want(t, "output", rec.OutputTokens, 20)
	for i, e := range rec.Events {
		if e.Tokens != -1 {
			t.Errorf("event %d has %d tokens: the usage is the answer's, not the event's", i, e.Tokens)
		}
	}
}

func TestUsage_ZeroOnEveryChunk(t *testing.T) {
	zero := func(text, reason string) string {
		return `{"choices":[{"text":"` + text + `","index":0,"finish_reason":` + reason + `}],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`
	}
	real := `{"choices":[],"usage":{"prompt_tokens":26,"completion_tokens":3,"total_tokens":29}}`
	rec, _ := exchangeWith(t, &script{reads: sse(zero("a", "null"), zero("b", "null"), zero("", `"stop"`), real, done)}, Config{API: OpenAICompletions})
	want(t, "input", rec.InputTokens, 26)
	want(t, "output", rec.OutputTokens, 3)
	want(t, "event", rec.Events[1].Tokens, -1)
	rec, _ = exchangeWith(t, &script{reads: sse(zero("a", "null"), zero("b", "null"), zero("", `"stop"`), done)}, Config{API: OpenAICompletions})
	want(t, "no real one: input", rec.InputTokens, -1)
	want(t, "source", rec.TokenSource, record.TokensFromEvents)
}

func TestTokenIDs(t *testing.T) {
	ids := func(text, ids string) string {
		return `{"choices":[{"index":0,"delta":{"content":"` + text + `"},"token_ids":` + ids + `}]}`
	}
	// The empty delta's token belongs to the event that shows its text.
	rec, _ := exchangeWith(t, &script{reads: sse(role, ids("a", "[1]"), ids("", "[2]"), ids("b", "[3,4]"), stop, done)}, Config{})
	want(t, "output", rec.OutputTokens, 4)
	want(t, "source", rec.TokenSource, record.TokensFromIDs)
	want(t, "events", len(rec.Events), 2)
	want(t, "second event", rec.Events[1].Tokens, 3)
	rec, _ = exchangeWith(t, &script{reads: sse(ids("a", "[1]"), ids("b", "null"), stop, done)}, Config{})
	want(t, "ids that are not on every event", rec.TokenSource, record.TokensFromEvents)
}

func TestHiddenReasoning(t *testing.T) {
	usage := func(n, r string) string {
		return `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":` + n + `,"completion_tokens_details":{"reasoning_tokens":` + r + `}}}`
	}
	// 100 reasoning tokens never came; 11 visible tokens in three events.
	rec, _ := exchangeWith(t, &script{reads: sse(hello, there, there, stop, usage("111", "100"), done)}, Config{})
	want(t, "output", rec.OutputTokens, 111)
	want(t, "reasoning", rec.ReasoningTokens, 100)
	want(t, "how many is known", rec.HiddenTokens, false)
	want(t, "TPOT", figure(rec.TPOT), 20*ms/10)

	want(t, "ITL of more tokens than events is unknown", rec.ITL(func(time.Duration, int) {}), false)

	rec, _ = exchangeWith(t, &script{reads: sse(hello, there, there, stop, usage("103", "100"), done)}, Config{})
	want(t, "a visible token in each event: TPOT", figure(rec.TPOT), 10*ms)
	want(t, "ITL", rec.ITL(func(d time.Duration, n int) { want(t, "ITL", d, 10*ms); want(t, "tokens", n, 1) }), true)

	rec, _ = exchangeWith(t, &script{reads: sse(thinking, hello, stop, usage("111", "100"), done)}, Config{})
	want(t, "delivered reasoning: TPOT", figure(rec.TPOT), 10*ms/110)

	// A server whose completion_tokens leave reasoning out.
	rec, _ = exchangeWith(t, &script{reads: sse(hello, there, there, stop, `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":11,"total_tokens":120,"completion_tokens_details":{"reasoning_tokens":100}}}`, done)}, Config{})
	want(t, "output with reasoning apart", rec.OutputTokens, 111)
	want(t, "TPOT", figure(rec.TPOT), 20*ms/10)

	rec, _ = exchangeWith(t, &script{reads: sse(hello, there, stop, usage("11", "100"), done)}, Config{})
	want(t, "counts that do not fit", rec.HiddenTokens, true)
	want(t, "TPOT", figure(rec.TPOT), record.Unset)

	rec, _ = exchangeWith(t, &script{reads: sse(hello, there, stop, `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"reasoning_tokens":0,"prompt_tokens_details":null}}`, done)}, Config{})
	want(t, "none at the top level", rec.ReasoningTokens, 0)
	want(t, "cached absent", rec.CachedTokens, -1)
}

func TestToolCalls(t *testing.T) {
	name := `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""}}]}}]}`
	args := `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}`
	nothing := `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]}}]}`
	refusal := `{"choices":[{"index":0,"delta":{"refusal":"no"}}]}`
	call := `{"choices":[{"index":0,"delta":{"function_call":{"name":"f"}}}]}`
	list := `{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"hi"}]}}]}`
	rec, reply := exchangeWith(t, &script{reads: sse(role, nothing, name, args, refusal, call, list, stop, done)}, Config{})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "events", len(rec.Events), 5)
	want(t, "first answer", rec.FirstAnswer, 30*ms)
	want(t, "reply", reply, "hi")
}

func TestWhole(t *testing.T) {
	body := `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hi \u00e9"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`
	d := &script{reads: []read{{500 * ms, body[:50]}, {510 * ms, body[50:]}}, end: 520 * ms}
	rec, reply := exchangeWith(t, d, Config{Whole: true})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "streamed", rec.Streamed, false)
	want(t, "reply", reply, "Hi é")
	want(t, "first output", rec.FirstOutput, 510*ms)
	want(t, "E2E", figure(rec.E2E), 510*ms)
	want(t, "events", len(rec.Events), 1)
	want(t, "output", rec.OutputTokens, 4)
	want(t, "cached", rec.CachedTokens, 0)
	want(t, "asks for no stream", strings.Contains(string(d.asked.Body), "stream"), false)

	for _, c := range []struct {
		name, body string
		err        error
		outcome    record.Outcome
	}{
		{"an error in a 200", `{"error":{"message":"no such model"}}`, nil, record.StreamError},
		{"an overload in a 200", `{"error":{"message":"busy","code":503}}`, nil, record.Rejected},
		{"a page of HTML", "<!DOCTYPE html><title>Login</title>", nil, record.StreamError},
		{"no finish reason", `{"choices":[{"index":0,"message":{"content":"Hi"}}]}`, nil, record.StreamError},
		{"nothing said", `{"choices":[{"index":0,"message":{"content":""},"finish_reason":"stop"}]}`, nil, record.Empty},
		{"cut JSON", body[:60], nil, record.StreamError},
		{"cut by the network", body[:60], errors.New("reset"), record.StreamError},
		{"another JSON", `{"hello":"world"}`, nil, record.StreamError},
		{"completions of a batch", `{"choices":[{"index":0,"text":"a","finish_reason":"stop"},{"index":1,"text":"b","finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}`, nil, record.OK},
	} {
		rec, _ := exchangeWith(t, &script{reads: []read{{ms, c.body}}, err: c.err}, Config{Whole: true})
		want(t, c.name, rec.Outcome, c.outcome)
		if rec.Outcome == record.OK && rec.OutputTokens != 4 {
			t.Errorf("%s: %d output tokens, want 4", c.name, rec.OutputTokens)
		}
		if c.outcome != record.OK && rec.Error == "" {
			t.Errorf("%s: no error text", c.name)
		}
	}
}

// White space before the body is not lost on the way to finding out what it is.
func TestSniff(t *testing.T) {
	for _, c := range []struct {
		reads   []read
		outcome record.Outcome
	}{
		{[]read{{ms, "\r"}, {2 * ms, "\n\n"}, {3 * ms, "data: " + hello + "\n\ndata: " + stop + "\n\n"}}, record.OK},
		{[]read{{ms, " "}, {3 * ms, "data: " + hello + "\n\ndata: " + stop + "\n\n"}}, record.Empty}, // " data" is no field
		{[]read{{ms, " "}, {2 * ms, "\n"}, {3 * ms, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`}}, record.OK},
		{[]read{{ms, "\ufeffdata: " + hello + "\n\ndata: " + stop + "\n\n"}}, record.OK},
		{[]read{{ms, " \n"}}, record.StreamError},
	} {
		rec, _ := exchangeWith(t, &script{reads: c.reads}, Config{})
		want(t, c.reads[len(c.reads)-1].data[:2], rec.Outcome, c.outcome)
	}
}

func TestWrongContentType(t *testing.T) {
	rec, _ := exchangeWith(t, &script{header: http.Header{"Content-Type": {"application/json"}}, reads: sse(hello, stop, done)}, Config{})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "streamed", rec.Streamed, true)
}

func TestHugeLine(t *testing.T) {
	mega := strings.Repeat("x", 1<<20)
	d := &script{reads: []read{{ms, "data: "}}}
	for range 100 {
		d.reads = append(d.reads, read{2 * ms, mega})
	}
	rec, _ := exchangeWith(t, d, Config{})
	want(t, "outcome", rec.Outcome, record.StreamError)
	if !strings.Contains(rec.Error, "16777216 bytes") {
		t.Errorf("error %q does not name the limit", rec.Error)
	}
}

func TestBounds(t *testing.T) {
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, `{"index":%d,"delta":{"content":"x"}},`, i)
	}
	rec, _ := exchangeWith(t, &script{reads: sse(`{"choices":[` + strings.TrimSuffix(many.String(), ",") + `]}`)}, Config{})
	want(t, "too many choices", rec.Error, "the answer has more than 1024 choices (the limit)")

	rec, _ = exchangeWith(t, &script{reads: sse(hello, `{"choices":[{"index":0,"delta":{},"finish_reason":"`+strings.Repeat("é", 1000)+`"}]}`)}, Config{})
	want(t, "a long finish reason", rec.FinishReason, strings.Repeat("é", 32))

	rec, _ = exchangeWith(t, &script{reads: sse(hello, strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000))}, Config{})
	want(t, "deep nesting", rec.Outcome, record.StreamError)

	big := `{"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 1<<20) + `"}}]}`
	rec, reply := exchangeWith(t, &script{reads: sse(big, big, big, big, big, big, stop)}, Config{CountTokens: func(s string) (int, error) { return len(s), nil }})
	want(t, "a reply beyond its bound is cut", len(reply), maxText)
	want(t, "and its tokens are not counted from what is left", rec.TokenSource, record.TokensFromEvents)
}

func TestCut(t *testing.T) {
	reset := errors.New("read: connection reset by peer")
	for _, c := range []struct {
		name    string
		d       *script
		outcome record.Outcome
		text    string
	}{
		{"a stream cut before its finish reason", &script{reads: sse(hello), err: reset, end: 15 * ms}, record.StreamError, "cut before its finish reason: read: connection reset"},
		{"a stream that ends before it", &script{reads: sse(hello), end: 15 * ms}, record.StreamError, "without a finish reason"},
		{"a reset after it", &script{reads: sse(hello, stop), err: reset}, record.OK, ""},
		{"no [DONE]", &script{reads: sse(hello, stop)}, record.OK, ""},
		{"a final event without its blank line", &script{reads: []read{{ms, "data: " + hello + "\n\ndata: " + stop}}}, record.OK, ""},
		{"no answer", &script{status: -1, err: errors.New("EOF")}, record.StreamError, "no answer: EOF"},
		{"no connection", &script{status: -1, err: &wire.ConnectError{Addr: "server:80", Err: errors.New("refused")}}, record.ConnectError, "connect to server:80: refused"},
	} {
		rec, _ := exchangeWith(t, c.d, Config{})
		want(t, c.name, rec.Outcome, c.outcome)
		if !strings.Contains(rec.Error, c.text) || c.text == "" && rec.Error != "" {
			t.Errorf("%s: error %q, want %q", c.name, rec.Error, c.text)
		}
		if rec.Done == record.Unset {
			t.Errorf("%s: done is not set", c.name)
		}
	}
}

func TestContextEnded(t *testing.T) {
	for _, c := range []struct {
		name    string
		reads   []read
		outcome record.Outcome
	}{
		{"before any output", nil, record.Pending},
		{"in mid-stream", sse(hello), record.Pending},
		{"after the finish reason, usage to come", sse(hello, stop), record.OK},
		{"after an error", sse(hello, `{"error":"boom"}`), record.StreamError},
		{"after [DONE]", sse(hello, stop, done), record.OK},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		rec, _ := exchangeIn(ctx, t, &script{reads: c.reads, hold: true, end: 900 * ms}, Config{})
		want(t, c.name, rec.Outcome, c.outcome)
		if c.outcome == record.Pending {
			want(t, c.name+": done", rec.Done, 900*ms)
		}
		if len(c.reads) > 0 && (len(rec.Events) != 1 || rec.OutputTokens != 1) {
			t.Errorf("%s: what came is kept: %d events, %d tokens", c.name, len(rec.Events), rec.OutputTokens)
		}
	}
}

// A server that holds the connection open after [DONE], or goes on talking,
// holds nobody up for long, and its chatter is not part of the answer.
func TestBodyGoesOnAfterDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rec, _ := exchangeWith(t, &script{reads: sse(hello, stop, done), hold: true, end: 900 * ms}, Config{})
		want(t, "outcome", rec.Outcome, record.OK)
		want(t, "waited", time.Since(began), drainTime)
		want(t, "done", rec.Done, 30*ms)
	})
	reads := sse(hello, stop, done)
	for range 100 {
		reads = append(reads, read{40 * ms, ": " + strings.Repeat("x", 4096) + "\n\n"})
	}
	rec, _ := exchangeWith(t, &script{reads: reads}, Config{})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "done", rec.Done, 30*ms)

	rec, _ = exchangeWith(t, &script{reads: sse(hello, stop, done, there, "junk"), end: 60 * ms}, Config{})
	want(t, "outcome", rec.Outcome, record.OK)
	want(t, "events", len(rec.Events), 1)
	want(t, "done", rec.Done, 60*ms)
}

func TestStamps(t *testing.T) {
	event := "data: " + hello + "\n\n"
	d := &script{
		headers: 4 * ms,
		reads: []read{
			{10 * ms, event},                   // ends its read, kernel time: width 0
			{20 * ms, event + event},           // two of one read
			{30 * ms, event + "data: {\"choi"}, // bytes follow: the stamp may be theirs
			{40 * ms, `ces":[]}` + "\n\n"},     // no output
			{50 * ms, event},                   // refused: the read's time
			{60 * ms, event},                   // one read in two calls
			{60 * ms, event},
			{70 * ms, "data: " + stop + "\n\n"},
		},
		stamp: func(i int, s *wire.Stamp) {
			switch i {
			case 4:
				s.Kernel, s.Refused = false, true
			case 5:
				s.More, s.Earliest = true, 55*ms+1
			case 6:
				s.Earliest = 55*ms + 1
			}
		},
	}
	rec, _ := exchangeWith(t, d, Config{Zero: 1 * ms})
	var widths []int32
	var at []time.Duration
	for _, e := range rec.Events {
		widths, at = append(widths, e.Width), append(at, e.At)
	}
	wantList(t, "widths", widths, []int32{0, 10_000, 0, 10_000, 10_000, 5000, 0})
	wantList(t, "stamps", at, []time.Duration{9 * ms, 19 * ms, 19 * ms, 29 * ms, 49 * ms, 59 * ms, 59 * ms})
	want(t, "reads", rec.Reads, 5)
	want(t, "reads of several events", rec.MultiEventReads, 2)
	want(t, "refused", rec.RefusedStamps, 1)
	want(t, "source", rec.StampSource, "mixed")
	want(t, "headers", rec.Headers, 3*ms)
	want(t, "sent", rec.Sent, 1*ms)
	want(t, "last output", rec.LastOutput, 59*ms)

	d = &script{reads: sse(hello, stop), stamp: func(_ int, s *wire.Stamp) { s.Kernel = false }}
	rec, _ = exchangeWith(t, d, Config{})
	want(t, "source", rec.StampSource, "read")
	rec, _ = exchangeWith(t, &script{reads: sse(hello, stop)}, Config{})
	want(t, "source", rec.StampSource, "kernel")
	rec, _ = exchangeWith(t, &script{status: 500}, Config{})
	want(t, "source of an answer without output", rec.StampSource, "kernel")
}

func wantList[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

// A secret that lies across the place where an error's text is cut.
func TestSecretsStayOut_AcrossTheCut(t *testing.T) {
	for at := maxError - 20; at < maxError; at++ {
		text := strings.Repeat("x", at) + " sk-1234567890abcdef"
		d := &script{status: 401, reads: []read{{ms, `{"error":{"message":"` + text + `"}}`}}}
		c, err := New(Config{BaseURL: "http://server", Header: http.Header{"Authorization": {"Bearer sk-1234567890abcdef"}}, Now: d.clock}, d, texts{})
		if err != nil {
			t.Fatal(err)
		}
		s := &plan.Session{Turns: []plan.Turn{{}}}
		send, err := c.Prepare(s, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		rec := record.New(s, &s.Turns[0])
		if send(t.Context(), rec); strings.Contains(rec.Error, "sk-1") || len(rec.Error) > maxError {
			t.Fatalf("at %d, %d bytes: ...%q", at, len(rec.Error), rec.Error[max(0, len(rec.Error)-30):])
		}
	}
}

func TestSecretsStayOut(t *testing.T) {
	d := &script{status: 401, reads: []read{{ms, `{"error":{"message":"Incorrect API key provided: sk-12345678. Pass user:hunter22 or Bearer sk-12345678."}}`}}}
	c, err := New(Config{BaseURL: "http://user:hunter22@server?key=abcdef", Header: http.Header{"Authorization": {"Bearer sk-12345678"}, "X-Short": {"sk-12"}}, Now: d.clock}, d, texts{})
	if err != nil {
		t.Fatal(err)
	}
	s := &plan.Session{Turns: []plan.Turn{{}}}
	send, err := c.Prepare(s, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := record.New(s, &s.Turns[0])
	send(context.Background(), rec)
	for _, secret := range []string{"sk-1234", "345678", "hunter22", "abcdef"} {
		if strings.Contains(rec.Error, secret) {
			t.Errorf("error %q holds %q", rec.Error, secret)
		}
	}
	if !strings.Contains(rec.Error, "Incorrect API key provided") {
		t.Errorf("error %q lost its text", rec.Error)
	}
	want(t, "the header is sent", d.asked.Header.Get("Authorization"), "Bearer sk-12345678")
	want(t, "the user part is not in the URL", d.asked.URL.User == nil, true)
	if _, err := New(Config{BaseURL: "://sk-secret", Now: d.clock}, d, texts{}); err == nil || strings.Contains(err.Error(), "sk-secret") {
		t.Errorf("error %v holds the address", err)
	}
}
