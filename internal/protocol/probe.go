package protocol

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/wire"
)

const (
	lookTimeout  = 3 * time.Second // for one look at an auxiliary address
	askTimeout   = 90 * time.Second
	maxLook      = 1 << 20 // bytes of one such answer
	probeWords   = 64
	probeOutput  = 16
	maxModels    = 50
	countTimeout = 30 * time.Second
)

// Identity is what a server says of itself. Nothing in it is certain: Evidence
// says what each guess rests on.
type Identity struct {
	// Reached is set where the server answered anything at all; Error says why not.
	Reached bool   `json:"reached"`
	Error   string `json:"error,omitempty"`
	// Models are the names it serves, at most 50; MaxModelLen is the longest
	// sequence of the model asked for, in tokens, or -1.
	Models      []string `json:"models,omitempty"`
	MaxModelLen int      `json:"max_model_len"`
	Dialect     Dialect  `json:"dialect"`
	Version     string   `json:"version,omitempty"`
	Evidence    []string `json:"evidence,omitempty"`
}

// ProbeReport says what can be measured of a server.
type ProbeReport struct {
	Identity
	Model string `json:"model"` // that was asked
	// Answered is set where a prompt got an answer; AnswerError says why not.
	Answered    bool   `json:"answered"`
	AnswerError string `json:"answer_error,omitempty"`
	// AnswerStatus is the HTTP status of that answer; 0: none came.
	AnswerStatus int  `json:"answer_status"`
	Streams      bool `json:"streams"`     // the answer came event by event
	Usage        bool `json:"usage"`       // the server counts tokens
	EventUsage   bool `json:"event_usage"` // and can do so on every event
	// CachedTokens: responses say how much of a prompt came from the prefix
	// cache. CacheHit is what the last of three prompts, a repeated one, had of
	// it; -1 unknown.
	CachedTokens bool `json:"cached_tokens"`
	// CacheSalts: a prompt that was cached is not any more when it comes with a
	// cache_salt of its own. Seen, not taken from the engine's name: a field
	// that is quietly ignored keeps nothing apart.
	CacheSalts bool `json:"cache_salts"`
	CacheHit   int  `json:"cache_hit"`
	// LengthAsked and LengthGot are the output tokens of one answer; -1 unknown.
	// ForcesLength is set where requests force the length and it came out so.
	ForcesLength bool `json:"forces_length"`
	LengthAsked  int  `json:"length_asked"`
	LengthGot    int  `json:"length_got"`
	// A prompt of w words has about TemplateTokens + TokensPerWord·w tokens by
	// the server's count, from prompts of two lengths: what the chat template
	// (and a begin-of-sequence token) adds. -1 and 0 where the server does not
	// count.
	TemplateTokens int     `json:"template_tokens"`
	TokensPerWord  float64 `json:"tokens_per_word"`
	// LaterTokens is what the template adds for each later turn: around the
	// reply before it and the new message. -1: not known.
	LaterTokens int `json:"later_tokens"`
	// HeadersEarly: the answer's headers come well before its first output, so
	// that they say nothing of it.
	HeadersEarly     bool          `json:"headers_early"`
	HeadersAfter     time.Duration `json:"headers_after"`      // since sent
	FirstOutputAfter time.Duration `json:"first_output_after"` // since sent
	// RefusesUsage and RefusesForcing: requests with stream_options, or with
	// the fields that force the length, are refused. Config.NoUsage and
	// Config.FreeLength avoid them.
	RefusesUsage   bool     `json:"refuses_usage,omitempty"`
	RefusesForcing bool     `json:"refuses_forcing,omitempty"`
	Advice         []string `json:"advice,omitempty"`
}

// page collects one small answer.
type page struct {
	status int
	header http.Header
	body   []byte
}

func (p *page) Headers(status int, h http.Header, _ wire.Stamp) error {
	p.status, p.header = status, h
	return nil
}

func (p *page) Data(b []byte, _ wire.Stamp) error {
	if len(p.body)+len(b) > maxLook {
		return fmt.Errorf("an answer of more than %d bytes", maxLook)
	}
	p.body = append(p.body, b...)
	return nil
}

