package corpus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Message is one message of a conversation.
type Message struct {
	Role    string // system, user or assistant
	Content string
}

// Turn is one request of a conversation.
type Turn struct {
	// Messages are what the turn adds, at least one, the last from the user.
	Messages []Message
	// Reply is the recorded answer; empty where there is none.
	Reply string
	// OutputTokens is the answer's length where the file gives it, else 0.
	OutputTokens int
}

// Item is one row of a file: a prompt, or a conversation of several turns.
type Item struct{ Turns []Turn }

// Size is what the plan needs to know of a turn without reading it.
type Size struct {
	Input, Output int  // tokens
	Known         bool // Output comes from the file, not from Estimate
}

// Text is a file of items. Only their places and sizes are in memory. It is
// safe for concurrent use.
type Text struct {
	name    string
	r       io.ReaderAt
	close   func() error
	decode  func([]byte) (Item, error)
	items   []place
	dropped []Dropped
}

type place struct {
	offset int64
	length int32
	line   int32
	sizes  []Size
}

// Dropped counts the rows left out for one reason.
type Dropped struct {
	Reason string
	Rows   int
	First  string // where the first one stands, as file:line
}

// Format is a file's layout.
type Format string

// The formats.
const (
	// ShareGPT is a JSON array of {"conversations": [{"from": "human"|"gpt",
	// "value"}]}: each human message and its answer is a turn.
	ShareGPT Format = "sharegpt"
	// JSONL is a line for each prompt: {"prompt": "..."} or {"messages":
	// [{"role", "content"}]}, and maybe "output_tokens". A row is one turn: the
	// messages before its last one are its history, and a last one from the
	// assistant is the recorded answer.
	JSONL Format = "jsonl"
)

// maxRow bounds a row, so that a broken file cannot fill the memory. Real
// conversations stay below 1 MB.
const maxRow = 8 << 20

// Open reads through the file once and keeps it open. Rows that cannot be used
// are counted with their reason (Dropped); an error is a file that is not of
// the format, or in which no row is left.
func Open(path string, f Format) (*Text, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		var t *Text
		if t, err = New(file, info.Size(), path, f); err == nil {
			t.close = file.Close
			return t, nil
		}
	}
	file.Close()
	return nil, err
}

// New is Open for what is not a file; name stands for it in messages.
func New(r io.ReaderAt, size int64, name string, f Format) (*Text, error) {
	t := &Text{name: name, r: r, close: func() error { return nil }}
	rows := jsonLines
	switch f {
	case ShareGPT:
		rows, t.decode = jsonArray, decodeShareGPT
	case JSONL:
		t.decode = decodeJSONL
	default:
		return nil, fmt.Errorf("text format %q is not known; there are %s and %s", f, ShareGPT, JSONL)
	}
	err := rows(io.NewSectionReader(r, 0, size), func(row row) {
		item, err := Item{}, row.err
		if err == nil {
			item, err = t.decode(row.text)
		}
		if err != nil {
			t.drop(err.Error(), row.line)
			return
		}
		p := place{offset: row.offset, length: int32(len(row.text)), line: int32(row.line)}
		for _, turn := range item.Turns {
			var s Size
			for _, m := range turn.Messages {
				s.Input += Estimate(len(m.Content))
			}
			s.Output, s.Known = Estimate(len(turn.Reply)), turn.OutputTokens > 0
			if s.Known {
				s.Output = turn.OutputTokens
			}
			p.sizes = append(p.sizes, s)
		}
		t.items = append(t.items, p)
	})
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	if len(t.items) == 0 {
		if len(t.dropped) > 0 {
			d := t.dropped[0]
			return nil, fmt.Errorf("%s: no row can be used; the first fault: %s", d.First, d.Reason)
		}
		return nil, fmt.Errorf("%s: there are no rows in it", name)
	}
	return t, nil
}

func (t *Text) drop(reason string, line int) {
	i := slices.IndexFunc(t.dropped, func(d Dropped) bool { return d.Reason == reason })
	if i < 0 {
		i = len(t.dropped)
		t.dropped = append(t.dropped, Dropped{Reason: reason, First: fmt.Sprintf("%s:%d", t.name, line)})
	}
	t.dropped[i].Rows++
}

