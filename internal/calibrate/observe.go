package calibrate

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/trueload/trueload/internal/record"
)

const (
	// maxEvents bounds what is held in memory, to about half a GB: records after
	// that many output events are left out.
	maxEvents = 8_000_000
	// maxGaps is how many gaps are looked at, evenly over the run: more make the
	// fit slower and not better.
	maxGaps = 500_000
)

// observation is one measured time, with the batch it is a function of.
type observation struct {
	seconds float64
	// decodes are the requests that decoded beside it, and in a gap itself;
	// context is the sum of their lengths. Not whole where replicas share them.
	decodes, context float64
	// prompt, for a time to first output, is how many tokens of it were computed,
	// after cached others. 0: a gap.
	prompt, cached int
	// wait is what of a decode step went by before its prompt was begun.
	wait float64
	// share is the part of an independent observation that this is: the gaps of
	// one step are one.
	share float64
	held  bool // held out of the fit, to judge it
}

// served is a request as far as it reached the server.
type served struct {
	session       int64
	sent, first   time.Duration
	last          time.Duration // the end of its place in the batch
	input, cached int
	events        []event
}

// event is all that left at one time.
type event struct {
	at     time.Duration
	tokens int32
}

// history is a run as its records tell it.
type history struct {
	requests     []served
	simulated    bool
	cachedKnown  bool // of some request, how many prompt tokens were cached
	gaps, firsts int
	notes        []string

	// In order of time. waiting requests were sent, and had no output yet.
	sent, first []time.Duration
	// batch is who decodes from a time on.
	batch []change
}

type change struct {
	at               time.Duration
	decodes, context int64 // the sums of all changes so far
}

