package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// walkObject calls each with every key of a JSON object, its value's bytes and
// the byte the value starts at, from 1. A key with escapes is passed as written.
func walkObject(b []byte, each func(key, value []byte, col int) error) error {
	// The standard decoder says whether and where the line is broken; what is
	// left to do here relies on it.
	if !json.Valid(b) {
		var any json.RawMessage
		var syn *json.SyntaxError
		if err := json.Unmarshal(b, &any); errors.As(err, &syn) {
			return &badRow{col: int(syn.Offset), msg: "not JSON", got: syn.Error()}
		}
		return &badRow{msg: "not JSON"}
	}
	i := space(b, 0)
	if b[i] != '{' {
		return &badRow{col: i + 1, msg: "not a JSON object"}
	}
	for i = space(b, i+1); b[i] != '}'; {
		if b[i] == ',' {
			i = space(b, i+1)
		}
		end := value(b, i)
		key := b[i+1 : end-1]
		i = space(b, space(b, end)+1) // past the colon
		end = value(b, i)
		if err := each(key, b[i:end], i+1); err != nil {
			return err
		}
		i = space(b, end)
	}
	return nil
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// value returns where the JSON value that starts at b[i] ends.
func value(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// mooncakeBlock is how many tokens a block id stands for where nothing else is said.
const (
	mooncakeBlock = 512
	bailianBlock  = 16
)

// parseMooncake reads one JSON object of Mooncake or Bailian. timestamp and
// delay are milliseconds, or seconds in Bailian.
func (r *Reader) parseMooncake(text []byte, row *Row) error {
	var hasTime, hasInput, hasOutput bool
	chat, parent := "", ""
	scale := 6
	if r.info.Format == Bailian {
		scale = 9
	}
	duration := func(v []byte) (time.Duration, error) {
		ns, err := parseDecimal(v, scale)
		return time.Duration(ns), err
	}
	err := walkObject(text, func(key, v []byte, col int) error {
		var err error
		null := string(v) == "null"
		switch string(key) {
		case "timestamp":
			if !null {
				row.At, err = duration(v)
				hasTime = true
			}
		case "input_length":
			if !null {
				row.Input, err = parseCount(v)
				hasInput = true
			}
		case "output_length":
			if !null {
				row.Output, err = parseCount(v)
				hasOutput = true
			}
		case "hash_ids":
			if !null {
				row.Blocks, err = parseIDs(v)
			}
		case "session_id":
			row.Session = asText(v)
		case "delay":
			if !null {
				row.Delay, err = duration(v)
				if err == nil && row.Delay < 0 {
					err = errors.New("below zero")
				}
			}
		case "model":
			row.Model = r.name([]byte(asText(v)))
		case "block_size":
			var n int
			if n, err = parseCount(v); err == nil && n != r.info.BlockTokens {
				return fmt.Errorf("block_size is %d here, and the trace is read with blocks of %d tokens", n, r.info.BlockTokens)
			}
		case "failed":
			row.Failed = string(v) == "true"
		case "images":
			row.Images, err = parseCount(v)
		case "chat_id":
			chat = asText(v)
		case "parent_chat_id":
			parent = asText(v)
		case "text_input", "messages", "payload", "tools", "extra", "message_mode", "type", "turn", "priority":
			// Known, and of no use for shapes.
		default:
			if _, ok := r.unknown[string(key)]; ok || len(r.unknown) < 20 {
				r.unknown[clip(key)]++
			}
		}
		if err != nil {
			return &badRow{field: string(key), col: col, msg: err.Error(), got: clip(v)}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !hasInput:
		return &badRow{field: "input_length", msg: "missing"}
	case !hasOutput:
		return &badRow{field: "output_length", msg: "missing"}
	case !hasTime && row.Session == "":
		// A later turn of a session may have its delay instead.
		return &badRow{field: "timestamp", msg: "missing"}
	}
	if r.roots != nil && chat != "" {
		row.Session = r.root(chat, parent)
	}
	return r.checkBlocks(row)
}

// root returns the first chat of the chain that a Bailian row belongs to, which
// names its session; a chat whose parent was not met begins one. This holds a
// short string for every chat.
func (r *Reader) root(chat, parent string) string {
	root := chat
	if parent != "" && parent != "-1" {
		var ok bool
		if root, ok = r.roots[parent]; !ok {
			root = parent
		}
	}
	r.roots[chat] = root
	return root
}

// asText is a string's text, or any other value as it is written.
func asText(v []byte) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}

var errIDs = errors.New("not a list of whole numbers")

// parseIDs reads a list of whole numbers; negative ones (a signed hash) keep
// their bits.
func parseIDs(v []byte) ([]uint64, error) {
	if len(v) < 2 || v[0] != '[' {
		return nil, errIDs
	}
	v = bytes.TrimSpace(v[1 : len(v)-1])
	if len(v) == 0 {
		return nil, nil
	}
	ids := make([]uint64, 0, bytes.Count(v, []byte(","))+1)
	for len(v) > 0 {
		item, rest, _ := bytes.Cut(v, []byte(","))
		v = rest
		item = bytes.TrimSpace(item)
		var id uint64
		for _, c := range item {
			d := uint64(c - '0')
			if c < '0' || d > 9 || len(item) > 18 {
				var err error
				if id, err = parseID(string(item)); err != nil {
					return nil, err
				}
				break
			}
			id = id*10 + d
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// parseID is for ids with a sign or of so many digits that they could overflow.
func parseID(s string) (uint64, error) {
	if id, err := strconv.ParseUint(s, 10, 64); err == nil {
		return id, nil
	}
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, errIDs
	}
	return uint64(id), nil
}

// checkBlocks holds a row's ids to its length: n ids of B tokens stand for a
// prompt of L tokens where n = ceil(L/B). Read with the wrong block size a trace
// gives prompts many times too short or too much shared, and nothing else would
// tell; so it is an error and no broken row. One id too many is borne and
// counted: some writers close a prompt that ends with a block by an empty one.
func (r *Reader) checkBlocks(row *Row) error {
	n, b := len(row.Blocks), r.info.BlockTokens
	if n == 0 {
		return nil
	}
	need := (row.Input + b - 1) / b
	hint := ""
	if fit := fitting(n, row.Input); fit != 0 {
		hint = fmt.Sprintf("; blocks of %d would fit: is that its block size?", fit)
	}
	switch {
	case n < need:
		return fmt.Errorf("hash_ids: %d blocks of %d tokens hold %d tokens, and input_length is %d%s", n, b, n*b, row.Input, hint)
	case n > need+1:
		return fmt.Errorf("hash_ids: %d blocks of %d tokens, and an input_length of %d needs %d%s", n, b, row.Input, need, hint)
	case n == need+1:
		r.surplus++
		row.Blocks = row.Blocks[:need]
	}
	return nil
}

// fitting returns the power of two B from 8 to 4096 with n = ceil(tokens/B), or 0.
func fitting(n, tokens int) int {
	for b := 8; b <= 4096; b *= 2 {
		if (tokens+b-1)/b == n {
			return b
		}
	}
	return 0
}
