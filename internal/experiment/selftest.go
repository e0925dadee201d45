package experiment

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/protocol"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/stats"
	"github.com/trueload/trueload/internal/unit"
	"github.com/trueload/trueload/internal/wire"
	"github.com/trueload/trueload/internal/workload"
)

// TruthLoad is the load of a self-test: streams that a truth server (`trueload
// sim --paced`, best in another process on another core) paces and stamps.
type TruthLoad struct {
	URL string // of the truth server
	// TTFT and Gap are what that server was started with.
	TTFT, Gap time.Duration
	// Streams are open at once, each of Tokens events. Requests come at a
	// constant rate, Streams over a stream's length; with Rate above 0 at that
	// rate instead, whatever number of streams it makes.
	Streams int
	Tokens  int
	Rate    float64
	// For is how long is measured, after a warm-up of one stream's length.
	For time.Duration
}

// TruthReport is how far the instrument's reading was from the truth. All
// errors are reported minus true.
type TruthReport struct {
	Requests, Failed int64
	Events, Lost     int64 // output events; those that the server sent and the records lack
	Streams          int64 // most in flight at once
	// Arrival is the stamp of an event minus the server's own stamp of sending
	// it: the network and the instrument.
	Arrival Errors
	// FirstEvent is Arrival over the first events alone: the error of a service
	// TTFT, whose other end is the instrument's own stamp of sending.
	FirstEvent Errors
	// ServiceTTFT is the reported figure minus the server's pacing: how long the
	// server took to read the request, and how late it was, are in it.
	ServiceTTFT Errors
	// Gap is an event gap as recorded minus as sent.
	Gap                      Errors
	Lateness                 Errors // released minus scheduled
	Width                    Errors // of stamps
	EventsPerSecond, CPU     float64
	RSSPerStream             float64 // bytes over the idle process, at the most streams
	GCs                      int64
	Wire                     wire.Stats
	ReportedTTFT, TruePacing time.Duration // medians, for scale
}

// Errors are absolute quantiles of a distribution of differences.
type Errors struct{ P50, P99, P999, Max time.Duration }

func (e Errors) String() string {
	return fmt.Sprintf("p50 %s  p99 %s  p99.9 %s  max %s", unit.Duration(e.P50), unit.Duration(e.P99), unit.Duration(e.P999), unit.Duration(e.Max))
}

func errorsOf(v []time.Duration) Errors {
	for i, d := range v {
		v[i] = max(d, -d)
	}
	slices.Sort(v)
	at := func(p stats.Permille) time.Duration {
		if len(v) == 0 {
			return 0
		}
		return v[p.Rank(len(v))-1]
	}
	e := Errors{P50: at(500), P99: at(990), P999: at(999)}
	if len(v) > 0 {
		e.Max = v[len(v)-1]
	}
	return e
}