// Len is how many items there are.
func (t *Text) Len() int { return len(t.items) }

// Sizes are the sizes of an item's turns, to be read only.
func (t *Text) Sizes(item int) []Size { return t.items[item].sizes }

// Dropped says which rows were left out, and why.
func (t *Text) Dropped() []Dropped { return t.dropped }

// Item reads an item.
func (t *Text) Item(i int) (Item, error) {
	p := t.items[i]
	b := make([]byte, p.length)
	if _, err := t.r.ReadAt(b, p.offset); err != nil {
		return Item{}, fmt.Errorf("%s:%d: %w", t.name, p.line, err)
	}
	item, err := t.decode(b)
	if err != nil || len(item.Turns) != len(p.sizes) {
		return Item{}, fmt.Errorf("%s:%d: the file has changed since it was opened", t.name, p.line)
	}
	return item, nil
}

// Close closes the file.
func (t *Text) Close() error { return t.close() }

// The reasons for which a row is dropped.
var (
	errTooLong  = fmt.Errorf("longer than %d MB", maxRow>>20)
	errNotJSON  = errors.New("not the JSON that was expected")
	errNoPrompt = errors.New("no prompt in it")
	errNotText  = errors.New("content that is not text")
	errRole     = errors.New("a role that is not system, user or assistant")
)

func decodeShareGPT(b []byte) (Item, error) {
	var row struct {
		Conversations []struct{ From, Value string }
	}
	if json.Unmarshal(b, &row) != nil {
		return Item{}, errNotJSON
	}
	var item Item
	var asked []Message
	prompt := false
	for _, c := range row.Conversations {
		switch c.From {
		case "system":
			asked = append(asked, Message{"system", c.Value})
		case "human", "user":
			if c.Value == "" {
				continue
			}
			asked = append(asked, Message{"user", c.Value})
			prompt = true
		case "gpt", "chatgpt", "bing", "bard", "assistant":
			// An answer that nobody asked for begins the excerpt of a longer
			// conversation: there is nothing to send for it.
			if prompt {
				item.Turns = append(item.Turns, Turn{Messages: asked, Reply: c.Value})
				asked, prompt = nil, false
			}
		default:
			return Item{}, errRole
		}
	}
	if prompt {
		item.Turns = append(item.Turns, Turn{Messages: asked})
	}
	if len(item.Turns) == 0 {
		return Item{}, errNoPrompt
	}
	return item, nil
}

func decodeJSONL(b []byte) (Item, error) {
	var row struct {
		Prompt   string
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		OutputTokens int `json:"output_tokens"`
	}
	if json.Unmarshal(b, &row) != nil || row.OutputTokens < 0 {
		return Item{}, errNotJSON
	}
	turn := Turn{OutputTokens: row.OutputTokens}
	if row.Prompt != "" {
		turn.Messages = []Message{{"user", row.Prompt}}
	}
	for _, m := range row.Messages {
		text, err := content(m.Content)
		if err != nil {
			return Item{}, err
		}
		switch m.Role {
		case "system", "developer":
			turn.Messages = append(turn.Messages, Message{"system", text})
		case "user", "assistant":
			turn.Messages = append(turn.Messages, Message{m.Role, text})
		default:
			return Item{}, errRole
		}
	}
	if n := len(turn.Messages); n > 0 && turn.Messages[n-1].Role == "assistant" {
		turn.Reply = turn.Messages[n-1].Content
		turn.Messages = turn.Messages[:n-1]
	}
	if n := len(turn.Messages); n == 0 || turn.Messages[n-1].Role != "user" || turn.Messages[n-1].Content == "" {
		return Item{}, errNoPrompt
	}
	return Item{Turns: []Turn{turn}}, nil
}

// content reads a message's content: a string, or parts of which all are text.
func content(b json.RawMessage) (string, error) {
	var s string
	if json.Unmarshal(b, &s) == nil {
		return s, nil
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(b, &parts) != nil {
		return "", errNotText
	}
	var joined bytes.Buffer
	for _, p := range parts {
		if p.Type != "text" {
			return "", errNotText
		}
		joined.WriteString(p.Text)
	}
	return joined.String(), nil
}
