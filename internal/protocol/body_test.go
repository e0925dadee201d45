package protocol

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/plan"
)

// texts is a Renderer of short texts that name their turn.
type texts struct{}

func (texts) Messages(s *plan.Session, t *plan.Turn) ([]Message, error) {
	m := []Message{{"user", fmt.Sprintf(" ask %d", t.Index)}}
	if t.Index == 0 && t.Prompt.PrefixTokens > 0 {
		m = append([]Message{{"system", "You are <b>."}}, m...)
	}
	return m, nil
}

func (texts) Reply(s *plan.Session, t *plan.Turn) (string, error) {
	return fmt.Sprintf(" planned %d", t.Index), nil
}

func (texts) Tokens(s *plan.Session, t *plan.Turn) ([]int, error) {
	return []int{1, 2, int(t.Index) + 3}, nil
}

// live is a session with one turn in its history and three to be sent.
func live() *plan.Session {
	turn := func(i, in, out int) plan.Turn {
		return plan.Turn{Index: int32(i), InputTokens: in, OutputTokens: out, Prompt: plan.Prompt{Item: -1}}
	}
	s := &plan.Session{Seq: 7, History: []plan.Turn{turn(0, 100, 50)}, Turns: []plan.Turn{turn(1, 20, 10), turn(2, 30, 11), turn(3, 40, 12)}}
	s.History[0].Prompt.PrefixTokens = 60
	return s
}

// prepared returns the request body of one turn.
func prepared(t *testing.T, cfg Config, s *plan.Session, turn int, replies []string) (map[string]any, *script) {
	t.Helper()
	d := &script{reads: sse(hello, stop)}
	cfg.Now = d.clock
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://server:8000"
	}
	c, err := New(cfg, d, texts{})
	if err != nil {
		t.Fatal(err)
	}
	send, err := c.Prepare(s, turn, replies)
	if err != nil {
		t.Fatal(err)
	}
	send(t.Context(), newRecord(s, turn))
	var body map[string]any
	if err := json.Unmarshal(d.asked.Body, &body); err != nil {
		t.Fatal(err)
	}
	return body, d
}

func salted(s *plan.Session) string { return "salt of " + s.Phase }

