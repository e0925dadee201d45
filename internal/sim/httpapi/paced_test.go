package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func paced(t *testing.T, p *Paced, ln net.Listener, dial *http.Transport) *client {
	served := make(chan error, 1)
	go func() { served <- p.Serve(ln) }()
	t.Cleanup(func() {
		dial.CloseIdleConnections()
		p.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &client{t, http.Client{Transport: dial}}
}

func TestPacedIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		p := &Paced{TTFT: 123456789, Gap: 20 * time.Millisecond, Tokens: 7, Sleepy: true}
		c := paced(t, p, ln, &http.Transport{DialContext: ln.dial})
		for range 2 { // the second on the same connection
			a := c.stream("/v1/chat/completions", chat(3, 5, ""))
			// Five tokens and the finish, in one write with the last.
			var want []time.Duration
			for i := range 5 {
				want = append(want, 123456789+time.Duration(i)*20*time.Millisecond)
			}
			if !slices.Equal(a.at, append(want, want[4])) || a.text != strings.Repeat(" token", 5) || a.finish != "length" || !a.done || a.usage.Completion != 5 {
				t.Errorf("at %v: %q %s %+v", a.at, a.text, a.finish, a.usage)
			}
			for i, r := range a.raw[:5] {
				var ch chunkJSON
				if err := json.Unmarshal([]byte(r), &ch); err != nil {
					t.Fatal(err)
				}
				if d := time.Now().UnixNano() - ch.T; time.Duration(d) != want[4]-want[i] {
					t.Errorf("token %d says it left %v before the end, want %v", i, time.Duration(d), want[4]-want[i])
				}
			}
		}
		if a := c.stream("/v1/completions", `{}`); len(a.at) != 8 {
			t.Errorf("%d events without max_tokens", len(a.at))
		}
		if st, b := c.call("/v1/completions", `{`); st != 400 || !strings.Contains(b, `"code":400`) {
			t.Error(st, b)
		}
		if st, b := c.call("/nothing", `{}`); st != 404 || !strings.Contains(b, `"code":404`) {
			t.Error(st, b)
		}
		if b := c.get("/v1/models"); !strings.Contains(b, `"id":"sim"`) {
			t.Error(b)
		}
		if r := p.Close(); r.Tokens != 17 || r.Requests != 3 || r.LateMax != 0 || r.Merged != 0 {
			t.Errorf("report %+v", r)
		}
	})
}

func TestPacedCloseCutsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		p := &Paced{Gap: time.Second, Sleepy: true}
		c := paced(t, p, ln, &http.Transport{DialContext: ln.dial})
		resp := c.post(t.Context(), "/v1/chat/completions", `{}`)
		go func() { time.Sleep(3500 * time.Millisecond); p.Close() }()
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if n := strings.Count(string(b), "token"); err == nil || n != 4 {
			t.Errorf("%d tokens, %v", n, err)
		}
	})
}

// On real sockets: the stamps keep the schedule and the report says how well. A
// client that does not read is caught up, with every byte in order.
func TestPacedOnSockets(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const streams, tokens, gap = 20, 40, 10 * time.Millisecond
	p := &Paced{TTFT: 20 * time.Millisecond, Gap: gap}
	c := paced(t, p, ln, &http.Transport{DialContext: (&net.Dialer{}).DialContext})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var off []time.Duration // of each stream's span from the schedule's
	for range streams {
		wg.Go(func() {
			resp, err := c.Post("http://"+ln.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"max_tokens":%d}`, tokens)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var stamps []int64
			sc := bufio.NewScanner(resp.Body)
			for sc.Scan() {
				var ch chunkJSON
				if d, ok := strings.CutPrefix(sc.Text(), "data: {"); ok {
					if err := json.Unmarshal([]byte("{"+d), &ch); err != nil {
						t.Error(err)
					}
					if ch.T != 0 {
						stamps = append(stamps, ch.T)
					}
				}
			}
			if len(stamps) != tokens {
				t.Errorf("%d stamps", len(stamps))
				return
			}
			mu.Lock()
			off = append(off, time.Duration(stamps[tokens-1]-stamps[0])-(tokens-1)*gap)
			mu.Unlock()
		})
	}
	wg.Wait()
	r := p.Close()
	t.Logf("%+v", r)
	// No drift: a span is the schedule's, but for the lateness of its two ends,
	// which the report bounds however busy the machine is.
	for _, d := range off {
		if d.Abs() > r.LateMax+time.Microsecond { // two clocks
			t.Errorf("a span is off by %v, the largest lateness is %v", d, r.LateMax)
		}
	}
	if r.Tokens != streams*tokens || r.Requests != streams || r.LateMax <= 0 || r.LateP50 > r.LateP99 || r.LateP99 > r.LateMax {
		t.Errorf("report %+v", r)
	}
}

func TestPacedSlowReader(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Paced{}
	paced(t, p, ln, &http.Transport{})
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const tokens = 30_000 // 6 MB at once, far more than the buffers hold
	body := fmt.Sprintf(`{"max_tokens":%d}`, tokens)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for p.Report().Tokens < tokens { // all are stamped while nobody reads
		time.Sleep(time.Millisecond)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), `" token"`); n != tokens || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("%d tokens came", n)
	}
	if r := p.Close(); r.Merged == 0 {
		t.Errorf("report %+v", r)
	}
}

func TestLatenessQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var l, sum lateness
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(math.Exp(rng.NormFloat64()*3) * 1e4)
		all = append(all, d)
		l.add(d)
	}
	sum.merge(&l)
	slices.Sort(all)
	for _, p := range []float64{0, 0.5, 0.99, 0.999, 1} {
		want := all[min(int(p*10_000), 9999)]
		if got := sum.quantile(p); got < want || float64(got) > float64(want)*1.04+1 {
			t.Errorf("p%v: %v, want %v or up to 4 %% more", p*100, got, want)
		}
	}
	for v := uint64(0); v < 1<<20; v += 1 + v/100 {
		if b := bucket(v); bucketTop(b) < v || b > 0 && bucketTop(b-1) >= v {
			t.Fatalf("%d is in bucket %d, whose top is %d", v, b, bucketTop(b))
		}
	}
}
