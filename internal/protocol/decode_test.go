package protocol

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/wire"
)

func newRecord(s *plan.Session, turn int) *record.Record { return record.New(s, &s.Turns[turn]) }

// Random chunks mean what encoding/json says they mean.
func TestDecoder_AgainstEncodingJSON(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...any) any { return of[rnd.IntN(len(of))] }
	for range 3000 {
		delta := map[string]any{}
		for _, key := range []string{"content", "reasoning", "refusal", "role", "odd \"key\"\n"} {
			if rnd.IntN(2) == 0 {
				delta[key] = pick("", "", nil, "x", "é\"\\\n\u2028🙂</b>", 5, []any{1, "a"}, map[string]any{"content": "no"})
			}
		}
		if rnd.IntN(4) == 0 {
			delta["tool_calls"] = pick(nil, []any{}, []any{map[string]any{"function": map[string]any{"name": pick("", "f"), "arguments": pick("", "{}", nil)}}})
		}
		chunk := map[string]any{
			"id": "x", "delta": "decoy", "content": "decoy",
			"choices": pick([]any{map[string]any{"index": rnd.IntN(3), "delta": delta, "finish_reason": pick(nil, "", "stop"), "logprobs": pick(nil, map[string]any{"content": []any{map[string]any{"token": "a"}}})}}, []any{}, nil),
			"usage":   pick(nil, map[string]any{"prompt_tokens": rnd.IntN(3), "completion_tokens": rnd.IntN(1000)}),
		}
		b, err := json.Marshal(chunk)
		if err != nil {
			t.Fatal(err)
		}

		// The slow reading.
		var answer, reasoning bool
		var content string
		if choices, _ := chunk["choices"].([]any); len(choices) > 0 {
			content, _ = delta["content"].(string)
			if list, ok := delta["content"].([]any); ok {
				content = list[1].(string) // a list's strings count as text
			}
			refusal, _ := delta["refusal"].(string)
			answer = content != "" || refusal != ""
			r, _ := delta["reasoning"].(string)
			reasoning = r != ""
			if calls, _ := delta["tool_calls"].([]any); len(calls) > 0 {
				f := calls[0].(map[string]any)["function"].(map[string]any)
				args, _ := f["arguments"].(string)
				answer = answer || f["name"] != "" || args != ""
			}
		}
		d := decoder{keepReply: true}
		got := d.event(Event{Data: b})
		if got.Output != (answer || reasoning) || got.Answer != answer || d.failed {
			t.Fatalf("%s\ngives %+v (failed: %v %s), want answer %v, reasoning %v", b, got, d.failed, d.message, answer, reasoning)
		}
		if len(d.choices) == 1 && d.choices[0].index == 0 && string(d.reply) != content {
			t.Fatalf("%s\ngives %q, want %q", b, d.reply, content)
		}
	}
}

// Whatever a server sends, cut wherever: no panic, the same record, and one
// that holds together.
func FuzzExchange(f *testing.F) {
	names, _ := filepath.Glob("testdata/streams/*.sse")
	for _, name := range names {
		b, _ := os.ReadFile(name)
		f.Add(b[:min(len(b), 2500)], 200, 200)
		f.Add(b[max(0, len(b)-1500):], 700, 500)
	}
	f.Add([]byte(`<html><title>no</title>`), 3, 200)
	f.Fuzz(func(t *testing.T, b []byte, at, status int) {
		at = min(max(at, 0), len(b))
		if status < 200 || status > 599 {
			status = 200
		}
		count := func(s string) (int, error) { return len(s), nil }
		one := play1(t, status, Config{CountTokens: count}, []read{{10 * ms, string(b)}})
		two := play1(t, status, Config{CountTokens: count}, []read{{10 * ms, string(b[:at])}, {20 * ms, string(b[at:])}})
		if d := cmp.Diff(timeless(t, one), timeless(t, two)); d != "" {
			t.Fatalf("%q cut at %d:\n%s", b, at, d)
		}
		r := two.Record
		if r.Outcome == record.Pending || (r.Outcome == record.OK) != (r.Error == "") {
			t.Fatalf("%q: outcome %v, error %q", b, r.Outcome, r.Error)
		}
		if len(r.Error) > maxError || !utf8.ValidString(r.Error) {
			t.Fatalf("%q: error %q", b, r.Error)
		}
		if (r.FirstOutput == record.Unset) != (len(r.Events) == 0) || r.Outcome == record.OK && len(r.Events) == 0 {
			t.Fatalf("%q: first output %v of %d events", b, r.FirstOutput, len(r.Events))
		}
		for _, e := range r.Events {
			if e.Tokens < -1 || e.Width < 0 || e.At > r.Done {
				t.Fatalf("%q: event %+v, done %v", b, e, r.Done)
			}
		}
		if tpot, ok := r.TPOT(); ok && tpot < 0 {
			t.Fatalf("%q: TPOT %v", b, tpot)
		}
	})
}