// at returns an address below the server's root.
func (c *Client) at(path string) *url.URL {
	u := *c.root
	u.Path = strings.TrimRight(u.Path, "/") + path
	return &u
}

// look fetches one auxiliary address; a body, where not nil, is posted.
func (c *Client) look(ctx context.Context, path string, body []byte, timeout time.Duration) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req := &wire.Request{Method: http.MethodGet, URL: c.at(path), Header: c.header.Clone(), Body: body}
	if body != nil {
		req.Method = http.MethodPost
	} else {
		req.Header.Del("Content-Type")
	}
	p := &page{}
	t := wire.Timing{Connected: wire.Unset, Sent: wire.Unset, Written: wire.Unset}
	err := c.do.Do(ctx, req, &t, p)
	return p, err
}

// owners are the names that servers give as owned_by in /v1/models.
var owners = map[string]Dialect{
	"vllm": VLLM, "sglang": SGLang, "llamacpp": LlamaCPP, "lmdeploy": LMDeploy,
	"tensorrt_llm": TRTLLM, "library": Ollama, "nvidia": Dynamo,
}

// signs are the addresses that tell servers apart, with a field that only that
// server's answer has.
var signs = []struct {
	dialect Dialect
	path    string
	field   string
	version string
}{
	{LlamaCPP, "/props", "default_generation_settings", "build_info"},
	{SGLang, "/server_info", "internal_states", "version"},
	{SGLang, "/get_server_info", "internal_states", "version"},
	{TGI, "/info", "max_total_tokens", "version"},
	{Ollama, "/api/version", "version", "version"},
}

// Identify asks the server what it is. It takes a few small requests, none of
// which makes a token, each bounded in time and size, and never fails: what
// could not be found out stays unknown.
func (c *Client) Identify(ctx context.Context) Identity {
	id := Identity{MaxModelLen: -1}
	settle := func(d Dialect, why string) {
		id.Evidence = append(id.Evidence, why)
		if id.Dialect == Unknown {
			id.Dialect = d
		}
	}
	p, err := c.look(ctx, "/v1/models", nil, lookTimeout)
	if p.status == 0 {
		id.Error = "no answer"
		if err != nil {
			id.Error = clip(c.secrets.clean(err.Error()), maxError)
		}
		return id
	}
	id.Reached = true
	if p.status != http.StatusOK {
		id.Evidence = append(id.Evidence, fmt.Sprintf("/v1/models answers %d: %s", p.status, clip(c.secrets.clean(parseError(p.body).message), 120)))
	}
	for name := range p.header {
		switch lower := strings.ToLower(name); {
		case strings.HasPrefix(lower, "x-litellm"):
			settle(LiteLLM, "header "+name)
			if lower == "x-litellm-version" {
				id.Version = p.header.Get(name)
			}
		case lower == "openai-version" || lower == "openai-processing-ms":
			settle(OpenAI, "header "+name)
		}
	}
	if strings.HasSuffix(c.root.Hostname(), "api.openai.com") {
		settle(OpenAI, "host "+c.root.Hostname())
	}
	if p.header.Get("Server") == "llama.cpp" {
		settle(LlamaCPP, "header Server: llama.cpp")
	}
	if gjson.ValidBytes(p.body) {
		for _, m := range gjson.GetBytes(p.body, "data").Array() {
			name := clip(m.Get("id").String(), 200)
			if len(id.Models) == maxModels {
				break
			}
			id.Models = append(id.Models, name)
			if n := m.Get("max_model_len"); n.Type == gjson.Number && n.Num > 0 && n.Num < 1<<31 && (name == c.cfg.Model || id.MaxModelLen < 0) {
				id.MaxModelLen = int(n.Num)
			}
			if d, ok := owners[strings.ToLower(m.Get("owned_by").Str)]; ok && id.Dialect == Unknown {
				settle(d, fmt.Sprintf("/v1/models: owned_by %q", m.Get("owned_by").Str))
			}
		}
	}
	for _, s := range signs {
		// Where the engine is known, only its own address is of use.
		if id.Dialect != Unknown && (s.dialect != id.Dialect || id.Version != "") {
			continue
		}
		p, err := c.look(ctx, s.path, nil, lookTimeout)
		if err != nil || p.status != http.StatusOK || !gjson.ValidBytes(p.body) || !gjson.GetBytes(p.body, s.field).Exists() {
			continue
		}
		settle(s.dialect, s.path+" has "+s.field)
		id.Version = clip(gjson.GetBytes(p.body, s.version).String(), 100)
		if n := gjson.GetBytes(p.body, "default_generation_settings.n_ctx"); s.dialect == LlamaCPP && n.Num > 0 && n.Num < 1<<31 {
			id.MaxModelLen = int(n.Num)
		}
	}
	// Many servers answer at /version: it tells an engine's age, not its kind.
	if (id.Dialect == VLLM || id.Dialect == TRTLLM) && id.Version == "" {
		if p, err := c.look(ctx, "/version", nil, lookTimeout); err == nil && gjson.ValidBytes(p.body) {
			id.Version = clip(gjson.GetBytes(p.body, "version").String(), 100)
		}
	}
	return id
}

