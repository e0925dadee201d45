package loadgen

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// spin is how long before the due time the thread stops sleeping and watches
// the clock: a wake-up from sleep takes 40 to 90 µs.
const spin = 60 * time.Microsecond

// NewPacer returns the pacer for real runs: a thread of its own that sleeps in
// ppoll with the kernel's timer slack at its least, and spins for the last
// 60 µs. time.Sleep is late by 0.5 ms in the middle and 1.1 ms at p99; this by
// 0.2 µs and 60 µs on an idle machine. Where the kernel gives no eventfd it is
// an ordinary timer.
func NewPacer(now func() time.Duration) Pacer {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return NewVirtualPacer(now)
	}
	return &threadPacer{now: now, fd: fd}
}

type threadPacer struct {
	now    func() time.Duration
	fd     int
	woken  atomic.Bool // Wake was called since the last Wait returned
	asleep atomic.Bool // the thread is in ppoll, or about to be
	locked bool
	slack  int // of the thread before, in ns
}

func (p *threadPacer) Wait(until time.Duration) {
	if !p.locked {
		p.locked = true
		runtime.LockOSThread()
		p.slack, _ = unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		// Failure leaves the default of 50 µs, which lateness will show.
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	for !p.woken.Load() {
		d := until - p.now()
		if d <= 0 {
			break
		}
		if d <= spin {
			continue
		}
		// Wake sets woken first and looks at asleep after; here it is the
		// other way round, so one of the two sees the other.
		p.asleep.Store(true)
		if !p.woken.Load() {
			p.sleep(until, d-spin)
		}
		p.asleep.Store(false)
	}
	p.woken.Store(false)
}

func (p *threadPacer) sleep(until, d time.Duration) {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	var timeout *unix.Timespec
	if until != forever {
		ts := unix.NsecToTimespec(int64(d))
		timeout = &ts
	}
	// EINTR and every other error end in the loop above, which looks again.
	if n, _ := unix.Ppoll(fds, timeout, nil); n > 0 {
		var b [8]byte
		_, _ = unix.Read(p.fd, b[:])
	}
}

func (p *threadPacer) Wake() {
	if p.woken.Swap(true) || !p.asleep.Load() {
		return
	}
	one := [8]byte{1} // a counter in the machine's byte order: any value but 0 will do
	_, _ = unix.Write(p.fd, one[:])
}

func (p *threadPacer) Close() {
	unix.Close(p.fd)
	if p.locked {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(p.slack), 0, 0, 0)
		runtime.UnlockOSThread()
	}
}
