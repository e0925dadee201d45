package loadgen

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// lateness sends Poisson arrivals at rate for span, each request held for a
// moment by a server that does nothing, and returns how late they were.
func lateness(tb testing.TB, rate float64, span time.Duration, think bool) []time.Duration {
	at := poisson(1, rate, span)
	src := singles(at)
	if think { // as many turns in sessions of four
		src = &source{at: func(n int64) *plan.Session {
			if n*4 >= int64(len(at)) {
				return nil
			}
			return talk(n, at[n*4], 0, 300*ms, 300*ms, 300*ms)
		}}
	}
	start := time.Now().Add(LeadIn)
	now := func() time.Duration { return time.Since(start) }
	var late []time.Duration
	_, err := Run(context.Background(), src, func(*plan.Session, int, []string) (func(context.Context, *record.Record) string, error) {
		return func(ctx context.Context, rec *record.Record) string {
			rec.Sent = now()
			wait(ctx, 100*ms)
			rec.Done, rec.Outcome = now(), record.OK
			return ""
		}, nil
	}, Options{Now: now, Timeout: time.Minute, Record: func(rec *record.Record) {
		d, _ := rec.Lateness()
		late = append(late, d)
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return late
}

// streams reads events per second over conns loopback connections until stop is
// called, which returns how many it read.
func streams(tb testing.TB, conns, perSecond int) (stop func() int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Skip(err)
	}
	var read atomic.Int64
	var wg sync.WaitGroup
	var ends []net.Conn
	for range conns {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			tb.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			tb.Fatal(err)
		}
		ends = append(ends, s)
		wg.Go(func() {
			defer c.Close()
			b := make([]byte, 4096)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
				read.Add(1)
			}
		})
	}
	done := make(chan struct{})
	wg.Go(func() {
		event := make([]byte, 215)
		i, begin := 0, time.Now()
		for {
			select {
			case <-done:
				for _, e := range ends {
					e.Close()
				}
				return
			default:
			}
			for due := int(time.Since(begin).Seconds() * float64(perSecond)); i < due; i++ {
				if _, err := ends[i%conns].Write(event); err != nil && err != io.EOF {
					return
				}
			}
			time.Sleep(ms)
		}
	})
	return func() int64 {
		close(done)
		wg.Wait()
		l.Close()
		return read.Load()
	}
}

// TestLateness measures this machine: how late sends are at 2,000 requests a
// second, alone and beside 20,000 events a second. The goal is a p99 of 1 ms on
// an idle core; it fails only where something is badly wrong.
func TestLateness(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine for 6 s")
	}
	for _, c := range []struct {
		name         string
		events       int
		think, procs bool
	}{
		{"alone", 0, false, false},
		{"sessions", 0, true, false},
		{"beside 20000 events/s", 20000, false, false},
		{"beside 20000 events/s, GOMAXPROCS 4", 20000, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.procs {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
			}
			stop := func() int64 { return 0 }
			if c.events > 0 {
				stop = streams(t, 500, c.events)
			}
			const span = 1500 * ms
			late := lateness(t, 2000, span, c.think)
			n := stop()
			t.Logf("%d sends: lateness p50 %v, p99 %v, p99.9 %v, max %v; %d events read; GOMAXPROCS %d", len(late),
				quantile(late, 0.5), quantile(late, 0.99), quantile(late, 0.999), quantile(late, 1), n, runtime.GOMAXPROCS(0))
			if p := quantile(late, 0.5); p > 20*ms {
				t.Errorf("half of the sends are later than %v", p)
			}
		})
	}
}

// BenchmarkTurn is the cost of one turn from the source to its record, with a
// request that ends at once, on the real clock and pacer.
func BenchmarkTurn(b *testing.B) {
	b.ReportAllocs()
	n := int64(b.N)
	src := &source{at: func(i int64) *plan.Session {
		if i == n {
			return nil
		}
		return single(i, 0)
	}}
	_, err := Run(context.Background(), src, func(*plan.Session, int, []string) (func(context.Context, *record.Record) string, error) {
		return func(_ context.Context, rec *record.Record) string { rec.Outcome = record.OK; return "" }, nil
	}, Options{Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
}
