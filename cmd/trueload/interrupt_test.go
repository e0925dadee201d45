//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/store"
)

// child is a trueload of its own process.
type child struct {
	cmd      *exec.Cmd
	out, err locked
	done     chan struct{}
}

// locked is a buffer that is read while a process writes into it.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(b) }
func (l *locked) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func start(t *testing.T, name string, args ...string) *child {
	t.Helper()
	path, err := exec.LookPath(name) // TestMain put it there
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(path, args...), done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.err
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(c.done); c.cmd.Wait() }()
	t.Cleanup(func() { c.cmd.Process.Kill(); <-c.done })
	return c
}

// wait returns the exit code.
func (c *child) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("it does not end; it wrote\n%s\n%s", &c.out, &c.err)
	}
	return c.cmd.ProcessState.ExitCode()
}

// server is a simulated engine that keeps its own log.
type server struct {
	url string
	mu  sync.Mutex
	log map[string]httpapi.Truth
	n   int // answers that have ended; probes are not counted
}

func (s *server) answered() int { s.mu.Lock(); defer s.mu.Unlock(); return s.n }

func engine(t *testing.T) *server {
	t.Helper()
	s := &server{log: map[string]httpapi.Truth{}}
	profile, err := sim.ProfileByName("tiny")
	if err != nil {
		t.Fatal(err)
	}
	srv, err := httpapi.New(httpapi.Options{Engine: sim.Config{Profile: profile}, Seed: 1, Truth: func(tr httpapi.Truth) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !strings.HasPrefix(tr.ID, "trueload-probe") {
			s.log[tr.ID] = tr
			s.n++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	url, stop := serveHandler(srv)
	t.Cleanup(func() { stop(); srv.Close() })
	s.url = url
	return s
}

// until waits for a condition of another process.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func long(url, dir string, more ...string) []string {
	return append([]string{"run", "--url", url, "--rate", "40/s", "--for", "10m", "--warm-up", "0s", "--input", "40", "--output", "8", "--out", dir}, more...)
}

func TestInterrupt_OnceDrains(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			onceDrains(t, signal)
		})
	}
}

func onceDrains(t *testing.T, signal os.Signal) {
	s, dir := engine(t), filepath.Join(t.TempDir(), "result")
	c := start(t, "trueload", long(s.url, dir, "--output", "200")...)
	until(t, "twenty answers", func() bool { return s.answered() >= 20 })
	c.cmd.Process.Signal(signal)
	if code := c.wait(t); code != exitInterrupted {
		t.Fatalf("exit code %d\n%s", code, &c.err)
	}
	if !strings.Contains(c.err.String(), "interrupted: no more is sent, waiting for what is under way") {
		t.Errorf("it said\n%s", &c.err)
	}
	if err := checkWhole(dir); err != nil {
		t.Error(err)
	}
	sum, err := readSummary(dir)
	if err != nil {
		t.Fatal(err)
	}
	// What was under way was waited for: every answer the server gave is there,
	// and none is cut.
	// Rates are per second of what there was of the window, not of its ten minutes.
	if w, offered := sum.Window.Measured, sum.Rates.Offered; w > 60 || offered == nil || *offered < 20 || *offered > 80 {
		t.Errorf("40/s were asked; the window is told to be %v s long, with %v offered", w, offered)
	}
	until(t, "the server's log", func() bool { return int64(s.answered()) >= sum.Counts.OK })
	if n := int64(s.answered()); sum.Counts.OK != n {
		t.Errorf("the server gave %d answers; summary.json has %+v", n, sum.Counts)
	}
	res, err := store.Open(dir)
	if err == nil {
		err = res.Records(func(r *record.Record) error {
			if r.Outcome == record.Unfinished && r.Sent != record.Unset { // due just then, and not sent, may be
				return fmt.Errorf("session %d was sent and not waited for", r.ID.Session)
			}
			return nil
		})
	}
	if err != nil {
		t.Error(err)
	}
	reportable(t, dir)
}

