package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/store"
)

func TestMain(m *testing.M) {
	// Load tests mostly wait, so more of them run at once than there are
	// processors (a -parallel on the command line still says how many).
	flag.Set("test.parallel", "8")
	testscript.Main(m, map[string]func(){"trueload": main, "filelimit": filelimit})
}

// The scripts run the real command in processes of its own. Beside testscript's
// own commands they have:
//
//	exits CODES COMMAND...   runs a command, which must exit with one of the codes (0,4)
//	serve KIND               starts a server in the test's process and sets $URL and $HOST
//	whole DIR                a result directory has all its files, and they agree
//	counts DIR NAME=N ...    outcomes in summary.json; NAME>=N for at least so many
//	json FILE KEY=VALUE ...  a file (stdout too) is one JSON value, with these values at keys a.b.c
//	same KEY FILE FILE       two JSON files have the same value at a key
//	absent TEXT PATH...      no file at or below the paths holds the text
func TestScripts(t *testing.T) {
	traces, err := filepath.Abs("../../testdata/traces")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TRACES", traces)
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "serve": serveCommand, "whole": whole, "counts": counts, "json": jsonCommand, "absent": absent, "same": same,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODES COMMAND...")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		code = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if !slices.Contains(strings.Split(args[0], ","), strconv.Itoa(code)) {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func serveCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: serve KIND")
	}
	url, stop, err := startServer(args[0])
	ts.Check(err)
	ts.Defer(stop)
	_, host, _ := strings.Cut(url, "://")
	ts.Setenv("URL", url)
	ts.Setenv("HOST", host)
}

// resultFiles are what a finished result directory holds.
var resultFiles = []string{
	store.ExperimentName, store.ManifestName, store.PlanName, store.RecordsName, store.SummaryName,
	store.FindingsName, store.HTMLName, store.MarkdownName,
}

func whole(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: whole DIR")
	}
	ts.Check(checkWhole(ts.MkAbs(args[0])))
}

// checkWhole tells what is wrong with a finished result directory: its files,
// its sums, and whether its records say what its summary says.
func checkWhole(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := slices.Sorted(slices.Values(resultFiles))
	if !slices.Equal(names, want) {
		return fmt.Errorf("%s holds %q, want %q", dir, names, want)
	}
	s, err := readSummary(dir)
	if err != nil {
		return err
	}
	if sum := total(s.Counts); sum != s.Counts.Planned {
		return fmt.Errorf("the outcomes sum to %d, planned were %d: %+v", sum, s.Counts.Planned, s.Counts)
	}
	res, err := store.Open(dir)
	if err != nil {
		return err
	}
	if res.CutShort {
		return fmt.Errorf("%s still has its journal", dir)
	}
	var man experiment.Manifest
	if err := res.ReadJSON(store.ManifestName, &man); err != nil {
		return err
	}
	// The records again, by their own word.
	measured, all := int64(0), int64(0)
	ok := int64(0)
	err = res.Records(func(r *record.Record) error {
		all++
		if slices.ContainsFunc(man.Phases, func(p plan.Phase) bool { return p.Name == r.Phase && p.Measured }) {
			measured++
			if r.Outcome == record.OK {
				ok++
			}
		}
		if r.Outcome == record.Pending {
			return fmt.Errorf("session %d has a record without an outcome", r.ID.Session)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if measured != s.Counts.Planned || ok != s.Counts.OK {
		return fmt.Errorf("records.parquet has %d measured turns, %d of them ok; summary.json says %d and %d", measured, ok, s.Counts.Planned, s.Counts.OK)
	}
	if all != man.Planned {
		return fmt.Errorf("records.parquet has %d turns; manifest.json says %d were planned", all, man.Planned)
	}
	return nil
}

func readSummary(dir string) (*analysis.Summary, error) {
	b, err := os.ReadFile(filepath.Join(dir, store.SummaryName))
	if err != nil {
		return nil, err
	}
	var s analysis.Summary
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", store.SummaryName, err)
	}
	return &s, nil
}

// outcomes are the twelve counts by their names in summary.json.
func outcomes(c analysis.Counts) map[string]int64 {
	b, _ := json.Marshal(c)
	var m map[string]int64
	_ = json.Unmarshal(b, &m)
	return m
}

func total(c analysis.Counts) (sum int64) {
	for name, n := range outcomes(c) {
		if name != "planned" {
			sum += n
		}
	}
	return sum
}

func counts(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: counts DIR NAME=N ...")
	}
	s, err := readSummary(ts.MkAbs(args[0]))
	ts.Check(err)
	have := outcomes(s.Counts)
	if sum := total(s.Counts); sum != s.Counts.Planned {
		ts.Fatalf("the outcomes sum to %d, planned were %d: %v", sum, s.Counts.Planned, have)
	}
	for _, arg := range args[1:] {
		name, want, _ := strings.Cut(arg, "=")
		name, least := strings.CutSuffix(name, ">")
		n, err := strconv.ParseInt(want, 10, 64)
		ts.Check(err)
		got, known := have[name]
		if !known || got != n && (!least || got < n) {
			ts.Fatalf("%s: want %s; all: %v", arg, want, have)
		}
	}
}

func jsonCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: json FILE KEY=VALUE ...")
	}
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	var doc any
	ts.Check(d.Decode(&doc))
	if _, err := d.Token(); err != io.EOF {
		ts.Fatalf("%s: something follows the JSON value", args[0])
	}
	for _, arg := range args[1:] {
		path, want, _ := strings.Cut(arg, "=")
		got, err := valueAt(doc, path)
		if err != nil {
			ts.Fatalf("%s: %v", args[0], err)
		}
		if got != want && got != strconv.Quote(want) {
			ts.Fatalf("%s: %s is %s, want %s", args[0], path, got, want)
		}
	}
}

