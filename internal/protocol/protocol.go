// Package protocol speaks the APIs of LLM servers: it makes an HTTP request of
// a plan.Turn, and of the answer, streamed or whole, a record.Record. Client
// prepares and sends; Config says how. Probe asks a server what it is and what
// can be measured of it.
//
// The formats are the OpenAI chat and completions APIs as the engines and
// gateways really speak them: role-only, empty and usage events are no output,
// an error after HTTP 200 is an error, and an answer is complete when every
// choice has a finish reason.
//
// It opens no sockets (package wire does), makes no texts (a Renderer does),
// decides on no schedule and never retries.
package protocol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/wire"
)

// A Message is one entry of a chat.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
}

// A Renderer makes the text of a plan's prompts. It is called ahead of the due
// time, from several goroutines at once, and must give the same text for the
// same turn every time.
type Renderer interface {
	// Messages returns the messages that turn t of s adds: for a session's first
	// turn perhaps a system message (the shared prefix), and the user's.
	Messages(s *plan.Session, t *plan.Turn) ([]Message, error)
	// Reply returns the planned reply to t, for scripted sessions and for turns
	// that lie before the run's start.
	Reply(s *plan.Session, t *plan.Turn) (string, error)
	// Tokens returns t's prompt as token ids.
	Tokens(s *plan.Session, t *plan.Turn) ([]int, error)
}

// A Doer carries out HTTP requests and stamps the answers: *wire.Client.
type Doer interface {
	Do(ctx context.Context, req *wire.Request, t *wire.Timing, h wire.Handler) error
}

// Connections says which requests may share a connection.
type Connections string

const (
	Pooled     Connections = "pooled"      // all, one after another; "" means this
	PerSession Connections = "per-session" // those of one session
	PerRequest Connections = "per-request" // none: every request pays for connecting
)

// Config says what requests look like. Only BaseURL is needed; the rest works
// when zero.
type Config struct {
	// BaseURL is the server's address: http://host:8000, the same with /v1, or
	// with the full path of the API.
	BaseURL string
	API     API    // "": OpenAIChat
	Model   string // "": requests name no model, unless the session does
	// Header is sent with every request. Its values are secrets: they are never
	// in a record or an error.
	Header http.Header
	// Secrets are further texts, such as credentials in Body, that must never be
	// in a record or an error.
	Secrets []string
	// Body is merged into every request body last, object by object, so that it
	// can change any field; a nil value takes a field out.
	Body    map[string]any
	Dialect Dialect

	// Whole asks for the answer at once instead of a stream.
	Whole bool
	// FreeLength leaves the output's length to the model, with only its cap
	// set. Otherwise it is forced where the dialect can, and with ForceLength
	// also where it is not known to: by ignore_eos and min_tokens.
	FreeLength, ForceLength bool
	// NoUsage asks for no usage, for servers that refuse stream_options.
	NoUsage bool
	// EventUsage asks for usage on every event, of servers that know
	// continuous_usage_stats.
	EventUsage bool
	// PromptIDs sends completions' prompts as token ids.
	PromptIDs bool

	Connections Connections
	// Timeout bounds each prompt of a probe; 0, or more than 90 s: 90 s. The
	// deadlines of a run's own requests are their caller's.
	Timeout time.Duration
	// Salt makes request ids differ between runs: X-Request-Id is
	// salt-session-turn, so that a server's log can be joined with the records.
	Salt string
	// CacheSalt gives a session's cache_salt, for engines that keep prefix
	// caches apart by it (Dialect.TakesCacheSalt): one for the measured sessions
	// and another for the warm-up. Nil or "": none.
	CacheSalt func(s *plan.Session) string

	// CountTokens counts the tokens of an answer whose server gives no counts.
	// It may wait. Nil: output events are counted.
	CountTokens func(text string) (int, error)
	// Now is the clock that the Doer's stamps are of. Nil: the wire.Client's own.
	Now func() time.Duration
	// Zero is that clock's reading at the run's start. It is subtracted from
	// every time in a record.
	Zero time.Duration
}

// A Client prepares and sends the requests of a plan. It is safe for
// concurrent use.
type Client struct {
	cfg     Config
	do      Doer
	render  Renderer
	now     func() time.Duration
	root    *url.URL // scheme and host, and the path before /v1
	url     *url.URL // of the API
	header  http.Header
	secrets *redactor
}

// New returns a client that sends through do.
func New(cfg Config, do Doer, r Renderer) (*Client, error) {
	var err error
	if cfg.API, err = ParseAPI(string(cfg.API)); err != nil {
		return nil, err
	}
	switch cfg.Connections {
	case "", Pooled, PerSession, PerRequest:
	default:
		return nil, fmt.Errorf("target.connections: %q is not one of %s, %s, %s", cfg.Connections, Pooled, PerSession, PerRequest)
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("target.url: not an address like http://localhost:8000") // the address itself may hold a secret
	}
	if cfg.PromptIDs && (cfg.API != OpenAICompletions || !cfg.Dialect.takesIDs()) {
		return nil, errors.New("prompts as token ids: only openai-completions takes them, and not of TGI or Ollama")
	}
	c := &Client{cfg: cfg, do: do, render: r, now: cfg.Now, header: cfg.Header.Clone()}
	if c.header == nil {
		c.header = http.Header{}
	}
	if c.now == nil {
		clocked, ok := do.(interface{ Clock() *wire.Clock })
		if !ok {
			return nil, errors.New("protocol: no clock: set Config.Now")
		}
		c.now = clocked.Clock().Now
	}
	c.secrets = newRedactor(u, cfg.Secrets, cfg.Header)
	if p, ok := u.User.Password(); ok {
		if c.header.Get("Authorization") == "" {
			basic := http.Request{Header: c.header}
			basic.SetBasicAuth(u.User.Username(), p)
		}
	}
	u.User = nil
	if c.header.Get("Content-Type") == "" {
		c.header.Set("Content-Type", "application/json")
	}
	c.root, c.url = endpoints(u, cfg.API)
	return c, nil
}

