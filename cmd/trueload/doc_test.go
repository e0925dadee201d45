package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/trueload/trueload/internal/spec"
)

// A command that a document shows.
type shown struct {
	at      string // file:line
	args    []string
	example bool // indented, to be copied: it is run; else a mention, which is parsed
}

// The documents' commands are run: what is shown works. Times are shortened and
// the server is a simulated engine; whatever else stands there is run as it is.
func TestDocs_CommandsRun(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/decisions/*.md", "examples/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		for _, f := range found {
			name, _ := filepath.Rel(root, f)
			files = append(files, name)
		}
	}
	var commands []shown
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		commands = append(commands, commandsOf(name, string(b))...)
	}
	ran := map[string]bool{}
	url, stop, err := startServer("engine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for i, c := range commands {
		if err := accepted(c.args); err != nil {
			t.Errorf("%s: trueload %s: %v", c.at, strings.Join(c.args, " "), err)
			continue
		}
		line := strings.Join(c.args, " ")
		if !c.example || ran[line] || c.args[0] == "report" || c.args[0] == "sim" {
			continue // report and calibrate have no result here; sim goes on for ever
		}
		ran[line] = true
		t.Run(fmt.Sprintf("%d %s", i, c.at), func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("takes seconds")
			}
			dir := t.TempDir()
			for _, name := range []string{"examples", "testdata"} {
				if err := os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			standIns(t, root, dir)
			args := shorten(t, dir, url, c.args)
			path, err := exec.LookPath("trueload")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), path, args...)
			cmd.Dir = dir
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			began := time.Now()
			_ = cmd.Run() // its code says all
			// A machine that is too busy makes a run invalid, and an SLO may be missed.
			if code := cmd.ProcessState.ExitCode(); !slices.Contains([]int{exitOK, exitFailed, exitInvalid}, code) {
				t.Errorf("trueload %s: exit code %d\n%s", strings.Join(args, " "), code, &out)
			}
			if c.args[0] != "probe" {
				var results []string
				for _, depth := range []string{"*", "*/*"} {
					found, _ := filepath.Glob(filepath.Join(dir, depth, "manifest.json"))
					results = append(results, found...)
				}
				if len(results) != 1 {
					t.Fatalf("it left %d results", len(results))
				}
				if err := checkWhole(filepath.Dir(results[0])); err != nil {
					t.Error(err)
				}
			}
			t.Logf("trueload %s: %v", strings.Join(args, " "), time.Since(began).Round(time.Millisecond))
		})
	}
	for _, verb := range []string{"demo", "probe", "run"} {
		if !slices.ContainsFunc(commands, func(c shown) bool { return c.example && c.args[0] == verb }) {
			t.Errorf("no document shows how to %s", verb)
		}
	}
}

// The examples of every --help are at least accepted by the parser.
func TestHelp_ExamplesAreAccepted(t *testing.T) {
	n := 0
	for _, verb := range []string{"demo", "run", "probe", "report", "trace inspect", "sim", "sim serve", "sim calibrate", "self-test", "schema", "version"} {
		var out bytes.Buffer
		run(t.Context(), append(strings.Fields(verb), "--help"), &out, io.Discard)
		for _, c := range commandsOf(verb+" --help", out.String()) {
			if n++; !c.example {
				continue
			}
			if err := accepted(c.args); err != nil {
				t.Errorf("%s: trueload %s: %v", c.at, strings.Join(c.args, " "), err)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d examples", n)
	}
}

var (
	exampleLine = regexp.MustCompile(`^(?:    +|#   )(?:go run \./cmd/)?trueload (.*)`)
	mention     = regexp.MustCompile("`trueload ([^`]+)`")
	word        = regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`)
)

// commandsOf finds the commands in a text: indented lines (in a YAML file,
// comments), with their continuation lines, and those in backquotes.
func commandsOf(name, text string) (list []shown) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		at := fmt.Sprintf("%s:%d", name, i+1)
		if m := exampleLine.FindStringSubmatch(lines[i]); m != nil {
			line := m[1]
			for strings.HasSuffix(line, `\`) && i+1 < len(lines) {
				i++
				line = strings.TrimSuffix(line, `\`) + " " + strings.TrimLeft(lines[i], "# \t")
			}
			list = append(list, shown{at: at, args: words(line), example: true})
			continue
		}
		for _, m := range mention.FindAllStringSubmatch(lines[i], -1) {
			list = append(list, shown{at: at, args: words(m[1])})
		}
	}
	return list
}

// words splits a command as a shell would, up to a pipe, a redirection or a comment.
func words(line string) (list []string) {
	for _, w := range word.FindAllString(line, -1) {
		if strings.ContainsAny(w[:1], "|>#") {
			break
		}
		list = append(list, strings.NewReplacer("'", "", `"`, "").Replace(w))
	}
	return list
}

// accepted tells whether the command line takes the arguments.
func accepted(args []string) error {
	if args[0] == "VERB" {
		args = append([]string{"run"}, args[1:]...)
	}
	code := -1
	p, err := kong.New(&cli{}, kong.Name("trueload"), kong.Writers(io.Discard, io.Discard), kong.Exit(func(n int) { code = n }))
	if err != nil {
		return err
	}
	if _, err = p.Parse(args); code == 0 {
		return nil // --help
	}
	return err
}

// standIns puts files where the documents speak of a reader's own.
func standIns(t *testing.T, root, dir string) {
	t.Helper()
	for name, from := range map[string]string{
		"chat.yaml": "examples/quickstart.yaml", "trace.csv": "testdata/traces/azure_conv_2023.csv",
		"azure_conv_2023.csv": "testdata/traces/azure_conv_2023.csv", "mooncake.jsonl": "testdata/traces/mooncake_conversation.jsonl",
		"mine.json": "cmd/trueload/testdata/profile.json",
	} {
		b, err := os.ReadFile(filepath.Join(root, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shorten makes a command end soon, and reach the engine at url.
func shorten(t *testing.T, dir, url string, args []string) []string {
	t.Helper()
	short := slices.Clone(args)
	for i, a := range short {
		short[i] = strings.ReplaceAll(a, "http://localhost:8000", url)
		if i > 0 && (short[i-1] == "--for" || short[i-1] == "--warm-up") {
			short[i] = "1s"
		}
	}
	switch {
	case args[0] == "demo" && !slices.Contains(args, "--for"):
		short = append(short, "--for", "1s")
	case args[0] == "run" && len(args) > 1 && strings.HasSuffix(args[1], ".yaml"):
		exp, err := spec.ReadFile(filepath.Join(dir, args[1]))
		if err != nil {
			t.Fatal(err)
		}
		short = append(short, "--set", "target.url="+url)
		if slices.Contains(args, "--for") {
			break
		}
		if exp.Workload.Trace != nil { // which has no phases of its own
			short = append(short, "--for", "1s")
			break
		}
		for i, p := range exp.Load.Phases {
			length := "for=500ms"
			if p.Requests > 0 {
				length = "requests=20"
			}
			short = append(short, "--set", fmt.Sprintf("load.phases[%d].%s", i, length))
		}
	case args[0] == "run":
		short = append(short, "--warm-up", "0s")
	}
	return short
}
