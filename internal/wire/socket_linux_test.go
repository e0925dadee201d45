package wire

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEarliest(t *testing.T) {
	const no = time.Duration(none)
	for _, c := range []struct {
		name                              string
		empty, added, mark, swept, expect time.Duration
	}{
		{"no sweep yet", 5 * ms, 1 * ms, no, no, 5 * ms},
		{"a sweep saw nothing since", 5 * ms, 1 * ms, no, 80 * ms, 80 * ms},
		{"the reader looked after the last sweep", 5 * ms, 1 * ms, no, 4 * ms, 5 * ms},
		{"a sweep found the bytes", 5 * ms, 1 * ms, 79 * ms, 80 * ms, 79 * ms},
		{"a mark from before the reader looked is stale", 5 * ms, 1 * ms, 3 * ms, 80 * ms, 5 * ms},
		{"a sweep from before the connection says nothing", 5 * ms, 6 * ms, no, 6 * ms, 5 * ms},
	} {
		if got := earliest(c.empty, c.added, c.mark, c.swept); got != c.expect {
			t.Errorf("%s: got %v, want %v", c.name, got, c.expect)
		}
	}
}

// I2, on given values: events come every 20 ms, and the process is stopped from
// 100 ms to 250 ms. The sweeps are stopped too. Whichever runs first after it,
// the reader or the witness, the interval says 150 ms.
func TestI2_StoppedInterval(t *testing.T) {
	const wall = int64(1_700_000_000_000_000_000)
	for _, c := range []struct {
		name        string
		mark, swept time.Duration
	}{
		{"the reader first", time.Duration(none), 99 * ms},
		{"the witness first", 99 * ms, 250 * ms},
	} {
		clock, _, _ := fakeClock(wall)
		e := earliest(81*ms, 0, c.mark, c.swept)
		s := clock.resolve(e, 250*ms, wall+int64(242*ms)) // the last of eight events
		if !s.Kernel || s.Read-s.At > 9*ms || s.At-s.Earliest < 140*ms || s.Read-s.Earliest < 150*ms {
			t.Errorf("%s: got %+v", c.name, s)
		}
	}
}

// I2 for real: this test runs itself again as a client, and stops it.
func TestI2_StoppedProcess(t *testing.T) {
	if addr := os.Getenv("WIRE_TEST_I2"); addr != "" {
		stoppedClient(t, addr)
		return
	}
	if testing.Short() {
		t.Skip("takes half a second")
	}
	streaming := make(chan struct{}, 1)
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 25 {
				io.WriteString(c, "7\r\ndata: x\r\n")
				select {
				case streaming <- struct{}{}:
				default:
				}
				time.Sleep(20 * ms) // real: the kernel's time is measured
			}
			io.WriteString(c, "0\r\n\r\n")
			return false
		})
	})
	var out strings.Builder
	cmd := exec.Command(os.Args[0], "-test.run=^TestI2_StoppedProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "WIRE_TEST_I2="+l.Addr().String())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-streaming
	time.Sleep(110 * ms)
	cmd.Process.Signal(unix.SIGSTOP)
	time.Sleep(150 * ms)
	cmd.Process.Signal(unix.SIGCONT)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	var widest, lag, witness time.Duration
	line := out.String()[max(0, strings.Index(out.String(), "I2:")):]
	if _, err := fmt.Sscanf(line, "I2: %d %d %d", &widest, &lag, &witness); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("widest interval %v, where the read lag is %v; the witness was away for %v", widest, lag, witness)
	if widest < 135*ms || witness < 145*ms {
		t.Errorf("a stop of 150 ms: widest interval %v, the witness was away for %v", widest, witness)
	}
}

func stoppedClient(t *testing.T, addr string) {
	c := newClient(t, Options{})
	a, _ := get(t, c, &Request{URL: mustURL("http://" + addr)})
	var widest Stamp
	for _, s := range a.stamps {
		if s.Read-s.Earliest > widest.Read-widest.Earliest {
			widest = s
		}
	}
	fmt.Printf("I2: %d %d %d\n", widest.Read-widest.Earliest, widest.Read-widest.At, c.Stats().WitnessMax)
}

// I3: connections opened 50 ms apart, each of one short answer: every first
// read has a kernel time, since the holder keeps the kernel's switch on.
func TestI3_FirstReadsAreStamped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool { return reply(c, "hi") })
	})
	c := newClient(t, Options{})
	r := &Request{URL: mustURL("http://" + l.Addr().String()), NoReuse: true}
	for range 20 {
		a, _ := get(t, c, r)
		if s := a.headers; !s.Kernel && !s.Refused {
			t.Errorf("a first read without a kernel time: %+v", s)
		}
		time.Sleep(50 * ms) // real: the kernel's switch is what is tested
	}
	if s := c.Stats(); s.KernelMissing != 0 || s.Reads != 20 {
		t.Errorf("%d of %d reads without a kernel time", s.KernelMissing, s.Reads)
	}
	// How soon a kernel forgets that somebody wanted stamps differs between
	// machines, so the reads alone may pass without a holder: look at it too.
	if on, err := unix.GetsockoptInt(c.kernel.holder, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS); err != nil || on == 0 {
		t.Errorf("the holder socket asks for no stamps: %d, %v", on, err)
	}
}

