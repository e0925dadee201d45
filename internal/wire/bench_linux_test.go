package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkStreams reads streams that another process sends on the loopback,
// 20 chunks a second each, and reports this process's CPU per chunk, and how
// far the stamps lie from the time that the server wrote.
func BenchmarkStreams(b *testing.B) {
	for _, streams := range []int{1000, 2000} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) { benchmarkStreams(b, streams) })
	}
}

const benchEvery = 50 * ms

func benchmarkStreams(b *testing.B, streams int) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBenchServer$")
	cmd.Env = append(os.Environ(), "WIRE_BENCH_SERVER=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	stop, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { stop.Close(); cmd.Wait() }()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	rss0 := rss()
	c := newClient(b, Options{})
	r := &Request{URL: mustURL("http://" + strings.TrimSpace(addr)), Body: []byte(`{"stream":true}`)}
	var chunks atomic.Int64
	chunks.Store(math.MinInt64) // not yet
	enough := make(chan struct{})
	h := &lags{clock: c.Clock(), enough: func() {
		if chunks.Add(1) == int64(b.N) {
			close(enough)
		}
	}}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			var t Timing
			if err := c.Do(ctx, r, &t, h); err != nil && ctx.Err() == nil {
				b.Error(err)
			}
		})
	}
	for c.Stats().Reads < int64(streams) { // every stream has begun
		time.Sleep(10 * ms)
	}
	perStream := float64(rss()-rss0) / float64(streams) / 1024
	h.reset()
	cpu0 := cpu()
	chunks.Store(0)
	b.ResetTimer()
	<-enough
	b.StopTimer()
	used := cpu() - cpu0
	cancel()
	wg.Wait()
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/chunk")
	b.ReportMetric(perStream, "KiB/stream")
	h.report(b)
	s := c.Stats()
	b.ReportMetric(float64(s.KernelMissing+s.Refused)/float64(s.Reads)*1e6, "not-kernel/M")
	b.ReportMetric(float64(s.WitnessMax.Microseconds()), "witness-max-µs")
}

// lags collects stamp - write, and widths, of every chunk.
type lags struct {
	clock  *Clock
	enough func()
	mu     sync.Mutex
	lag    []time.Duration
	width  []time.Duration
	read   []time.Duration
}

func (h *lags) reset() {
	h.mu.Lock()
	h.lag, h.width, h.read = h.lag[:0], h.width[:0], h.read[:0]
	h.mu.Unlock()
}

func (h *lags) Headers(int, http.Header, Stamp) error { return nil }

func (h *lags) Data(b []byte, s Stamp) error {
	if len(b) < 8 {
		return nil
	}
	wrote, _ := h.clock.Map(int64(binary.BigEndian.Uint64(b)), s.Read)
	h.mu.Lock()
	if len(h.lag) < 2_000_000 {
		h.lag = append(h.lag, s.At-wrote)
		h.width = append(h.width, s.Read-s.Earliest)
		h.read = append(h.read, s.Read-wrote)
	}
	h.mu.Unlock()
	h.enough()
	return nil
}

func (h *lags) report(b *testing.B) {
	for _, q := range []struct {
		name string
		v    []time.Duration
	}{{"stamp-lag", h.lag}, {"interval", h.width}, {"read-lag", h.read}} {
		slices.Sort(q.v)
		for _, p := range []float64{.5, .99, .999} {
			if len(q.v) > 0 {
				b.ReportMetric(float64(q.v[int(p*float64(len(q.v)-1))].Nanoseconds())/1e3, fmt.Sprintf("%s-p%g-µs", q.name, p*100))
			}
		}
	}
}

// TestBenchServer is BenchmarkStreams' server process; by itself it does nothing.
func TestBenchServer(t *testing.T) {
	if os.Getenv("WIRE_BENCH_SERVER") == "" {
		t.Skip("only serves BenchmarkStreams")
	}
	var mu sync.Mutex
	var conns []net.Conn
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				requests(c, func(*http.Request, []byte) bool {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
					mu.Lock()
					conns = append(conns, c)
					mu.Unlock()
					return true
				})
			}()
		}
	}()
	go func() {
		// Every millisecond, a fiftieth of the streams gets a chunk.
		const turns = int(benchEvery / ms)
		chunk := append([]byte("d0\r\n"), make([]byte, 0xd0+2)...)
		copy(chunk[len(chunk)-2:], "\r\n")
		next := time.Now()
		for turn := 0; ; turn++ {
			mu.Lock()
			for i := turn % turns; i < len(conns); i += turns {
				binary.BigEndian.PutUint64(chunk[4:], uint64(time.Now().UnixNano()))
				if _, err := conns[i].Write(chunk); err != nil {
					conns = slices.Delete(conns, i, i+1)
				}
			}
			mu.Unlock()
			next = next.Add(ms)
			if d := time.Until(next); d > 0 {
				ts := unix.NsecToTimespec(int64(d))
				_ = unix.Nanosleep(&ts, nil)
			}
		}
	}()
	fmt.Println(l.Addr())
	io.Copy(io.Discard, os.Stdin) // until the benchmark ends
}

func cpu() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func rss() int64 {
	b, _ := os.ReadFile("/proc/self/statm")
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// BenchmarkDecoder: the parsing alone, per chunk of a typical event.
func BenchmarkDecoder(b *testing.B) {
	d := &decoder{method: "GET", h: discard{}}
	if _, err := d.feed([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Stamp{}); err != nil {
		b.Fatal(err)
	}
	chunk := []byte("d0\r\n" + strings.Repeat("x", 0xd0) + "\r\n")
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.feed(chunk, Stamp{}); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{}

func (discard) Headers(int, http.Header, Stamp) error { return nil }
func (discard) Data([]byte, Stamp) error              { return nil }
