package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// bodyLimit bounds a request's body, in bytes.
const bodyLimit = 64 << 20

type chatMessage struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a message's text: a string, null, or a list of text parts.
type content []string

func (c *content) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		err := json.Unmarshal(b, &s)
		*c = content{s}
		return err
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return errors.New("content must be a string or a list of text parts")
	}
	*c = (*c)[:0]
	for _, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("content of type %q is not supported: use text", p.Type)
		}
		*c = append(*c, p.Text)
	}
	return nil
}

// prompt is a completion's prompt: a string, a list of token ids, or a list
// with one of these.
type prompt struct {
	text string
	ids  []sim.Token
}

func (p *prompt) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &p.text)
	}
	if json.Unmarshal(b, &p.ids) == nil {
		for _, id := range p.ids {
			if id < 0 {
				return fmt.Errorf("token id %d is negative", id)
			}
		}
		return nil
	}
	p.ids = nil
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return errors.New("prompt must be a string or a list of token ids")
	}
	if len(list) != 1 || list[0][0] != '"' && list[0][0] != '[' {
		return errors.New("prompt must be a string or a list of token ids below 2147483648; one prompt per request")
	}
	return p.UnmarshalJSON(list[0])
}

// body is what is read of a completion request; other fields are ignored.
type body struct {
	Model               string        `json:"model"`
	Messages            []chatMessage `json:"messages"`
	Prompt              *prompt       `json:"prompt"`
	Stream              bool          `json:"stream"`
	StreamOptions       streamOptions `json:"stream_options"`
	MaxTokens           *int          `json:"max_tokens"`
	MaxCompletionTokens *int          `json:"max_completion_tokens"`
	MinTokens           int           `json:"min_tokens"`
	IgnoreEOS           bool          `json:"ignore_eos"`
	N                   *int          `json:"n"`
	Priority            int           `json:"priority"`
	CacheSalt           *string       `json:"cache_salt"`
	ReturnTokenIDs      bool          `json:"return_token_ids"`
}

type streamOptions struct {
	IncludeUsage         bool `json:"include_usage"`
	ContinuousUsageStats bool `json:"continuous_usage_stats"`
}

// apiError is an answer that is not 200, in vLLM's shape.
type apiError struct {
	status  int
	kind    string
	param   string
	message string
}

func badRequest(param, format string, a ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", param, fmt.Sprintf(format, a...)}
}