// A stream's intervals are narrow though its reader waits for 30 ms at a time,
// and true: none excludes the time that the server wrote.
func TestWitness(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	clock := NewClock()
	const n = 30
	var wrote, written [n]atomic.Int64
	l := serve(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		requests(conn, func(*http.Request, []byte) bool {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for i := range n {
				time.Sleep(30*ms + time.Duration(i*37)*time.Microsecond)
				wrote[i].Store(int64(clock.Now()))
				io.WriteString(conn, "1\r\nx\r\n")
				written[i].Store(int64(clock.Now()))
			}
			io.WriteString(conn, "0\r\n\r\n")
			return true
		})
	})
	c := newClient(t, Options{Clock: clock})
	a, _ := get(t, c, &Request{URL: mustURL("http://" + l.Addr().String())})
	if len(a.stamps) != n {
		t.Fatalf("%d reads of %d events", len(a.stamps), n)
	}
	narrow, kernel, late := 0, 0, 0
	for i, s := range a.stamps {
		w := time.Duration(wrote[i].Load())
		// Arrival is after the write began; the interval must reach beyond that.
		if s.At < w-100*time.Microsecond {
			t.Errorf("event %d: stamped %v before it was written", i, w-s.At)
		}
		// On the loopback the bytes can be read when the write returns, unless
		// a busy kernel leaves it to a thread of its own. (The last is not
		// checked: its time may not be noted yet.)
		if e := time.Duration(written[i].Load()); i < n-1 && s.Earliest > e {
			late++
			if s.Earliest > e+2*ms {
				t.Errorf("event %d: the interval begins %v after the bytes were there", i, s.Earliest-e)
			}
		}
		if s.Read-s.Earliest < 5*ms {
			narrow++
		}
		if s.Kernel {
			kernel++
		}
	}
	if late > n/5 {
		t.Errorf("%d of %d intervals begin after the bytes were there", late, n)
	}
	if narrow < n/3 || kernel < n/3 { // none would be, without the witness
		t.Errorf("%d of %d intervals are narrow, %d kernel times taken", narrow, n, kernel)
	}
}

// The witness rests where no exchange is open.
func TestWitnessRests(t *testing.T) {
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool { return reply(c, "hi") })
	})
	c := newClient(t, Options{})
	get(t, c, &Request{URL: mustURL("http://" + l.Addr().String())})
	time.Sleep(5 * ms) // real: the thread's last sweep
	before := c.kernel.swept.Load()
	time.Sleep(20 * ms)
	if after := c.kernel.swept.Load(); after != before {
		t.Errorf("it swept at %v with nothing open since %v", time.Duration(after), time.Duration(before))
	}
}

// Sockets that a caller dialled are watched as well.
func TestOwnDial(t *testing.T) {
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool { return reply(c, "hi") })
	})
	c := newClient(t, Options{Dial: (&net.Dialer{}).DialContext})
	a, _ := get(t, c, &Request{URL: mustURL("http://" + l.Addr().String())})
	if s := a.stamps[0]; s.Read <= s.Earliest || c.Stats().Reads != 1 {
		t.Errorf("got %+v", s)
	}
	c.Close()
	if _, tm := get(t, c, &Request{URL: mustURL("http://" + l.Addr().String())}); tm.Reused {
		t.Error("reused after Close")
	}
	if n := c.Stats().Open; n != 0 {
		t.Errorf("%d connections open after Close", n)
	}
}

// A read that filled its buffer left bytes behind which are as old: the next
// one keeps its lower bound.
func TestFullReads(t *testing.T) {
	const size = 1 << 20
	l := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		requests(c, func(*http.Request, []byte) bool { return reply(c, strings.Repeat("x", size)) })
	})
	c := newClient(t, Options{})
	slow := answer{onData: func([]byte, Stamp) error { time.Sleep(ms); return nil }} // real: lets the socket fill up
	var tm Timing
	if err := c.Do(t.Context(), &Request{URL: mustURL("http://" + l.Addr().String())}, &tm, &slow); err != nil {
		t.Fatal(err)
	}
	full := 0
	for i := 1; i < len(slow.stamps); i++ {
		before, s := slow.stamps[i-1], slow.stamps[i]
		if len(slow.pieces[i-1]) == bufferSize {
			full++
			if s.Earliest != before.Earliest {
				t.Errorf("read %d: Earliest moved from %v to %v though the read before was full", i, before.Earliest, s.Earliest)
			}
		}
		if s.Earliest < before.Earliest {
			t.Errorf("read %d: Earliest went back from %v to %v", i, before.Earliest, s.Earliest)
		}
	}
	if len(slow.body) != size || full == 0 {
		t.Errorf("%d bytes, %d full reads", len(slow.body), full)
	}
}
