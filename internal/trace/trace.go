// Package trace reads request traces, public ones and one's own, as a stream of
// Rows: when a request came, how long its prompt and its answer were, and which
// blocks of its prompt it shares with others. Open starts a Reader; Inspect
// reads one to its end and says what the traffic is like.
//
// A trace holds no text here: what a row's prompt says is made elsewhere, from
// its lengths and block ids. Nothing in this package keeps the rows it has read
// except Load, which is for traces that are to be replayed.
package trace

import (
	"fmt"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/plan"
)

// Format names a trace's layout.
type Format string

// The formats that can be read. Detection goes by the names in the header, or
// by the keys of the first row, never by the file's name.
const (
	// Azure: `TIMESTAMP,ContextTokens,GeneratedTokens` (2023, 2024).
	Azure Format = "azure"
	// AzureLMM: the same with NumImages (2025).
	AzureLMM Format = "azure-lmm"
	// BurstGPT: `Timestamp,Model,Request tokens,Response tokens,...`, with or
	// without `Session ID,Elapsed time`.
	BurstGPT Format = "burstgpt"
	// Mooncake: JSON lines `{"timestamp": ms, "input_length", "output_length",
	// "hash_ids"}`, also as extended by others (session_id, delay).
	Mooncake Format = "mooncake"
	// Bailian: JSON lines of the same keys with chat_id and parent_chat_id, times
	// in seconds and blocks of 16 tokens.
	Bailian Format = "bailian"
	// Vidur: `arrived_at,num_prefill_tokens,num_decode_tokens`.
	Vidur Format = "vidur"
	// Lengths: `num_prefill_tokens,num_decode_tokens`, no times.
	Lengths Format = "lengths"
)

// Formats are all formats, as messages list them.
var Formats = []Format{Azure, AzureLMM, BurstGPT, Mooncake, Bailian, Vidur, Lengths}

// ParseFormat checks a name that a user gave; "" and "auto" mean detection.
func ParseFormat(s string) (Format, error) {
	if s == "" || s == "auto" {
		return "", nil
	}
	names := make([]string, len(Formats))
	for i, f := range Formats {
		if string(f) == s {
			return f, nil
		}
		names[i] = string(f)
	}
	return "", fmt.Errorf("trace format %q is not known; the formats are auto, %s", s, strings.Join(names, ", "))
}

// Row is one request of a trace.
type Row struct {
	// At is the arrival, as an offset from the trace's own zero: the first row
	// where the format gives dates (Info.Zero), the file's zero where it gives
	// offsets. Rows out of order can lie before it. plan.Unset where the trace
	// has no times, or this row has none.
	At time.Duration
	// Input and Output are the lengths in tokens, of the whole prompt and of
	// the answer. Zero is what the file says.
	Input, Output int
	// Session groups the rows of one exchange; empty where the trace does not say.
	Session string
	// Delay is the pause after the session's previous answer; plan.Unset where
	// the trace does not say.
	Delay time.Duration
	// Blocks are the ids of the prompt's blocks of Info.BlockTokens tokens, the
	// last one perhaps partial: equal leading ids are equal leading text. nil
	// where the trace does not say. The caller owns them.
	Blocks []uint64
	// Failed is set where the trace says that the request got no answer
	// (BurstGPT writes it as 0 response tokens).
	Failed bool
	// Images counts the images of a multimodal prompt.
	Images int
	// Model is the model's name as the trace gives it.
	Model string
	// Line is where the row stands in the file, from 1.
	Line int
}

// Info says what is being read.
type Info struct {
	// Path names the file in messages.
	Path string
	// Format is the layout and Why is how it was known.
	Format Format
	Why    string
	// Compression is "gzip", "zstd" or empty.
	Compression string
	// Timed is false for a format that has no times.
	Timed bool
	// BlockTokens is how many tokens one of Row.Blocks stands for; 0 where the
	// format has no blocks.
	BlockTokens int
	// Zero is the date of offset 0; the zero time where the format gives
	// offsets only. It is known after the first row was read.
	Zero time.Time
}

// Options say how to read. The zero value detects everything.
type Options struct {
	// Format overrides detection; empty: detect.
	Format Format
	// BlockTokens overrides the format's block size; 0: the format's own (512
	// for Mooncake, 16 for Bailian). Every row's ids must fit its length, or reading ends with
	// an error that names the row.
	BlockTokens int
	// MaxBadShare is the share of broken rows, 0 to 1, above which the trace is
	// refused; 0: 1 %. One broken row is always borne.
	MaxBadShare float64
}

// Dropped counts the rows that could not be read for one reason.
type Dropped struct {
	Reason string `json:"reason"`
	Rows   int64  `json:"rows"`
	// First are the places of the first few, as file:line:column.
	First []string `json:"first"`
}

// maxLine bounds a line, so that a file without line ends cannot fill the
// memory. The longest real ones (block ids of a million tokens) are below 1 MB.
const maxLine = 8 << 20

const unset = plan.Unset
