package loadgen

import (
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// spin is how long before the due time the pacer stops sleeping and watches the
// clock: a wake-up from sleep takes 40 to 90 µs.
const spin = 60 * time.Microsecond

// NewPacer returns the pacer for real runs. It waits for a timerfd, to the
// nanosecond where a runtime timer is rounded up to the next millisecond (late
// by 0.5 ms in the middle, 1.1 ms at p99), and spins for the last 60 µs. The
// wait is in the runtime's network poller: a thread of its own in ppoll wakes
// up just as soon, but then has to win a processor back from the goroutines
// that read answers, and takes the one it has to sleep with it, so that the
// worker it has just started waits for the runtime to notice. Where the kernel
// gives no timerfd it is an ordinary timer.
func NewPacer(now func() time.Duration) Pacer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return NewVirtualPacer(now)
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	if file.SetReadDeadline(time.Time{}) != nil { // the poller did not take it
		file.Close()
		return NewVirtualPacer(now)
	}
	return &kernelPacer{now: now, fd: fd, file: file}
}

type kernelPacer struct {
	now    func() time.Duration
	fd     int
	file   *os.File
	woken  atomic.Bool // Wake was called since the last Wait returned
	asleep atomic.Bool // Wait waits for the timer, or is about to
}

func (p *kernelPacer) Wait(until time.Duration) {
	for !p.woken.Load() {
		d := until - p.now()
		if d <= 0 {
			break
		}
		if d <= spin {
			continue
		}
		// Wake sets woken first and looks at asleep after, here it is the other
		// way round, so one of the two sees the other; and the timer is set
		// before both, so that Wake's setting is the later one.
		p.set(min(d-spin, time.Hour))
		p.asleep.Store(true)
		if !p.woken.Load() {
			var expirations [8]byte
			_, _ = p.file.Read(expirations[:]) // whatever it says, the loop looks at the clock
		}
		p.asleep.Store(false)
	}
	p.woken.Store(false)
}

func (p *kernelPacer) set(d time.Duration) {
	_ = unix.TimerfdSettime(p.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

func (p *kernelPacer) Wake() {
	if !p.woken.Swap(true) && p.asleep.Load() {
		p.set(1)
	}
}

func (p *kernelPacer) Close() { p.file.Close() }
