//go:build unix && !linux

package main

import "errors"

func mountTiny(dir, options string) error   { return errors.ErrUnsupported }
func remountTiny(dir, options string) error { return errors.ErrUnsupported }
func unmount(dir string)                    {}
