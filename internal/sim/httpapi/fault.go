package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FaultKind says what goes wrong.
type FaultKind string

const (
	// Freeze: the engine computes nothing; the server still answers the rest.
	Freeze FaultKind = "freeze"
	// Slow: every step takes Factor times as long.
	Slow FaultKind = "slow"
	// Drop: a Share of the requests that arrive have their connection cut,
	// after After output tokens; 0: before any answer.
	Drop FaultKind = "drop"
	// MidStream: a Share of the requests that arrive end in an error after
	// After output tokens, 0: 1. A stream gets the error as an event, then
	// [DONE], as from vLLM; an answer that is not streamed is a 500.
	MidStream FaultKind = "error"
	// Restart: what is in flight dies, cache and counters begin anew, and for
	// the time For every connection to the replica is cut. A router leaves the
	// replica out meanwhile, and answers 503 when there is no other.
	Restart FaultKind = "restart"
	// StallMetrics: /metrics answers Delay late.
	StallMetrics FaultKind = "stall"
)

// AllReplicas in Fault.Replica means every replica.
const AllReplicas = -1

// Fault is something to go wrong. ParseFault reads it from a flag, and JSON
// from the admin endpoint; there, what is left out is replica: all, share: 1.
type Fault struct {
	Kind    FaultKind
	Replica int           // counted from 0, or AllReplicas
	At      time.Duration // how long after it is ordered it begins
	For     time.Duration // how long it lasts; 0: until cleared, and for Restart not at all
	Factor  float64       // Slow: above 1
	Share   float64       // Drop, MidStream: 0 to 1
	After   int           // Drop, MidStream: output tokens
	Delay   time.Duration // StallMetrics
}

// ParseFault reads kind[,key=value...], as in slow,replica=1,factor=3,for=30s.
// The keys are at, for, replica, factor, share, after and delay.
func ParseFault(s string) (Fault, error) {
	kind, rest, _ := strings.Cut(s, ",")
	f := Fault{Kind: FaultKind(kind), Replica: AllReplicas, Share: 1}
	for _, pair := range strings.Split(rest, ",") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return f, fmt.Errorf("fault %q: %q is not key=value", s, pair)
		}
		if err := f.set(key, value); err != nil {
			return f, fmt.Errorf("fault %q: %w", s, err)
		}
	}
	if err := f.check(); err != nil {
		return f, fmt.Errorf("fault %q: %w", s, err)
	}
	return f, nil
}

func (f *Fault) set(key, value string) (err error) {
	switch key {
	case "kind":
		f.Kind = FaultKind(value)
	case "replica":
		if f.Replica, err = strconv.Atoi(value); value == "all" {
			f.Replica, err = AllReplicas, nil
		}
	case "at":
		f.At, err = time.ParseDuration(value)
	case "for":
		f.For, err = time.ParseDuration(value)
	case "delay":
		f.Delay, err = time.ParseDuration(value)
	case "factor":
		f.Factor, err = strconv.ParseFloat(value, 64)
	case "share":
		f.Share, err = strconv.ParseFloat(value, 64)
	case "after":
		f.After, err = strconv.Atoi(value)
	default:
		return fmt.Errorf("unknown key %q: use kind, replica, at, for, factor, share, after, delay", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %q does not parse", key, value)
	}
	return nil
}

// farthest bounds the times of a fault, so that sums of them do not overflow.
const farthest = 1000 * time.Hour

func (f *Fault) check() error {
	switch {
	case !slices.Contains([]FaultKind{Freeze, Slow, Drop, MidStream, Restart, StallMetrics}, f.Kind):
		return fmt.Errorf("unknown kind %q: use freeze, slow, drop, error, restart or stall", f.Kind)
	case f.Replica < AllReplicas:
		return fmt.Errorf("replica is %d: count from 0, or leave it out for all", f.Replica)
	case f.At < 0 || f.For < 0 || f.Delay < 0 || f.At > farthest || f.For > farthest || f.Delay > farthest:
		return fmt.Errorf("at, for and delay must lie between 0s and %v", farthest)
	case f.Kind == Slow && !(f.Factor > 1 && f.Factor <= 1e6):
		return fmt.Errorf("slow needs a factor above 1, such as factor=3")
	case (f.Kind == Drop || f.Kind == MidStream) && !(f.Share > 0 && f.Share <= 1):
		return fmt.Errorf("share is %v: it must be above 0 and at most 1", f.Share)
	case f.After < 0:
		return fmt.Errorf("after is %d: it must not be negative", f.After)
	case f.Kind == StallMetrics && f.Delay == 0:
		return fmt.Errorf("stall needs a delay, such as delay=10s")
	}
	return nil
}

// UnmarshalJSON reads an object with the keys of ParseFault and kind. Durations
// are strings, as in "5s".
func (f *Fault) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return err
	}
	*f = Fault{Replica: AllReplicas, Share: 1}
	for key, value := range fields {
		if err := f.set(key, fmt.Sprint(value)); err != nil {
			return err
		}
	}
	return f.check()
}

