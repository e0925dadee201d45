package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/trueload/trueload/internal/unit"
)

// good is a smallest file; with adds lines to its end or replaces a section.
const good = `target: {url: "http://localhost:8000"}
workload:
  classes:
  - name: chat
load: {rate: 12/s}
`

// file wraps a class's keys, or other sections, into a whole file.
func file(class, load, rest string) string {
	if load == "" {
		load = "{rate: 12/s}"
	}
	return "target: {url: \"http://localhost:8000\"}\nworkload:\n  classes:\n  - {name: chat" + class + "}\nload: " + load + "\n" + rest
}

func finish(t *testing.T, text string) (*Experiment, error) {
	t.Helper()
	e, err := Parse("exp.yaml", []byte(text))
	if e == nil {
		return nil, err
	}
	return e, e.Finish()
}

func must(t *testing.T, text string) *Experiment {
	t.Helper()
	e, err := finish(t, text)
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return e
}

var sameExperiment = cmpopts.IgnoreUnexported(Experiment{})

func TestExamples(t *testing.T) {
	files, _ := filepath.Glob("../../examples/*.yaml")
	if len(files) < 5 {
		t.Fatalf("only %d examples", len(files))
	}
	schema := compile(t)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			e, err := ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(toJSON(t, string(text))); err != nil {
				t.Errorf("the schema refuses it: %v", err)
			}
			// Written with all defaults, elsewhere, it means the same.
			dir := t.TempDir()
			out, err := e.Marshal(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(toJSON(t, string(out))); err != nil {
				t.Errorf("the schema refuses what was written: %v\n%s", err, out)
			}
			copied := filepath.Join(dir, "experiment.yaml")
			if err := os.WriteFile(copied, out, 0o600); err != nil {
				t.Fatal(err)
			}
			back, err := ReadFile(copied)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for i, f := range back.files() {
				was, _ := filepath.Abs(e.Path(*e.files()[i].name))
				if is, _ := filepath.Abs(back.Path(*f.name)); is != was {
					t.Errorf("%s: %s became %s", f.path, was, is)
				}
				*f.name = *e.files()[i].name
			}
			if diff := cmp.Diff(e, back, sameExperiment); diff != "" {
				t.Errorf("(-was +is):\n%s", diff)
			}
		})
	}
}

