package spec

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trueload/trueload/internal/unit"
)

// Flags are the common flags of run, as they were written; an empty string
// means that the flag was not given. The zero value changes nothing.
type Flags struct {
	URL, API, Model string
	Rate            string // 12/s
	Closed          string // clients, instead of a rate: 64
	MaxInFlight     string // unlimited, or 64
	For             string // of the measured phase: 5m
	Requests        string // of the measured phase, instead of a time: 2000
	WarmUp          string // a time, or a number of requests; 0s turns it off
	// Tokens: 512 | p50=120,p99=2048 | mean=512,sd=100 | min=100,max=900 |
	// trace=FILE; min and max bound the others too. A trace given for Input
	// alone, or the same for both, keeps input and output in pairs.
	Input, Output    string
	Text             string // words | token_ids | sharegpt=FILE | jsonl=FILE
	SLO              string // ttft=1s,tpot=100ms,e2e=30s,attainment=99%
	Seed, Salt, Name string
}

// Apply sets what the flags say, over what a file said. It comes before Finish.
// Names of files are relative to the working directory. Errors name the flag.
func (f Flags) Apply(e *Experiment) error {
	var faults Faults
	set := func(flag, path, value string) {
		if value == "" {
			return
		}
		if err, ok := e.assign(flag, path, value).(Faults); ok {
			for i := range err {
				err[i].Path = "" // the flag says it
			}
			faults = append(faults, err...)
		}
	}
	bad := func(flag, message, hint string) {
		faults = append(faults, Fault{File: flag, Message: message, Hint: hint})
	}
	set("--url", "target.url", quote(f.URL))
	set("--api", "target.api", quote(f.API))
	set("--model", "target.model", quote(f.Model))
	set("--seed", "seed", f.Seed)
	set("--salt", "salt", quote(f.Salt))
	set("--name", "name", quote(f.Name))
	set("--max-in-flight", "load.max_in_flight", f.MaxInFlight)

	switch {
	case f.Rate != "" && f.Closed != "":
		bad("--closed", "cannot be given with --rate", "open loop has a rate, closed loop has clients")
	case f.Rate != "":
		e.Load.Closed = nil
		set("--rate", "load.rate", f.Rate)
	case f.Closed != "":
		e.Load.Rate, e.Load.Arrivals = nil, Arrivals{}
		set("--closed", "load.closed", "{clients: "+quote(f.Closed)+"}")
	}
	f.phases(e, set, bad)
	f.workload(e, set, bad)
	for _, p := range pairs(f.SLO) {
		if p.value == "" {
			bad("--slo "+p.key, "has no value", "write --slo ttft=1s,tpot=100ms,attainment=99%")
		}
		set("--slo "+p.key, "slo."+p.key, quote(p.value))
	}
	return faults.err()
}

// phases sets how long the run measures and warms up.
func (f Flags) phases(e *Experiment, set, bad func(flag, a, b string)) {
	if f.For == "" && f.Requests == "" && f.WarmUp == "" {
		return
	}
	l := &e.Load
	if l.Phases == nil {
		d := defaultFor
		if v, err := unit.ParseDuration(f.For); err == nil {
			d = v
		}
		l.Phases = e.usualPhases(d)
		if l.Closed != nil && f.Requests != "" && f.WarmUp == "" {
			// How many sessions a timed warm-up takes is the server's to say.
			l.Phases = slices.DeleteFunc(l.Phases, func(p Phase) bool { return !p.Measured })
		}
	}
	if f.For != "" && f.Requests != "" {
		bad("--requests", "cannot be given with --for", "a phase lasts a time or a number of requests")
		return
	}
	measured := []int{}
	for i, p := range l.Phases {
		if p.Measured {
			measured = append(measured, i)
		}
	}
	length := func(flag, key, other, value string) {
		if value == "" {
			return
		}
		if len(measured) != 1 {
			bad(flag, fmt.Sprintf("the file has %d measured phases, and the flag sets one", len(measured)), "write --set load.phases.NAME."+key+"=..")
			return
		}
		set(flag, fmt.Sprintf("load.phases[%d].%s", measured[0], key), value)
		set(flag, fmt.Sprintf("load.phases[%d].%s", measured[0], other), "0")
	}
	length("--for", "for", "requests", f.For)
	length("--requests", "requests", "for", f.Requests)
	if f.WarmUp == "" {
		return
	}
	l.Phases = slices.DeleteFunc(l.Phases, func(p Phase) bool { return !p.Measured && p.Name == "warm-up" })
	e.src().forget("load.phases") // their numbers have changed
	if d, err := unit.ParseDuration(f.WarmUp); err == nil && d == 0 {
		return
	}
	l.Phases = slices.Insert(l.Phases, 0, Phase{Name: "warm-up"})
	if _, err := unit.ParseCount(f.WarmUp); err == nil {
		set("--warm-up", "load.phases[0].requests", f.WarmUp)
	} else {
		set("--warm-up", "load.phases[0].for", f.WarmUp)
	}
}

