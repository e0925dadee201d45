package record

import "time"

// between returns b - a, or false where either never came.
func between(a, b time.Duration) (time.Duration, bool) {
	if a == Unset || b == Unset {
		return 0, false
	}
	return b - a, true
}

// TTFT is first_output - scheduled: what the user waited for the first output.
func (r *Record) TTFT() (time.Duration, bool) { return between(r.Scheduled, r.FirstOutput) }

// FirstAnswerTime is first_answer - scheduled: the wait for output that is not reasoning.
func (r *Record) FirstAnswerTime() (time.Duration, bool) { return between(r.Scheduled, r.FirstAnswer) }

// ServiceTTFT is first_output - sent: what the server and the network took.
func (r *Record) ServiceTTFT() (time.Duration, bool) { return between(r.Sent, r.FirstOutput) }

// Lateness is released - scheduled: the instrument's own fault.
func (r *Record) Lateness() (time.Duration, bool) { return between(r.Scheduled, r.Released) }

// CapWait is admitted - released: the plan's choice.
func (r *Record) CapWait() (time.Duration, bool) { return between(r.Released, r.Admitted) }

// Connect is connected - admitted: DNS, connect and TLS. Lateness, cap wait and
// connect sum to the send delay.
func (r *Record) Connect() (time.Duration, bool) { return between(r.Admitted, r.Connected) }

// E2E is last_output - scheduled, or done - scheduled where nothing streams. It
// is false for every turn that was not ok: what a broken, refused or cut one
// delivered is not its end.
func (r *Record) E2E() (time.Duration, bool) {
	switch {
	case r.Outcome != OK:
		return 0, false
	case !r.Streamed:
		return between(r.Scheduled, r.Done)
	}
	return between(r.Scheduled, r.LastOutput)
}

// TPOT is the time per output token after the first output event:
//
//	(last_output - first_output) / (tokens delivered after the first event)
//
// Where events carry no counts, n - 1 of the n output tokens are taken to come
// after the first event. It is undefined (false) where all tokens came in one
// event, where nothing streams, and where usage counts tokens that were never
// delivered.
func (r *Record) TPOT() (time.Duration, bool) {
	d, ok := between(r.FirstOutput, r.LastOutput)
	if !ok || len(r.Events) < 2 || r.OutputTokens < 2 || r.HiddenTokens {
		return 0, false
	}
	after := r.OutputTokens - 1
	if first := r.Events[0].Tokens; first > 0 {
		after = r.OutputTokens - int(first)
	}
	if after <= 0 {
		return 0, false
	}
	return d / time.Duration(after), true
}

// Gaps calls yield with the times between successive output events (inter-chunk
// latency), in their order, until that returns false.
func (r *Record) Gaps(yield func(time.Duration) bool) {
	for i := 1; i < len(r.Events); i++ {
		if !yield(r.Events[i].At - r.Events[i-1].At) {
			return
		}
	}
}

// Stall is the largest gap.
func (r *Record) Stall() (longest time.Duration, ok bool) {
	for gap := range r.Gaps {
		longest, ok = max(longest, gap), true
	}
	return longest, ok
}

// ITL calls yield with each inter-token latency, a gap divided by the tokens in
// its later event, and that number of tokens (how often it counts). It reports
// false, calling nothing, where events carry no counts and more tokens than
// events came: the figure is then unknown.
func (r *Record) ITL(yield func(d time.Duration, times int)) bool {
	if len(r.Events) < 2 || r.OutputTokens < 0 {
		return false
	}
	counted := true
	for _, e := range r.Events {
		counted = counted && e.Tokens >= 0
	}
	if !counted && r.OutputTokens != len(r.Events) {
		return false
	}
	for i := 1; i < len(r.Events); i++ {
		n := 1
		if counted {
			n = int(r.Events[i].Tokens)
		}
		if n > 0 {
			yield((r.Events[i].At-r.Events[i-1].At)/time.Duration(n), n)
		}
	}
	return true
}
