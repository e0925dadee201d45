// Package corpus is the text that prompts are built from: Words, common English
// words of one token each, from which text of an exact length is made, and
// Text, a file of real prompts or conversations, kept on disk and read again
// where it is needed.
//
// It draws nothing and counts no tokens; where a length in tokens is needed
// and only text is there, Estimate guesses.
package corpus

import (
	_ "embed"
	"strings"
)

//go:embed words.txt
var wordList string

var words = func() []string {
	var w []string
	for line := range strings.Lines(wordList) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			w = append(w, line)
		}
	}
	return w
}()

// Words returns the word list, to be read only. Text of n of them with single
// spaces between is n tokens for the tokenizers named in words.txt, wherever it
// stands: at the start of a message or after a space. No two are equal.
func Words() []string { return words }

// Estimate guesses how many tokens a text is: a quarter of its bytes, which is
// near for English prose and too low for most other things. It is for sorting
// requests by size, never for a figure. At least 1 for text that is not empty.
func Estimate(bytes int) int { return (bytes + 3) / 4 }