// Probe identifies the server and sends it a few short prompts: what a run of
// this configuration can measure, and what to change. Config.Dialect, where
// set, is believed. It never fails; the report says how far it came.
func (c *Client) Probe(ctx context.Context) ProbeReport {
	r := ProbeReport{Identity: c.Identify(ctx), CacheHit: -1, LengthAsked: probeOutput, LengthGot: -1, TemplateTokens: -1, LaterTokens: -1}
	if c.cfg.Dialect != Unknown && c.cfg.Dialect != r.Dialect {
		r.Evidence = append(r.Evidence, fmt.Sprintf("the configuration says %s", c.cfg.Dialect))
		r.Dialect = c.cfg.Dialect
	}
	if r.Model = c.cfg.Model; r.Model == "" && len(r.Models) == 1 {
		r.Model = r.Models[0]
	}

	with := *c // the same client, free to change its requests
	with.cfg.Dialect, with.cfg.EventUsage, with.cfg.PromptIDs = r.Dialect, false, false

	// One prompt, with usage and a forced length; without what is refused.
	short := with.ask(ctx, r.Model, says("user", probeWords))
	for _, retry := range []struct {
		words   []string
		without *bool
		refused *bool
	}{
		{[]string{"stream_options", "include_usage"}, &with.cfg.NoUsage, &r.RefusesUsage},
		{[]string{"ignore_eos", "min_tokens", "min_new_tokens"}, &with.cfg.FreeLength, &r.RefusesForcing},
	} {
		if short.Outcome != record.HTTPError || *retry.without {
			continue
		}
		named := false
		for _, w := range retry.words {
			named = named || strings.Contains(short.Error, w)
		}
		if !named {
			continue
		}
		*retry.without, *retry.refused = true, true
		short = with.ask(ctx, r.Model, says("user", probeWords))
	}
	if r.AnswerStatus = short.HTTPStatus; short.HTTPStatus > 0 {
		r.Reached = true
	}
	if short.Outcome != record.OK {
		r.AnswerError = short.Error
		if short.Outcome == record.Pending {
			r.AnswerError = fmt.Sprintf("no complete answer within %v", c.askTimeout())
		}
		r.advise(c.cfg)
		return r
	}
	r.Answered = true
	r.Streams = short.Streamed && (len(short.Events) > 1 || short.OutputTokens == 1)
	r.Usage = short.TokenSource == record.TokensFromUsage || short.TokenSource == record.TokensFromEventUsage
	if r.Usage {
		r.LengthGot = short.OutputTokens
	}
	r.ForcesLength = len(with.cfg.force(1)) > 0 && r.LengthGot == r.LengthAsked
	if short.Sent != record.Unset && short.FirstOutput != record.Unset {
		r.HeadersAfter, r.FirstOutputAfter = short.Headers-short.Sent, short.FirstOutput-short.Sent
		r.HeadersEarly = r.HeadersAfter < r.FirstOutputAfter/2
	}

	// A longer prompt, with usage on every event where that can be asked for.
	with.cfg.EventUsage = !with.cfg.NoUsage
	long := with.ask(ctx, r.Model, says("user", 4*probeWords))
	with.cfg.EventUsage = false
	if long.Outcome == record.OK {
		r.EventUsage = r.Streams
		for _, e := range long.Events {
			r.EventUsage = r.EventUsage && e.Tokens >= 0
		}
	}
	// The same again: its prefix has been seen, so that a server that counts
	// cached tokens has some to count.
	again := with.ask(ctx, r.Model, says("user", 4*probeWords))
	if long.Outcome != record.OK {
		long = again
	}
	r.CacheHit = again.CachedTokens
	if r.Dialect.TakesCacheSalt() && again.CachedTokens >= 2*probeWords {
		with.cfg.Body = maps.Clone(c.cfg.Body)
		if with.cfg.Body == nil {
			with.cfg.Body = map[string]any{}
		}
		with.cfg.Body["cache_salt"] = rand.Text()
		salted := with.ask(ctx, r.Model, says("user", 4*probeWords))
		with.cfg.Body = c.cfg.Body
		r.CacheSalts = salted.Outcome == record.OK && salted.CachedTokens < probeWords
	}
	r.CachedTokens = short.CachedTokens >= 0 || long.CachedTokens >= 0 || again.CachedTokens >= 0
	if short.InputTokens > 0 && long.InputTokens > 0 {
		r.TokensPerWord, r.TemplateTokens = line(probeWords, short.InputTokens, 4*probeWords, long.InputTokens)
	}
	if c.cfg.API == OpenAIChat && r.TemplateTokens >= 0 {
		later := with.ask(ctx, r.Model, says("user", probeWords), says("assistant", probeWords), says("user", probeWords))
		if later.InputTokens > 0 {
			r.LaterTokens = max(0, later.InputTokens-int(math.Round(3*probeWords*r.TokensPerWord))-r.TemplateTokens)
		}
	}
	r.advise(c.cfg)
	return r
}