// activeFault is a fault with its place in time, as offsets from the server's
// start.
type activeFault struct {
	Fault
	from, until time.Duration
}

const never time.Duration = math.MaxInt64

func (f *activeFault) hits(kind FaultKind, replica int, t time.Duration) bool {
	return f.Kind == kind && (f.Replica == AllReplicas || f.Replica == replica) && f.from <= t && t < f.until
}

// MarshalJSON shows what can be ordered, with the times it holds.
func (f activeFault) MarshalJSON() ([]byte, error) {
	type out struct {
		Kind    FaultKind `json:"kind"`
		Replica any       `json:"replica"`
		From    string    `json:"from"`
		Until   string    `json:"until"`
		Factor  float64   `json:"factor,omitempty"`
		Share   float64   `json:"share,omitempty"`
		After   int       `json:"after,omitempty"`
		Delay   string    `json:"delay,omitempty"`
	}
	o := out{Kind: f.Kind, Replica: f.Replica, From: f.from.String(), Until: f.until.String()}
	if f.Replica == AllReplicas {
		o.Replica = "all"
	}
	if f.until == never {
		o.Until = "cleared"
	}
	switch f.Kind {
	case Slow:
		o.Factor = f.Factor
	case Drop, MidStream:
		o.Share, o.After = f.Share, f.After
	case StallMetrics:
		o.Delay = f.Delay.String()
	}
	return json.Marshal(o)
}

// faults are those ordered so far. Those long over are forgotten.
type faults struct {
	mu   sync.Mutex
	list []activeFault
	rng  *rand.Rand
}

const faultLimit = 1000

func (fs *faults) add(f activeFault, now time.Duration) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.list) >= faultLimit {
		fs.list = slices.DeleteFunc(fs.list, func(f activeFault) bool { return f.until <= now })
	}
	if len(fs.list) >= faultLimit {
		return fmt.Errorf("%d faults are waiting or at work: clear them first", faultLimit)
	}
	fs.list = append(fs.list, f)
	return nil
}

// clear ends what is at work and forgets what has not begun. Frozen steps need
// to know their past, so the list is cut, not emptied.
func (fs *faults) clear(now time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.list = slices.DeleteFunc(fs.list, func(f activeFault) bool { return f.from >= now })
	for i := range fs.list {
		fs.list[i].until = min(fs.list[i].until, now)
	}
}

// current are those not yet over.
func (fs *faults) current(now time.Duration) []activeFault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(fs.list), func(f activeFault) bool { return f.until <= now })
}

// end is when a replica's step of length d is done that began at start. The
// engine's speed is 0 while it is frozen and 1/factor while it is slowed; the
// step ends when the speed has summed up to d.
func (fs *faults) end(replica int, start, d time.Duration) time.Duration {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	left := d
	for t := start; ; {
		speed, until := 1.0, never
		for i := range fs.list {
			f := &fs.list[i]
			if f.Kind != Freeze && f.Kind != Slow || f.Replica != AllReplicas && f.Replica != replica || f.until <= t {
				continue
			}
			if f.from > t {
				until = min(until, f.from)
				continue
			}
			until = min(until, f.until)
			if f.Kind == Freeze {
				speed = 0
			} else {
				speed /= f.Factor
			}
		}
		switch {
		case speed == 0 && until == never:
			return never
		case speed == 1 && until-t >= left:
			return t + left
		case speed > 0:
			need := math.Round(float64(left) / speed)
			if need > float64(never/4) {
				return never
			}
			if until-t >= time.Duration(need) {
				return t + time.Duration(need)
			}
			left -= time.Duration(speed * float64(until-t))
		}
		t = until
	}
}

