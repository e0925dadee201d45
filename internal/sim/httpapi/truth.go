package httpapi

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// TruthLog writes truths as JSON lines: Add is for Options.Truth. What was added
// is written within a second, and all of it by Close. At most a few thousand
// truths wait; where the writer is slower than that, answers wait for it, for
// nothing is left out.
type TruthLog struct {
	lines   chan Truth
	closing chan struct{}
	ended   chan struct{}
	once    sync.Once
	err     error
}

// NewTruthLog writes to w until Close.
func NewTruthLog(w io.Writer) *TruthLog {
	l := &TruthLog{lines: make(chan Truth, 4096), closing: make(chan struct{}), ended: make(chan struct{})}
	go l.run(w)
	return l
}

// Add logs t. What comes after Close is lost.
func (l *TruthLog) Add(t Truth) {
	select {
	case l.lines <- t:
	case <-l.ended:
	}
}

// Close writes what waits and returns the first error of writing; what came
// after it is lost.
func (l *TruthLog) Close() error {
	l.once.Do(func() { close(l.closing) })
	<-l.ended
	return l.err
}

func (l *TruthLog) run(w io.Writer) {
	defer close(l.ended)
	b := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(b)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	keep := func(err error) {
		if l.err == nil {
			l.err = err
		}
	}
	for {
		select {
		case t := <-l.lines:
			keep(enc.Encode(&t))
		case <-tick.C:
			keep(b.Flush())
		case <-l.closing:
			for {
				select {
				case t := <-l.lines:
					keep(enc.Encode(&t))
				default:
					keep(b.Flush())
					return
				}
			}
		}
	}
}

// MarshalJSON gives the time of arrival, and the others as nanoseconds after it,
// null where they never came.
func (t *Truth) MarshalJSON() ([]byte, error) {
	after := func(at time.Time) *int64 {
		if at.IsZero() {
			return nil
		}
		ns := int64(at.Sub(t.Arrived))
		return &ns
	}
	finish := t.Finish.String()
	switch {
	case t.Fault != "":
		finish = string(t.Fault)
	case finish == "":
		finish = "died"
	}
	v := struct {
		ID           string  `json:"id"`
		Replica      int     `json:"replica"`
		Arrived      string  `json:"arrived"`
		Scheduled    *int64  `json:"scheduled_ns"`
		FirstToken   *int64  `json:"first_token_ns"`
		FirstWrite   *int64  `json:"first_write_ns"`
		LastWrite    *int64  `json:"last_write_ns"`
		Steps        []int64 `json:"steps_ns"`
		PromptTokens int     `json:"prompt_tokens"`
		CachedTokens int     `json:"cached_tokens"`
		OutputTokens int     `json:"output_tokens"`
		Preemptions  int     `json:"preemptions"`
		Finish       string  `json:"finish"`
	}{
		ID: t.ID, Replica: t.Replica, Arrived: t.Arrived.Format(time.RFC3339Nano),
		Scheduled: after(t.Scheduled), FirstToken: after(t.FirstToken), FirstWrite: after(t.FirstWrite), LastWrite: after(t.LastWrite),
		Steps: make([]int64, len(t.Steps)), PromptTokens: t.PromptTokens, CachedTokens: t.CachedTokens,
		OutputTokens: t.OutputTokens, Preemptions: t.Preemptions, Finish: finish,
	}
	for i, s := range t.Steps {
		v.Steps[i] = int64(s.Sub(t.Arrived))
	}
	return json.Marshal(v)
}
