package wire

import (
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is what a Client keeps in the Linux kernel: a witness, and a holder.
//
// The witness bounds arrivals from below. A stream's reader knows only that its
// last attempt to read found nothing, perhaps seconds ago. So one thread sweeps
// all connections every millisecond, while exchanges are open, and notes which
// of them had bytes to read. Bytes that a sweep did not see came after it
// began; bytes that it was the first to see came after the sweep before it
// began. Should the whole process be stopped, the sweeps are too, and the
// intervals are as wide as the stop.
//
// The holder is a socket that asks for stamps and is never used. Linux stamps
// packets only while some socket asks for it, and takes a while to begin.
type kernel struct {
	clock *Clock
	count *counts

	mu      sync.Mutex
	wake    *sync.Cond
	started bool
	closed  bool
	holder  int
	epoll   int
	sockets map[int32]*socket
	active  atomic.Int64 // exchanges open
	swept   atomic.Int64 // when the last complete sweep began; none: never yet
	longest atomic.Int64 // between the beginnings of two sweeps
}

const (
	none       = math.MinInt64
	sweepEvery = time.Millisecond
)

func (k *kernel) init(clock *Clock, count *counts) {
	k.clock, k.count = clock, count
	k.wake = sync.NewCond(&k.mu)
	k.sockets = map[int32]*socket{}
	k.swept.Store(none)
	k.holder, k.epoll = -1, -1
}

// hold makes the holder and the witness, once.
func (k *kernel) hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.started || k.closed {
		return
	}
	k.started = true
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
		k.holder = fd
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}
	if fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		k.epoll = fd
		go k.sweep()
	}
}

// settle waits until the kernel stamps packets: the holder's wish is granted by
// a thread of the kernel's, some time later, and nothing tells when.
func (k *kernel) settle() { time.Sleep(20 * time.Millisecond) }

// close ends the witness. Sockets still open keep valid, wider intervals.
func (k *kernel) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	if k.holder >= 0 {
		unix.Close(k.holder)
	}
	k.wake.Signal()
}

// begin and end count open exchanges: the witness rests where there are none.
func (k *kernel) begin() {
	if k.active.Add(1) == 1 {
		k.mu.Lock()
		k.wake.Signal()
		k.mu.Unlock()
	}
}

func (k *kernel) end() { k.active.Add(-1) }

func (k *kernel) stats(s *Stats) { s.WitnessMax = time.Duration(k.longest.Load()) }

// sweep is the witness.
func (k *kernel) sweep() {
	runtime.LockOSThread() // for nanosleep, which time.Sleep rounds up to the next millisecond or two
	events := make([]unix.EpollEvent, 1024)
	last := int64(none)
	for {
		k.mu.Lock()
		rested := last == none
		for k.active.Load() == 0 && !k.closed {
			rested = true
			k.wake.Wait()
		}
		if k.closed {
			unix.Close(k.epoll)
			k.epoll = -1
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()

		start := k.clock.Now()
		if d := int64(start) - last; !rested && d > k.longest.Load() {
			k.longest.Store(d)
		}
		for {
			n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(k.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
			if errno == unix.EINTR {
				continue
			}
			if errno != 0 {
				n = 0
			}
			if n > 0 {
				k.mu.Lock()
				for i := range events[:n] {
					if s := k.sockets[events[i].Fd]; s != nil {
						// A mark that is there already is older.
						s.mark.CompareAndSwap(none, max(last, int64(s.added)))
					}
				}
				k.mu.Unlock()
			}
			if int(n) < len(events) {
				break
			}
		}
		// Published after the marks: who sees this sweep sees its marks.
		k.swept.Store(int64(start))
		last = int64(start)
		if d := sweepEvery - (k.clock.Now() - start); d > 0 {
			ts := unix.NsecToTimespec(int64(d))
			_ = unix.Nanosleep(&ts, nil)
		}
	}
}

// control asks for stamps before the connection is made, so that the first
// segment has one.
func (k *kernel) control(network, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	})
}

// socket is a connection's kernel side: reads without a buffer in waiting,
// kernel stamps, and what the witness saw.
type socket struct {
	kernel *kernel
	raw    syscall.RawConn
	try    func(fd uintptr) bool
	fd     int32
	tcp    bool
	added  time.Duration // when the witness began to watch
	// mark is set by the witness when it finds bytes to read: they came after
	// this. It may be stale, which only widens an interval.
	mark atomic.Int64

	// The rest belongs to the reader.
	empty time.Duration // before the last attempt that left nothing to read
	full  bool          // the last read filled its buffer: there may be more of the same
	first time.Duration // Earliest of the last read
	got   *buffer
	n     int
	stamp Stamp
	err   error
}

