package experiment

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/wire"
)

// A small self-test over real sockets: it measures this machine, so it asserts
// only what no load on it can change (counts, and that stamps were compared) and
// a median far from any limit.
func TestTruthOverRealSockets(t *testing.T) {
	p := &httpapi.Paced{TTFT: 30 * time.Millisecond, Gap: 10 * time.Millisecond}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go p.Serve(ln)
	defer p.Close()
	load := TruthLoad{URL: "http://" + ln.Addr().String(), TTFT: p.TTFT, Gap: p.Gap, Streams: 20, Tokens: 20, For: time.Second}
	rep, err := MeasureTruth(t.Context(), load)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := rep.Write(&b); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
	if rep.Failed > 0 || rep.Lost > 0 || rep.Requests < 50 || rep.Events != rep.Requests*int64(load.Tokens) {
		t.Errorf("%d requests, %d failed, %d events, %d lost", rep.Requests, rep.Failed, rep.Events, rep.Lost)
	}
	if rep.Arrival.P50 > 5*time.Millisecond || rep.ReportedTTFT < load.TTFT {
		t.Errorf("median error of a stamp %v, median TTFT %v where %v is true", rep.Arrival.P50, rep.ReportedTTFT, load.TTFT)
	}
}

// The reader of the server's stamps finds each once, however the bytes are cut.
func TestTruthTeeCutAnywhere(t *testing.T) {
	const body = `data: {"t":1700000000000000001,"x":"\"t\":"}` + "\n\n" + `data: {"a":1}` + "\n\n" + `data: {"t":1700000000000000002}` + "\n\n"
	for cut := range len(body) {
		tee := &truthTee{Handler: deaf{}, clock: wire.NewClock()}
		for _, part := range []string{body[:cut], body[cut:]} {
			if err := tee.Data([]byte(part), wire.Stamp{}); err != nil {
				t.Fatal(err)
			}
		}
		if len(tee.sent) != 2 || tee.sent[1]-tee.sent[0] != 1 {
			t.Fatalf("cut at %d: %v", cut, tee.sent)
		}
	}
}

type deaf struct{}

func (deaf) Headers(int, http.Header, wire.Stamp) error { return nil }
func (deaf) Data([]byte, wire.Stamp) error              { return nil }
