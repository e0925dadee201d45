package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// lockedBuffer is written by a verb while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startSim runs trueload sim on a free port until stop, which returns its exit
// code. It returns the addresses: the router's, then the replicas'.
func startSim(t *testing.T, replicas int, args ...string) (urls []string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs lockedBuffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"sim", "--profile", "tiny", "--addr", "127.0.0.1:0"}, args...), &out, &errs)
	}()
	stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() { stop() })
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if urls = regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindAllString(errs.String(), -1); len(urls) == 1+replicas {
			return urls, stop
		}
	}
	t.Fatalf("sim printed %d addresses, want %d: %s", len(urls), 1+replicas, errs.String())
	return nil, nil
}

func fetch(t *testing.T, url, body string) string {
	t.Helper()
	var resp *http.Response
	var err error
	if body == "" {
		resp, err = http.Get(url)
	} else {
		resp, err = http.Post(url, "application/json", strings.NewReader(body))
	}
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%s: %s %v %s", url, resp.Status, err, b)
	}
	return string(b)
}

// Each replica has an address and a metrics page of its own, on which it is
// engine 0; what was asked of one is on no other's.
func TestSim_ReplicaAddresses(t *testing.T) {
	truth := filepath.Join(t.TempDir(), "truth.jsonl")
	urls, stop := startSim(t, 3, "--replicas", "3", "--replica-addrs", "--truth", truth, "--router", "prefix-aware")
	fetch(t, urls[2]+"/v1/completions", `{"prompt":"a b c","max_tokens":4,"ignore_eos":true}`)
	for i, u := range urls[1:] {
		page := fetch(t, u+"/metrics", "")
		want := "0.0"
		if i == 1 {
			want = "4.0"
		}
		if !strings.Contains(page, `vllm:generation_tokens_total{engine="0",model_name="sim"} `+want+"\n") || strings.Contains(page, `engine="1"`) {
			t.Errorf("replica %d's page, want %s generated tokens:\n%s", i, want, page)
		}
	}
	if page := fetch(t, urls[0]+"/metrics", ""); !strings.Contains(page, `vllm:generation_tokens_total{engine="1",model_name="sim"} 4.0`) {
		t.Errorf("the router's page:\n%s", page)
	}
	// A fault by the admin endpoint.
	fetch(t, urls[0]+"/sim/faults", `{"kind":"restart","replica":1}`)
	if page := fetch(t, urls[2]+"/metrics", ""); !strings.Contains(page, `vllm:generation_tokens_total{engine="0",model_name="sim"} 0.0`) {
		t.Error("the restarted replica still counts")
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	b, err := os.ReadFile(truth)
	var line struct {
		Replica int
		Output  int     `json:"output_tokens"`
		Steps   []int64 `json:"steps_ns"`
	}
	if err != nil || bytes.Count(b, []byte("\n")) != 1 || json.Unmarshal(b, &line) != nil || line.Replica != 1 || line.Output != 4 || len(line.Steps) != 4 {
		t.Errorf("%v: the truth says %s", err, b)
	}
}

// With a port of the router's own, the replicas have the next ones.
func TestSim_ConsecutivePorts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	next, err := listenAfter(ln.Addr(), ln.Addr().String(), 1)
	if err != nil {
		t.Skipf("the next port is taken: %v", err)
	}
	defer next.Close()
	if got := next.Addr().(*net.TCPAddr); got.Port != port+1 || !got.IP.IsLoopback() {
		t.Errorf("%v after port %d", got, port)
	}
}

