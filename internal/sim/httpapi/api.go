package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
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

func (e *apiError) write(w http.ResponseWriter) {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	in := inner{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		in.Param = &e.param
	}
	writeJSON(w, e.status, map[string]inner{"error": in})
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
	if b.Model != "" && b.Model != s.opt.Model {
		return q, &apiError{http.StatusNotFound, "NotFoundError", "model", fmt.Sprintf("The model `%s` does not exist.", b.Model)}
	}
	if b.N != nil && *b.N != 1 {
		return q, badRequest("n", "n is %d: only 1 is supported", *b.N)
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
	rep := only
	if rep == nil {
		rep = s.pick()
	}
	st := newStream()
	st.req = q
	st.req.Tag = st
	if !rep.submit(st, s.opt.MaxQueue) {
		if s.opt.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(int64((s.opt.RetryAfter+time.Second-1)/time.Second), 10))
		}
		(&apiError{http.StatusTooManyRequests, "RateLimitError", "", fmt.Sprintf("the engine is overloaded: %d requests are waiting", s.opt.MaxQueue)}).write(w)
		return
	}
	a := &answer{
		id: r.Header.Get("X-Request-Id"), model: s.opt.Model, created: time.Now().Unix(), chat: chat,
		ids: b.ReturnTokenIDs, continuous: b.StreamOptions.IncludeUsage && b.StreamOptions.ContinuousUsageStats,
		cachedShown: !s.opt.HideCachedTokens, prompt: q.Prompt,
	}
	if a.id == "" || len(a.id) > 128 {
		a.id = fmt.Sprintf("%016x", (s.opt.Seed+s.count.Add(1))*0x9e3779b97f4a7c15)
	}
	truth := Truth{ID: a.id, Replica: rep.index, PromptTokens: len(q.Prompt)}
	if b.Stream {
		s.stream(w, r, rep, st, a, &truth, b.StreamOptions.IncludeUsage)
	} else {
		s.whole(w, r, rep, st, a, &truth)
	}
	if s.opt.Truth == nil {
		return
	}
	at := func(d time.Duration) time.Time {
		if d == sim.Unset {
			return time.Time{}
		}
		return s.start.Add(d)
	}
	truth.Arrived = at(st.arrived)
	truth.OutputTokens, truth.Finish = a.output, a.finish
	// The engine writes Life until the request has finished; a handler that
	// gave up because the server stopped must not read it.
	if a.finish != sim.NotFinished {
		l := &st.req.Life
		truth.Scheduled, truth.FirstToken = at(l.Scheduled), at(l.FirstToken)
		truth.CachedTokens, truth.Preemptions = l.Cached, l.Preemptions
	}
	s.opt.Truth(truth)
}

// next waits for more of st. It reports false when the answer cannot go on: the
// client went away, in which case the engine is told, or the server stops.
func (s *Server) next(r *http.Request, rep *replica, st *stream, dst []sim.Token) ([]sim.Token, sim.Finish, bool) {
	select {
	case <-st.wake:
		t, f, failed := st.take(dst)
		return t, f, !failed
	case <-r.Context().Done():
		rep.abort(st)
		// Wait until the engine let go of it, so that whoever sees the answer
		// end sees its blocks free.
		for {
			select {
			case <-st.wake:
				if _, f, failed := st.take(nil); f != sim.NotFinished || failed {
					return nil, f, false
				}
			case <-rep.done:
				return nil, sim.NotFinished, false
			}
		}
	case <-rep.done:
		return nil, sim.NotFinished, false
	}
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, rep *replica, st *stream, a *answer, truth *Truth, usage bool) {
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
		tokens, f, ok = s.next(r, rep, st, tokens[:0])
		if !ok {
			a.finish = f
			if f == sim.NotFinished {
				panic(http.ErrAbortHandler) // the server stops: cut the stream
			}
			return
		}
		if len(tokens) == 0 && f == sim.NotFinished {
			continue
		}
		buf = buf[:0]
		if a.output == 0 {
			// Set before the first token was pushed, and not changed after.
			a.cached = st.req.Life.Cached
			buf = a.appendRole(buf)
		}
		a.output += len(tokens)
		a.finish = f
		buf = a.appendTokens(buf, tokens)
		if f != sim.NotFinished {
			if usage {
				buf = a.appendUsageChunk(buf)
			}
			buf = append(buf, "data: [DONE]\n\n"...)
		}
		truth.LastWrite = time.Now()
		if truth.FirstWrite.IsZero() {
			truth.FirstWrite = truth.LastWrite
		}
		w.Write(buf) // a failed write shows in the request's context
		flusher.Flush()
	}
}

func (s *Server) whole(w http.ResponseWriter, r *http.Request, rep *replica, st *stream, a *answer, truth *Truth) {
	var tokens []sim.Token
	for a.finish == sim.NotFinished {
		var ok bool
		tokens, a.finish, ok = s.next(r, rep, st, tokens)
		if !ok {
			if a.finish == sim.NotFinished {
				(&apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "", "the server is shutting down"}).write(w)
			}
			return
		}
	}
	a.output, a.cached = len(tokens), st.req.Life.Cached
	b := a.appendWhole(nil, tokens)
	truth.FirstWrite = time.Now()
	truth.LastWrite = truth.FirstWrite
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Write(b)
}

func (s *Server) models(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list",
		"data": []map[string]any{{
			// vllm, since clients tell by this how requests must look.
			"id": s.opt.Model, "object": "model", "created": s.start.Unix(), "owned_by": "vllm",
			"root": s.opt.Model, "parent": nil, "max_model_len": s.modelLen(), "permission": []any{},
		}},
	})
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var b struct {
		Prompt              *string       `json:"prompt"`
		Messages            []chatMessage `json:"messages"`
		AddGenerationPrompt *bool         `json:"add_generation_prompt"`
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
	writeJSON(w, http.StatusOK, map[string]any{"count": len(ids), "max_model_len": s.modelLen(), "tokens": ids, "token_strs": nil})
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
