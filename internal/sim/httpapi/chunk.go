package httpapi

import (
	"encoding/json"
	"strconv"

	"github.com/trueload/trueload/internal/sim"
)

// Chunks are built by appending: at tens of thousands a second, encoding/json
// would take the core that the engine needs. All text that goes in is ours, but
// for the id and the model, which are quoted once per answer.

func (a *answer) begin() {
	object, prefix := "text_completion", "cmpl-"
	if a.chat {
		object, prefix = "chat.completion.chunk", "chatcmpl-"
	}
	a.head = a.appendHead([]byte("data: "), prefix, object)
	a.head = append(a.head, `"choices":[`...)
}

func (a *answer) appendHead(b []byte, prefix, object string) []byte {
	b = append(b, `{"id":`...)
	b = append(b, quote(prefix+a.id)...)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"model":`...)
	b = append(b, quote(a.model)...)
	return append(b, ',')
}

func quote(s string) []byte {
	q, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return q
}

// appendRole appends the chunk that vLLM's chat sends right before the first
// token. Plain completions have none.
func (a *answer) appendRole(b []byte) []byte {
	if !a.chat {
		return b
	}
	b = append(b, a.head...)
	b = append(b, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	if a.continuous {
		b = append(b, `,"usage":`...)
		b = a.appendUsage(b)
	}
	b = append(b, `,"prompt_token_ids":`...)
	b = a.appendIDs(b, a.prompt)
	return append(b, ",\"prompt_text\":null}\n\n"...)
}

// appendTokens appends one chunk with all of tokens; the last text rides in the
// chunk that carries the finish reason.
func (a *answer) appendTokens(b []byte, tokens []sim.Token) []byte {
	b = append(b, a.head...)
	if a.chat {
		b = append(b, `{"index":0,"delta":{"content":"`...)
	} else {
		b = append(b, `{"index":0,"text":"`...)
	}
	b = appendText(b, tokens)
	if a.chat {
		b = append(b, `"},"logprobs":null,"finish_reason":`...)
	} else {
		b = append(b, `","logprobs":null,"finish_reason":`...)
	}
	b = a.appendFinish(b)
	if a.finish != sim.NotFinished || !a.chat {
		b = append(b, `,"stop_reason":null`...)
	}
	if !a.chat {
		b = append(b, `,"prompt_token_ids":`...)
		if a.output == len(tokens) { // the first chunk
			b = a.appendIDs(b, a.prompt)
		} else {
			b = append(b, "null"...)
		}
	}
	b = append(b, `,"token_ids":`...)
	b = a.appendIDs(b, tokens)
	b = append(b, "}]"...)
	if a.continuous {
		b = append(b, `,"usage":`...)
		b = a.appendUsage(b)
	}
	return append(b, "}\n\n"...)
}

func (a *answer) appendUsageChunk(b []byte) []byte {
	b = append(b, a.head...)
	b = append(b, `],"usage":`...)
	b = a.appendUsage(b)
	return append(b, "}\n\n"...)
}

func (a *answer) appendUsage(b []byte) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(len(a.prompt)), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(len(a.prompt)+a.output), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(a.output), 10)
	// vLLM leaves the detail out, rather than say 0, where nothing was cached.
	if a.cachedShown && a.cached > 0 && a.finish != sim.NotFinished {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(a.cached), 10)
		b = append(b, '}')
	}
	return append(b, '}')
}

func (a *answer) appendFinish(b []byte) []byte {
	if a.finish == sim.NotFinished {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = append(b, a.finish.String()...)
	return append(b, '"')
}

// appendIDs appends ids where the request asked for token ids, else null.
func (a *answer) appendIDs(b []byte, ids []sim.Token) []byte {
	if !a.ids {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}

func appendText(b []byte, tokens []sim.Token) []byte {
	for _, t := range tokens {
		w, _ := word(t) // a model speaks words and the end token alone
		b = append(b, w...)
	}
	return b
}

// appendWhole appends an answer that is not streamed.
func (a *answer) appendWhole(b []byte, tokens []sim.Token) []byte {
	if a.chat {
		b = a.appendHead(b, "chatcmpl-", "chat.completion")
		b = append(b, `"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
		b = appendText(b, tokens)
		b = append(b, `","refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null},"logprobs":null,"finish_reason":`...)
	} else {
		b = a.appendHead(b, "cmpl-", "text_completion")
		b = append(b, `"choices":[{"index":0,"text":"`...)
		b = appendText(b, tokens)
		b = append(b, `","logprobs":null,"finish_reason":`...)
	}
	b = a.appendFinish(b)
	b = append(b, `,"stop_reason":null,"token_ids":`...)
	b = a.appendIDs(b, tokens)
	if !a.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
		b = a.appendIDs(b, a.prompt)
	}
	b = append(b, `}],"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = a.appendUsage(b)
	if a.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
		b = a.appendIDs(b, a.prompt)
	}
	return append(b, `,"kv_transfer_params":null}`...)
}
