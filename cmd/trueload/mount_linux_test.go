package main

import "syscall"

// mountTiny mounts a file system in memory on dir; it needs root.
func mountTiny(dir, options string) error { return syscall.Mount("tmpfs", dir, "tmpfs", 0, options) }

func remountTiny(dir, options string) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, options)
}

func unmount(dir string) { syscall.Unmount(dir, syscall.MNT_DETACH) }
