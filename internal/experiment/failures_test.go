package experiment

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

func TestFailures_TheMostFrequentReasonsAreTold(t *testing.T) {
	f := newFailures([]plan.Phase{{Name: "warm-up"}, {Name: "steady", Measured: true}})
	add := func(n int, phase string, outcome record.Outcome, status int, text string) {
		for i := range n {
			f.add(&record.Record{Phase: phase, Outcome: outcome, HTTPStatus: status, Error: strings.ReplaceAll(text, "#", fmt.Sprint(i))})
		}
	}
	add(9, "warm-up", record.HTTPError, 500, "not measured")
	add(9, "steady", record.Skipped, 0, "never asked")
	add(9, "steady", record.Timeout, 0, "")
	add(2, "steady", record.Rejected, 503, "overloaded")
	add(3, "steady", record.Rejected, 429, "overloaded")
	add(7, "steady", record.StreamError, 200, "read 127.0.0.1:4000# -> 127.0.0.1:80: reset") // one reason, seven ports
	add(1, "steady", record.Empty, 200, "finished without any output")
	var got []string
	for _, x := range f.findings() {
		got = append(got, x.Message)
	}
	want := []string{
		"7 turns: stream_error: read 127.0.0.1:40000 -> 127.0.0.1:80: reset",
		"3 turns: rejected (HTTP 429): overloaded",
		"2 turns: rejected (HTTP 503): overloaded",
		"further reasons: 1; the error column of records.parquet has them all",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Errors without end are no memory without end.
	for i := range 10 * maxReasons {
		f.add(&record.Record{Phase: "steady", Outcome: record.HTTPError, Error: strings.Repeat("x", i)})
	}
	if len(f.seen) > maxReasons {
		t.Errorf("%d reasons are kept", len(f.seen))
	}
}

func TestLatePreparedIsAFinding(t *testing.T) {
	for _, c := range []struct {
		late, turns int64
		want        int
	}{{0, 0, 0}, {0, 10, 0}, {1, 1000, 0}, {2, 1000, 1}, {1, 999, 1}} {
		var f findings
		f.prepared(c.late, c.turns)
		if len(f.findings) != c.want {
			t.Errorf("%d of %d: %+v", c.late, c.turns, f.findings)
		}
	}
}