// The whole promised format is known: what this version does not do is said,
// the data files are missing here, and nothing else is wrong.
func TestPromisedFormat(t *testing.T) {
	t.Setenv("API_KEY", "x")
	_, err := ReadFile("testdata/promised.yaml")
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	var got []string
	for _, f := range faults {
		switch {
		case strings.Contains(f.Message, "not supported in this version"):
			got = append(got, "later: "+f.Path)
		case strings.Contains(f.Message, "there is no file"):
			got = append(got, "file: "+f.Path)
		default:
			t.Error(f)
		}
	}
	want := []string{
		"later: target.kv_capacity", "later: target.replicas", "later: target.gpu_metrics",
		"file: workload.classes[0].text.sharegpt", "file: workload.classes[1].lengths.joint.trace",
		"later: hooks", "later: guard",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each key of the format reaches its field.
func TestEveryKey(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"ca.pem", "a.json", "b.jsonl", "t.csv"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SPEC_TEST_KEY", "s3cret")
	text := `
name: all
seed: 18446744073709551615
salt: pepper
labels: {gpu: H100, tp: 8, mtp: true}
target:
  url: https://host:8443/v1
  api: openai-completions
  model: my-alias
  headers: {Authorization: "Bearer ${SPEC_TEST_KEY}", X-Team: blue}
  timeout: 90s
  tokenizer: server
  connections: per-session
  http: h1
  stream: true
  force_length: ignore_eos
  body: {temperature: 0.5, stop: [a, b], nested: {on: true, n: 3, none: null}}
  tls: {insecure: true, ca: ca.pem}
workload:
  share_of: sessions
  classes:
  - name: one
    share: 0.7
    text: {random: token_ids}
    input_tokens: {normal: {mean: 512, cv: 0.3}, min: 1, max: 4k}
    output_tokens: {empirical: {trace: t.csv, format: azure}}
    prefix: {tokens: 600, pool: 8, popularity: {zipf: 1.1}}
    session: {turns: {geometric: {mean: 3.2}, max: 20}, think: {lognormal: {p50: 20s, p90: 2m}}, history: scripted}
    tenant: gold
    priority: -3
    adapter: lora-1
    hang_up: {share: 2%, after: 5s}
    deadline: 30s
    slo: {ttft: 500ms, tpot: {p50: 20ms, p99.9: 200ms}}
  - name: two
    share: 0.2
    text: {sharegpt: a.json}
    output_tokens: {lognormal: {mu: -0.5, sigma: 1.2}, min: 4}
    model: other
  - name: three
    share: 0.1
    text: {jsonl: b.jsonl}
    lengths: {joint: {trace: t.csv}}
    prefix: {tokens: 1k, popularity: uniform}
load:
  arrivals: {weibull: {cv: 1.5}}
  rate: {steps: [{rate: 1/s, for: 10s}, {rate: 90/min, for: 1m}], per: turns}
  max_in_flight: {n: 64, policy: shed}
  drain: 10s
  phases:
  - {name: warm-up, requests: 300, measured: false, arrivals: constant}
  - {name: ramp, for: 60s, rate: {ramp: {from: 0/s, to: 100/s, over: 30s}}}
  - {name: wave, for: 60s, rate: {sine: {mean: 10/s, amplitude: 5/s, period: 20s}}}
  - {name: spike, for: 60s, rate: {spike: {base: 1/s, peak: 20/s, at: 10s, for: 5s}}, arrivals: {gamma: {cv: 3}}, shares: {one: 1, two: 2}}
slo: {ttft: 1s, first_answer: 2s, tpot: {p99: 100ms}, itl: 50ms, e2e: 60s, stall: 1s, attainment: 99%}
`
	path := filepath.Join(dir, "exp.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := func(x float64) *float64 { return &x }
	each := func(d time.Duration) *Objective { return &Objective{Limit: d} }
	ms := time.Millisecond
	want := &Experiment{
		Name: "all", Seed: math.MaxUint64, Salt: "pepper", Labels: map[string]string{"gpu": "H100", "tp": "8", "mtp": "true"},
		Target: Target{
			URL: "https://host:8443/v1", API: "openai-completions", Model: "my-alias",
			Headers: map[string]string{"Authorization": "Bearer ${SPEC_TEST_KEY}", "X-Team": "blue"},
			Timeout: 90 * time.Second, Tokenizer: "server", Connections: "per-session", HTTP: "h1", Stream: true, ForceLength: "ignore_eos",
			Body: map[string]any{"temperature": 0.5, "stop": []any{"a", "b"}, "nested": map[string]any{"on": true, "n": 3, "none": nil}},
			TLS:  TLS{Insecure: true, CA: "ca.pem"},
		},
		Workload: Workload{ShareOf: "sessions", Classes: []Class{
			{
				Name: "one", Share: 0.7, Text: Text{Random: "token_ids"},
				InputTokens:  &Counts{Normal: &Normal[float64]{Mean: 512, CV: 0.3}, Min: f(1), Max: f(4000)},
				OutputTokens: &Counts{Empirical: &Empirical{Trace: "t.csv", Format: "azure"}},
				Prefix:       &Prefix{Tokens: 600, Pool: 8, Popularity: Popularity{Zipf: 1.1}},
				Session: Session{
					Turns:   &Counts{Geometric: &Mean[float64]{Mean: 3.2}, Max: f(20)},
					Think:   &Times{LogNormal: &LogNormal[time.Duration]{P50: 20 * time.Second, P90: 2 * time.Minute}},
					History: "scripted",
				},
				Tenant: "gold", Priority: -3, Adapter: "lora-1", HangUp: &HangUp{Share: 0.02, After: 5 * time.Second}, Deadline: 30 * time.Second,
				SLO: SLO{TTFT: each(500 * ms), TPOT: &Objective{Quantiles: []Quantile{{0.5, 20 * ms}, {0.999, 200 * ms}}}},
			},
			{
				Name: "two", Share: 0.2, Text: Text{ShareGPT: "a.json"}, Model: "other",
				OutputTokens: &Counts{LogNormal: &LogNormal[float64]{Mu: f(-0.5), Sigma: 1.2}, Min: f(4)},
				Session:      Session{Turns: &Counts{Fixed: f(1)}, History: "live"}, Deadline: 90 * time.Second,
			},
			{
				Name: "three", Share: 0.1, Text: Text{JSONL: "b.jsonl"}, Lengths: &Lengths{Joint: Empirical{Trace: "t.csv"}},
				Prefix:  &Prefix{Tokens: 1000, Pool: 1},
				Session: Session{Turns: &Counts{Fixed: f(1)}, History: "live"}, Deadline: 90 * time.Second,
			},
		}},
		Load: Load{
			Arrivals:    Arrivals{Process: Weibull, CV: 1.5},
			Rate:        &Rate{Steps: []Step{{1, 10 * time.Second}, {1.5, time.Minute}}, Per: "turns"},
			MaxInFlight: MaxInFlight{N: 64, Policy: "shed"}, Drain: 10 * time.Second,
			Phases: []Phase{
				{Name: "warm-up", Requests: 300, Arrivals: &Arrivals{Process: Constant}},
				{Name: "ramp", For: time.Minute, Measured: true, Rate: &Rate{Ramp: &Ramp{0, 100, 30 * time.Second}, Per: "sessions"}},
				{Name: "wave", For: time.Minute, Measured: true, Rate: &Rate{Sine: &Sine{10, 5, 20 * time.Second}, Per: "sessions"}},
				{Name: "spike", For: time.Minute, Measured: true, Rate: &Rate{Spike: &Spike{1, 20, 10 * time.Second, 5 * time.Second}, Per: "sessions"},
					Arrivals: &Arrivals{Process: Gamma, CV: 3}, Shares: map[string]float64{"one": 1, "two": 2}},
			},
		},
		SLO: SLO{TTFT: each(time.Second), FirstAnswer: each(2 * time.Second), TPOT: &Objective{Quantiles: []Quantile{{0.99, 100 * ms}}},
			ITL: each(50 * ms), E2E: each(time.Minute), Stall: each(time.Second), Attainment: 0.99},
	}
	if diff := cmp.Diff(want, e, sameExperiment); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out, err := e.Marshal("")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "s3cret") {
		t.Errorf("a secret was written:\n%s", out)
	}
	back, err := parse("back", dir, out)
	if err != nil {
		t.Fatal(err)
	}
	if err := back.Finish(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e, back, sameExperiment); diff != "" {
		t.Errorf("round trip (-was +is):\n%s", diff)
	}
	if err := compile(t).Validate(toJSON(t, text)); err != nil {
		t.Errorf("the schema refuses it: %v", err)
	}
	if err := compile(t).Validate(toJSON(t, string(out))); err != nil {
		t.Errorf("the schema refuses what was written: %v", err)
	}
	r, err := e.Target.Resolve(os.LookupEnv)
	if err != nil || r.Headers["Authorization"] != "Bearer s3cret" || r.URL != e.Target.URL {
		t.Errorf("resolved %v, %v", r, err)
	}
}

// Every fault of a file is told, in the file's order, with place, caret and hint.
func TestAllFaultsAtOnce(t *testing.T) {
	_, err := finish(t, `target:
  url: http://localhost:8000
  timout: 5s
workload:
  classes:
  - name: chat
    hang_up: {share: 2, after: 3}
load:
  rate: 12
timeout: 3s
slo: {attainment: 99}
`)
	const want = `exp.yaml:3:3: target.timout: unknown key
      timout: 5s
      ^
  hint: did you mean timeout?
exp.yaml:7:22: workload.classes[0].hang_up.share: share 2 is above 1
        hang_up: {share: 2, after: 3}
                         ^
  hint: write 2% if percent is meant
exp.yaml:7:32: workload.classes[0].hang_up.after: duration "3" has no unit
        hang_up: {share: 2, after: 3}
                                   ^
  hint: write 3ms, 3s or 3m
exp.yaml:9:9: load.rate: rate "12" has no unit
      rate: 12
            ^
  hint: write 12/s, 12/min or 12/h
exp.yaml:10:1: timeout: unknown key
    timeout: 3s
    ^
  hint: it belongs under target
exp.yaml:11:19: slo.attainment: share 99 is above 1
    slo: {attainment: 99}
                      ^
  hint: write 99% if percent is meant`
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != 6 {
		t.Errorf("%d faults", len(faults))
	}
}

// bad cases: each text is refused with exactly one fault, at a place, saying
// something. form tells whether the schema can see it too.
var badFiles = []struct {
	name, text string
	line, col  int
	says       string
	form       bool
}{
	{"empty", "", 1, 1, "empty", false},
	{"only a comment", "# nothing\n", 1, 1, "empty", false},
	{"not YAML", "target: {url: [}\n", 1, 16, "not YAML", false},
	{"a list", "- a\n", 1, 1, "must be keys with values", true},
	{"two documents", good + "---\nname: x\n", 6, 1, "second document", false},
	{"unknown key with a near name", good + "sede: 3\n", 6, 1, "did you mean seed?", true},
	{"misplaced key", good + "rate: 3/s\n", 6, 1, "it belongs under load", true},
	{"another tool's word", file("", "{rate: 1/s, burstiness: 0.1}", ""), 5, 19, "cv 1/√b", true},
	{"duplicate key", good + "seed: 3\nseed: 4\n", 7, 1, "first on line 6", false},
	{"key without a value", good + "seed:\n", 6, 6, "has no value", true},
	{"negative seed", good + "seed: -3\n", 6, 7, "not a whole number", true},
	{"a number where text is", good + "name: 3\n", 6, 7, "in quotes", true},
	{"text where a list is", "target: {url: 'http://a'}\nworkload: {classes: chat}\nload: {rate: 1/s}\n", 2, 21, "must be a list", true},
	{"a list where a value is", good + "name: [a]\n", 6, 7, "not a list", true},
	{"true in words", "target: {url: 'http://a', stream: yes}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 35, "true or false", true},

	{"a name with a path in it", good + "name: ../x\n", 6, 7, "cannot name a folder", false},
	{"no url", "target: {}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 9, "where is the server?", false},
	{"url without scheme", "target: {url: 'localhost:8000'}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 15, "http or https", false},
	{"a later api", "target: {url: 'http://a', api: anthropic-messages}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 32, "not supported in this version", true},
	{"an unknown api", "target: {url: 'http://a', api: openai-caht}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 32, "did you mean openai-chat?", true},
	{"a tokenizer file", "target: {url: 'http://a', tokenizer: ./tokenizer.json}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 38, "not supported in this version", true},
	{"replicas", "target: {url: 'http://a', replicas: [a]}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 27, "not supported in this version", true},
	{"a variable that is not there", "target: {url: 'http://a', headers: {A: '${TRUELOAD_NO_SUCH_NAME}'}}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 40, "no TRUELOAD_NO_SUCH_NAME", false},
	{"a variable that does not end", "target: {url: 'http://a', headers: {A: '${X'}}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 40, "${ is not followed", false},
	{"timeout of zero", "target: {url: 'http://a', timeout: 0s}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 36, "above 0s", false},
	{"negative timeout", "target: {url: 'http://a', timeout: -3s}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 36, "negative", true},
	{"a certificate that is not there", "target: {url: 'http://a', tls: {ca: no.pem}}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\n", 1, 37, "no file", false},

	{"no workload", "target: {url: 'http://a'}\nworkload: {}\nload: {rate: 1/s}\n", 2, 11, "classes or a trace", false},
	{"classes and a trace", "target: {url: 'http://a'}\nworkload: {classes: [{name: a}], trace: {file: fault.go}}\nload: {rate: 1/s}\n", 2, 11, "keep one", false},
	{"a profile", "target: {url: 'http://a'}\nworkload: {classes: [{name: a}], profile: p.yaml}\nload: {rate: 1/s}\n", 2, 34, "not supported", true},
	{"shares of tokens", "target: {url: 'http://a'}\nworkload: {classes: [{name: a}], share_of: tokens}\nload: {rate: 1/s}\n", 2, 44, "not supported", true},
	{"negative share", file(", share: -1", "", ""), 4, 25, "negative", true},
	{"shares sum to nothing", file(", share: 0", "", ""), 4, 25, "sum to nothing", false},
	{"share in percent", file(", share: 70%", "", ""), 4, 25, "without the percent sign", true},
	{"a class's own rate", file(", rate: 3/s", "", ""), 4, 18, "not supported", true},
	{"two texts", file(", text: {random: words, jsonl: fault.go}", "", ""), 4, 24, "only one of jsonl, random", false},
	{"text from nowhere", file(", text: {sharegpt: no.json}", "", ""), 4, 35, `no file "no.json"`, false},
	{"token ids to a chat API", file(", text: token_ids", "", ""), 4, 24, "openai-completions", false},
	{"no such distribution", file(", input_tokens: {pareto: {a: 1}}", "", ""), 4, 33, "known in workload.classes[0].input_tokens", true},
	{"an empty distribution", file(", input_tokens: {}", "", ""), 4, 32, "says nothing", false},
	{"two distributions", file(", input_tokens: {fixed: 3, uniform: {min: 1, max: 2}}", "", ""), 4, 32, "only one of fixed, uniform", false},
	{"tokens of zero", file(", input_tokens: 0", "", ""), 4, 32, "at least 1", false},
	{"half a token", file(", output_tokens: 2.5", "", ""), 4, 33, "whole number", false},
	{"tokens beyond reason", file(", output_tokens: 1G", "", ""), 4, 33, "at most", false},
	{"tokens in seconds", file(", output_tokens: 3s", "", ""), 4, 33, "leave the unit out", true},
	{"lognormal of one number", file(", input_tokens: {lognormal: {p50: 100}}", "", ""), 4, 44, "two numbers", false},
	{"lognormal of three numbers", file(", input_tokens: {lognormal: {p50: 100, p90: 200, p99: 900}}", "", ""), 4, 44, "two numbers", false},
	{"lognormal upside down", file(", input_tokens: {lognormal: {p50: 100, p99: 90}}", "", ""), 4, 60, "above p50", false},
	{"uniform upside down", file(", input_tokens: {uniform: {min: 9, max: 3}}", "", ""), 4, 56, "below min", false},
	{"normal without a spread", file(", input_tokens: {normal: {mean: 9}}", "", ""), 4, 41, "sd and cv", false},
	{"bounds nothing reaches", file(", input_tokens: {lognormal: {p50: 100k, p99: 200k}, max: 3}", "", ""), 4, 32, "hardly any value", false},
	{"bounds upside down", file(", input_tokens: {lognormal: {p50: 10, p99: 20}, min: 30, max: 3}", "", ""), 4, 78, "below min", false},
	{"geometric tokens", file(", input_tokens: {geometric: {mean: 3}}", "", ""), 4, 44, "turns", false},
	{"geometric below one turn", file(", session: {turns: {geometric: {mean: 0.5}}}", "", ""), 4, 54, "starts at 1", false},
	{"think time without a unit", file(", session: {think: 5}", "", ""), 4, 35, "5s", true},
	{"lengths given twice", file(", input_tokens: 3, lengths: {joint: fault.go}", "", ""), 4, 32, "given twice", false},
	{"joint lengths of no file", file(", lengths: {joint: {format: azure}}", "", ""), 4, 35, "which trace?", false},
	{"prefix without tokens", file(", prefix: {pool: 3}", "", ""), 4, 26, "how long", false},
	{"a strange popularity", file(", prefix: {tokens: 3, popularity: zipf}", "", ""), 4, 50, "valid: uniform", true},
	{"hang-up without a share", file(", hang_up: {after: 3s}", "", ""), 4, 27, "which share", false},
	{"hang-up in percent without the sign", file(", hang_up: {share: 2, after: 3s}", "", ""), 4, 35, "write 2%", true},
	{"model and adapter", file(", model: a, adapter: b", "", ""), 4, 37, "keep one", false},
	{"history of another kind", file(", session: {history: dead}", "", ""), 4, 37, "live, scripted", true},

	{"no load", "target: {url: 'http://a'}\nworkload: {classes: [{name: a}]}\n", 1, 1, "--rate 12/s", false},
	{"rate without a unit", file("", "{rate: 12}", ""), 5, 14, "write 12/s", true},
	{"negative rate", file("", "{rate: -1/s}", ""), 5, 14, "negative", true},
	{"rate of zero", file("", "{rate: 0/s}", ""), 5, 14, "above 0/s", false},
	{"rate beyond reason", file("", "{rate: 1e12/s}", ""), 5, 14, "1000000/s", false},
	{"rate and closed", file("", "{rate: 1/s, closed: {clients: 3}}", ""), 5, 7, "keep one", false},
	{"rate per request", file("", "{rate: {value: 1/s, per: requests}}", ""), 5, 32, "sessions, turns", true},
	{"a number and a curve", file("", "{rate: {value: 1/s, ramp: {from: 0/s, to: 1/s}}}", ""), 5, 14, "only one of", false},
	{"a wave below zero", file("", "{rate: {sine: {mean: 1/s, amplitude: 2/s, period: 9s}}}", ""), 5, 44, "above the mean", false},
	{"an unending step", file("", "{rate: {steps: [{rate: 1/s}]}}", ""), 5, 23, "how long", false},
	{"no clients", file("", "{closed: {clients: 0}}", ""), 5, 26, "at least 1", false},
	{"arrivals of a later version", file("", "{rate: 1/s, arrivals: mmpp}", ""), 5, 29, "not supported", true},
	{"gamma without cv", file("", "{rate: 1/s, arrivals: gamma}", ""), 5, 29, "cv", true},
	{"gamma of cv 0", file("", "{rate: 1/s, arrivals: {gamma: {cv: 0}}}", ""), 5, 37, "above 0", true},
	{"two processes", file("", "{rate: 1/s, arrivals: {gamma: {cv: 1}, weibull: {cv: 1}}}", ""), 5, 46, "only one", true},
	{"times of no trace", file("", "{arrivals: trace}", ""), 5, 18, "no trace", false},
	{"closed loop with arrivals", file("", "{closed: {clients: 1}, arrivals: poisson}", ""), 5, 40, "no effect", false},
	{"a cap of zero", file("", "{rate: 1/s, max_in_flight: 0}", ""), 5, 34, "unlimited", true},
	{"a cap with another policy", file("", "{rate: 1/s, max_in_flight: {n: 3, policy: drop}}", ""), 5, 49, "queue, shed", true},
	{"a phase without an end", file("", "{rate: 1/s, phases: [{name: a}]}", ""), 5, 28, "how long", false},
	{"a phase with two ends", file("", "{rate: 1/s, phases: [{name: a, for: 1s, requests: 3}]}", ""), 5, 57, "keep one", false},
	{"phases of one name", file("", "{rate: 1/s, phases: [{name: a, for: 1s}, {name: a, for: 1s}]}", ""), 5, 55, "two phases", false},
	{"nothing measured", file("", "{rate: 1/s, phases: [{name: a, for: 1s, measured: false}]}", ""), 5, 27, "no phase is measured", false},
	{"shares of no class", file("", "{rate: 1/s, phases: [{name: a, for: 1s, shares: {caht: 1}}]}", ""), 5, 62, "no such class", false},
	{"a phase that settles", file("", "{rate: 1/s, phases: [{name: a, for: 1s, until: settled}]}", ""), 5, 47, "not supported", true},

	{"an objective on a mean", file("", "", "slo: {ttft: {mean: 1s}}\n"), 6, 14, "p99.9", true},
	{"an objective without a unit", file("", "", "slo: {ttft: 1}\n"), 6, 13, "1s", true},
	{"an objective of zero", file("", "", "slo: {ttft: 0s}\n"), 6, 13, "above 0s", false},
	{"an unknown objective", file("", "", "slo: {ttfb: 1s}\n"), 6, 7, "did you mean ttft?", true},
	{"attainment of nothing", file("", "", "slo: {attainment: 99%}\n"), 6, 19, "no per-request objective", false},
	{"attainment in percent without the sign", file("", "", "slo: {ttft: 1s, attainment: 99}\n"), 6, 29, "write 99%", true},
	{"ttft of answers that do not stream", "target: {url: 'http://a', stream: false}\nworkload: {classes: [{name: a}]}\nload: {rate: 1/s}\nslo: {ttft: 1s}\n", 4, 13, "not streamed", false},

	{"a label without a value", good + "labels: {gpu: }\n", 6, 15, "has no value", true},
	{"hooks", good + "hooks: {before_run: a.sh}\n", 6, 1, "not supported", true},
	{"guard", good + "guard: {max_error_rate: 20%}\n", 6, 1, "not supported", true},
	{"sweep", good + "sweep: {rates: auto}\n", 6, 1, "not supported", true},
	{"arms", good + "arms: {a: {}}\n", 6, 1, "not supported", true},
	{"stages", good + "stages: []\n", 6, 1, "not supported", true},

	{"trace without a file", "target: {url: 'http://a'}\nworkload: {trace: {}}\n", 2, 19, "which trace?", false},
	{"trace that is not there", "target: {url: 'http://a'}\nworkload: {trace: {file: no.csv}}\n", 2, 26, "no file", false},
	{"trace at no speed", "target: {url: 'http://a'}\nworkload: {trace: {file: fault.go, speed: 0}}\n", 2, 43, "above 0", false},
	{"trace of strange rows", "target: {url: 'http://a'}\nworkload: {trace: {file: fault.go, rows: some}}\n", 2, 42, "{first: 300s}", true},
	{"trace with a rate over its times", "target: {url: 'http://a'}\nworkload: {trace: {file: fault.go}}\nload: {rate: 1/s, arrivals: trace}\n", 3, 14, "already say the rate", false},
	{"trace faster than a rate", "target: {url: 'http://a'}\nworkload: {trace: {file: fault.go, speed: 2}}\nload: {rate: 1/s}\n", 2, 43, "no effect", false},
	{"a folder for a file", "target: {url: 'http://a'}\nworkload: {trace: {file: ../spec}}\n", 2, 26, "folder", false},
}

func TestBadFiles(t *testing.T) {
	schema := compile(t)
	for _, c := range badFiles {
		t.Run(c.name, func(t *testing.T) {
			e, err := Parse("exp.yaml", []byte(c.text))
			if c.form && err == nil {
				t.Errorf("Parse accepts it, and is to see it as the schema does")
			}
			if e != nil {
				err = e.Finish()
			}
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("error %v, want faults\n%s", err, c.text)
			}
			if len(faults) != 1 {
				t.Fatalf("%d faults, want one:\n%v", len(faults), err)
			}
			f := faults[0]
			if f.File != "exp.yaml" || f.Line != c.line || f.Column != c.col {
				t.Errorf("at %s:%d:%d, want %d:%d:\n%v", f.File, f.Line, f.Column, c.line, c.col, err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("does not say %q:\n%v", c.says, err)
			}
			if strings.Contains(c.text, "url: [}") || strings.Contains(c.text, "---") || strings.Contains(c.text, "seed: 4") {
				return // no schema sees text that is not one YAML value
			}
			if verr := schema.Validate(toJSON(t, c.text)); c.form && verr == nil {
				t.Errorf("the schema accepts it:\n%s", c.text)
			} else if !c.form && verr != nil && !strings.Contains(c.says, "empty") {
				t.Errorf("the schema refuses it already: %v", verr)
			}
		})
	}
}

// Every line of the table is answered as not supported, and none is in the schema.
func TestNotYet(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range notYet {
		values := strings.Fields(u.values)
		if len(values) == 0 {
			values = []string{""}
		}
		for _, v := range values {
			if v == "*" {
				v = "anything"
			}
			if _, ok := unsupported(strings.ReplaceAll(u.path, "[]", "[7]"), v); !ok {
				t.Errorf("%s %s is not answered", u.path, v)
			}
			if v != "" && v != "turns" && v != "tokens" && strings.Contains(string(text), `"`+v+`"`) {
				t.Errorf("the schema knows %s", v)
			}
		}
	}
	if _, ok := unsupported("target.url", ""); ok {
		t.Error("target.url is supported")
	}
}

func TestA15_SharesAreWeights(t *testing.T) {
	split := func(a, b, c string) [3]float64 {
		e := must(t, fmt.Sprintf("target: {url: 'http://a'}\nworkload: {classes: [{name: a, share: %s}, {name: b, share: %s}, {name: c, share: %s}]}\nload: {rate: 1/s}\n", a, b, c))
		sum := 0.0
		for _, k := range e.Workload.Classes {
			sum += k.Share
		}
		var s [3]float64
		for i, k := range e.Workload.Classes {
			s[i] = math.Round(k.Share/sum*1e12) / 1e12
		}
		return s
	}
	if a, b := split("0.7", "0.2", "0.1"), split("7", "2", "1"); a != b || a != [3]float64{0.7, 0.2, 0.1} {
		t.Errorf("%v and %v", a, b)
	}
}

func TestL10_RateSaysWhatItCounts(t *testing.T) {
	for text, want := range map[string]string{"2/s": "sessions", "{value: 2/s}": "sessions", "{value: 2/s, per: turns}": "turns"} {
		e := must(t, file(", session: {turns: 5}", "{rate: "+text+"}", ""))
		if e.Load.Rate.Per != want || e.Load.Rate.Value != 2 {
			t.Errorf("%s: %+v", text, e.Load.Rate)
		}
		out, err := e.Marshal("")
		if err != nil {
			t.Fatal(err)
		}
		back := must(t, string(out))
		if back.Load.Rate.Per != want {
			t.Errorf("%s written as\n%s", text, out)
		}
	}
}

// burstiness 0.1 of other tools is cv = 1/√0.1, and the file says cv.
func TestL4_GammaByItsCV(t *testing.T) {
	e := must(t, file("", "{rate: 1/s, arrivals: {gamma: {cv: 3.1622776601683795}}}", ""))
	if a := e.Load.Arrivals; a.Process != Gamma || math.Abs(1/(a.CV*a.CV)-0.1) > 1e-12 {
		t.Errorf("%+v", a)
	}
}

func TestRejudge(t *testing.T) {
	e, err := Parse("x.yaml", []byte("workload: {classes: [{name: a, slo: {ttft: 2s}}]}\nslo: {tpot: 1s, attainment: 50%}\n"))
	if err != nil {
		t.Fatal(err)
	}
	e.Rejudge(SLO{TTFT: &Objective{Limit: time.Second}})
	if e.SLO.TPOT != nil || e.SLO.TTFT.Limit != time.Second || e.SLO.Attainment != 0.99 || e.Workload.Classes[0].SLO.TTFT != nil {
		t.Errorf("%+v, and of the class %+v", e.SLO, e.Workload.Classes[0].SLO)
	}
	if e.Rejudge(SLO{TTFT: &Objective{Quantiles: []Quantile{{P: 0.99, Limit: time.Second}}}}); e.SLO.Attainment != 0 {
		t.Errorf("a quantile of the run asks for no attainment, and got %v", e.SLO.Attainment)
	}
}

func TestC1_AliasAlone(t *testing.T) {
	e := New()
	if err := (Flags{URL: "http://localhost:8000", Model: "my-alias", Rate: "1/s"}).Apply(e); err != nil {
		t.Fatal(err)
	}
	if err := e.Finish(); err != nil {
		t.Fatal(err)
	}
	if e.Target.Model != "my-alias" || e.Target.Tokenizer != "none" {
		t.Errorf("%+v", e.Target)
	}
}

func TestA14_BoundsAreKept(t *testing.T) {
	e := must(t, file(", output_tokens: {lognormal: {p50: 180, p99: 1500}, max: 4k}", "", ""))
	if d := e.Workload.Classes[0].OutputTokens; *d.Max != 4000 || d.LogNormal.P99 != 1500 {
		t.Errorf("%+v", d)
	}
}

func TestDefaults(t *testing.T) {
	e := must(t, good)
	c := e.Workload.Classes[0]
	for _, x := range []struct{ name, got, want any }{
		{"seed", e.Seed, uint64(42)},
		{"api", e.Target.API, "openai-chat"},
		{"timeout", e.Target.Timeout, 2 * time.Minute},
		{"stream", e.Target.Stream, true},
		{"arrivals", e.Load.Arrivals, Arrivals{Process: Poisson}},
		{"cap", e.Load.MaxInFlight, MaxInFlight{Policy: "queue"}},
		{"drain", e.Load.Drain, 2 * time.Minute},
		{"deadline", c.Deadline, 2 * time.Minute},
		{"text", c.Text, Text{Random: "words"}},
		{"input", *c.InputTokens.LogNormal, LogNormal[float64]{P50: 120, P99: 2048}},
		{"output", *c.OutputTokens.LogNormal, LogNormal[float64]{P50: 180, P99: 1500}},
		{"turns", *c.Session.Turns.Fixed, 1.0},
		{"phases", e.Load.Phases, []Phase{{Name: "warm-up", For: time.Minute}, {Name: "steady", For: 5 * time.Minute, Measured: true}}},
		{"attainment without objectives", e.SLO.Attainment, unit.Share(0)},
		{"attainment with one", must(t, good+"slo: {ttft: 1s}\n").SLO.Attainment, unit.Share(0.99)},
	} {
		if !reflect.DeepEqual(x.got, x.want) {
			t.Errorf("%s: %v, want %v", x.name, x.got, x.want)
		}
	}
	if e := must(t, file(", text: {sharegpt: fault.go}", "", "")); e.Workload.Classes[0].InputTokens != nil {
		t.Error("a text file's own lengths are overruled")
	}
	if e := must(t, "target: {url: 'http://a'}\nworkload: {trace: {file: fault.go}}\n"); e.Load.Arrivals.Process != ByTrace || len(e.Load.Phases) != 1 || e.Load.Phases[0].For != 0 {
		t.Errorf("replay: %+v", e.Load)
	}
}

func TestSecrets(t *testing.T) {
	t.Setenv("SPEC_TEST_KEY", "s3cret")
	e := must(t, `target:
  url: https://me:pa55@host/v1?api-key=abc123&x=1
  headers: {Authorization: Bearer sk-abc123, X-Api-Key: "${SPEC_TEST_KEY}", api-key: abc123, X-Team: blue, Cookie: "id=abc123${SPEC_TEST_KEY}"}
  body: {user_token: abc123, temperature: 1, tools: [{auth: {password: abc123}}]}
workload: {classes: [{name: a}]}
load: {rate: 1/s}
`)
	out, err := e.Marshal("")
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"s3cret", "abc123", "pa55"} {
		if strings.Contains(string(out), secret) {
			t.Errorf("%s was written:\n%s", secret, out)
		}
	}
	back, err := Parse("out", out)
	if err != nil {
		t.Fatal(err)
	}
	want := Target{
		URL:     "https://redacted@host/v1?api-key=redacted&x=1",
		Headers: map[string]string{"Authorization": "redacted", "X-Api-Key": "${SPEC_TEST_KEY}", "api-key": "redacted", "X-Team": "blue", "Cookie": "redacted"},
		Body:    map[string]any{"user_token": "redacted", "temperature": 1, "tools": []any{map[string]any{"auth": map[string]any{"password": "redacted"}}}},
	}
	if diff := cmp.Diff(want, Target{URL: back.Target.URL, Headers: back.Target.Headers, Body: back.Target.Body}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// And the experiment itself still holds what was typed.
	if e.Target.Headers["Authorization"] != "Bearer sk-abc123" || !strings.Contains(fmt.Sprint(e.Target.Body), "password:abc123") {
		t.Error("writing changed the experiment")
	}
}

func TestFlags(t *testing.T) {
	lognormal := func(p50, p99 float64) *Counts { return &Counts{LogNormal: &LogNormal[float64]{P50: p50, P99: p99}} }
	fixed := func(x float64) *Counts { return &Counts{Fixed: &x} }
	base := Flags{URL: "http://localhost:8000", Rate: "12/s"}
	with := func(f func(*Flags)) Flags { g := base; f(&g); return g }
	warm := func(w, d time.Duration) []Phase {
		return []Phase{{Name: "warm-up", For: w}, {Name: "steady", For: d, Measured: true}}
	}
	for _, c := range []struct {
		name  string
		flags Flags
		got   func(*Experiment) any
		want  any
	}{
		{"rate", base, func(e *Experiment) any { return e.Load.Rate }, &Rate{Value: 12, Per: "sessions"}},
		{"for: a fifth of it before, up to a minute", with(func(f *Flags) { f.For = "2m" }), func(e *Experiment) any { return e.Load.Phases }, warm(24*time.Second, 2*time.Minute)},
		{"for, long", with(func(f *Flags) { f.For = "1h" }), func(e *Experiment) any { return e.Load.Phases }, warm(time.Minute, time.Hour)},
		{"no warm-up", with(func(f *Flags) { f.For, f.WarmUp = "2m", "0s" }), func(e *Experiment) any { return e.Load.Phases }, []Phase{{Name: "steady", For: 2 * time.Minute, Measured: true}}},
		{"warm-up by time", with(func(f *Flags) { f.WarmUp = "7s" }), func(e *Experiment) any { return e.Load.Phases }, warm(7*time.Second, 5*time.Minute)},
		{"requests, warm-up by number", with(func(f *Flags) { f.Requests, f.WarmUp = "2k", "50" }), func(e *Experiment) any { return e.Load.Phases },
			[]Phase{{Name: "warm-up", Requests: 50}, {Name: "steady", Requests: 2000, Measured: true}}},
		{"input fixed", with(func(f *Flags) { f.Input = "512" }), func(e *Experiment) any { return e.Workload.Classes[0].InputTokens }, fixed(512)},
		{"input by quantiles", with(func(f *Flags) { f.Input = "p50=120,p99=2048" }), func(e *Experiment) any { return e.Workload.Classes[0].InputTokens }, lognormal(120, 2048)},
		{"output normal with a bound", with(func(f *Flags) { f.Output = "mean=512,sd=100,max=1k" }), func(e *Experiment) any { return e.Workload.Classes[0].OutputTokens },
			&Counts{Normal: &Normal[float64]{Mean: 512, SD: 100}, Max: fixed(1000).Fixed}},
		{"input uniform", with(func(f *Flags) { f.Input = "min=100, max=900" }), func(e *Experiment) any { return e.Workload.Classes[0].InputTokens }, &Counts{Uniform: &Uniform[float64]{100, 900}}},
		{"input from a trace: pairs", with(func(f *Flags) { f.Input = "trace=fault.go" }), func(e *Experiment) any { return e.Workload.Classes[0].Lengths }, &Lengths{Joint: Empirical{Trace: "fault.go"}}},
		{"both from one trace: pairs", with(func(f *Flags) { f.Input, f.Output = "trace=fault.go", "trace=fault.go" }), func(e *Experiment) any { return e.Workload.Classes[0].Lengths }, &Lengths{Joint: Empirical{Trace: "fault.go"}}},
		{"input from a trace, output not", with(func(f *Flags) { f.Input, f.Output = "trace=fault.go", "64" }), func(e *Experiment) any { return e.Workload.Classes[0].InputTokens }, &Counts{Empirical: &Empirical{Trace: "fault.go"}}},
		{"text", with(func(f *Flags) { f.Text = "jsonl=fault.go" }), func(e *Experiment) any { return e.Workload.Classes[0].Text }, Text{JSONL: "fault.go"}},
		{"closed", with(func(f *Flags) { f.Rate, f.Closed = "", "64" }), func(e *Experiment) any { return e.Load.Closed }, &Closed{Clients: 64}},
		{"cap", with(func(f *Flags) { f.MaxInFlight = "32" }), func(e *Experiment) any { return e.Load.MaxInFlight }, MaxInFlight{32, "queue"}},
		{"slo", with(func(f *Flags) { f.SLO = "ttft=1s,tpot=100ms,e2e=30s,attainment=95%" }), func(e *Experiment) any { return e.SLO },
			SLO{TTFT: &Objective{Limit: time.Second}, TPOT: &Objective{Limit: 100 * time.Millisecond}, E2E: &Objective{Limit: 30 * time.Second}, Attainment: 0.95}},
		{"seed, salt, name, api", with(func(f *Flags) { f.Seed, f.Salt, f.Name, f.API = "7", "12", "x, y", "openai-completions" }),
			func(e *Experiment) any { return []any{e.Seed, e.Salt, e.Name, e.Target.API} }, []any{uint64(7), "12", "x, y", "openai-completions"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := New()
			if err := c.flags.Apply(e); err != nil {
				t.Fatal(err)
			}
			if err := e.Finish(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, c.got(e)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, c := range []struct {
		name  string
		flags Flags
		says  string
	}{
		{"no rate", Flags{URL: "http://a"}, "load.rate: missing"},
		{"rate and closed", with(func(f *Flags) { f.Closed = "3" }), "--closed: cannot be given with --rate"},
		{"for and requests", with(func(f *Flags) { f.For, f.Requests = "3s", "3" }), "--requests: cannot be given with --for"},
		{"rate without a unit", with(func(f *Flags) { f.Rate = "12" }), "--rate: rate \"12\" has no unit"},
		{"for without a unit", with(func(f *Flags) { f.For = "12" }), "--for: duration \"12\" has no unit"},
		{"warm-up of nothing known", with(func(f *Flags) { f.WarmUp = "some" }), "--warm-up: "},
		{"input mixed", with(func(f *Flags) { f.Input = "p50=3,mean=4" }), "--input: \"p50=3,mean=4\" mixes two"},
		{"input unknown", with(func(f *Flags) { f.Input = "p42=3" }), "--input: unknown parameter \"p42\""},
		{"input by hand", with(func(f *Flags) { f.Input = "1,2" }), "--input: \"1,2\" is not a distribution"},
		{"input half", with(func(f *Flags) { f.Input = "p50=3" }), "--input: workload.classes[0].input_tokens.lognormal: needs two numbers"},
		{"output with a wrong value", with(func(f *Flags) { f.Output = "p50=}" }), "--output: \"}\" is not a number"},
		{"text unknown", with(func(f *Flags) { f.Text = "poems" }), "--text: unknown value"},
		{"slo unknown", with(func(f *Flags) { f.SLO = "ttfx=1s" }), "--slo ttfx: unknown key"},
		{"slo in percent", with(func(f *Flags) { f.SLO = "ttft=1s,attainment=99" }), "write 99% if percent is meant"},
		{"slo without a value", with(func(f *Flags) { f.SLO = "ttft" }), "--slo ttft: "},
		{"seed", with(func(f *Flags) { f.Seed = "x" }), "--seed: \"x\" is not a whole number"},
		{"url", with(func(f *Flags) { f.URL = "localhost" }), "--url: target.url: \"localhost\" is not an http"},
		{"file of a trace", with(func(f *Flags) { f.Input = "trace=no.csv" }), "--input: workload.classes[0].lengths.joint.trace: there is no file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := New()
			err := c.flags.Apply(e)
			if err == nil {
				err = e.Finish()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v\nwant it to say %q", err, c.says)
			}
		})
	}
}

// A replay has no warm-up unless one is asked for: it would use up rows.
func TestFlagsOverReplay(t *testing.T) {
	for _, c := range []struct {
		flags Flags
		want  []Phase
	}{
		{Flags{}, []Phase{{Name: "replay", Measured: true}}},
		{Flags{For: "1m"}, []Phase{{Name: "replay", For: time.Minute, Measured: true}}},
		{Flags{WarmUp: "9s"}, []Phase{{Name: "warm-up", For: 9 * time.Second}, {Name: "replay", Measured: true}}},
		{Flags{Rate: "3/s", For: "1m"}, []Phase{{Name: "warm-up", For: 12 * time.Second}, {Name: "steady", For: time.Minute, Measured: true}}},
	} {
		e, err := Parse("r.yaml", []byte("target: {url: 'http://a'}\nworkload: {trace: {file: fault.go}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.flags.Apply(e); err != nil {
			t.Fatal(err)
		}
		if err := e.Finish(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, e.Load.Phases); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.flags, diff)
		}
	}
}

// Flags come over a file: what they do not name stays.
func TestFlagsOverFile(t *testing.T) {
	e, err := Open("../../examples/chat-sessions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := Flags{URL: "http://other:1", Rate: "5/s", WarmUp: "1s", SLO: "ttft=2s"}
	if err := f.Apply(e); err != nil {
		t.Fatal(err)
	}
	if err := e.Set("load.phases.peak.for", "10s"); err != nil {
		t.Fatal(err)
	}
	if err := e.Finish(); err != nil {
		t.Fatal(err)
	}
	p := e.Load.Phases
	if e.Target.URL != "http://other:1" || e.Load.Rate.Value != 5 || len(p) != 4 || p[0].For != time.Second || p[2].For != 10*time.Second ||
		e.SLO.TTFT.Limit != 2*time.Second || e.SLO.E2E.Limit != time.Minute || e.Load.Arrivals.CV != 1.5 {
		t.Errorf("%+v\n%+v", e.Load, e.SLO)
	}
	if err := (Flags{For: "1m"}).Apply(e); err == nil || !strings.Contains(err.Error(), "--for: the file has 3 measured phases") {
		t.Errorf("--for on three phases: %v", err)
	}
	// A file named on the command line is relative to where one stands.
	if err := (Flags{Input: "trace=fault.go"}).Apply(e); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(e.Path(e.Workload.Classes[0].Lengths.Joint.Trace)); err != nil {
		t.Error(err)
	}
}

func TestSet(t *testing.T) {
	e := must(t, file(", slo: {ttft: 3s}", "{rate: {ramp: {from: 0/s, to: 1/s}}}", ""))
	for _, c := range []struct {
		path, value string
		got         func() any
		want        any
	}{
		{"load.rate", "12/s", func() any { return *e.Load.Rate }, Rate{Value: 12, Per: "sessions"}}, // the ramp is gone
		{"load.rate.per", "turns", func() any { return *e.Load.Rate }, Rate{Value: 12, Per: "turns"}},
		{"workload.classes.0.share", "0.5", func() any { return e.Workload.Classes[0].Share }, 0.5},
		{"workload.classes[0].tenant", "gold", func() any { return e.Workload.Classes[0].Tenant }, "gold"},
		{"workload.classes.chat.priority", "-2", func() any { return e.Workload.Classes[0].Priority }, -2},
		{"workload.classes.chat.prefix", "{tokens: 3}", func() any { return *e.Workload.Classes[0].Prefix }, Prefix{Tokens: 3, Pool: 1}},
		{"workload.classes.chat.slo.tpot", "{p99: 3s}", func() any { return *e.Workload.Classes[0].SLO.TPOT }, Objective{Quantiles: []Quantile{{0.99, 3 * time.Second}}}},
		{"workload.classes.1.name", "b", func() any { return [2]any{len(e.Workload.Classes), e.Workload.Classes[1].Share} }, [2]any{2, 1.0}},
		{"target.body.temperature", "0.5", func() any { return e.Target.Body["temperature"] }, 0.5},
		{"target.headers.X-A", "1", func() any { return e.Target.Headers["X-A"] }, "1"},
		{"load.closed.think", "{exponential: {mean: 1s}}", func() any { return e.Load.Closed.Think.Exponential.Mean }, time.Second},
		{"load.arrivals", "constant", func() any { return e.Load.Arrivals.Process }, Constant},
	} {
		if err := e.Set(c.path, c.value); err != nil {
			t.Errorf("%s: %v", c.path, err)
		} else if diff := cmp.Diff(c.want, c.got()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.path, diff)
		}
	}
	for _, c := range []struct{ path, value, says string }{
		{"", "3", "names no key"},
		{"load.rat", "3/s", "did you mean rate?"},
		{"load.rate", "3", "--set load.rate: rate \"3\" has no unit"},
		{"load.rate", "{", "not YAML"},
		{"load.rate", "", "is not a rate"},
		{"load.phases.nine.for", "3s", "has no entry \"nine\""},
		{"load.arrivals.gamma.cv", "3", "set as a whole"},
		{"seed.x", "3", "seed has no keys"},
		{"target.replicas", "[a]", "not supported in this version"},
		{"workload.classes.-1.share", "3", "has no entry"},
	} {
		if err := e.Set(c.path, c.value); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Set(%q, %q): %v; want it to say %q", c.path, c.value, err, c.says)
		}
	}
}

// A few hundred bytes that expand to gigabytes are refused at once.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("target:\n  url: http://a\n  body:\n    a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "    a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	start := time.Now()
	_, err := Parse("bomb.yaml", []byte(b.String()))
	if err == nil || !strings.Contains(err.Error(), "expands to too much") {
		t.Errorf("%v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
	if _, err := Parse("big.yaml", []byte(strings.Repeat("#", maxBytes+1))); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("large file: %v", err)
	}
	if _, err := Parse("deep.yaml", []byte(strings.Repeat("[", 100_000))); err == nil {
		t.Error("a deep file is accepted")
	}
}

func TestExcerptOfALongLine(t *testing.T) {
	line := strings.Repeat("ä", 300) + "!" + strings.Repeat("b", 300)
	text, caret := excerpt(line, 301)
	if r := []rune(text); len(r) > 103 || r[len([]rune(caret))-1] != '!' {
		t.Errorf("%s\n%s", text, caret)
	}
}

func TestSchemaDescribesEveryKey(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Properties map[string]map[string]any
		Defs       map[string]map[string]any `json:"$defs"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	n := 0
	var walk func(path string, x any)
	walk = func(path string, x any) {
		switch x := x.(type) {
		case map[string]any:
			if props, ok := x["properties"].(map[string]any); ok {
				for k, p := range props {
					if d, _ := p.(map[string]any)["description"].(string); d == "" && k != "cv" && k != Gamma && k != Weibull {
						t.Errorf("%s.%s has no description", path, k)
					}
					n++
				}
			}
			for k, v := range x {
				walk(path+"."+k, v)
			}
		case []any:
			for _, v := range x {
				walk(path, v)
			}
		}
	}
	var all any
	_ = json.Unmarshal(text, &all)
	walk("", all)
	if n < 100 {
		t.Errorf("only %d keys", n)
	}
	if d := s.Properties["seed"]["description"]; d != "Draws the whole plan: the same file and seed give the same plan, bit for bit." {
		t.Errorf("seed: %v", d)
	}
}

func compile(t *testing.T) *validator.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := validator.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	if err := c.AddResource("experiment.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("experiment.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// toJSON turns YAML into what a JSON validator takes.
func toJSON(t *testing.T, text string) any {
	t.Helper()
	var x any
	if err := yaml.Load([]byte(text), &x); err != nil {
		if text == "" || strings.HasPrefix(text, "#") {
			return nil
		}
		t.Fatal(err)
	}
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	v, err := validator.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Whatever the bytes, reading ends without a panic, each fault has a place in
// the file, and what is accepted is written and read back to the same thing.
func FuzzParse(f *testing.F) {
	for _, c := range badFiles {
		f.Add(c.text)
	}
	files, _ := filepath.Glob("../../examples/*.yaml")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add("target: &a {body: *a}\n")
	f.Add("target: {body: {a: !!binary xx, b: 2001-01-01, <<: 3, c: .inf}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse("f", []byte(text))
		if e != nil {
			err = e.Finish()
		}
		if err != nil {
			var faults Faults
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("error of another kind: %v", err)
			}
			lines := strings.Count(text, "\n") + 1
			for _, x := range faults {
				if x.File != "f" || x.Line < 0 || x.Line > lines+1 || x.Column < 0 || x.Message == "" {
					t.Errorf("fault %+v", x)
				}
				_ = x.Error()
			}
			return
		}
		out, err := e.Marshal("")
		if err != nil {
			t.Fatalf("%v\nof %q", err, text)
		}
		back, err := Parse("f", out)
		if err != nil {
			t.Fatalf("%v\nof %q", err, out)
		}
		again, err := back.Marshal("")
		if err != nil || string(again) != string(out) {
			t.Fatalf("written twice, %v:\n%s\n%s", err, out, again)
		}
	})
}

// Whatever the command line, Set and Flags end without a panic.
func FuzzFlags(f *testing.F) {
	f.Add("load.rate", "12/s", "p50=3,p99=4", "ttft=1s")
	f.Add("workload.classes[0].text", "{jsonl: a}", "trace=x", "p99")
	f.Add("target.body.x", "[1, {a: b}]", "min=1,max=\"", "=,=")
	f.Fuzz(func(t *testing.T, path, value, input, slo string) {
		e := New()
		_ = Flags{URL: value, Rate: value, Input: input, Output: input, Text: input, SLO: slo, For: value, WarmUp: value, Seed: value}.Apply(e)
		_ = e.Set(path, value)
		if err := e.Finish(); err != nil {
			_ = err.Error()
		}
	})
}

// Numbers that no machine could serve are refused where they stand, before they
// become memory.
func TestAbsurdSizesAreRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"input_tokens: {lognormal: {p50: 100, p99: 1e300}}, output_tokens: 5", "input_tokens.lognormal.p99: must be at most"},
		{"input_tokens: 9, output_tokens: {exponential: {mean: 1e12}}", "output_tokens.exponential.mean: must be at most"},
		{"input_tokens: 9, output_tokens: 5, prefix: {tokens: 50, pool: 2000000000}", "prefix.pool: must be from 1 to 1000000"},
	} {
		e, err := Parse("x.yaml", []byte("target: {url: http://x}\nload: {rate: 1/s}\nworkload: {classes: [{name: c, text: {random: words}, "+c.text+"}]}\n"))
		if err == nil {
			err = e.Finish()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