// socket watches c where it is a kernel socket, and else returns nil.
func (k *kernel) socket(c net.Conn) *socket {
	var raw syscall.RawConn
	var err error
	tcp := false
	switch c := c.(type) {
	case *net.TCPConn:
		tcp = true
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	k.hold()
	s := &socket{kernel: k, raw: raw, tcp: tcp, added: k.clock.Now()}
	s.mark.Store(none)
	s.empty = s.added
	s.try = s.attempt
	_ = raw.Control(func(fd uintptr) {
		s.fd = int32(fd)
		if tcp {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.epoll < 0 {
			return
		}
		k.sockets[s.fd] = s
		if unix.EpollCtl(k.epoll, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: s.fd}) != nil {
			delete(k.sockets, s.fd)
			s.added = math.MaxInt64 // no sweep speaks for this one
			return
		}
		s.added = k.clock.Now()
	})
	return s
}

// silent says that nothing that is yet to be read came before t.
func (s *socket) silent(t time.Duration) { s.empty, s.full = t, false }

// fill reads into a buffer that is borrowed when there is something to read.
func (s *socket) fill(c *conn) error {
	if err := s.raw.Read(s.try); err != nil {
		return err
	}
	if s.err != nil {
		return s.err
	}
	c.in, c.r, c.w, c.stamp = s.got, 0, s.n, s.stamp
	s.got = nil
	return nil
}

// attempt reads once; false: there is nothing yet.
func (s *socket) attempt(fd uintptr) bool {
	k := s.kernel
	b := buffers.Get().(*buffer)
	before := k.clock.Now()
	// The mark is taken before the attempt: one that the witness sets during
	// it, for bytes that come next, must stay.
	mark := s.mark.Swap(none)
	n, wall, errno := b.receive(fd)
	if errno == unix.EAGAIN {
		buffers.Put(b)
		s.empty, s.full = before, false
		return false
	}
	now := k.clock.Now()
	if errno != 0 || n == 0 {
		buffers.Put(b)
		if s.err = io.EOF; errno != 0 {
			s.err = os.NewSyscallError("recvmsg", errno)
		}
		return true
	}
	// The last sweep is looked up before the marks: if it is one that saw these
	// bytes, its mark is seen too.
	swept := k.swept.Load()
	if m := s.mark.Load(); mark == none || m != none && m < mark {
		mark = m
	}
	if !s.full {
		s.first = earliest(s.empty, s.added, time.Duration(mark), time.Duration(swept))
	}
	// A read that leaves room in its buffer left nothing in the socket.
	if s.full = n == len(b.bytes); !s.full {
		s.empty = before
	}
	s.stamp = k.clock.resolve(s.first, now, wall)
	if s.tcp && wall == 0 {
		k.count.missing.Add(1)
	}
	if s.stamp.Refused {
		k.count.refused.Add(1)
	}
	s.got, s.n, s.err = b, n, nil
	return true
}

// earliest bounds the arrival of a read's bytes from below. empty is when the
// socket was last found empty, added since when the witness watches it, mark
// what it noted, or none, and swept when its last complete sweep began.
func earliest(empty, added, mark, swept time.Duration) time.Duration {
	switch {
	case mark != none:
		return max(empty, mark)
	case swept > added:
		return max(empty, swept)
	}
	return empty
}

// dead looks at an idle socket: it must be open and silent.
func (s *socket) dead() bool {
	dead := true
	err := s.raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		dead = err != unix.EAGAIN
	})
	return dead || err != nil
}

// close ends the watch and adds up what the kernel knows of the connection.
func (s *socket) close() {
	_ = s.raw.Control(func(fd uintptr) {
		k := s.kernel
		k.mu.Lock()
		if k.sockets[s.fd] == s {
			delete(k.sockets, s.fd)
			if k.epoll >= 0 {
				_ = unix.EpollCtl(k.epoll, unix.EPOLL_CTL_DEL, int(fd), nil)
			}
		}
		k.mu.Unlock()
		if !s.tcp {
			return
		}
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			k.count.retransmits.Add(int64(info.Total_retrans))
			k.count.outOfOrder.Add(int64(info.Rcv_ooopack))
			k.count.peerWindow.Add(int64(info.Rwnd_limited)) // µs
		}
	})
}

// message is what recvmsg needs beside the bytes; it lives in the buffer, so
// that the kernel's pointers stay valid and a read allocates nothing.
type message struct {
	hdr unix.Msghdr
	iov unix.Iovec
	oob [64]byte
}

// receive calls recvmsg, without waiting and without telling the scheduler, and
// returns the kernel's time of the last segment in nanoseconds since 1970, or 0.
func (b *buffer) receive(fd uintptr) (n int, wall int64, errno syscall.Errno) {
	m := &b.msg
	m.iov.Base = &b.bytes[0]
	m.iov.SetLen(len(b.bytes))
	m.hdr = unix.Msghdr{Iov: &m.iov, Control: &m.oob[0]}
	m.hdr.SetIovlen(1)
	m.hdr.SetControllen(len(m.oob))
	for {
		r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, 0, e
		}
		n = int(r)
		break
	}
	const ts = unix.SizeofCmsghdr // of 4- or 8-byte alignment, as is what follows
	if int(m.hdr.Controllen) >= ts+int(unsafe.Sizeof(unix.Timespec{})) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&m.oob[0]))
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SO_TIMESTAMPNS {
			wall = (*unix.Timespec)(unsafe.Pointer(&m.oob[ts])).Nano()
		}
	}
	return n, wall, 0
}
