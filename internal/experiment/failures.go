package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// failures collects what measured turns say of why they failed: the counts tell
// that something is wrong, these what.
type failures struct {
	measured map[string]bool // by the phase's name
	seen     map[string]*failure
	limits   []string // local resources that ran out
}

// exhausted are the words in which the system says that a local resource ran
// out: then the instrument failed, not the server.
var exhausted = []struct{ words, limit string }{
	{"too many open files", "open files"},
	{"cannot assign requested address", "local ports"},
	{"no buffer space available", "socket buffers"},
}

type failure struct {
	text string // the first one's
	n    int64
}

// A server whose errors are all different is told by some of them.
const (
	maxReasons   = 200 // kept apart
	shownReasons = 3
)

func newFailures(phases []plan.Phase) *failures {
	f := &failures{measured: map[string]bool{}, seen: map[string]*failure{}}
	for _, p := range phases {
		f.measured[p.Name] = p.Measured
	}
	return f
}

// add takes one record. Messages that differ in numbers alone (ports, ids,
// tokens) are one reason.
func (f *failures) add(r *record.Record) {
	if r.Outcome == record.ConnectError {
		for _, x := range exhausted {
			if strings.Contains(r.Error, x.words) && !slices.Contains(f.limits, x.limit) {
				f.limits = append(f.limits, x.limit)
			}
		}
	}
	if r.Error == "" || !f.measured[r.Phase] || !r.Outcome.Offered() {
		return
	}
	text := r.Outcome.String()
	if r.HTTPStatus > 0 && r.HTTPStatus != 200 {
		text += fmt.Sprintf(" (HTTP %d)", r.HTTPStatus)
	}
	text += ": " + r.Error
	key := strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return -1
		}
		return c
	}, r.Error)
	key = fmt.Sprint(r.Outcome, r.HTTPStatus, key)
	have := f.seen[key]
	if have == nil {
		if len(f.seen) == maxReasons {
			return
		}
		have = &failure{text: text}
		f.seen[key] = have
	}
	have.n++
}

// findings are the most frequent reasons.
func (f *failures) findings() (list []analysis.Finding) {
	all := slices.SortedFunc(maps.Values(f.seen), func(a, b *failure) int {
		return cmp.Or(cmp.Compare(b.n, a.n), strings.Compare(a.text, b.text))
	})
	for i, x := range all {
		if i == shownReasons {
			list = append(list, analysis.Finding{Rule: "failure", Severity: analysis.Note, Message: fmt.Sprintf("further reasons: %d; the error column of records.parquet has them all", len(all)-i)})
			break
		}
		turns := "turns"
		if x.n == 1 {
			turns = "turn"
		}
		list = append(list, analysis.Finding{Rule: "failure", Severity: analysis.Warning, Message: fmt.Sprintf("%d %s: %s", x.n, turns, x.text)})
	}
	return list
}
