//go:build !linux

package httpapi

import "net"

// Without ppoll and MSG_DONTWAIT the pacing thread sleeps on runtime timers (1 ms
// late at worst, by the report's own measure) and a full socket stalls it.

func newWaker(bool) waker { return newTimerWaker() }

func newTryWriter(c net.Conn, _ bool) tryWriter { return blockingWriter{c} }