func read(records Records) (*history, error) {
	h := &history{}
	var n, events, whole, noInput, noCached, uncounted, over int
	err := records(func(r *record.Record) error {
		if r.StampSource == "simulated" {
			h.simulated = true
		}
		if r.Sent == record.Unset {
			return nil
		}
		n++
		if events > maxEvents {
			over++
			return nil
		}
		s := served{session: r.ID.Session, sent: r.Sent, first: r.FirstOutput, last: r.LastOutput, input: r.InputTokens, cached: r.CachedTokens}
		if s.first == record.Unset || len(r.Events) == 0 || !r.Streamed {
			// It waited, and had nothing.
			s.first, s.last = max(r.Done, r.Sent), record.Unset
			if r.Outcome == record.OK {
				whole++
			}
			h.requests = append(h.requests, s)
			return nil
		}
		if s.input < 0 {
			s.input = r.AskedInput
		}
		if s.input < 0 {
			noInput++
		}
		if r.CachedTokens < 0 {
			noCached++
		} else {
			h.cachedKnown = true
		}
		s.last = max(s.last, r.Events[len(r.Events)-1].At)
		if r.Outcome != record.OK {
			s.last = max(s.last, r.Done)
		}
		known := r.OutputTokens == len(r.Events)
		for i, e := range r.Events {
			tokens := e.Tokens
			if tokens < 0 {
				tokens = 1
				if !known {
					uncounted++
				}
			}
			if i > 0 && e.At < r.Events[i-1].At {
				return fmt.Errorf("session %d, turn %d: its output events are not in the order of time: the records are damaged", r.ID.Session, r.ID.Turn)
			}
			if k := len(s.events); k > 0 && s.events[k-1].at == e.At {
				s.events[k-1].tokens += tokens // one read, or one step
			} else {
				s.events = append(s.events, event{e.At, tokens})
			}
		}
		if s.sent > s.first || s.events[0].at < s.sent {
			return fmt.Errorf("session %d, turn %d: its first output lies before it was sent: the records are damaged", r.ID.Session, r.ID.Turn)
		}
		events += len(s.events)
		h.requests = append(h.requests, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("the result holds no request that was sent")
	}
	note := func(n int, format string, args ...any) {
		if n > 0 {
			h.notes = append(h.notes, fmt.Sprintf(format, args...))
		}
	}
	note(whole, "%d answers came whole, not streamed: the server's batch held them, and the fit does not know when", whole)
	note(noInput, "of %d requests the length of the prompt is unknown: they are left out, and counted without context", noInput)
	if !h.cachedKnown {
		note(noCached, "the server did not say how many prompt tokens were cached: none is taken to be, and where some were, prefill looks faster than it is")
	}
	note(uncounted, "%d output events carry no count: each is taken for one token", uncounted)
	note(over, "more than %d output events: %d requests after them are left out", maxEvents, over)
	h.index()
	return h, nil
}

// index makes what observe looks up.
func (h *history) index() {
	for i := range h.requests {
		s := &h.requests[i]
		h.sent, h.first = append(h.sent, s.sent), append(h.first, s.first)
		if len(s.events) == 0 {
			continue
		}
		length := int64(max(s.input, 0))
		h.batch = append(h.batch, change{s.first, 1, length})
		for _, e := range s.events {
			length += int64(e.tokens)
			h.batch = append(h.batch, change{e.at, 0, int64(e.tokens)})
		}
		h.batch = append(h.batch, change{s.last, -1, -length})
	}
	slices.Sort(h.sent)
	slices.Sort(h.first)
	slices.SortFunc(h.batch, func(a, b change) int { return int(min(max(a.at-b.at, -1), 1)) })
	for i := 1; i < len(h.batch); i++ {
		h.batch[i].decodes += h.batch[i-1].decodes
		h.batch[i].context += h.batch[i-1].context
	}
}

// waiting is how many requests wait for a first output in some part of (from, to).
func (h *history) waiting(from, to time.Duration) int {
	sent := sort.Search(len(h.sent), func(i int) bool { return h.sent[i] >= to })
	first := sort.Search(len(h.first), func(i int) bool { return h.first[i] > from })
	return sent - first
}

// at is who decodes at t, and the sum of their lengths.
func (h *history) at(t time.Duration) (decodes, context float64) {
	i := sort.Search(len(h.batch), func(i int) bool { return h.batch[i].at > t })
	if i == 0 {
		return 0, 0
	}
	return float64(h.batch[i-1].decodes), float64(h.batch[i-1].context)
}

// next is the first output of anyone from t on.
func (h *history) next(t time.Duration) (at time.Duration, ok bool) {
	i := sort.Search(len(h.batch), func(i int) bool { return h.batch[i].at >= t })
	if i == len(h.batch) {
		return 0, false
	}
	return h.batch[i].at, true
}

// observe returns the gaps in which all requests decode, of about maxGaps that are
// looked at, and the times to first output of requests that were alone in
// waiting for theirs.
func (h *history) observe(replicas, maxGaps int) (gaps, firsts []observation) {
	r := float64(replicas)
	total := 0
	for i := range h.requests {
		total += max(0, len(h.requests[i].events)-1)
	}
	stride := (total + maxGaps - 1) / maxGaps // of so many, one is looked at
	if stride > 1 {
		h.notes = append(h.notes, fmt.Sprintf("one gap in %d is looked at, of %d", stride, total))
	}
	for i := range h.requests {
		s := &h.requests[i]
		if len(s.events) == 0 {
			continue
		}
		h.firsts++
		h.gaps += len(s.events) - 1
		if s.input < 0 {
			continue
		}
		// By halves of sessions, so that no session is on both sides.
		held := s.session%2 != 0
		if s.first > s.sent && (s.cached >= 0 || !h.cachedKnown) && h.waiting(s.sent, s.first) == 1 {
			d, c := h.at(s.first - 1)
			ob := observation{decodes: d / r, context: c / r, share: 1, held: held}
			ob.cached = max(0, min(s.cached, s.input-1))
			ob.prompt = max(s.input-ob.cached, 1)
			begun := s.sent
			switch {
			case d == 0:
			case replicas == 1: // the step that ran when it came ends with an output of others
				if end, ok := h.next(s.sent); ok && end < s.first {
					begun = end
				}
			default:
				ob.wait = 0.5 // half of that step is left, on average
			}
			ob.seconds = (s.first - begun).Seconds()
			firsts = append(firsts, ob)
		}
		length := float64(s.input)
		for k := 1; k < len(s.events); k++ {
			from, to, n := s.events[k-1].at, s.events[k].at, s.events[k].tokens
			length += float64(s.events[k-1].tokens)
			if n < 1 || (h.gaps+k)%stride != 0 || h.waiting(from, to) > 0 {
				continue
			}
			d, c := h.at(from + (to-from)/2)
			if d < 1 {
				continue // records that contradict each other
			}
			gaps = append(gaps, observation{
				seconds: (to - from).Seconds() / float64(n),
				decodes: 1 + (d-1)/r, context: length + (c-length)/r,
				// Those of its step's gaps that are in one half and looked at.
				share: 1 / max(1, (1+(d-1)/r)/2/float64(stride)), held: held,
			})
		}
	}
	return gaps, firsts
}
