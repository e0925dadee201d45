package record

import "fmt"

// Outcome is how one planned turn ended. Every planned turn ends in exactly
// one, and they sum to the number planned (measurement contract, section 3).
type Outcome uint8

const (
	// Pending is the zero value: the turn has not ended. It never reaches a result.
	Pending Outcome = iota
	OK
	Rejected     // 429 or 503, or an overload error inside the stream
	HTTPError    // any other answer that is not 2xx
	StreamError  // an error in the stream, a malformed event, or a stream cut before its finish reason
	Empty        // finished without any output
	Timeout      // its own deadline passed
	ConnectError // no connection
	Cancelled    // the plan hung up here, as users do
	Unfinished   // due, and the run ended first
	Shed         // the in-flight cap was reached and the policy is to shed
	Skipped      // a later turn of a session whose earlier turn failed
	NotDue       // its time lies after the end of the load
)

// Outcomes are all final outcomes, in the order reports list them.
var Outcomes = []Outcome{OK, Rejected, HTTPError, StreamError, Empty, Timeout, ConnectError, Cancelled, Unfinished, Shed, Skipped, NotDue}

var outcomeNames = [...]string{"pending", "ok", "rejected", "http_error", "stream_error", "empty", "timeout", "connect_error", "cancelled", "unfinished", "shed", "skipped", "not_due"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// MarshalText writes the promised name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the promised name.
func (o *Outcome) UnmarshalText(b []byte) error {
	for i, n := range outcomeNames {
		if n == string(b) {
			*o = Outcome(i)
			return nil
		}
	}
	return fmt.Errorf("unknown outcome %q", b)
}

// Offered tells whether a user would have asked this turn: all but skipped and
// not_due. Offered turns are the denominator of attainment and of the headline
// quantiles.
func (o Outcome) Offered() bool { return o != Skipped && o != NotDue }
