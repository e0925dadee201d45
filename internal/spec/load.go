package spec

import "errors"

// source says where each value of an experiment was written.
type source struct{}

var errNotYet = errors.New("spec: not built yet")

// ReadFile reads the experiment file at path strictly, fills in every default and
// checks it. The error lists all faults (see Faults).
func ReadFile(path string) (*Experiment, error) { return nil, errNotYet }

// Parse reads an experiment file's text; name is what errors call it. It checks
// form alone (keys, types, units): no default is derived, nothing is looked up.
// This is how a result's own experiment.yaml is read.
func Parse(name string, text []byte) (*Experiment, error) { return nil, errNotYet }

// New returns an experiment in which every independent default is set.
func New() *Experiment { return nil }

// Finish fills in the defaults that depend on other values, and checks the
// whole. It comes after Flags.Apply and Set.
func (e *Experiment) Finish() error { return errNotYet }

// Set sets one key, such as load.rate or workload.classes.0.share, to a YAML value.
func (e *Experiment) Set(path, value string) error { return errNotYet }

// Marshal writes the experiment as a file that ReadFile reads back to the same
// thing. Names of files are written relative to dir where that is not empty.
// No secret is written: a header keeps its ${NAME}, and a credential that was
// typed into the file is replaced by "redacted".
func (e *Experiment) Marshal(dir string) ([]byte, error) { return nil, errNotYet }

// Path returns the place of a file that the experiment names: relative names
// are relative to the experiment file's folder.
func (e *Experiment) Path(name string) string { return name }

// Resolved is what of a target comes from the environment. It holds secrets.
type Resolved struct {
	URL     string
	Headers map[string]string
}

// Resolve replaces each ${NAME} in the target's URL and headers.
func (t *Target) Resolve(lookup func(name string) (string, bool)) (Resolved, error) {
	return Resolved{}, errNotYet
}

// Schema returns the file's JSON Schema (draft 2020-12).
func Schema() ([]byte, error) { return nil, errNotYet }

// Flags are the common flags of run as they were written; an empty string means
// that the flag was not given. The zero value changes nothing.
type Flags struct {
	URL, API, Model     string
	Rate, For, Requests string // 12/s; 5m; 2000
	WarmUp              string // 60s; 0s turns it off
	Input, Output, Text string // 512; p50=120,p99=2048; words
	Closed, MaxInFlight string // 64
	SLO                 string // ttft=1s,tpot=100ms,e2e=30s,attainment=99%
	Seed, Salt, Name    string
}

// Apply sets what the flags say. Errors name the flag.
func (f Flags) Apply(e *Experiment) error { return errNotYet }
