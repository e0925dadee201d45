//go:build !unix

package experiment

import "time"

func processCPU() time.Duration { return 0 }

func raiseFileLimit() int { return 0 }