// endpoints finds the server's root and the API's address from what the user
// gave, which may be either or /v1 between them.
func endpoints(base *url.URL, api API) (root, endpoint *url.URL) {
	root, endpoint = new(url.URL), new(url.URL)
	*root, *endpoint = *base, *base
	path := strings.TrimRight(base.Path, "/")
	for _, tail := range []string{"/chat/completions", "/completions"} {
		if before, ok := strings.CutSuffix(path, tail); ok {
			path = before
			break
		}
	}
	prefix, version := path, "/v1"
	if before, ok := strings.CutSuffix(path, "/v1"); ok {
		prefix = before
	} else if path != strings.TrimRight(base.Path, "/") {
		version = "" // a full path without /v1, as some gateways have
	}
	root.Path, root.RawPath, root.RawQuery = prefix, "", ""
	endpoint.RawPath = ""
	if api == OpenAICompletions {
		endpoint.Path = prefix + version + "/completions"
	} else {
		endpoint.Path = prefix + version + "/chat/completions"
	}
	return root, endpoint
}

// Prepare makes the request of s.Turns[turn] and returns the function that
// sends it. replies[i] is the server's reply to s.Turns[i], for i < turn; a
// scripted session needs none.
//
// send is called at most once. It fills the record and returns the reply's
// text where a later turn of the session needs it. Where ctx ends first, Done
// is set and Outcome stays Pending.
func (c *Client) Prepare(s *plan.Session, turn int, replies []string) (send func(ctx context.Context, rec *record.Record) (reply string), err error) {
	fail := func(err error) (func(context.Context, *record.Record) string, error) {
		return nil, fmt.Errorf("session %d, turn %d: %w", s.Seq, turn, err)
	}
	if turn < 0 || turn >= len(s.Turns) {
		return fail(fmt.Errorf("the session has %d turns", len(s.Turns)))
	}
	if !s.Scripted && len(replies) < turn {
		return fail(fmt.Errorf("%d replies for %d earlier turns", len(replies), turn))
	}
	t := &s.Turns[turn]
	p, err := c.prompt(s, turn, replies)
	if err != nil {
		return fail(err)
	}
	salt := ""
	if c.cfg.CacheSalt != nil {
		salt = c.cfg.CacheSalt(s)
	}
	body, choices, err := c.body(p, s.Model, s.Priority, t.OutputTokens, salt)
	if err != nil {
		return fail(err)
	}
	req := c.request(body)
	if req.Header.Get("X-Request-Id") == "" {
		req.Header.Set("X-Request-Id", requestID(c.cfg.Salt, s.Seq, t.Index))
	}
	switch c.cfg.Connections {
	case PerSession:
		req.Session = SessionKey(s.Seq)
	case PerRequest:
		req.NoReuse = true
	}
	keepReply := !s.Scripted && turn+1 < len(s.Turns)
	return func(ctx context.Context, rec *record.Record) string {
		if rec.Model == "" {
			rec.Model = c.cfg.Model
		}
		return c.send(ctx, req, rec, choices, keepReply)
	}, nil
}

// SessionKey is the wire.Request.Session of a session's requests where
// connections are per session: the key for wire.Client.EndSession.
func SessionKey(seq int64) string { return fmt.Sprintf("s%d", seq) }

func requestID(salt string, session int64, turn int32) string {
	if salt == "" {
		return fmt.Sprintf("trueload-%d-%d", session, turn)
	}
	return fmt.Sprintf("%s-%d-%d", salt, session, turn)
}

// request returns a request of the API with a header of its own.
func (c *Client) request(body []byte) *wire.Request {
	return &wire.Request{Method: http.MethodPost, URL: c.url, Header: c.header.Clone(), Body: body}
}

// send carries out one request and fills the record.
func (c *Client) send(ctx context.Context, req *wire.Request, rec *record.Record, choices int, keepReply bool) (reply string) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	x := &exchange{rec: rec, zero: c.cfg.Zero, stop: cancel}
	x.decode.keepReply, x.decode.keepText = keepReply, c.cfg.CountTokens != nil
	rec.Streamed = !c.cfg.Whole
	rec.Events = make([]record.Event, 0, min(max(rec.AskedOutput, 1), 512))

	t := wire.Timing{Connected: wire.Unset, Sent: wire.Unset, Written: wire.Unset}
	err := c.do.Do(inner, req, &t, x)
	end := c.now()

	offset := func(at time.Duration) time.Duration {
		if at == wire.Unset {
			return record.Unset
		}
		return at - c.cfg.Zero
	}
	rec.Connected, rec.Sent, rec.Written = offset(t.Connected), offset(t.Sent), offset(t.Written)
	rec.Reused, rec.Reconnects = t.Reused, t.Reconnects
	x.finish(err, ctx.Err() != nil, end, choices, c.cfg.CountTokens)
	rec.Error = clip(c.secrets.clean(rec.Error), maxError)
	return string(x.decode.reply)
}
