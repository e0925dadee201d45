//go:build !unix

package main

func filelimit() { panic("filelimit needs setrlimit") }