// line puts a straight line through two prompts' counts: tokens for each word,
// and what is there without any word.
func line(words1, tokens1, words2, tokens2 int) (slope float64, floor int) {
	slope = float64(tokens2-tokens1) / float64(words2-words1)
	return slope, max(0, int(math.Round(float64(tokens1)-slope*float64(words1))))
}

// says is a message of so many words, each a token of its own in the usual
// vocabularies.
func says(role string, words int) Message {
	return Message{Role: role, Content: strings.Repeat(" the", words)}
}

// ask sends one prompt.
func (c *Client) ask(ctx context.Context, model string, messages ...Message) *record.Record {
	ctx, cancel := context.WithTimeout(ctx, c.askTimeout())
	defer cancel()
	s := &plan.Session{Turns: []plan.Turn{{OutputTokens: probeOutput, Prompt: plan.Prompt{Item: -1}}}}
	rec := record.New(s, &s.Turns[0])
	body, choices, err := c.body(prompt{messages: messages}, model, 0, probeOutput, "")
	if err != nil {
		rec.Outcome, rec.Error = record.HTTPError, err.Error()
		return rec
	}
	req := c.request(body)
	if req.Header.Get("X-Request-Id") == "" {
		req.Header.Set("X-Request-Id", fmt.Sprintf("trueload-probe-%d", len(body)))
	}
	c.send(ctx, req, rec, choices, false)
	return rec
}

// askTimeout bounds one prompt of a probe: no request of a run waits longer
// than the run's own deadline.
func (c *Client) askTimeout() time.Duration {
	if d := c.cfg.Timeout; d > 0 && d < askTimeout {
		return d
	}
	return askTimeout
}

