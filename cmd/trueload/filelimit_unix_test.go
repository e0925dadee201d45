//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// filelimit BYTES COMMAND... runs a command that can write no file larger than
// that: what a full disk looks like where none can be mounted.
func filelimit() {
	n, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err == nil {
		err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n})
	}
	path := ""
	if err == nil {
		path, err = exec.LookPath(os.Args[2])
	}
	if err == nil {
		err = syscall.Exec(path, os.Args[2:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(99)
}