// fate is what a request is in for: nothing, where kind is empty.
type fate struct {
	kind  FaultKind
	after int
}

// draw decides at a request's arrival.
func (fs *faults) draw(replica int, now time.Duration) fate {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range fs.list {
		f := &fs.list[i]
		if (f.hits(Drop, replica, now) || f.hits(MidStream, replica, now)) && fs.rng.Float64() < f.Share {
			after := f.After
			if f.Kind == MidStream {
				after = max(1, after)
			}
			return fate{f.Kind, after}
		}
	}
	return fate{}
}

// stall is how late a metrics page of any of the replicas is.
func (fs *faults) stall(replicas []*replica, now time.Duration) time.Duration {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var d time.Duration
	for i := range fs.list {
		for _, r := range replicas {
			if fs.list[i].hits(StallMetrics, r.index, now) {
				d = max(d, fs.list[i].Delay)
			}
		}
	}
	return d
}

// Inject orders a fault. When it returns, a fault without At is at work.
func (s *Server) Inject(f Fault) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("httpapi: %w", err)
	}
	if f.Replica >= len(s.replicas) {
		return fmt.Errorf("httpapi: no replica %d: there are %d, counted from 0", f.Replica, len(s.replicas))
	}
	now := time.Since(s.start)
	a := activeFault{Fault: f, from: now + f.At, until: never}
	if f.For > 0 || f.Kind == Restart {
		a.until = a.from + f.For
	}
	if err := s.faults.add(a, now); err != nil {
		return fmt.Errorf("httpapi: %w", err)
	}
	hit := s.replicas
	if f.Replica != AllReplicas {
		hit = hit[f.Replica : f.Replica+1]
	}
	switch {
	case f.Kind != Restart:
		for _, r := range hit {
			r.disturb()
		}
	case f.At == 0:
		restart(hit, f.For)
	default:
		time.AfterFunc(f.At, func() {
			// Unless it was cleared meanwhile.
			if slices.ContainsFunc(s.faults.all(), func(b activeFault) bool { return a == b }) {
				restart(hit, f.For)
			}
		})
	}
	return nil
}

// all is a copy of the list, what is over included.
func (fs *faults) all() []activeFault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Clone(fs.list)
}

func restart(replicas []*replica, down time.Duration) {
	for _, r := range replicas {
		r.kill(down)
	}
	for _, r := range replicas {
		r.revived()
	}
}

// ClearFaults ends every fault, but for the time that a restart takes.
func (s *Server) ClearFaults() {
	s.faults.clear(time.Since(s.start))
	for _, r := range s.replicas {
		r.disturb()
	}
}

// admin answers /sim/faults: GET shows the faults that wait or are at work, POST
// orders one, DELETE clears all. It answers this machine alone, and no web page
// that a browser on it shows.
func (s *Server) admin(w http.ResponseWriter, r *http.Request) {
	if !local(r.RemoteAddr) || r.Header.Get("Origin") != "" {
		(&apiError{http.StatusForbidden, "ForbiddenError", "", "faults are ordered from the loopback address alone"}).write(w)
		return
	}
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		var f Fault
		if err := readJSON(w, r, &f); err != nil {
			err.write(w)
			return
		}
		if err := s.Inject(f); err != nil {
			badRequest("", "%v", err).write(w)
			return
		}
	case http.MethodDelete:
		s.ClearFaults()
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	now := time.Since(s.start)
	list := s.faults.current(now)
	if list == nil {
		list = []activeFault{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"now": now.String(), "faults": list})
}

// local tells whether a peer is on this machine. What is no TCP address is: a
// Unix socket, or a pipe in a test.
func local(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true
	}
	host, _, _ = strings.Cut(host, "%")
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