// MeasureTruth sends the load and compares what the records say with what the
// server stamped into each chunk.
func MeasureTruth(ctx context.Context, load TruthLoad) (*TruthReport, error) {
	prepareProcess()
	conn := wire.NewClient(wire.Options{})
	defer conn.Close()
	truth := &truthDoer{Client: conn, sent: map[string][]time.Duration{}}
	cfg := protocol.Config{BaseURL: load.URL, Model: "sim", Dialect: protocol.VLLM, Salt: "truth"}
	length := load.TTFT + time.Duration(load.Tokens-1)*load.Gap
	rate := load.Rate
	if rate <= 0 {
		rate = float64(load.Streams) / length.Seconds()
	}
	idle := residentBytes()
	cfg.Zero = conn.Clock().Now() + loadgen.LeadIn
	client, err := protocol.New(cfg, truth, fixedText{})
	if err != nil {
		return nil, err
	}
	now := func() time.Duration { return conn.Clock().Now() - cfg.Zero }
	warm := length
	phases := []plan.Phase{
		{Name: "warm-up", End: warm},
		{Name: "measured", Start: warm, End: warm + load.For, Measured: true},
		{Name: workload.TailName, Start: warm + load.For, End: warm + load.For + 2*length},
	}
	rep := &TruthReport{}
	var arrival, first, ttft, gaps, late, width, reported []time.Duration
	before, cpu0, events0 := readHost(), processCPU(), int64(0)
	var progress loadgen.Progress
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if n := progress.Snapshot().InFlight; n > rep.Streams {
					rep.Streams = n
					if n > 0 {
						rep.RSSPerStream = float64(residentBytes()-idle) / float64(n)
					}
				}
			}
		}
	})
	res, err := loadgen.Run(ctx, &evenly{rate: rate, tokens: load.Tokens, end: warm + load.For + 2*length}, client.Prepare, loadgen.Options{
		Phases: phases, Timeout: 2*length + 30*time.Second, Drain: 2 * length, Now: now, Progress: &progress,
		Record: func(r *record.Record) {
			sent := truth.take(fmt.Sprintf("truth-%d-%d", r.ID.Session, r.ID.Turn))
			events0 += int64(len(r.Events))
			if r.Phase != "measured" {
				return
			}
			rep.Requests++
			if r.Outcome != record.OK {
				rep.Failed++
				return
			}
			rep.Events += int64(len(r.Events))
			if d, ok := r.Lateness(); ok {
				late = append(late, d)
			}
			if d, ok := r.ServiceTTFT(); ok {
				ttft = append(ttft, d-load.TTFT)
				reported = append(reported, d)
			}
			if len(sent) != len(r.Events) {
				rep.Lost += int64(max(len(sent)-len(r.Events), load.Tokens-len(r.Events)))
				return
			}
			for i, e := range r.Events {
				width = append(width, time.Duration(e.Width)*time.Microsecond)
				arrival = append(arrival, e.At-(sent[i]-cfg.Zero))
				if i == 0 {
					first = append(first, e.At-(sent[i]-cfg.Zero))
				} else {
					gaps = append(gaps, (e.At-r.Events[i-1].At)-(sent[i]-sent[i-1]))
				}
			}
		},
	})
	close(done)
	wg.Wait()
	if err != nil {
		return nil, err
	}
	span := res.Finished.Seconds()
	rep.Arrival, rep.FirstEvent, rep.ServiceTTFT = errorsOf(arrival), errorsOf(first), errorsOf(ttft)
	rep.Gap, rep.Lateness, rep.Width = errorsOf(gaps), errorsOf(late), errorsOf(width)
	if len(reported) > 0 {
		slices.Sort(reported)
		rep.ReportedTTFT = reported[stats.Permille(500).Rank(len(reported))-1]
	}
	rep.TruePacing = load.TTFT
	rep.EventsPerSecond = float64(events0) / span
	rep.CPU = (processCPU() - cpu0).Seconds() / span
	rep.GCs = readHost().gcs - before.gcs
	rep.Wire = conn.Stats()
	return rep, nil
}

// Misfits says in which way this machine is no fit instrument for the load; none:
// it is. The limits are those that a run is held to (docs/measurement.md,
// section 6), at their least.
func (r *TruthReport) Misfits() (why []string) {
	over := func(what string, got, limit time.Duration) {
		if got > limit {
			why = append(why, fmt.Sprintf("%s p99 %s, limit %s", what, unit.Duration(got), unit.Duration(limit)))
		}
	}
	if r.Failed > 0 || r.Lost > 0 {
		why = append(why, fmt.Sprintf("%d requests failed and %d events were lost", r.Failed, r.Lost))
	}
	over("stamp error", r.Arrival.P99, time.Millisecond)
	over("stamp interval", r.Width.P99, 5*time.Millisecond)
	over("lateness", r.Lateness.P99, time.Millisecond)
	return why
}

// Write writes the report for a terminal, the verdict first.
func (r *TruthReport) Write(w io.Writer) error {
	verdict := "FIT for this load"
	if why := r.Misfits(); len(why) > 0 {
		verdict = "NOT FIT for this load: " + strings.Join(why, "; ") + " (less load, a machine with less else to do, or more machines)"
	}
	_, err := fmt.Fprintf(w, `%s
requests          %d measured, %d failed; most streams at once %d
events            %d measured, %d lost; %s, CPU %s of one core
arrival stamps    %v (reported - the server's stamp of sending)
first events      %v (the same, where TTFT ends)
service TTFT      %v (reported - %s paced: the server's reading and lateness included); median %s
gaps              %v (reported - sent)
stamp intervals   %v
lateness          %v
memory            %s per stream
stamps            %d reads, %d without a kernel time, %d refused; longest sweep %s
`,
		verdict, r.Requests, r.Failed, r.Streams, r.Events, r.Lost, unit.PerSecond(r.EventsPerSecond, "event"), unit.Percent(r.CPU),
		r.Arrival, r.FirstEvent, r.ServiceTTFT, unit.Duration(r.TruePacing), unit.Duration(r.ReportedTTFT), r.Gap, r.Width, r.Lateness,
		unit.Number(r.RSSPerStream/1024)+" KiB", r.Wire.Reads, r.Wire.KernelMissing, r.Wire.Refused, unit.Duration(r.Wire.WitnessMax))
	return err
}