func TestBody(t *testing.T) {
	scripted := live()
	scripted.Scripted = true
	for _, c := range []struct {
		name    string
		cfg     Config
		s       *plan.Session
		turn    int
		replies []string
		want    string
	}{
		{"a first turn, after planned history", Config{Model: "m"}, live(), 0, nil,
			`{"model":"m","max_tokens":10,"stream":true,"stream_options":{"include_usage":true},"messages":[
			{"role":"system","content":"You are <b>."},{"role":"user","content":" ask 0"},{"role":"assistant","content":" planned 0"},{"role":"user","content":" ask 1"}]}`},
		{"a later turn, after live replies", Config{}, live(), 2, []string{"one", "two"},
			`{"max_tokens":12,"stream":true,"stream_options":{"include_usage":true},"messages":[
			{"role":"system","content":"You are <b>."},{"role":"user","content":" ask 0"},{"role":"assistant","content":" planned 0"},{"role":"user","content":" ask 1"},
			{"role":"assistant","content":"one"},{"role":"user","content":" ask 2"},{"role":"assistant","content":"two"},{"role":"user","content":" ask 3"}]}`},
		{"scripted: planned replies, whatever came", Config{API: OpenAICompletions}, scripted, 1, []string{"one"},
			`{"max_tokens":11,"stream":true,"stream_options":{"include_usage":true},"prompt":"You are <b>. ask 0 planned 0 ask 1 planned 1 ask 2"}`},
		{"vLLM: forced length, priority, salt", Config{Dialect: VLLM, CacheSalt: salted, EventUsage: true}, &plan.Session{Phase: "warm-up", Priority: 3, Model: "lora", Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"model":"lora","max_tokens":9,"ignore_eos":true,"min_tokens":9,"priority":3,"cache_salt":"salt of warm-up","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[{"role":"user","content":" ask 0"}]}`},
		{"free length", Config{Dialect: VLLM, FreeLength: true, NoUsage: true}, &plan.Session{Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"max_tokens":9,"stream":true,"messages":[{"role":"user","content":" ask 0"}]}`},
		{"OpenAI: its own name for the cap, nothing of others", Config{Dialect: OpenAI, Whole: true, CacheSalt: salted}, &plan.Session{Priority: 3, Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"max_completion_tokens":9,"messages":[{"role":"user","content":" ask 0"}]}`},
		{"llama.cpp", Config{Dialect: LlamaCPP}, &plan.Session{Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"max_tokens":9,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":" ask 0"}]}`},
		{"LMDeploy", Config{Dialect: LMDeploy, NoUsage: true}, &plan.Session{Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"max_tokens":9,"ignore_eos":true,"min_new_tokens":9,"stream":true,"messages":[{"role":"user","content":" ask 0"}]}`},
		{"an unknown server, forced all the same", Config{ForceLength: true, NoUsage: true}, &plan.Session{Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"max_tokens":9,"ignore_eos":true,"min_tokens":9,"stream":true,"messages":[{"role":"user","content":" ask 0"}]}`},
		{"forced, and refused by the probe", Config{ForceLength: true, FreeLength: true, NoUsage: true}, &plan.Session{Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"max_tokens":9,"stream":true,"messages":[{"role":"user","content":" ask 0"}]}`},
		{"token ids", Config{API: OpenAICompletions, PromptIDs: true}, &plan.Session{Turns: []plan.Turn{{}}}, 0, nil,
			`{"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true}}`},
		{"the user's fields come last", Config{Body: map[string]any{"stream_options": map[string]any{"extra": 1}, "max_tokens": nil, "top_p": 0.5, "return_token_ids": true}}, &plan.Session{Turns: []plan.Turn{{OutputTokens: 9}}}, 0, nil,
			`{"top_p":0.5,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true,"extra":1},"messages":[{"role":"user","content":" ask 0"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := prepared(t, c.cfg, c.s, c.turn, c.replies)
			var wanted map[string]any
			if err := json.Unmarshal([]byte(c.want), &wanted); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(wanted, got); d != "" {
				t.Errorf("body (- want, + got):\n%s", d)
			}
		})
	}
}

func TestMerge_LeavesTheUsersMapAlone(t *testing.T) {
	user := map[string]any{"a": map[string]any{"b": map[string]any{"c": 1}}}
	dst := map[string]any{}
	merge(dst, user)
	merge(dst, map[string]any{"a": map[string]any{"b": map[string]any{"c": 2}}})
	if d := cmp.Diff(map[string]any{"a": map[string]any{"b": map[string]any{"c": 1}}}, user); d != "" {
		t.Errorf("changed:\n%s", d)
	}
	if d := cmp.Diff(map[string]any{"a": map[string]any{"b": map[string]any{"c": 2}}}, dst); d != "" {
		t.Errorf("merged:\n%s", d)
	}
}

func TestRequest(t *testing.T) {
	cfg := Config{Salt: "run9", Connections: PerSession, Header: http.Header{"X-Team": {"blue"}}}
	_, d := prepared(t, cfg, live(), 1, []string{"one"})
	want(t, "request id", d.asked.Header.Get("X-Request-Id"), "run9-7-2")
	want(t, "session", d.asked.Session, SessionKey(7))
	want(t, "header", d.asked.Header.Get("X-Team"), "blue")
	want(t, "content type", d.asked.Header.Get("Content-Type"), "application/json")
	want(t, "angle brackets are sent as they are", strings.Contains(string(d.asked.Body), "<b>"), true)
	_, d = prepared(t, Config{Connections: PerRequest}, live(), 0, nil)
	want(t, "no reuse", d.asked.NoReuse, true)
	want(t, "no session", d.asked.Session, "")
}

func TestEndpoints(t *testing.T) {
	for _, c := range []struct {
		base string
		api  API
		url  string
		root string
	}{
		{"http://h:8000", OpenAIChat, "http://h:8000/v1/chat/completions", "http://h:8000"},
		{"http://h:8000/", OpenAICompletions, "http://h:8000/v1/completions", "http://h:8000"},
		{"http://h/v1", OpenAIChat, "http://h/v1/chat/completions", "http://h"},
		{"http://h/v1/", OpenAIChat, "http://h/v1/chat/completions", "http://h"},
		{"https://h/gw/v1/chat/completions", OpenAICompletions, "https://h/gw/v1/completions", "https://h/gw"},
		{"https://h/openai/deployments/x/chat/completions?api-version=1", OpenAIChat, "https://h/openai/deployments/x/chat/completions?api-version=1", "https://h/openai/deployments/x"},
		{"http://[::1]:8000", OpenAIChat, "http://[::1]:8000/v1/chat/completions", "http://[::1]:8000"},
		{"unix:///run/llm.sock", OpenAIChat, "unix:///run/llm.sock/v1/chat/completions", "unix:///run/llm.sock"},
	} {
		d := &script{}
		client, err := New(Config{BaseURL: c.base, API: c.api, Now: d.clock}, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		want(t, c.base, client.url.String(), c.url)
		want(t, c.base+" root", client.root.String(), c.root)
	}
}

// C1: an alias is sent as it is, and nothing asks for a tokenizer of that name.
func TestC1_AliasModel(t *testing.T) {
	rec, _ := exchangeWith(t, &script{reads: sse(hello, stop, usage5, done)}, Config{Model: "my-alias"})
	want(t, "model", rec.Model, "my-alias")
	want(t, "input", rec.InputTokens, 35)
	want(t, "output", rec.OutputTokens, 5)
	want(t, "source", string(rec.TokenSource), "usage")
	body, _ := prepared(t, Config{Model: "my-alias"}, live(), 0, nil)
	want(t, "sent", body["model"], any("my-alias"))
}

func TestReplyOnlyWhereNeeded(t *testing.T) {
	s := live()
	d := &script{reads: sse(hello, there, stop)}
	c, err := New(Config{BaseURL: "http://h", Now: d.clock}, d, texts{})
	if err != nil {
		t.Fatal(err)
	}
	for turn, wanted := range []string{"Hello there", "Hello there", ""} {
		send, err := c.Prepare(s, turn, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		want(t, fmt.Sprint("reply of turn ", turn), send(t.Context(), newRecord(s, turn)), wanted)
	}
}

func TestPrepareErrors(t *testing.T) {
	d := &script{}
	c, _ := New(Config{BaseURL: "http://h", Now: d.clock, API: OpenAICompletions, PromptIDs: true}, d, texts{})
	for name, prepare := range map[string]func() error{
		"no such turn":              func() error { _, err := c.Prepare(live(), 3, nil); return err },
		"a missing reply":           func() error { _, err := c.Prepare(live(), 2, []string{"one"}); return err },
		"token ids after a history": func() error { _, err := c.Prepare(live(), 0, nil); return err },
	} {
		if err := prepare(); err == nil || !strings.Contains(err.Error(), "session 7") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for name, cfg := range map[string]Config{
		"unknown api":            {BaseURL: "http://h", API: "soap"},
		"unknown connections":    {BaseURL: "http://h", Connections: "many"},
		"no url":                 {},
		"no scheme":              {BaseURL: "localhost/v1"},
		"token ids of chat":      {BaseURL: "http://h", PromptIDs: true},
		"token ids of Ollama":    {BaseURL: "http://h", API: OpenAICompletions, PromptIDs: true, Dialect: Ollama},
		"a clock has to be said": {BaseURL: "http://h"},
	} {
		if name != "a clock has to be said" {
			cfg.Now = d.clock
		}
		if _, err := New(cfg, d, texts{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
