//go:build !linux

package httpapi

import "net"

func newWaker(bool) waker { return newTimerWaker() }

func newTryWriter(c net.Conn, _ bool) tryWriter { return blockingWriter{c} }
