package protocol

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestScanner_AcceptsWhatJSONIs(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `{"a":1}`, ` { "a" : [ 1 , 2.5e-3 , -0 , "x\u00e9\n" , true , false , null ] } `,
		`"`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1 "b":2}`, `{a:1}`,
		`01`, `1.`, `.5`, `1e`, `-`, `+1`, `"\x"`, `"\u12"`, "\"\x01\"", `tru`, `nul`, ``, ` `, `{} {}`, `1 2`, `{"a":1`, `[`, `[[[[`, `"\`, `"\u`,
		"\"\xff\"", `[1}`, `{"a":1]`,
	} {
		s := scanner{b: []byte(text)}
		s.skip()
		if got, want := s.finish(), json.Valid([]byte(text)); got != want {
			t.Errorf("%q: valid %v, want %v", text, got, want)
		}
	}
}

func TestScanner_Count(t *testing.T) {
	for text, want := range map[string]int{`0`: 0, `17`: 17, `12345678901`: 12345678901, `3.0`: 3, `2e2`: 200, `3.5`: -1, `-4`: -1, `null`: -1, `"5"`: -1, `1e99`: -1, `[1]`: -1} {
		s := scanner{b: []byte(text)}
		if got := s.count(-1); got != want || !s.finish() {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// Every text is valid or not as encoding/json says, and a string means the same.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\ud83d\ude42\ud83d","\/"]}`, `"\u00e9"`, `[{}]`, `{"\u0061":-1.5E+7}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) > maxDepth {
			return
		}
		s := scanner{b: b}
		s.skip()
		if got, want := s.finish(), json.Valid(b); got != want {
			t.Fatalf("%q: valid %v, want %v", b, got, want)
		}
		s = scanner{b: b}
		if s.peek() == '"' && json.Valid(b) {
			var want string
			json.Unmarshal(b, &want)
			if got := s.text(); string([]rune(got)) != want {
				t.Fatalf("%q: %q, want %q", b, got, want)
			}
		}
	})
}
