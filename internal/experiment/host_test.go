package experiment

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/record"
)

func TestParseHost(t *testing.T) {
	steal, all := parseStat([]byte("cpu  100 5 50 1000 20 3 2 40 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"))
	if steal != 40 || all != 1220 {
		t.Errorf("steal %v of %v, want 40 of 1220", steal, all)
	}
	if got := parseThrottled([]byte("usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n")); got != 1500*time.Microsecond {
		t.Errorf("throttled %v", got)
	}
	if got := parseThrottled(nil); got != -1 {
		t.Errorf("throttled of nothing is %v, want -1: unknown", got)
	}
	if got := parseMemTotal([]byte("MemTotal:       24000000 kB\nMemFree: 1 kB\n")); got != 24000000<<10 {
		t.Errorf("memory %d", got)
	}
	for _, b := range []string{"", "cpu", "cpu a b c d e f g h", "MemTotal: x kB"} {
		if _, all := parseStat([]byte(b)); all != 0 {
			t.Errorf("%q: %v", b, all)
		}
		if parseMemTotal([]byte(b)) != 0 {
			t.Errorf("%q is no memory", b)
		}
	}
}

func TestLocalLimitsAreNoticed(t *testing.T) {
	f := newFailures(nil)
	for _, text := range []string{
		"connect to 127.0.0.1:1: socket: too many open files (raise it: ulimit -n)",
		"connect to 127.0.0.1:1: connect: cannot assign requested address",
		"connect to 127.0.0.1:1: connect: connection refused",
		"connect to 127.0.0.1:1: socket: too many open files",
	} {
		f.add(&record.Record{Outcome: record.ConnectError, Error: text})
	}
	f.add(&record.Record{Outcome: record.HTTPError, Error: "the server says: too many open files"})
	if d := cmp.Diff([]string{"open files", "local ports"}, f.limits); d != "" {
		t.Error(d)
	}
}
