//go:build !linux

package loadgen

import "time"

// NewPacer returns the pacer for real runs: here an ordinary timer, late by
// 0.5 ms in the middle and 1 ms at p99.
func NewPacer(now func() time.Duration) Pacer { return NewVirtualPacer(now) }