func TestSim_FlagsReachTheServer(t *testing.T) {
	urls, _ := startSim(t, 0, "--metrics", "sglang", "--fault", "error,share=1,after=2", "--fault", "stall,delay=50ms", "--overload", "in-band-503", "--max-queue", "5")
	began := time.Now()
	if page := fetch(t, urls[0]+"/metrics", ""); !strings.Contains(page, "sglang:num_running_reqs") || time.Since(began) < 50*time.Millisecond {
		t.Errorf("after %v the page\n%s", time.Since(began), page)
	}
	if b := fetch(t, urls[0]+"/v1/completions", `{"prompt":"a","max_tokens":9,"ignore_eos":true,"stream":true}`); !strings.Contains(b, `{"error":`) {
		t.Errorf("no error in the stream: %s", b)
	}
	own := sim.DefaultProfile()
	own.Name, own.MaxSeqs = "my-gpu", 7
	file := filepath.Join(t.TempDir(), "gpu.json")
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(sim.WriteProfile(f, own), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if o, err := (simCmd{Profile: file}).options(); err != nil || o.Engine.Profile.Name != "my-gpu" || o.Engine.Profile.MaxSeqs != 7 {
		t.Errorf("a profile file: %+v, %v", o.Engine.Profile, err)
	}
	urls, _ = startSim(t, 0, "--policy", "llama.cpp")
	if page := fetch(t, urls[0]+"/metrics", ""); !strings.Contains(page, "llamacpp:requests_processing 0") {
		t.Errorf("llama.cpp's page:\n%s", page)
	}
	urls, _ = startSim(t, 0, "--policy", "sglang")
	if page := fetch(t, urls[0]+"/metrics", ""); !strings.Contains(page, "sglang:page_size{") {
		t.Errorf("SGLang's page:\n%s", page)
	}
	urls, _ = startSim(t, 0, "--quirk", "pid-labels", "--quirk", "silent-reset")
	if page := fetch(t, urls[0]+"/metrics", ""); !strings.Contains(page, `pid="1002"`) {
		t.Error("no pid labels")
	}
	for _, args := range [][]string{
		{"--fault", "melt"}, {"--fault", "freeze,for=5"}, {"--fault", "freeze,replica=1"}, {"--router", "any"}, {"--quirk", "any"},
		{"--replicas", "0"}, {"--truth", "/nowhere/at/all"}, {"--profile", "none"}, {"--profile", "none.json"}, {"--metrics", "tgi"}, {"--policy", "tgi"}, {"--paced", "--fault", "freeze"}, {"--overload", "in-band-503"}, {"--speculate", "99"},
	} {
		var errs bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		code := run(ctx, append([]string{"sim", "--addr", "127.0.0.1:0"}, args...), io.Discard, &errs)
		cancel()
		if code != exitUsage || errs.Len() == 0 {
			t.Errorf("%v: exit code %d, %s", args, code, &errs)
		}
	}
}

// The faults that the reference orders with curl are taken.
func TestSim_DocumentedFaults(t *testing.T) {
	b, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	urls, _ := startSim(t, 0, "--replicas", "2")
	n := 0
	for _, m := range regexp.MustCompile(`curl http://localhost:8000(\S+) -d '(.*)'`).FindAllStringSubmatch(string(b), -1) {
		n++
		if got := fetch(t, urls[0]+m[1], m[2]); !strings.Contains(got, `"faults":[`) {
			t.Errorf("%s: %s", m[0], got)
		}
	}
	if n < 2 {
		t.Errorf("the reference shows %d orders", n)
	}
}

// What is ordered to go wrong is what a run finds.
func TestSim_RunSeesTheFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for _, tc := range []struct {
		name, order string
		args        []string
		want        string // the outcome that some turns have, beside those that are ok
	}{
		{"errors in mid-stream", "", []string{"--fault", "error,share=0.3,after=3"}, "stream_error"},
		{"cut streams", "", []string{"--fault", "drop,share=0.3,after=3"}, "stream_error"},
		{"a full queue told inside a 200", "", []string{"--max-queue", "1", "--max-seqs", "2", "--overload", "in-band-503"}, "rejected"},
		{"what was in flight at a restart", `{"kind":"restart"}`, nil, "stream_error"},
		{"what came during a restart", `{"kind":"restart","for":"300ms"}`, nil, "rejected"},
	} {
		urls, stop := startSim(t, 0, tc.args...)
		var ordered sync.WaitGroup
		if tc.order != "" {
			ordered.Go(func() { // once the run's requests are inside
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					var v struct {
						Load int `json:"server_load"`
					}
					if json.Unmarshal([]byte(fetch(t, urls[0]+"/load", "")), &v) == nil && v.Load >= 3 {
						fetch(t, urls[0]+"/sim/faults", tc.order)
						return
					}
				}
				t.Errorf("%s: the server was never busy", tc.name)
			})
		}
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"run", "--url", urls[0], "--rate", "60/s", "--for", "1s", "--warm-up", "0s", "--input", "50", "--output", "40", "--out", filepath.Join(t.TempDir(), "r"), "--json", "--quiet"}, &out, &errs)
		ordered.Wait()
		stop()
		var v struct {
			Counts map[string]int
		}
		if err := json.Unmarshal(out.Bytes(), &v); err != nil || code == exitUsage || code == exitNothing {
			t.Fatalf("%s: exit code %d, %v: %s", tc.name, code, err, &errs)
		}
		if v.Counts[tc.want] == 0 || v.Counts["ok"] == 0 {
			t.Errorf("%s: %v", tc.name, v.Counts)
		}
		t.Logf("%s: %v", tc.name, v.Counts)
	}
}