func play1(t testing.TB, status int, cfg Config, reads []read) golden {
	rec, reply := exchangeWith(t, &script{status: status, reads: reads, end: 30 * ms}, cfg)
	return golden{rec, reply}
}

// ordinary is a vLLM chunk of about 270 bytes.
const ordinary = `{"id":"chatcmpl-8f1e2d3c4b5a69788796a5b4c3d2e1f0","object":"chat.completion.chunk","created":1790000000,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":" there"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}`

func BenchmarkDecoder(b *testing.B) {
	for name, chunk := range map[string]string{
		"chunk":      ordinary,
		"usage":      withUsage(strings.Replace(ordinary, `,"usage":null`, "", 1), "17"),
		"llamacpp":   `{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" Genomsnittlig"}}],"created":1795960788,"id":"chatcmpl-MXkekoiyQM4LysKJQTjtdgkHLP4fUNPQ","model":"tiny","system_fingerprint":"b9000-173442644","object":"chat.completion.chunk"}`,
		"keep reply": ordinary,
	} {
		b.Run(name, func(b *testing.B) {
			d := decoder{keepReply: name == "keep reply"}
			ev := Event{Data: []byte(chunk)}
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				d.reply = d.reply[:0]
				if d.event(ev); d.failed {
					b.Fatal(d.message)
				}
			}
		})
	}
}

// Encoding/json, to know what the scanner is worth.
func BenchmarkEncodingJSON(b *testing.B) {
	var chunk struct {
		Choices []struct {
			Index        int
			Delta        struct{ Content, Reasoning *string }
			FinishReason *string `json:"finish_reason"`
		}
		Usage *struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	data := []byte(ordinary)
	b.ReportAllocs()
	for b.Loop() {
		if err := json.Unmarshal(data, &chunk); err != nil {
			b.Fatal(err)
		}
	}
}

// replay is a Doer that answers n times the same event.
type replay struct {
	event, last []byte
	n           int
}

func (r *replay) Do(_ context.Context, _ *wire.Request, _ *wire.Timing, h wire.Handler) error {
	h.Headers(200, nil, wire.Stamp{})
	for i := range r.n {
		at := time.Duration(i) * ms
		h.Data(r.event, wire.Stamp{At: at, Earliest: at - ms, Read: at, Kernel: true})
	}
	return h.Data(r.last, wire.Stamp{At: time.Hour, Earliest: time.Hour, Read: time.Hour})
}

// One event from the read to the record: reader, decoder and bookkeeping.
func BenchmarkEvent(b *testing.B) {
	const n = 256
	d := &replay{[]byte("data: " + ordinary + "\n\n"), []byte("data: " + stop + "\n\ndata: [DONE]\n\n"), n}
	c, err := New(Config{BaseURL: "http://h", Now: func() time.Duration { return 2 * time.Hour }}, d, texts{})
	if err != nil {
		b.Fatal(err)
	}
	s := &plan.Session{Turns: []plan.Turn{{OutputTokens: n}}}
	send, err := c.Prepare(s, 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		rec := newRecord(s, 0)
		if send(b.Context(), rec); rec.Outcome != record.OK {
			b.Fatal(rec.Error)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/event")
}