// errorJSON is the error's object: vLLM's, or SGLang's, which has one key more.
type errorJSON struct {
	Object  string  `json:"object,omitempty"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) json() map[string]errorJSON {
	in := errorJSON{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		in.Param = &e.param
	}
	return map[string]errorJSON{"error": in}
}

func (e *apiError) write(w http.ResponseWriter) { writeJSON(w, e.status, e.json()) }

// appendError appends the error as an event.
func appendError(b []byte, e *apiError, sglang bool) []byte {
	v := e.json()
	if sglang {
		in := v["error"]
		in.Object = "error"
		v["error"] = in
	}
	j, err := json.Marshal(v)
	if err != nil {
		panic(err) // the values are ours
	}
	b = append(b, "data: "...)
	b = append(b, j...)
	return append(b, "\n\n"...)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the values are ours
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b)
}

func readJSON(w http.ResponseWriter, r *http.Request, v any) *apiError {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &apiError{http.StatusRequestEntityTooLarge, "BadRequestError", "", fmt.Sprintf("the body is larger than %d bytes", bodyLimit)}
	}
	if err != nil {
		return badRequest("", "reading the body: %v", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return badRequest("", "invalid JSON body: %v", err)
	}
	return nil
}

// parse turns a body into an engine request.
func (s *Server) parse(b *body, chat bool) (sim.Request, *apiError) {
	var q sim.Request
	if slices.Contains(s.opt.Adapters, b.Model) {
		q.Adapter = b.Model
	} else if b.Model != "" && b.Model != s.opt.Model {
		return q, &apiError{http.StatusNotFound, "NotFoundError", "model", fmt.Sprintf("The model `%s` does not exist.", b.Model)}
	}
	if b.N != nil && *b.N != 1 {
		return q, badRequest("n", "n is %d: only 1 is supported", *b.N)
	}
	if q.Priority = b.Priority; q.Priority != 0 && !s.opt.Engine.Priority {
		return q, badRequest("priority", "Got priority %d but Priority scheduling is not enabled.", b.Priority)
	}
	if b.CacheSalt != nil {
		if *b.CacheSalt == "" {
			return q, badRequest("cache_salt", "cache_salt must be a non-empty string")
		}
		q.Salt = *b.CacheSalt
	}
	maxParam, limit := "max_tokens", b.MaxTokens
	if chat {
		if len(b.Messages) == 0 {
			return q, badRequest("messages", "messages must hold at least one message")
		}
		q.Prompt = chatPrompt(s.opt.TemplateTokens, b.Messages, true)
		if b.MaxCompletionTokens != nil {
			maxParam, limit = "max_completion_tokens", b.MaxCompletionTokens
		}
	} else {
		if b.Prompt == nil {
			return q, badRequest("prompt", "prompt is missing")
		}
		if q.Prompt = b.Prompt.ids; b.Prompt.text != "" {
			q.Prompt = encode(nil, b.Prompt.text)
		}
		if len(q.Prompt) == 0 {
			return q, badRequest("prompt", "prompt is empty")
		}
		if limit == nil {
			sixteen := 16
			limit = &sixteen
		}
	}
	length := s.modelLen()
	if len(q.Prompt) >= length {
		return q, badRequest("input_tokens", "the prompt has %d tokens, and with at least one of output is longer than this model's maximum context length of %d tokens", len(q.Prompt), length)
	}
	q.MaxTokens = length - len(q.Prompt)
	if limit != nil {
		if *limit < 1 {
			return q, badRequest(maxParam, "%s must be at least 1, got %d", maxParam, *limit)
		}
		if *limit > q.MaxTokens {
			return q, badRequest(maxParam, "%s is %d, and with the prompt's %d tokens is longer than this model's maximum context length of %d tokens", maxParam, *limit, len(q.Prompt), length)
		}
		q.MaxTokens = *limit
	}
	if b.MinTokens < 0 || b.MinTokens > q.MaxTokens {
		return q, badRequest("min_tokens", "min_tokens is %d: it must lie between 0 and the most tokens of the output, %d", b.MinTokens, q.MaxTokens)
	}
	seed := s.opt.Seed
	for _, t := range q.Prompt {
		seed = (seed ^ uint64(t)) * 0x9e3779b97f4a7c15
		seed ^= seed >> 29
	}
	q.Output = speaker(seed, chat)
	if !b.IgnoreEOS {
		q.StopAt = stopAt(seed, s.opt.MeanOutput, b.MinTokens)
	}
	return q, nil
}

// stopAt draws the place of EOS from a geometric distribution of the given mean
// by inversion: 1 + ⌊ln U / ln(1 - 1/mean)⌋, redrawn below the least length.
func stopAt(seed uint64, mean, least int) int {
	if mean <= 1 {
		return max(1, least+1)
	}
	rng := rand.New(rand.NewPCG(seed, 0x656f73))
	// The geometric has no memory, so the part above the minimum is drawn as if
	// there were none.
	return least + 1 + int(math.Log(1-rng.Float64())/math.Log1p(-1/float64(mean)))
}

func (s *Server) modelLen() int { return s.replicas[0].size.MaxModelLen }

// answer is what handlers and chunk builders know of one request.
type answer struct {
	id, model      string
	created        int64
	chat           bool
	ids            bool // return_token_ids
	continuous     bool
	cachedShown    bool
	prompt         []sim.Token
	cached, output int
	finish         sim.Finish
	head           []byte // the part of a chunk up to its choices
}

// complete serves both kinds of completion.
func (s *Server) complete(w http.ResponseWriter, r *http.Request, only *replica, chat bool) {
	var b body
	if err := readJSON(w, r, &b); err != nil {
		err.write(w)
		return
	}
	q, apiErr := s.parse(&b, chat)
	if apiErr != nil {
		apiErr.write(w)
		return
	}
	if !s.enter() {
		(&apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "", "the server is shutting down"}).write(w)
		return
	}
	defer s.underway.Done()
	rep := only
	if rep == nil {
		if rep = s.pick(r, &b, &q); rep == nil {
			(&apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "", "no replica is up"}).write(w)
			return
		}
	}
	doom := s.faults.draw(rep.index, time.Since(s.start))
	if doom.kind == Drop && doom.after == 0 {
		panic(http.ErrAbortHandler)
	}
	st := newStream()
	st.req = q
	st.req.Tag = st
	if !rep.submit(st, s.opt.MaxQueue) {
		s.reject(w, b.Stream)
		return
	}
	a := &answer{
		id: r.Header.Get("X-Request-Id"), model: cmp.Or(q.Adapter, s.opt.Model), created: time.Now().Unix(), chat: chat,
		ids: b.ReturnTokenIDs, continuous: b.StreamOptions.IncludeUsage && b.StreamOptions.ContinuousUsageStats,
		cachedShown: !s.opt.HideCachedTokens, prompt: q.Prompt,
	}
	if a.id == "" || len(a.id) > 128 {
		a.id = fmt.Sprintf("%016x", (s.opt.Seed+s.count.Add(1))*0x9e3779b97f4a7c15)
	}
	truth := Truth{ID: a.id, Replica: rep.index, PromptTokens: len(q.Prompt)}
	x := &exchange{w: w, r: r, rep: rep, st: st, a: a, truth: &truth, doom: doom}
	var cut bool
	if b.Stream {
		cut = x.stream(b.StreamOptions.IncludeUsage)
	} else {
		cut = x.whole()
	}
	if s.opt.Truth != nil {
		x.finishTruth(s.start)
		s.opt.Truth(truth)
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}

// reject turns a request away whose replica's queue is full.
func (s *Server) reject(w http.ResponseWriter, stream bool) {
	if s.opt.Overload == InBand503 {
		e := &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "", "The request queue is full."}
		if !stream {
			e.write(w)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		w.Write(append(appendError(nil, e, true), done...))
		return
	}
	if s.opt.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((s.opt.RetryAfter+time.Second-1)/time.Second), 10))
	}
	(&apiError{http.StatusTooManyRequests, "RateLimitError", "", fmt.Sprintf("the engine is overloaded: %d requests are waiting", s.opt.MaxQueue)}).write(w)
}

const done = "data: [DONE]\n\n"

var errEngine = &apiError{http.StatusInternalServerError, "InternalServerError", "", "Internal server error"}

// exchange is one request being answered.
type exchange struct {
	w     http.ResponseWriter
	r     *http.Request
	rep   *replica
	st    *stream
	a     *answer
	truth *Truth
	doom  fate
}

// next waits for more tokens. It reports false when the answer cannot go on:
// the client went away, in which case the engine is told, or the replica has
// restarted or stopped.
func (x *exchange) next(dst []sim.Token) ([]sim.Token, sim.Finish, bool) {
	select {
	case <-x.st.wake:
		t, f, failed := x.st.take(dst)
		return t, f, !failed
	case <-x.r.Context().Done():
		return nil, x.letGo(false), false
	case <-x.st.life.gone:
		return nil, sim.NotFinished, false
	}
}

// letGo aborts the request and waits until the engine has let go of it, so that
// whoever sees the answer end sees its blocks free.
func (x *exchange) letGo(failed bool) sim.Finish {
	x.rep.abort(x.st, failed)
	for {
		select {
		case <-x.st.wake:
			if _, f, failed := x.st.take(nil); f != sim.NotFinished || failed {
				return f
			}
		case <-x.st.life.gone:
			return sim.NotFinished
		}
	}
}

// struck tells whether the request's fault has come to it, and cuts what came
// after.
func (x *exchange) struck(tokens []sim.Token, before int) ([]sim.Token, bool) {
	if x.doom.kind == "" || before+len(tokens) < x.doom.after {
		return tokens, false
	}
	x.truth.Fault = x.doom.kind
	return tokens[:x.doom.after-before], true
}

// stream answers in events. It reports true where the connection is to be cut.
func (x *exchange) stream(usage bool) (cut bool) {
	w, a, truth := x.w, x.a, x.truth
	flusher, ok := w.(http.Flusher)
	if !ok {
		panic("httpapi: the response writer cannot flush")
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flusher.Flush() // vLLM sends the headers at once, before any token
	a.begin()
	var tokens []sim.Token
	var buf []byte
	for a.finish == sim.NotFinished {
		var f sim.Finish
		var ok bool
		tokens, f, ok = x.next(tokens[:0])
		if !ok {
			a.finish = f
			return f == sim.NotFinished
		}
		if len(tokens) == 0 && f == sim.NotFinished {
			continue
		}
		var struck bool
		if tokens, struck = x.struck(tokens, a.output); struck {
			f = sim.NotFinished
		}
		buf = buf[:0]
		if a.output == 0 {
			// Set before the first token was pushed, and not changed after.
			a.cached = x.st.req.Life.Cached
			buf = a.appendRole(buf)
		}
		a.output += len(tokens)
		a.finish = f
		buf = a.appendTokens(buf, tokens)
		if f != sim.NotFinished && usage {
			buf = a.appendUsageChunk(buf)
		}
		if struck && x.doom.kind == MidStream {
			buf = appendError(buf, errEngine, false)
		}
		if f != sim.NotFinished || struck && x.doom.kind == MidStream {
			buf = append(buf, done...)
		}
		truth.LastWrite = time.Now()
		if truth.FirstWrite.IsZero() {
			truth.FirstWrite = truth.LastWrite
		}
		w.Write(buf) // a failed write shows in the request's context
		flusher.Flush()
		if struck {
			a.finish = x.letGo(x.doom.kind == MidStream)
			return x.doom.kind == Drop
		}
	}
	return false
}

// whole answers in one piece. It reports true where the connection is to be cut.
func (x *exchange) whole() (cut bool) {
	w, a := x.w, x.a
	var tokens []sim.Token
	for a.finish == sim.NotFinished {
		var ok, struck bool
		tokens, a.finish, ok = x.next(tokens)
		if !ok {
			return a.finish == sim.NotFinished
		}
		if tokens, struck = x.struck(tokens, 0); struck {
			a.output = len(tokens)
			a.finish = x.letGo(x.doom.kind == MidStream)
			if x.doom.kind == MidStream {
				errEngine.write(w)
			}
			return x.doom.kind == Drop
		}
	}
	a.output, a.cached = len(tokens), x.st.req.Life.Cached
	b := a.appendWhole(nil, tokens)
	x.truth.FirstWrite = time.Now()
	x.truth.LastWrite = x.truth.FirstWrite
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Write(b)
	return false
}

func (x *exchange) finishTruth(start time.Time) {
	at := func(d time.Duration) time.Time {
		if d == sim.Unset {
			return time.Time{}
		}
		return start.Add(d)
	}
	t := x.truth
	t.Arrived = at(x.st.arrived)
	t.OutputTokens, t.Finish = x.a.output, x.a.finish
	// The engine writes Life until the request has finished; a handler that
	// gave up because the replica is gone must not read it.
	if t.Finish == sim.NotFinished {
		return
	}
	l := &x.st.req.Life
	t.Scheduled, t.FirstToken = at(l.Scheduled), at(l.FirstToken)
	t.CachedTokens, t.Preemptions = l.Cached, l.Preemptions
	x.st.mu.Lock()
	defer x.st.mu.Unlock()
	for _, d := range x.st.ends {
		t.Steps = append(t.Steps, at(d))
	}
}

func (s *Server) models(w http.ResponseWriter) {
	model := func(id string, parent any) map[string]any {
		return map[string]any{
			// vllm, since clients tell by this how requests must look.
			"id": id, "object": "model", "created": s.start.Unix(), "owned_by": "vllm",
			"root": id, "parent": parent, "max_model_len": s.modelLen(), "permission": []any{},
		}
	}
	data := []map[string]any{model(s.opt.Model, nil)}
	for _, a := range s.opt.Adapters {
		m := model(a, s.opt.Model)
		m["max_model_len"] = nil // as vLLM
		data = append(data, m)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Prompt              *string       `json:"prompt"`
		Messages            []chatMessage `json:"messages"`
		AddGenerationPrompt *bool         `json:"add_generation_prompt"`
		ReturnTokenStrs     bool          `json:"return_token_strs"`
	}
	if err := readJSON(w, r, &b); err != nil {
		err.write(w)
		return
	}
	var ids []sim.Token
	switch {
	case b.Prompt != nil:
		ids = encode([]sim.Token{}, *b.Prompt)
		s.words.remember(*b.Prompt)
	case len(b.Messages) > 0:
		ids = chatPrompt(s.opt.TemplateTokens, b.Messages, b.AddGenerationPrompt == nil || *b.AddGenerationPrompt)
		for _, m := range b.Messages {
			for _, t := range m.Content {
				s.words.remember(t)
			}
		}
	default:
		badRequest("prompt", "either prompt or messages is needed").write(w)
		return
	}
	var strs []string // null, where not asked for
	if b.ReturnTokenStrs {
		for _, id := range ids {
			strs = append(strs, s.words.text(id))
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"count": len(ids), "max_model_len": s.modelLen(), "tokens": ids, "token_strs": strs})
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Tokens []sim.Token `json:"tokens"`
	}
	if err := readJSON(w, r, &b); err != nil {
		err.write(w)
		return
	}
	var text []byte
	for _, id := range b.Tokens {
		text = append(text, s.words.text(id)...)
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": string(text)})
}