func TestInterrupt_TwiceStopsNow(t *testing.T) {
	t.Parallel()
	url, stop, err := startServer("later-stall")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	dir := filepath.Join(t.TempDir(), "result")
	c := start(t, "trueload", long(url, dir)...)
	time.Sleep(time.Second) // real load is on, and nothing of it ever ends
	until(t, "the load", func() bool { return journalSize(dir) > 0 })
	c.cmd.Process.Signal(os.Interrupt)
	until(t, "a word", func() bool { return strings.Contains(c.err.String(), "interrupted") })
	began := time.Now()
	c.cmd.Process.Signal(os.Interrupt)
	if code := c.wait(t); code != exitInterrupted {
		t.Fatalf("exit code %d\n%s", code, &c.err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("stopping now took %v", d)
	}
	if err := checkWhole(dir); err != nil {
		t.Error(err)
	}
	sum, err := readSummary(dir)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Counts.OK != 0 || sum.Counts.Unfinished == 0 {
		t.Errorf("summary.json has %+v", sum.Counts)
	}
	reportable(t, dir)
}

// An interrupt while the probe waits for a server that does not answer.
func TestInterrupt_DuringTheProbe(t *testing.T) {
	t.Parallel()
	url, stop, err := startServer("silent")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	dir := filepath.Join(t.TempDir(), "result")
	c := start(t, "trueload", long(url, dir, "--set", "target.timeout=5m")...)
	until(t, "the probe", func() bool { _, err := os.Stat(filepath.Join(dir, store.JournalName)); return err == nil })
	began := time.Now()
	c.cmd.Process.Signal(os.Interrupt)
	if code := c.wait(t); code != exitInterrupted || time.Since(began) > 5*time.Second {
		t.Fatalf("exit code %d after %v\n%s", code, time.Since(began), &c.err)
	}
	if err := checkWhole(dir); err != nil {
		t.Error(err)
	}
}

func TestKill9_LosesNoMoreThanASecond(t *testing.T) {
	t.Parallel()
	s, dir := engine(t), filepath.Join(t.TempDir(), "result")
	c := start(t, "trueload", long(s.url, dir, "--slo", "ttft=10s,attainment=1%")...)
	until(t, "eighty answers", func() bool { return s.answered() >= 80 })
	s.mu.Lock()
	killed := time.Now()
	var early int // answers that had ended a second before
	for _, tr := range s.log {
		if tr.LastWrite.Before(killed.Add(-time.Second)) {
			early++
		}
	}
	s.mu.Unlock()
	c.cmd.Process.Kill()
	if c.wait(t); c.cmd.ProcessState.Success() {
		t.Fatal("it was not killed")
	}
	if _, err := os.Stat(filepath.Join(dir, store.SummaryName)); err == nil {
		t.Fatal("there is a summary already")
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"report", dir}, &out, &errs); code != 0 {
		t.Fatalf("report: exit code %d\n%s", code, &errs)
	}
	if !strings.Contains(out.String(), "cut-short") {
		t.Errorf("the report does not say that the run was cut short:\n%s", &out)
	}
	sum, err := readSummary(dir) // report wrote it
	if err != nil {
		t.Fatal(err)
	}
	if sum.Counts.OK < int64(early) || sum.Counts.OK > int64(len(s.log)) {
		t.Errorf("%d turns are ok; the server had answered %d a second before, and %d in all", sum.Counts.OK, early, len(s.log))
	}
	if w := sum.Window.Measured; w > 60 {
		t.Errorf("the window is told to be %v s long", w)
	}
	if sum.Counts.Planned != total(sum.Counts) {
		t.Errorf("the outcomes do not sum: %+v", sum.Counts)
	}
	// Each of them as the server saw it.
	res, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = res.Records(func(r *record.Record) error {
		if r.Outcome != record.OK {
			return nil
		}
		id := fmt.Sprintf("%s-%d-%d", sum.Run.Salt, r.ID.Session, r.ID.Turn)
		tr, ok := s.log[id]
		if !ok || tr.OutputTokens != r.OutputTokens || tr.PromptTokens != r.InputTokens {
			return fmt.Errorf("%s: the record has %d and %d tokens, the server's log %d and %d", id, r.InputTokens, r.OutputTokens, tr.PromptTokens, tr.OutputTokens)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDiskFull_KeepsWhatWasMeasured(t *testing.T) {
	for name, limit := range map[string]func(t *testing.T) (dir string, command []string, free func()){
		"a full file system": func(t *testing.T) (string, []string, func()) {
			if runtime.GOOS != "linux" {
				t.Skip("mounts are made on Linux")
			}
			dir := t.TempDir()
			if err := mountTiny(dir, "size=160k"); err != nil {
				t.Skipf("may not mount: %v", err)
			}
			t.Cleanup(func() { unmount(dir) })
			return dir, []string{"trueload"}, func() {
				if err := remountTiny(dir, "size=16m"); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a limit on files": func(t *testing.T) (string, []string, func()) {
			return t.TempDir(), []string{"filelimit", "100000", "trueload"}, func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent, command, free := limit(t)
			s, dir := engine(t), filepath.Join(parent, "result")
			args := append(slices.Clone(command[1:]), long(s.url, dir, "--rate", "150/s", "--for", "1m")...)
			c := start(t, command[0], args...)
			code := c.wait(t)
			if !strings.Contains(c.out.String(), "result-incomplete") || !strings.Contains(c.out.String(), "the run was stopped: write the journal") {
				t.Errorf("it does not say what happened; exit code %d\n%s\n%s", code, &c.out, &c.err)
			}
			if code != exitInvalid {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(c.out.String(), "TTFT") {
				t.Errorf("no figures were shown:\n%s", &c.out)
			}
			var out, errs bytes.Buffer
			if code := run(t.Context(), []string{"report", dir}, &out, &errs); code != 0 || !strings.Contains(out.String(), "TTFT") {
				t.Errorf("report, with the disk still full: exit code %d\n%s", code, &errs)
			}
			free()
			out.Reset()
			if code := run(t.Context(), []string{"report", dir}, &out, &errs); code != 0 {
				t.Fatalf("report: exit code %d\n%s", code, &errs)
			}
			sum, err := readSummary(dir)
			if err != nil {
				t.Fatal(err)
			}
			if sum.Counts.OK < 20 || sum.Counts.OK > int64(s.answered()) {
				t.Errorf("%d turns are ok, of %d that were answered", sum.Counts.OK, s.answered())
			}
		})
	}
}

// The servers end when told to, the one with a truth to tell with that.
func TestInterrupt_EndsServers(t *testing.T) {
	for _, c := range []struct {
		args []string
		last string
	}{
		{[]string{"sim", "--profile", "tiny"}, ""},
		{[]string{"sim", "--paced"}, `^0 requests, 0 tokens; own lateness`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			p := start(t, "trueload", append(c.args, "--addr", "127.0.0.1:0")...)
			until(t, "its address", func() bool { return strings.Contains(p.err.String(), "at http://127.0.0.1:") })
			p.cmd.Process.Signal(os.Interrupt)
			if code := p.wait(t); code != exitOK || !regexp.MustCompile(c.last).MatchString(p.out.String()) {
				t.Errorf("exit code %d\n%s\n%s", code, &p.out, &p.err)
			}
		})
	}
}

// A generator that was held up says so, and its run is invalid.
func TestStopped_TheRunIsInvalid(t *testing.T) {
	t.Parallel()
	s, dir := engine(t), filepath.Join(t.TempDir(), "result")
	c := start(t, "trueload", append(long(s.url, dir), "--for", "3s")...)
	until(t, "ten answers", func() bool { return s.answered() >= 10 })
	c.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(time.Second)
	c.cmd.Process.Signal(syscall.SIGCONT)
	if code := c.wait(t); code != exitInvalid {
		t.Errorf("exit code %d\n%s", code, &c.err)
	}
	for _, want := range []string{"INVALID", "requests were released late", "do not use these numbers"} {
		if !strings.Contains(c.out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &c.out)
		}
	}
	if err := checkWhole(dir); err != nil {
		t.Error(err)
	}
}

// 100 MB in one line are an error of that answer, not of this process.
func TestLongLine_InBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector runs -short, and takes memory of its own")
	}
	t.Parallel()
	url, stop, err := startServer("later-long-line")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	dir := filepath.Join(t.TempDir(), "result")
	c := start(t, "trueload", "run", "--url", url, "--rate", "2/s", "--for", "2s", "--warm-up", "0s", "--input", "40", "--output", "8", "--out", dir)
	if code := c.wait(t); code != exitNothing {
		t.Errorf("exit code %d\n%s", code, &c.err)
	}
	if !regexp.MustCompile(`failure: \d+ turns?: stream_error: .*longer than`).MatchString(c.out.String()) {
		t.Errorf("it does not say what happened:\n%s", &c.out)
	}
	if err := checkWhole(dir); err != nil {
		t.Error(err)
	}
	const limit = 256 << 20
	usage, ok := c.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok || runtime.GOOS != "linux" { // elsewhere it is counted in other units
		return
	}
	if most := usage.Maxrss << 10; most > limit {
		t.Errorf("it took %d MB", most>>20)
	} else {
		t.Logf("it took %d MB", most>>20)
	}
}

// reportable checks that a result can be read again, with the same figures.
func reportable(t *testing.T, dir string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, store.SummaryName))
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"report", "--json", dir}, &out, &errs); code != 0 {
		t.Fatalf("report: exit code %d\n%s", code, &errs)
	}
	if !bytes.Equal(out.Bytes(), b) {
		t.Error("report --json and summary.json differ")
	}
}

func journalSize(dir string) int64 {
	info, err := os.Stat(filepath.Join(dir, store.JournalName))
	if err != nil {
		return -1
	}
	return info.Size()
}
