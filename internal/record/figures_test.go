package record

import (
	"testing"
	"time"

	"github.com/trueload/trueload/internal/plan"
)

const ms = time.Millisecond

// Every figure of the measurement contract, section 2, of one turn due at 1 s
// whose stamps lie apart by amounts that no two sums share.
func TestFigures(t *testing.T) {
	streamed := func(change func(*Record)) *Record {
		r := New(&plan.Session{}, &plan.Turn{})
		r.Outcome, r.Streamed, r.OutputTokens = OK, true, 5
		r.Scheduled, r.Released, r.Admitted, r.Connected = 1000*ms, 1001*ms, 1003*ms, 1007*ms
		r.Sent, r.Written, r.Headers = 1015*ms, 1016*ms, 1050*ms
		r.FirstOutput, r.FirstAnswer, r.LastOutput, r.Done = 1100*ms, 1200*ms, 1420*ms, 1500*ms
		r.Events = []Event{{1100 * ms, 1, 0}, {1200 * ms, 1, 0}, {1420 * ms, 3, 0}}
		if change != nil {
			change(r)
		}
		return r
	}
	const none = Unset
	for _, c := range []struct {
		name                                   string
		rec                                    *Record
		ttft, answer, service, late, cap, conn time.Duration
		e2e, tpot, stall                       time.Duration
	}{
		{"streamed", streamed(nil), 100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, 420 * ms, 80 * ms, 220 * ms},
		{"events without counts: all tokens but one came after the first", streamed(func(r *Record) {
			for i := range r.Events {
				r.Events[i].Tokens = -1
			}
		}), 100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, 420 * ms, 80 * ms, 220 * ms},
		{"tokens that were never delivered", streamed(func(r *Record) { r.HiddenTokens = true }),
			100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, 420 * ms, none, 220 * ms},
		{"all tokens in the first event", streamed(func(r *Record) { r.Events[0].Tokens = 5 }),
			100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, 420 * ms, none, 220 * ms},
		{"reasoning alone", streamed(func(r *Record) { r.FirstAnswer = Unset }),
			100 * ms, none, 85 * ms, ms, 2 * ms, 4 * ms, 420 * ms, 80 * ms, 220 * ms},
		{"whole: the end is done", streamed(func(r *Record) { r.Streamed, r.Events = false, nil }),
			100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, 500 * ms, none, none},
		{"a stream that broke has no end, and what came of it came", streamed(func(r *Record) { r.Outcome = StreamError }),
			100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, none, 80 * ms, 220 * ms},
		{"hung up", streamed(func(r *Record) { r.Outcome = Cancelled }),
			100 * ms, 200 * ms, 85 * ms, ms, 2 * ms, 4 * ms, none, 80 * ms, 220 * ms},
		{"a refusal is no fast reply", func() *Record {
			r := New(&plan.Session{}, &plan.Turn{})
			r.Outcome, r.Scheduled, r.Released, r.Admitted, r.Connected, r.Sent, r.Done = Rejected, 0, 0, 0, ms, ms, 5*ms
			return r
		}(), none, none, none, 0, 0, ms, none, none, none},
		{"never due", New(&plan.Session{}, &plan.Turn{}), none, none, none, none, none, none, none, none, none},
	} {
		for _, f := range []struct {
			name string
			get  func() (time.Duration, bool)
			want time.Duration
		}{
			{"ttft", c.rec.TTFT, c.ttft}, {"first_answer", c.rec.FirstAnswerTime, c.answer}, {"service_ttft", c.rec.ServiceTTFT, c.service},
			{"lateness", c.rec.Lateness, c.late}, {"cap_wait", c.rec.CapWait, c.cap}, {"connect", c.rec.Connect, c.conn},
			{"e2e", c.rec.E2E, c.e2e}, {"tpot", c.rec.TPOT, c.tpot}, {"stall", c.rec.Stall, c.stall},
		} {
			got, ok := f.get()
			if ok != (f.want != none) || ok && got != f.want {
				t.Errorf("%s: %s is %v (%v), want %v", c.name, f.name, got, ok, f.want)
			}
		}
	}
}
