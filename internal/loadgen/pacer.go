package loadgen

import "time"

// A Pacer sleeps to absolute times on the run's clock for the one goroutine
// that dispatches.
type Pacer interface {
	// Wait returns once the clock reads until or later, or earlier when Wake
	// was called since the last Wait returned. It never returns early
	// otherwise. until may lie in the past.
	Wait(until time.Duration)
	// Wake ends the Wait that runs, or the next one. Any goroutine may call it.
	Wake()
	// Close frees the pacer. It is called by the goroutine that called Wait,
	// after every Wake has returned.
	Close()
}

// forever is a time that no run reaches.
const forever time.Duration = 1<<63 - 1

// NewVirtualPacer returns a pacer on an ordinary timer, late by up to a
// millisecond on a real clock and exact on the fake clock of a test bubble,
// where spinning would never end.
func NewVirtualPacer(now func() time.Duration) Pacer {
	return &timerPacer{now: now, wake: make(chan struct{}, 1)}
}

type timerPacer struct {
	now  func() time.Duration
	wake chan struct{}
}

func (p *timerPacer) Wait(until time.Duration) {
	if until == forever {
		<-p.wake
		return
	}
	t := time.NewTimer(until - p.now())
	defer t.Stop()
	for {
		select {
		case <-p.wake:
			return
		case <-t.C:
		}
		d := until - p.now()
		if d <= 0 {
			return
		}
		t.Reset(d) // the timer and the run's clock need not be the same
	}
}

func (p *timerPacer) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *timerPacer) Close() {}
