package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/trueload/trueload/internal/plan"
)

// A prompt is what a request asks: messages, or token ids.
type prompt struct {
	messages []Message
	ids      []int
}

// prompt puts together the session's history up to the turn, and the turn.
func (c *Client) prompt(s *plan.Session, turn int, replies []string) (prompt, error) {
	var p prompt
	if c.cfg.PromptIDs {
		if turn > 0 || len(s.History) > 0 {
			return p, errors.New("prompts as token ids need sessions of one turn: the ids of replies are not known")
		}
		ids, err := c.render.Tokens(s, &s.Turns[turn])
		p.ids = ids
		return p, err
	}
	add := func(t *plan.Turn) error {
		m, err := c.render.Messages(s, t)
		p.messages = append(p.messages, m...)
		return err
	}
	answer := func(t *plan.Turn, live []string, i int) error {
		var text string
		var err error
		if live != nil {
			text = live[i]
		} else {
			text, err = c.render.Reply(s, t)
		}
		p.messages = append(p.messages, Message{Role: "assistant", Content: text})
		return err
	}
	for i := range s.History {
		if err := errors.Join(add(&s.History[i]), answer(&s.History[i], nil, 0)); err != nil {
			return p, err
		}
	}
	live := replies
	if s.Scripted {
		live = nil
	}
	for i := range turn {
		if err := errors.Join(add(&s.Turns[i]), answer(&s.Turns[i], live, i)); err != nil {
			return p, err
		}
	}
	return p, add(&s.Turns[turn])
}

// body returns a request's JSON and how many choices its answer will have.
func (c *Client) body(p prompt, model string, priority, output int, cacheSalt string) ([]byte, int, error) {
	b := map[string]any{}
	switch {
	case c.cfg.API == OpenAIChat:
		b["messages"] = p.messages
	case p.ids != nil:
		b["prompt"] = p.ids
	default:
		// The completions API has no roles: texts follow each other as they are.
		var text strings.Builder
		for _, m := range p.messages {
			text.WriteString(m.Content)
		}
		b["prompt"] = text.String()
	}
	if model == "" {
		model = c.cfg.Model
	}
	if model != "" {
		b["model"] = model
	}
	if output > 0 {
		b[c.cfg.Dialect.maxTokensField(c.cfg.API)] = output
		maps.Copy(b, c.cfg.force(output))
	}
	if !c.cfg.Whole {
		b["stream"] = true
		if !c.cfg.NoUsage {
			o := map[string]any{"include_usage": true}
			if c.cfg.EventUsage {
				o["continuous_usage_stats"] = true
			}
			b["stream_options"] = o
		}
	}
	if priority != 0 && c.cfg.Dialect.takesPriority() {
		b["priority"] = priority
	}
	if cacheSalt != "" && c.cfg.Dialect.TakesCacheSalt() {
		b["cache_salt"] = cacheSalt
	}
	merge(b, c.cfg.Body)

	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(b); err != nil {
		return nil, 0, fmt.Errorf("request body: %w", err)
	}
	return bytes.TrimRight(out.Bytes(), "\n"), choicesOf(b), nil
}

// force returns the fields that make the output n tokens long, if any.
func (c *Config) force(n int) map[string]any {
	fields := c.Dialect.force(n)
	switch {
	case c.FreeLength:
		return nil
	case len(fields) == 0 && c.ForceLength:
		return VLLM.force(n)
	}
	return fields
}

// merge puts src's fields into dst, object by object; nil takes a field out.
// src is not changed, and none of its objects becomes a part of dst.
func merge(dst, src map[string]any) {
	for k, v := range src {
		from, isObject := v.(map[string]any)
		switch {
		case v == nil:
			delete(dst, k)
		case isObject:
			into, ok := dst[k].(map[string]any)
			if !ok {
				into = map[string]any{}
			}
			merge(into, from)
			dst[k] = into
		default:
			dst[k] = v
		}
	}
}

// choicesOf is how many choices a body asks for: n, for each of its prompts.
func choicesOf(b map[string]any) int {
	n := 1
	switch v := b["n"].(type) {
	case int:
		n = v
	case int64:
		n = int(v)
	case uint64:
		n = int(v)
	case float64:
		n = int(v)
	}
	prompts := 1
	switch v := b["prompt"].(type) {
	case []string:
		prompts = len(v)
	case []any:
		if len(v) > 0 {
			switch v[0].(type) {
			case string, []any, []int:
				prompts = len(v)
			}
		}
	}
	return max(n, 1) * max(prompts, 1)
}
