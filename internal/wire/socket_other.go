//go:build !linux

package wire

import (
	"net"
	"syscall"
	"time"
)

// Only Linux gives arrival times of TCP bytes; elsewhere every connection is
// read blind.

type (
	message struct{}
	socket  struct{}
	kernel  struct{}
)

func (*kernel) init(*Clock, *counts)                         {}
func (*kernel) hold()                                        {}
func (*kernel) settle()                                      {}
func (*kernel) close()                                       {}
func (*kernel) begin()                                       {}
func (*kernel) end()                                         {}
func (*kernel) stats(*Stats)                                 {}
func (*kernel) socket(net.Conn) *socket                      { return nil }
func (*kernel) control(_, _ string, _ syscall.RawConn) error { return nil }
func (*socket) fill(*conn) error                             { panic("no sockets are watched here") }
func (*socket) silent(time.Duration)                         {}
func (*socket) dead() bool                                   { return false }
func (*socket) close()                                       {}
