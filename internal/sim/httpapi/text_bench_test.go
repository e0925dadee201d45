package httpapi

import (
	"strings"
	"testing"

	"github.com/trueload/trueload/internal/sim"
)

func BenchmarkEncode(b *testing.B) {
	text := strings.Repeat(" about above unlisted, 42", 1000)
	b.SetBytes(int64(len(text)))
	var ids []sim.Token
	for b.Loop() {
		ids = encode(ids[:0], text)
	}
}

// BenchmarkChunk is what one streamed token costs before the socket.
func BenchmarkChunk(b *testing.B) {
	a := &answer{id: "0123456789abcdef", model: "sim", chat: true}
	a.begin()
	t := []sim.Token{tokenWord + 7}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = a.appendTokens(buf[:0], t)
	}
}