// valueAt returns the JSON of what stands at a path a.b.0.c of a JSON value.
func valueAt(doc any, path string) (string, error) {
	for key := range strings.SplitSeq(path, ".") {
		i, err := strconv.Atoi(key)
		object, _ := doc.(map[string]any)
		list, _ := doc.([]any)
		child, ok := object[key]
		switch {
		case ok:
			doc = child
		case err == nil && 0 <= i && i < len(list):
			doc = list[i]
		default:
			return "", fmt.Errorf("there is no %s", path)
		}
	}
	b, err := json.Marshal(doc)
	return string(b), err
}

func same(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: same KEY FILE FILE")
	}
	var values [2]string
	for i, file := range args[1:] {
		var doc any
		ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &doc))
		v, err := valueAt(doc, args[0])
		ts.Check(err)
		values[i] = v
	}
	if values[0] != values[1] || values[0] == `""` || values[0] == "null" {
		ts.Fatalf("%s is %s in %s and %s in %s", args[0], values[0], args[1], values[1], args[2])
	}
}

func absent(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: absent TEXT PATH...")
	}
	looked := 0
	look := func(name string, b []byte) {
		looked++
		if bytes.Contains(b, []byte(args[0])) {
			ts.Fatalf("%s holds %q", name, args[0])
		}
	}
	for _, path := range args[1:] {
		if path == "stdout" || path == "stderr" {
			look(path, []byte(ts.ReadFile(path)))
			continue
		}
		ts.Check(filepath.WalkDir(ts.MkAbs(path), func(name string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			look(name, b)
			return err
		}))
	}
	if looked == 0 {
		ts.Fatalf("nothing was looked at")
	}
}

// A verb without an example is a verb that nobody finds out how to use.
func TestHelp_EveryVerbHasAnExample(t *testing.T) {
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, io.Discard); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	verbs := regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)?)   +\S`).FindAllStringSubmatch(out.String(), -1)
	if len(verbs) < 8 {
		t.Fatalf("found %d verbs in\n%s", len(verbs), &out)
	}
	for _, v := range verbs {
		var out bytes.Buffer
		code := run(t.Context(), append(strings.Fields(v[1]), "--help"), &out, io.Discard)
		if code != 0 {
			t.Errorf("%s --help: exit code %d", v[1], code)
		}
		if !regexp.MustCompile(`(?m)^    trueload ` + v[1] + `( |$)`).MatchString(out.String()) {
			t.Errorf("%s --help has no example:\n%s", v[1], &out)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > 110 {
				t.Errorf("%s --help has a line of %d characters: %s", v[1], len(line), line)
			}
		}
	}
}

// Whether a run is valid depends on the machine that the test runs on, so the
// scripts allow 4 beside 0; what makes which code is tested here.
func TestVerdict_OrderOfExitCodes(t *testing.T) {
	run := func(end loadgen.EndReason, ok int64, valid bool, slo analysis.Judgment) *experiment.Result {
		s := &analysis.Summary{}
		s.Counts.OK, s.Verdict.Valid, s.Verdict.SLO = ok, valid, slo
		return &experiment.Result{End: end, Summary: s}
	}
	for _, c := range []struct {
		name string
		res  *experiment.Result
		slo  bool
		want int
	}{
		{"a run to its end", run(loadgen.EndMeasured, 9, true, analysis.NoVerdict), false, exitOK},
		{"a missed SLO that nobody asked to fail on", run(loadgen.EndMeasured, 9, true, analysis.Fail), false, exitOK},
		{"a missed SLO", run(loadgen.EndMeasured, 9, true, analysis.Fail), true, exitFailed},
		{"an undecided SLO is not a missed one", run(loadgen.EndMeasured, 9, true, analysis.Inconclusive), true, exitOK},
		{"an instrument that failed decides nothing", run(loadgen.EndMeasured, 9, false, analysis.Fail), true, exitInvalid},
		{"nothing was ok", run(loadgen.EndMeasured, 0, false, analysis.Fail), true, exitNothing},
		{"the target was not reached, so nothing ran", run("", 0, true, analysis.NoVerdict), false, exitNothing},
		{"the drain limit is an end like another", run(loadgen.EndDrain, 9, true, analysis.NoVerdict), false, exitOK},
		{"interrupted once", run(loadgen.EndInterrupted, 0, false, analysis.Fail), true, exitInterrupted},
		{"interrupted twice", run(loadgen.EndCancelled, 9, true, analysis.NoVerdict), false, exitInterrupted},
	} {
		got := exitOK
		var code exit
		if errors.As(verdict(c.res, c.slo), &code) {
			got = int(code)
		}
		if got != c.want {
			t.Errorf("%s: exit code %d, want %d", c.name, got, c.want)
		}
	}
}