// advise says what the findings mean for a run, and what to change.
func (r *ProbeReport) advise(cfg Config) {
	say := func(format string, args ...any) { r.Advice = append(r.Advice, fmt.Sprintf(format, args...)) }
	switch {
	case !r.Reached:
		say("the server was not reached: %s", r.Error)
		return
	case r.Model == "" && len(r.Models) > 1:
		say("the server has %d models: set target.model to one of %s", len(r.Models), strings.Join(r.Models[:min(len(r.Models), 5)], ", "))
	}
	if cfg.Model != "" && len(r.Models) > 0 && len(r.Models) < maxModels && !slices.Contains(r.Models, cfg.Model) {
		say("target.model %q is not among the models the server lists", cfg.Model)
	}
	if !r.Answered {
		say("a prompt got no good answer: %s", r.AnswerError)
		return
	}
	if r.RefusesUsage {
		say("the server refuses stream_options: token counts need target.tokenizer")
	}
	if r.RefusesForcing {
		say("the server refuses the fields that force the output's length")
	}
	if !r.Streams && !cfg.Whole {
		say("the answer did not come in pieces: time to first token, TPOT and gaps cannot be measured, only end-to-end times")
	}
	if !r.Usage {
		say("the server counts no tokens: set target.tokenizer, or every event counts as one token")
	}
	if r.Usage && r.Streams && !r.EventUsage {
		say("events carry no token counts: ITL is known only of answers with one token in each event; TPOT takes one token to come in the first")
	}
	if !r.CachedTokens && r.Usage {
		how := ""
		switch r.Dialect {
		case VLLM:
			how = "; start it with --enable-prompt-tokens-details"
		case SGLang:
			how = "; start it with --enable-cache-report"
		}
		say("no answer said how much of its prompt was cached%s (behind a router the repeated prompt may have gone elsewhere)", how)
	}
	if !r.ForcesLength && !cfg.FreeLength {
		switch {
		case !r.Dialect.Forces() && !cfg.ForceLength || r.RefusesForcing:
			say("the output's length cannot be forced here: answers end when the model ends them, and delivered lengths will be shorter than asked")
		case r.LengthGot < 0:
			say("whether the output's length can be forced is unknown")
		default:
			say("the output's length was asked to be %d tokens and came out as %d: asked and delivered lengths will differ", r.LengthAsked, r.LengthGot)
		}
	}
	if r.TemplateTokens >= 0 && math.Abs(r.TokensPerWord-1) > 0.02 {
		say("the server counts %.2f tokens for a word that is one token elsewhere: prompts of random words come out that much longer; divide input_tokens by it", r.TokensPerWord)
	}
	if r.HeadersEarly {
		say("headers come before the first token: they are no measure of it")
	}
}

// ErrNoTokenize says that the dialect has no tokenizer to ask.
var ErrNoTokenize = errors.New("the server has no tokenizer to ask (target.tokenizer: server)")

// CountTokens asks the server's own tokenizer how many tokens text has, without
// begin-of-sequence or other special tokens. It waits for the server: fit for
// Config.CountTokens and for preparing prompts, not for the send path.
func (c *Client) CountTokens(ctx context.Context, text string) (int, error) {
	body := map[string]any{}
	field := "count"
	switch c.cfg.Dialect {
	case VLLM, SGLang:
		body["prompt"], body["add_special_tokens"] = text, false
		if c.cfg.Model != "" {
			body["model"] = c.cfg.Model
		}
	case LlamaCPP:
		body["content"], body["add_special"] = text, false
		field = "tokens.#"
	case TGI:
		body["inputs"], body["add_special_tokens"] = text, false
		field = "#"
	default:
		return 0, ErrNoTokenize
	}
	b, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	p, err := c.look(ctx, "/tokenize", b, countTimeout)
	if err != nil {
		return 0, fmt.Errorf("/tokenize: %s", c.secrets.clean(err.Error()))
	}
	if p.status != http.StatusOK {
		return 0, fmt.Errorf("/tokenize answers %d: %s", p.status, clip(c.secrets.clean(parseError(p.body).message), maxError))
	}
	n := gjson.GetBytes(bytes.TrimSpace(p.body), field)
	if !gjson.ValidBytes(p.body) || n.Type != gjson.Number || n.Num < 0 {
		return 0, errors.New("/tokenize gives no count")
	}
	return int(n.Num), nil
}
