package protocol

import "fmt"

// An API is a request and stream format, by the name the experiment file uses.
type API string

const (
	OpenAIChat        API = "openai-chat"
	OpenAICompletions API = "openai-completions"
)

// ParseAPI reads an API's name; "" is OpenAIChat.
func ParseAPI(name string) (API, error) {
	switch a := API(name); a {
	case "":
		return OpenAIChat, nil
	case OpenAIChat, OpenAICompletions:
		return a, nil
	}
	return "", fmt.Errorf("target.api: %q is not one of %s, %s", name, OpenAIChat, OpenAICompletions)
}

// A Dialect is the engine or gateway behind an API, as far as requests must
// differ. The zero value is a server of which nothing is known: it gets the
// fields of the API's own documentation and no others.
type Dialect string

const (
	Unknown  Dialect = ""
	VLLM     Dialect = "vllm"
	SGLang   Dialect = "sglang"
	LlamaCPP Dialect = "llamacpp"
	TGI      Dialect = "tgi"
	TRTLLM   Dialect = "trtllm"
	LMDeploy Dialect = "lmdeploy"
	Ollama   Dialect = "ollama"
	OpenAI   Dialect = "openai"
	LiteLLM  Dialect = "litellm"
	Dynamo   Dialect = "dynamo"
)

// Forces tells whether requests can make the engine write exactly as many
// tokens as asked, by ignoring the end-of-sequence token.
func (d Dialect) Forces() bool { return len(d.force(1)) > 0 }

// force returns the fields that make the output n tokens long; none where the
// engine has no such fields (TGI and Ollama) or may refuse them (OpenAI,
// gateways, unknown servers).
func (d Dialect) force(n int) map[string]any {
	switch d {
	case VLLM, SGLang, TRTLLM, Dynamo:
		return map[string]any{"ignore_eos": true, "min_tokens": n}
	case LMDeploy:
		return map[string]any{"ignore_eos": true, "min_new_tokens": n}
	case LlamaCPP:
		return map[string]any{"ignore_eos": true}
	}
	return nil
}

// maxTokensField names the field that caps the output. OpenAI's reasoning
// models refuse max_tokens in chat; everyone else takes it, and some take
// nothing else.
func (d Dialect) maxTokensField(a API) string {
	if d == OpenAI && a == OpenAIChat {
		return "max_completion_tokens"
	}
	return "max_tokens"
}

// takesIDs tells whether completions take a prompt of token ids.
func (d Dialect) takesIDs() bool { return d != TGI && d != Ollama }

// takesPriority tells whether requests may bear a priority.
func (d Dialect) takesPriority() bool {
	switch d {
	case TGI, Ollama, OpenAI, LlamaCPP, LMDeploy:
		return false
	}
	return true
}

// TakesCacheSalt tells whether the engine keeps prefix caches apart by a field
// of the request.
func (d Dialect) TakesCacheSalt() bool { return d == VLLM || d == SGLang }
