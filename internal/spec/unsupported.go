package spec

import "strings"

// notYet lists the keys and values that the file format has and this version
// does not do. They are answered as such, never ignored, and are not in the
// schema. A path's indices are [] and its last key may be *; values is empty
// where the whole key is meant, and * where every value is that is not valid.
var notYet = []struct{ path, values, instead string }{
	{"target.api", "openai-responses anthropic-messages openai-embeddings ollama-chat", ""},
	{"target.tokenizer", "*", "token counts come from the server's usage, or with server from its /tokenize"},
	{"target.kv_capacity", "", ""},
	{"target.replicas", "", ""},
	{"target.gpu_metrics", "", ""},
	{"workload.profile", "", ""},
	{"workload.share_of", "turns tokens", "shares are weights of sessions"},
	{"workload.classes[].rate", "", "give the class a share of the whole"},
	{"workload.classes[].arrivals", "", "arrivals are those of load"},
	{"workload.classes[].text.corpus", "", ""},
	{"workload.classes[].region", "", ""},
	{"workload.classes[].endpoint", "", ""},
	{"workload.classes[].headers", "", "headers are those of target"},
	{"workload.classes[].body", "", "the body is that of target"},
	{"workload.trace.text.sharegpt", "", "a trace's prompts are random text of the recorded lengths"},
	{"workload.trace.text.jsonl", "", "a trace's prompts are random text of the recorded lengths"},
	{"load.arrivals", "mmpp", ""},
	{"load.arrivals.mmpp", "", ""},
	{"load.phases[].arrivals", "mmpp", ""},
	{"load.phases[].arrivals.mmpp", "", ""},
	{"load.phases[].until", "", "give the phase a time (for) or a number (requests)"},
	{"load.phases[].max", "", "give the phase a time (for) or a number (requests)"},
	{"hooks", "", ""},
	{"guard", "", ""},
	{"sweep", "", ""},
	{"arms", "", ""},
	{"repeats", "", ""},
	{"stages", "", ""},
}

// unsupported tells why the key at path, or its value where one is given, is
// refused: it is known, but not in this version.
func unsupported(path, value string) (why string, ok bool) {
	path = pattern(path)
	for _, u := range notYet {
		if u.path != path {
			continue
		}
		what := ""
		switch {
		case value == "" && u.values == "":
		case value != "" && (u.values == "*" || strings.Contains(" "+u.values+" ", " "+value+" ")):
			what = value + " is "
		default:
			continue
		}
		why = what + "not supported in this version"
		if u.instead != "" {
			why += " (" + u.instead + ")"
		}
		return why, true
	}
	return "", false
}
