package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the release build (-ldflags "-X main.version=v1.2.3").
var version = "dev"

type versionCmd struct{}

func (versionCmd) Help() string { return "Example:\n\n  trueload version" }

func (versionCmd) Run(c *console) error {
	fmt.Fprintf(c.out, "trueload %s (%s, %s/%s%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, revision())
	return nil
}

// revision is the commit this was built from, where the build noted it.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return ", " + s.Value
		}
	}
	return ""
}