// workload sets text and lengths, of every class.
func (f Flags) workload(e *Experiment, set, bad func(flag, a, b string)) {
	w := &e.Workload
	if w.Trace != nil {
		for _, x := range []struct{ flag, value string }{{"--input", f.Input}, {"--output", f.Output}, {"--text", f.Text}} {
			if x.value != "" {
				bad(x.flag, "the experiment replays a trace, which has its own lengths", "")
			}
		}
		return
	}
	if len(w.Classes) == 0 {
		w.Classes = make([]Class, 1)
		w.Classes[0].setDefaults()
	}
	input, output := trace(f.Input), trace(f.Output)
	joint := input != "" && (f.Output == "" || output == input)
	for i := range w.Classes {
		at := fmt.Sprintf("workload.classes[%d].", i)
		c := &w.Classes[i]
		switch {
		case f.Text == "":
		case strings.Contains(f.Text, "="):
			key, file, _ := strings.Cut(f.Text, "=")
			set("--text", at+"text", "{"+quote(key)+": "+quote(here(e, file))+"}")
		default:
			set("--text", at+"text", quote(f.Text))
		}
		if joint {
			c.InputTokens, c.OutputTokens = nil, nil
			set("--input", at+"lengths", "{joint: {trace: "+quote(here(e, input))+"}}")
			continue
		}
		if f.Input != "" || f.Output != "" {
			c.Lengths = nil
		}
		for _, x := range []struct{ flag, key, value string }{{"--input", "input_tokens", f.Input}, {"--output", "output_tokens", f.Output}} {
			if x.value == "" {
				continue
			}
			text, err := distribution(e, x.value)
			if err != nil {
				if i == 0 {
					message, hint, _ := strings.Cut(err.Error(), ": ")
					bad(x.flag, message, hint)
				}
				continue
			}
			set(x.flag, at+x.key, text)
		}
	}
}

// trace returns FILE of trace=FILE, or nothing.
func trace(flag string) string {
	file, ok := strings.CutPrefix(flag, "trace=")
	if !ok {
		return ""
	}
	return file
}

// here makes a file named on the command line mean the same to the experiment,
// whose names are relative to its own file's folder.
func here(e *Experiment, file string) string {
	if e.src().dir == "" || filepath.IsAbs(file) {
		return file
	}
	if full, err := filepath.Abs(file); err == nil {
		return full
	}
	return file
}

type pair struct{ key, value string }

// pairs splits a=1,b=2. A part without = becomes a key of that name.
func pairs(s string) (list []pair) {
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(part, "=")
		list = append(list, pair{strings.TrimSpace(key), strings.TrimSpace(value)})
	}
	return list
}

// distribution turns a flag's short form into YAML.
func distribution(e *Experiment, s string) (string, error) {
	const how = "write 512, p50=120,p99=2048, mean=512,sd=100, min=100,max=900 or trace=FILE"
	if !strings.Contains(s, "=") {
		if strings.Contains(s, ",") {
			return "", fmt.Errorf("%q is not a distribution: %s", s, how)
		}
		return quote(s), nil
	}
	if file := trace(s); file != "" {
		return "{empirical: " + quote(here(e, file)) + "}", nil
	}
	var inner, bounds []string
	kind := ""
	for _, p := range pairs(s) {
		k := ""
		switch p.key {
		case "min", "max":
			bounds = append(bounds, p.key+": "+quote(p.value))
			continue
		case "p50", "p90", "p95", "p99", "mu", "sigma":
			k = "lognormal"
		case "mean", "sd", "cv":
			k = "normal"
		default:
			return "", fmt.Errorf("unknown parameter %q: %s", p.key, how)
		}
		if kind != "" && kind != k {
			return "", fmt.Errorf("%q mixes two distributions: %s", s, how)
		}
		kind = k
		inner = append(inner, p.key+": "+quote(p.value))
	}
	if kind == "" {
		return "{uniform: {" + strings.Join(bounds, ", ") + "}}", nil
	}
	return "{" + strings.Join(append([]string{kind + ": {" + strings.Join(inner, ", ") + "}"}, bounds...), ", ") + "}", nil
}

// quote makes a flag's word one YAML scalar; nothing stays nothing.
func quote(s string) string {
	if s == "" {
		return ""
	}
	return strconv.Quote(s)
}
