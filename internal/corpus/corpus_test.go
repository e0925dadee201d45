package corpus

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range Words() {
		if len(w) < 4 || len(w) > 8 || strings.Trim(w, "abcdefghijklmnopqrstuvwxyz") != "" {
			t.Errorf("%q is not a plain word of 4 to 8 letters", w)
		}
		if seen[w] {
			t.Errorf("%q stands there twice", w)
		}
		seen[w] = true
	}
	if len(seen) != 1600 {
		t.Errorf("%d words, the header says 1,600", len(seen))
	}
}

func open(t *testing.T, f Format, text string) (*Text, error) {
	t.Helper()
	return New(strings.NewReader(text), int64(len(text)), "in", f)
}

func TestShareGPTFile(t *testing.T) {
	text, err := Open("testdata/sharegpt_format.json", ShareGPT)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	if text.Len() == 0 {
		t.Fatal("no items")
	}
	for i := range text.Len() {
		item, err := text.Item(i)
		if err != nil {
			t.Fatal(err)
		}
		for k, turn := range item.Turns {
			last := turn.Messages[len(turn.Messages)-1]
			if last.Role != "user" || last.Content == "" {
				t.Errorf("item %d turn %d ends with %+v", i, k, last)
			}
		}
	}
}

// A conversation of 1,025 tokens is as good as any other: nothing is left out
// for its length.
func TestC2_LongConversationsAreKept(t *testing.T) {
	long := strings.Repeat("word ", 1025)
	text, err := open(t, ShareGPT, fmt.Sprintf(`[
  {"conversations": [{"from": "human", "value": %q}, {"from": "gpt", "value": %q}]},
  {"conversations": [{"from": "gpt", "value": "Hello?"}]},
  {"conversations": []},
  {"conversations": [{"from": "tool", "value": "x"}]},
  {"conversations": 7},
  {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ok"}]}
]`, long, long))
	if err != nil {
		t.Fatal(err)
	}
	if text.Len() != 2 {
		t.Errorf("%d items kept, want 2", text.Len())
	}
	if got := text.Sizes(0)[0]; got.Input < 1025 || got.Output < 1025 {
		t.Errorf("the long one is taken for %d and %d tokens", got.Input, got.Output)
	}
	want := map[string]Dropped{
		errNoPrompt.Error(): {Rows: 2, First: "in:3"},
		errRole.Error():     {Rows: 1, First: "in:5"},
		errNotJSON.Error():  {Rows: 1, First: "in:6"},
	}
	kept := text.Len()
	for _, d := range text.Dropped() {
		w := want[d.Reason]
		if d.Rows != w.Rows || d.First != w.First {
			t.Errorf("dropped %d rows as %q, the first at %s; want %d at %s", d.Rows, d.Reason, d.First, w.Rows, w.First)
		}
		kept += d.Rows
	}
	if kept != 6 {
		t.Errorf("kept and dropped rows sum to %d of 6", kept)
	}
	item, err := text.Item(0)
	if err != nil || item.Turns[0].Messages[0].Content != long || item.Turns[0].Reply != long {
		t.Errorf("the long conversation came back changed (%v)", err)
	}
}

