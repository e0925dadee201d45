package loadgen

import (
	"context"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// session is a plan.Session on its way.
type session struct {
	*plan.Session
	phase   string   // of its arrival
	replies []string // of live turns, as far as they came
	planned bool     // its turns are counted in Planned, so each must end in a record
	failed  bool     // a turn went wrong: later ones are skipped
	left    int      // turns without an outcome
}

// turn is one turn on its way. One goroutine at a time owns it: dispatcher,
// preparer, worker, dispatcher.
type turn struct {
	s   *session
	i   int           // index into s.Turns
	due time.Duration // Unset until known
	rec *record.Record

	// From the preparer.
	send  func(context.Context, *record.Record) string
	ready time.Duration
	err   error

	// From the worker.
	outcome record.Outcome
	done    time.Duration
	reply   string

	begun bool // handed to a worker
	over  bool // has its outcome
}

func (t *turn) plan() *plan.Turn { return &t.s.Turns[t.i] }

// strict tells whether turn i of s has an absolute time that waits for nothing:
// a scripted session's turn with a time of its own.
func (s *session) strict(i int) bool { return i > 0 && s.Scripted && s.Turns[i].At != plan.Unset }

// action is what an agenda item asks for.
type action uint8

const (
	doPrepare action = iota // hand the turn to the preparers
	doSend                  // the turn is due
	doExpire                // the turn's deadline or hang-up, should it still wait for a slot
	doReady                 // a closed loop's client wants its next session
)

type item struct {
	at  time.Duration
	seq int64 // among equal times, in order of entry
	do  action
	t   *turn // nil for doReady
}

// agenda is a binary heap of what is to be done and when.
type agenda struct {
	items []item
	seq   int64
}

func (a *agenda) less(i, j int) bool {
	x, y := &a.items[i], &a.items[j]
	return x.at < y.at || x.at == y.at && x.seq < y.seq
}

func (a *agenda) push(at time.Duration, do action, t *turn) {
	a.seq++
	a.items = append(a.items, item{at, a.seq, do, t})
	for i := len(a.items) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.less(i, up) {
			break
		}
		a.items[i], a.items[up] = a.items[up], a.items[i]
		i = up
	}
}

// next is the time of the earliest item, or forever.
func (a *agenda) next() time.Duration {
	if len(a.items) == 0 {
		return forever
	}
	return a.items[0].at
}

func (a *agenda) pop() item {
	it, n := a.items[0], len(a.items)-1
	a.items[0] = a.items[n]
	a.items[n] = item{}
	a.items = a.items[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down+1 < n && a.less(down+1, down) {
			down++
		}
		if down >= n || !a.less(down, i) {
			return it
		}
		a.items[i], a.items[down] = a.items[down], a.items[i]
		i = down
	}
}
