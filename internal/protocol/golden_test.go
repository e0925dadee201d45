package protocol

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/record"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// A stream's golden record, with the reply.
type golden struct {
	Record *record.Record `json:"record"`
	Reply  string         `json:"reply"`
}

// play feeds a recorded stream as the given reads.
func play(t testing.TB, name string, reads []read) golden {
	d := &script{header: http.Header{"Content-Type": {"text/event-stream"}}, reads: reads}
	if b, err := os.ReadFile(strings.TrimSuffix(name, ".sse") + ".headers"); err == nil {
		d.status, _ = strconv.Atoi(string(b[len("HTTP/1.1 ") : len("HTTP/1.1 ")+3]))
	}
	cfg := Config{}
	if strings.HasSuffix(name, "-n2.sse") {
		cfg.Body = map[string]any{"n": 2}
	}
	rec, reply := exchangeWith(t, d, cfg)
	return golden{rec, reply}
}

// Every recorded or constructed stream gives its golden record: one event a
// read, 10 ms apart. Cut in two at any byte it gives the same, but for times.
func TestS8_GoldenStreams(t *testing.T) {
	names, _ := filepath.Glob("testdata/streams/*.sse")
	if len(names) < 20 {
		t.Fatalf("only %d streams in testdata", len(names))
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".sse"), func(t *testing.T) {
			stream, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var reads []read
			for i, block := range strings.SplitAfter(string(stream), "\n\n") {
				if block != "" {
					reads = append(reads, read{time.Duration(i+1) * 10 * ms, block})
				}
			}
			full := play(t, name, reads)
			got, err := json.MarshalIndent(full, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata/golden", strings.TrimSuffix(filepath.Base(name), ".sse")+".json")
			if *update {
				os.MkdirAll("testdata/golden", 0o755)
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			wanted, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, wanted) {
				t.Errorf("the record differs from %s (go test -update rewrites it):\n%s", file, got)
			}

			base := timeless(t, full)
			cut := func(what string, reads []read) {
				if got := timeless(t, play(t, name, reads)); got != base {
					t.Fatalf("%s gives\n%s\nwant\n%s", what, got, base)
				}
			}
			step := 1
			if testing.Short() {
				step = 17
			}
			for i := 0; i < len(stream); i += step {
				cut("cut at "+strconv.Itoa(i), []read{{10 * ms, string(stream[:i])}, {20 * ms, string(stream[i:])}})
			}
			var bytewise []read
			for i := range stream {
				bytewise = append(bytewise, read{time.Duration(i) * ms, string(stream[i : i+1])})
			}
			cut("byte by byte", bytewise)
		})
	}
}

// timeless prints what of a record does not depend on when its bytes came.
func timeless(t testing.TB, g golden) string {
	r := *g.Record
	for _, at := range []*time.Duration{&r.Headers, &r.FirstOutput, &r.FirstAnswer, &r.LastOutput, &r.Done} {
		if *at != record.Unset {
			*at = 0
		}
	}
	r.Reads, r.MultiEventReads = 0, 0
	r.Events = append([]record.Event(nil), r.Events...)
	for i := range r.Events {
		r.Events[i].At, r.Events[i].Width = 0, 0
	}
	b, err := json.Marshal(golden{&r, g.Reply})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