// evenly is a plan of equal requests at a constant rate.
type evenly struct {
	rate   float64
	tokens int
	end    time.Duration
	n      int64
}

func (e *evenly) Next() (*plan.Session, error) {
	at := time.Duration(float64(e.n) / e.rate * 1e9)
	if at >= e.end {
		return nil, io.EOF
	}
	s := &plan.Session{Seq: e.n, Scheduled: at, Class: "truth", Scripted: true, Turns: []plan.Turn{{At: plan.Unset, InputTokens: 100, OutputTokens: e.tokens, Prompt: plan.Prompt{Item: -1}}}}
	e.n++
	return s, nil
}

// fixedText renders every prompt alike: a truth server has no cache.
type fixedText struct{}

var hundredWords = strings.Repeat("word ", 100)

func (fixedText) Messages(*plan.Session, *plan.Turn) ([]protocol.Message, error) {
	return []protocol.Message{{Role: "user", Content: hundredWords}}, nil
}
func (fixedText) Reply(*plan.Session, *plan.Turn) (string, error) { return "", nil }
func (fixedText) Tokens(*plan.Session, *plan.Turn) ([]int, error) {
	return slices.Repeat([]int{100}, 100), nil
}

// truthDoer sends through the real client and reads the server's stamps as the
// bytes go by.
type truthDoer struct {
	*wire.Client
	mu   sync.Mutex
	sent map[string][]time.Duration // by request id, on the wire's clock
}

func (d *truthDoer) Do(ctx context.Context, req *wire.Request, t *wire.Timing, h wire.Handler) error {
	tee := &truthTee{Handler: h, clock: d.Clock()}
	err := d.Client.Do(ctx, req, t, tee)
	d.mu.Lock()
	d.sent[req.Header.Get("X-Request-Id")] = tee.sent
	d.mu.Unlock()
	return err
}

func (d *truthDoer) take(id string) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.sent[id]
	delete(d.sent, id)
	return v
}

// truthTee reads the field "t" of every chunk: nanoseconds of CLOCK_REALTIME
// just before the server wrote it.
type truthTee struct {
	wire.Handler
	clock *wire.Clock
	rest  []byte // of a chunk that was cut
	sent  []time.Duration
}

var stampKey = []byte(`"t":`)

const stampDigits = 19

func (t *truthTee) Data(b []byte, s wire.Stamp) error {
	look := b
	if len(t.rest) > 0 {
		t.rest = append(t.rest, b...)
		look = t.rest
	}
	for {
		i := bytes.Index(look, stampKey)
		if i < 0 || len(look) < i+len(stampKey)+stampDigits {
			break
		}
		if ns, err := strconv.ParseInt(string(look[i+len(stampKey):i+len(stampKey)+stampDigits]), 10, 64); err == nil {
			at, _ := t.clock.Map(ns, t.clock.Now())
			t.sent = append(t.sent, at)
		}
		look = look[i+len(stampKey)+stampDigits:]
	}
	keep := look
	if len(keep) > len(stampKey)+stampDigits {
		if i := bytes.LastIndex(keep, stampKey); i >= 0 {
			keep = keep[i:]
		} else {
			keep = keep[len(keep)-len(stampKey):]
		}
	}
	t.rest = append(t.rest[:0], keep...)
	return t.Handler.Data(b, s)
}

func (t *truthTee) Headers(status int, h http.Header, s wire.Stamp) error {
	return t.Handler.Headers(status, h, s)
}

// residentBytes is this process's resident memory, or 0 where it is not known.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
