package httpapi

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// eventWaker sleeps in ppoll on an eventfd, on the pacing thread, with a timer
// slack of 1 ns. It does not spin for the last 50 µs that a wake-up takes: the
// stamps say when a token left, so exactness gains nothing from it, and at
// thousands of tokens a second a spinning thread would never sleep.
type eventWaker struct {
	slack sync.Once
	mu    sync.Mutex
	fd    int // -1 once closed
	fds   [1]unix.PollFd
}

func newWaker(sleepy bool) waker {
	if sleepy {
		return newTimerWaker()
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return newTimerWaker()
	}
	return &eventWaker{fd: fd, fds: [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}}
}

func (w *eventWaker) sleep(deadline time.Time) {
	w.slack.Do(func() { unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) })
	var ts *unix.Timespec
	if !deadline.IsZero() {
		t := unix.NsecToTimespec(max(0, int64(time.Until(deadline))))
		ts = &t
	}
	// Errors (EINTR) are wake-ups too: the caller looks at the clock anyway.
	if n, _ := unix.Ppoll(w.fds[:], ts, nil); n > 0 {
		var b [8]byte
		unix.Read(int(w.fds[0].Fd), b[:])
	}
}

func (w *eventWaker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		unix.Write(w.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (w *eventWaker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	unix.Close(w.fd)
	w.fd = -1
}

// socketWriter writes to a socket with MSG_DONTWAIT, past the runtime's poller.
type socketWriter struct{ c syscall.RawConn }

func newTryWriter(c net.Conn, sleepy bool) tryWriter {
	if sc, ok := c.(syscall.Conn); ok && !sleepy {
		if raw, err := sc.SyscallConn(); err == nil {
			return socketWriter{raw}
		}
	}
	return blockingWriter{c}
}

func (w socketWriter) tryWrite(b []byte) (n int, err error) {
	ctl := w.c.Control(func(fd uintptr) {
		for {
			n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	})
	if ctl != nil {
		return 0, ctl
	}
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return max(n, 0), err
}