func TestConversationsAsTurns(t *testing.T) {
	text, err := open(t, ShareGPT, "\xef\xbb\xbf"+`[{"conversations": [
		{"from": "gpt", "value": "an answer to what is not there"},
		{"from": "system", "value": "be brief"},
		{"from": "human", "value": "a] \"{b"}, {"from": "human", "value": "and?"}, {"from": "gpt", "value": "c"},
		{"from": "human", "value": "d"}]}]`)
	if err != nil {
		t.Fatal(err)
	}
	item, err := text.Item(0)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(item.Turns)
	want := fmt.Sprint([]Turn{
		{Messages: []Message{{"system", "be brief"}, {"user", `a] "{b`}, {"user", "and?"}}, Reply: "c"},
		{Messages: []Message{{"user", "d"}}},
	})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestJSONL(t *testing.T) {
	text, err := open(t, JSONL, `{"prompt": "hello there", "output_tokens": 40}

{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]}]}
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "the answer"}]}
{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
{"prompt": ""}
not json
{"prompt": "last line without an end"}`)
	if err != nil {
		t.Fatal(err)
	}
	if text.Len() != 4 {
		t.Fatalf("%d items, want 4", text.Len())
	}
	if s := text.Sizes(0)[0]; s.Output != 40 || !s.Known {
		t.Errorf("the first answer's size is %+v, want 40 as the file says", s)
	}
	item, _ := text.Item(1)
	if got := fmt.Sprint(item.Turns); got != "[{[{system s} {user a} {assistant b} {user cd}]  0}]" {
		t.Errorf("the row of messages is %s", got)
	}
	if item, _ = text.Item(2); item.Turns[0].Reply != "the answer" || len(item.Turns[0].Messages) != 1 {
		t.Errorf("the answered row is %+v", item)
	}
	var places []string
	for _, d := range text.Dropped() {
		places = append(places, fmt.Sprintf("%d %s", d.Rows, d.First))
	}
	if got := fmt.Sprint(places); got != "[1 in:5 1 in:6 1 in:7]" {
		t.Errorf("dropped %s", got)
	}
}

func TestFilesThatAreNone(t *testing.T) {
	for _, c := range []struct {
		name, text string
		f          Format
		want       string
	}{
		{"an object", `{"a": 1}`, ShareGPT, "in:1: a JSON array was expected"},
		{"cut off", "[\n{\"conversations\": [", ShareGPT, "in:2: the file ends inside its array"},
		{"no comma", "[{}\n{}]", ShareGPT, "in:2: a comma was expected"},
		{"brackets", "[{]}", ShareGPT, ""},
		{"an empty array", "[]", ShareGPT, "in: there are no rows in it"},
		{"nothing", "", JSONL, "in: there are no rows in it"},
		{"nothing usable", "{}\n", JSONL, "in:1: no row can be used; the first fault: no prompt in it"},
		{"another format", "", "csv", "not known"},
	} {
		_, err := open(t, c.f, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

func TestRowsOfAnyLength(t *testing.T) {
	big := strings.Repeat("x", maxRow)
	for f, text := range map[Format]string{
		JSONL:    `{"prompt": "` + big + "\"}\n" + `{"prompt": "after"}`,
		ShareGPT: `[{"conversations": [{"from": "human", "value": "` + big + `"}]}, {"conversations": [{"from": "human", "value": "after"}]}]`,
	} {
		got, err := open(t, f, text)
		if err != nil {
			t.Fatal(err)
		}
		if got.Len() != 1 || len(got.Dropped()) != 1 || got.Dropped()[0].Reason != errTooLong.Error() {
			t.Errorf("%s: %d items, dropped %v", f, got.Len(), got.Dropped())
		}
		item, err := got.Item(0)
		if err != nil || item.Turns[0].Messages[0].Content != "after" {
			t.Errorf("%s: the row after it is %+v (%v)", f, item, err)
		}
	}
}

func TestAFileThatChanges(t *testing.T) {
	name := filepath.Join(t.TempDir(), "p.jsonl")
	if err := os.WriteFile(name, []byte(`{"prompt": "abc"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := Open(name, JSONL)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	if err := os.WriteFile(name, []byte(`XXXXXXXXXXXXXXXXX`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := text.Item(0); err == nil || !strings.Contains(err.Error(), "p.jsonl:1: the file has changed") {
		t.Errorf("error %v", err)
	}
}

// Every row is an item or is counted as dropped, and every item reads back.
func FuzzText(f *testing.F) {
	f.Add([]byte(`[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]`))
	f.Add([]byte("{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}"))
	f.Add([]byte(`[1, "a]", {"\"": [}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, format := range []Format{ShareGPT, JSONL} {
			text, err := New(bytes.NewReader(b), int64(len(b)), "in", format)
			if err != nil {
				continue
			}
			for i := range text.Len() {
				item, err := text.Item(i)
				if err != nil {
					t.Fatal(err)
				}
				for _, turn := range item.Turns {
					if n := len(turn.Messages); n == 0 || turn.Messages[n-1].Role != "user" {
						t.Fatalf("a turn of %+v", turn)
					}
				}
			}
		}
	})
}
