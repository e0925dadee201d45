package spec

import (
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/unit"
)

// Beyond these no number is meant: they guard memory against a slip of the hand.
const (
	maxTokens = 10_000_000 // of one prompt or answer
	maxPool   = 1_000_000  // of shared prefixes
	maxTurns  = 100_000    // of one session
	maxRate   = 1_000_000  // per second
)

// checker collects what is wrong with an experiment whose form is right.
type checker struct {
	e      *Experiment
	faults Faults
}

// bad notes a fault at path, unless it would only echo one of form.
func (c *checker) bad(path, message, hint string) {
	src := c.e.src()
	if src.spoiled(path) || len(c.faults) >= maxFaults {
		return
	}
	m := src.find(path)
	c.faults = append(c.faults, Fault{File: m.file, Line: m.line, Column: m.col, Path: path, Message: message, Hint: hint, Excerpt: m.text})
}

func classPath(i int, key string) string { return join(fmt.Sprintf("workload.classes[%d]", i), key) }

// validate finds everything that form alone does not show.
func (e *Experiment) validate() Faults {
	c := &checker{e: e}
	if strings.ContainsAny(e.Name, "/\\:\x00\r\n\t") || e.Name == "." || e.Name == ".." {
		c.bad("name", fmt.Sprintf("%q cannot name a folder", e.Name), "the result's folder is called after it: leave out / \\ and :")
	}
	c.target()
	c.workload()
	c.load()
	c.slo("slo", &e.SLO)
	if e.SLO.Attainment == 0 && e.src().has("slo.attainment") {
		c.bad("slo.attainment", "must be above 0%", "")
	} else if e.SLO.Attainment > 0 && !e.perRequest() {
		c.bad("slo.attainment", "there is no per-request objective to attain", "give one, such as ttft: 1s")
	}
	for _, f := range e.files() {
		c.file(f.path, *f.name)
	}
	return c.faults
}

// reachable tells an address that requests can go to.
func reachable(u *url.URL) bool {
	switch u.Scheme {
	case "http", "https":
		return u.Host != ""
	case "unix":
		return u.Host == "" && u.Path != ""
	}
	return false
}

func (c *checker) target() {
	t := &c.e.Target
	for name, v := range t.Headers {
		path := "target.headers." + name
		if name == "" || strings.ContainsAny(name, " \t\r\n:") || strings.ContainsAny(v, "\r\n") {
			c.bad(path, "is not a header", "")
		}
		if _, err := expand(v, os.LookupEnv); err != nil {
			c.bad(path, err.Error(), "export it, or take the header out")
		}
	}
	if t.URL == "" {
		c.bad("target.url", "missing", "where is the server? url: http://localhost:8000, or --url")
	} else if raw, err := expand(t.URL, os.LookupEnv); err != nil {
		c.bad("target.url", err.Error(), "export it, or write the address out")
	} else if u, err := url.Parse(raw); err != nil || !reachable(u) {
		c.bad("target.url", fmt.Sprintf("%q is not an http or https address", t.URL), "write http://localhost:8000, or unix:///path/to.sock")
	} else if t.HTTP == "h2c" && u.Scheme == "https" {
		c.bad("target.http", "h2c is HTTP/2 without TLS, and the address is https", "leave it out: over TLS the server and auto agree on HTTP/2")
	}
	if t.Timeout <= 0 {
		c.bad("target.timeout", "must be above 0s", "a request without a deadline can keep a run from ending")
	}
}

func (c *checker) workload() {
	w := &c.e.Workload
	switch {
	case len(w.Classes) == 0 && w.Trace == nil:
		c.bad("workload", "missing", "give classes or a trace")
		return
	case len(w.Classes) > 0 && w.Trace != nil:
		c.bad("workload", "has both classes and a trace", "keep one of them")
	}
	names, sum := map[string]bool{}, 0.0
	for i := range w.Classes {
		k := &w.Classes[i]
		c.class(i, k)
		if names[k.Name] && k.Name != "" {
			c.bad(classPath(i, "name"), fmt.Sprintf("there are two classes named %q", k.Name), "")
		}
		names[k.Name] = true
		sum += k.Share
	}
	if len(w.Classes) > 0 && !(sum > 0 && !math.IsInf(sum, 0)) {
		c.bad("workload.classes[0].share", "the shares sum to nothing", "give at least one class a share above 0")
	}
	if t := w.Trace; t != nil {
		const path = "workload.trace"
		if t.File == "" {
			c.bad(path+".file", "missing", "which trace? file: trace.csv")
		}
		if t.Speed <= 0 {
			c.bad(path+".speed", "must be above 0", "1 is as recorded, 2 twice as fast")
		}
		if t.Speed != 1 && c.e.Load.Arrivals.Process != ByTrace {
			c.bad(path+".speed", "has no effect: the times are not the trace's", "leave load.rate and load.closed out, or the speed")
		}
		if t.Spread > 0 && c.e.Load.Arrivals.Process != ByTrace {
			c.bad(path+".spread", "has no effect: the times are not the trace's", "leave load.rate and load.closed out, or the spread")
		}
		if t.Block < 0 {
			c.bad(path+".block", "must not be negative", "leave it out: 512 for Mooncake, 16 for Bailian")
		}
		if t.Rows.Count > 0 && t.Rows.First > 0 {
			c.bad(path+".rows", "has both a number and a time", "keep one of them")
		}
		c.text(path+".text", &t.Text)
	}
}

// exactly notes a fault unless one of the fields is set, by name.
func (c *checker) exactly(path string, set map[string]bool, all string) {
	var have []string
	for name, ok := range set {
		if ok {
			have = append(have, name)
		}
	}
	slices.Sort(have)
	switch len(have) {
	case 0:
		c.bad(path, "says nothing", "give one of: "+all)
	case 1:
	default:
		c.bad(path, "only one of "+strings.Join(have, ", ")+" can be given", "")
	}
}

func (c *checker) text(path string, t *Text) {
	c.exactly(path, map[string]bool{"random": t.Random != "", "sharegpt": t.ShareGPT != "", "jsonl": t.JSONL != ""}, "random, sharegpt, jsonl")
	if t.Random == "token_ids" && c.e.Target.API != "openai-completions" {
		c.bad(path, "token ids need an API that takes them", "set target.api to openai-completions, or use words")
	}
}

func (c *checker) class(i int, k *Class) {
	at := func(key string) string { return classPath(i, key) }
	if k.Name == "" {
		c.bad(at("name"), "missing", "give each class a name")
	}
	c.text(at("text"), &k.Text)
	if k.Lengths != nil {
		for _, other := range []struct {
			key string
			set bool
		}{{"input_tokens", k.InputTokens != nil}, {"output_tokens", k.OutputTokens != nil}} {
			if other.set {
				c.bad(at(other.key), "is given twice: lengths draws input and output together", "keep one of them")
			}
		}
		if k.Lengths.Joint.Trace == "" {
			c.bad(at("lengths.joint.trace"), "missing", "which trace?")
		}
	}
	tokens := rules{atLeast: 1, atMost: maxTokens, whole: true, empirical: true}
	checkDist(c, at("input_tokens"), k.InputTokens, tokens)
	checkDist(c, at("output_tokens"), k.OutputTokens, tokens)
	checkDist(c, at("session.turns"), k.Session.Turns, rules{atLeast: 1, atMost: maxTurns, whole: true, geometric: true})
	checkDist(c, at("session.think"), k.Session.Think, rules{})
	if p := k.Prefix; p != nil {
		if p.Tokens < 1 || p.Tokens > maxTokens {
			c.bad(at("prefix.tokens"), fmt.Sprintf("must be from 1 to %d", maxTokens), "how long is the shared text?")
		}
		if p.Pool < 1 || p.Pool > maxPool {
			c.bad(at("prefix.pool"), fmt.Sprintf("must be from 1 to %d", maxPool), "how many different shared texts are there?")
		}
	}
	if k.Model != "" && k.Adapter != "" {
		c.bad(at("adapter"), "both model and adapter name the served model", "keep one of them")
	}
	if h := k.HangUp; h != nil {
		if h.After <= 0 {
			c.bad(at("hang_up.after"), "must be above 0s", "when do users give up, counted from when the request was due?")
		}
		if !c.e.src().has(at("hang_up.share")) && h.Share == 0 {
			c.bad(at("hang_up.share"), "missing", "which share of the requests? share: 2%")
		}
	}
	if k.Deadline <= 0 && c.e.src().has(at("deadline")) {
		c.bad(at("deadline"), "must be above 0s", "")
	}
	c.slo(at("slo"), &k.SLO)
	if k.SLO.Attainment == 0 && c.e.src().has(at("slo.attainment")) {
		c.bad(at("slo.attainment"), "must be above 0%", "")
	}
}

// rules say what a distribution's values may be.
type rules struct {
	atLeast, atMost      float64 // values that make sense; atMost 0: no limit
	whole                bool
	geometric, empirical bool // whether that kind makes sense
}

func checkDist[T float64 | time.Duration](c *checker, path string, d *Dist[T], r rules) {
	if d == nil {
		return
	}
	kinds := "fixed, uniform, normal, lognormal, exponential"
	if r.geometric {
		kinds += ", geometric"
	}
	if r.empirical {
		kinds += ", empirical"
	}
	c.exactly(path, map[string]bool{
		"fixed": d.Fixed != nil, "uniform": d.Uniform != nil, "normal": d.Normal != nil, "lognormal": d.LogNormal != nil,
		"exponential": d.Exponential != nil, "geometric": d.Geometric != nil, "empirical": d.Empirical != nil,
	}, kinds)
	least := T(r.atLeast)
	value := func(key string, v T) {
		if v < least {
			c.bad(key, fmt.Sprintf("must be at least %v, but is %v", least, v), "")
		} else if r.atMost > 0 && float64(v) > r.atMost {
			c.bad(key, fmt.Sprintf("must be at most %.0f", r.atMost), "")
		} else if r.whole && float64(v) != math.Trunc(float64(v)) {
			c.bad(key, fmt.Sprintf("must be a whole number, but is %v", v), "")
		}
	}
	positive := func(key string, v T) {
		if v <= 0 {
			c.bad(key, "missing, or not above 0", "")
		} else if r.atMost > 0 && float64(v) > r.atMost {
			c.bad(key, fmt.Sprintf("must be at most %.0f", r.atMost), "")
		}
	}
	if d.Fixed != nil {
		value(path, *d.Fixed)
		if d.Min != nil || d.Max != nil {
			c.bad(path, "a fixed value has no bounds", "leave min and max out")
		}
	}
	if u := d.Uniform; u != nil {
		value(path+".uniform.min", u.Min)
		if value(path+".uniform.max", u.Max); u.Max < u.Min {
			c.bad(path+".uniform.max", "lies below min", "")
		}
	}
	if n := d.Normal; n != nil {
		positive(path+".normal.mean", n.Mean)
		if (n.SD > 0) == (n.CV > 0) {
			c.bad(path+".normal", "needs one of sd and cv, above 0", "sd is the standard deviation, cv the same as a share of the mean")
		}
	}
	if l := d.LogNormal; l != nil {
		upper := 0
		for _, q := range []struct {
			key string
			v   T
		}{{"p90", l.P90}, {"p95", l.P95}, {"p99", l.P99}} {
			if q.v == 0 {
				continue
			}
			if upper++; q.v <= l.P50 {
				c.bad(path+".lognormal."+q.key, "must lie above p50", "")
			} else {
				positive(path+".lognormal."+q.key, q.v)
			}
		}
		byMedian := l.P50 > 0 && l.Mu == nil && (upper == 1) != (l.Sigma > 0) && upper <= 1
		byMu := l.Mu != nil && l.Sigma > 0 && l.P50 == 0 && upper == 0
		if !byMedian && !byMu {
			c.bad(path+".lognormal", "needs two numbers that fix it", "give p50 and one of p90, p95, p99, sigma; or mu and sigma")
		}
		if l.Sigma > 20 || l.Mu != nil && math.Abs(*l.Mu) > 40 {
			c.bad(path+".lognormal", "is wider than any length or time", "mu and sigma are of the natural logarithm")
		}
	}
	if m := d.Exponential; m != nil {
		positive(path+".exponential.mean", m.Mean)
	}
	if m := d.Geometric; m != nil {
		if !r.geometric {
			c.bad(path+".geometric", "is for counts of turns", "one of: "+kinds)
		} else {
			if m.Mean < 1 {
				c.bad(path+".geometric.mean", "must be at least 1", "the geometric distribution starts at 1")
			}
		}
	}
	if m := d.Empirical; m != nil {
		if !r.empirical {
			c.bad(path+".empirical", "is for tokens", "one of: "+kinds)
		} else if m.Trace == "" {
			c.bad(path+".empirical.trace", "missing", "which trace?")
		}
	}
	if d.Min != nil && d.Fixed == nil {
		value(path+".min", *d.Min)
	}
	if d.Max != nil && d.Fixed == nil {
		value(path+".max", *d.Max)
		if d.Min != nil && *d.Max < *d.Min {
			c.bad(path+".max", "lies below min", "")
		} else if center, ok := d.center(); ok && (*d.Max < center || d.Min != nil && *d.Min > center) {
			// Redrawing until a value fits would take forever, or nearly.
			if *d.Max < center/1000 || d.Min != nil && *d.Min > center*1000 {
				c.bad(path, "hardly any value lies between min and max", "the bounds cut the distribution; they do not shift it")
			}
		}
	}
}

// center is the middle of a distribution, where its parameters give one.
func (d *Dist[T]) center() (T, bool) {
	switch {
	case d.Normal != nil:
		return d.Normal.Mean, true
	case d.LogNormal != nil && d.LogNormal.P50 > 0:
		return d.LogNormal.P50, true
	case d.Exponential != nil:
		return d.Exponential.Mean, true
	}
	return 0, false
}

func (c *checker) load() {
	l, w := &c.e.Load, &c.e.Workload
	byTrace := l.Arrivals.Process == ByTrace
	switch {
	case l.Rate != nil && l.Closed != nil:
		c.bad("load", "has both a rate and a closed loop", "keep one of them")
	case byTrace && w.Trace == nil:
		c.bad("load.arrivals", "there is no trace to take times from", "give workload.trace, or another process and a rate")
	case byTrace && l.Rate != nil:
		c.bad("load.rate", "the trace's times already say the rate", "take arrivals: trace out, or the rate; workload.trace.speed plays it faster")
	case l.Closed != nil && l.Arrivals.Process != "":
		c.bad("load.arrivals", "has no effect in a closed loop", "leave it out")
	case l.Rate == nil && l.Closed == nil && !byTrace:
		c.bad("load.rate", "missing", "how many sessions arrive? rate: 12/s (or --rate 12/s); or a closed loop: closed: {clients: 64} (or --closed 64)")
	}
	if l.Closed != nil {
		if l.Closed.Clients < 1 {
			c.bad("load.closed.clients", "must be at least 1", "")
		}
		checkDist(c, "load.closed.think", l.Closed.Think, rules{})
	}
	if l.Rate != nil {
		c.rate("load.rate", l.Rate, false)
	}
	if l.Drain < 0 {
		c.bad("load.drain", "is negative", "")
	}
	if len(l.Phases) == 0 {
		c.bad("load.phases", "there is no phase", "leave the key out for the usual ones")
		return
	}
	names, measured := map[string]bool{}, false
	for i := range l.Phases {
		p := &l.Phases[i]
		at := func(key string) string { return join(fmt.Sprintf("load.phases[%d]", i), key) }
		if p.Name == "" {
			c.bad(at("name"), "missing", "give each phase a name")
		} else if names[p.Name] {
			c.bad(at("name"), fmt.Sprintf("there are two phases named %q", p.Name), "")
		}
		names[p.Name] = true
		measured = measured || p.Measured
		toTheEnd := byTrace && i == len(l.Phases)-1 && !w.Trace.repeats()
		switch {
		case p.For > 0 && p.Requests > 0:
			c.bad(at("requests"), "the phase has both a time and a number", "keep one of for and requests")
		case p.For == 0 && p.Requests == 0 && !toTheEnd:
			c.bad(at("for"), "missing, or 0", "how long is the phase? for: 5m, or requests: 2000")
		}
		rate := l.Rate
		if p.Rate != nil {
			rate = p.Rate
			if c.rate(at("rate"), rate, true); l.Rate == nil {
				c.bad(at("rate"), "has no effect: the load has no rate", "")
			}
		}
		if rate != nil && rate.Ramp != nil && rate.Ramp.Over == 0 && p.For == 0 {
			c.bad(at("for"), "a ramp needs to know how long it takes", "give the phase a time, or the ramp an over")
		}
		if p.Arrivals != nil {
			if p.Arrivals.Process == ByTrace || l.Rate == nil {
				c.bad(at("arrivals"), "a phase cannot change to or from a trace's times or a closed loop", "")
			}
		}
		sum := 0.0
		for name, share := range p.Shares {
			sum += share
			known := []string{}
			for _, k := range w.Classes {
				known = append(known, k.Name)
			}
			if !slices.Contains(known, name) {
				hint := "classes: " + strings.Join(known, ", ")
				c.bad(at("shares."+name), "there is no such class", hint)
			}
		}
		if p.Shares != nil && !(sum > 0 && !math.IsInf(sum, 0)) {
			c.bad(at("shares"), "the shares sum to nothing", "")
		}
	}
	if !measured {
		c.bad("load.phases", "no phase is measured", "leave measured: false out of one")
	}
}

func (t *Trace) repeats() bool { return t != nil && t.Repeat }

// rate checks a rate or curve. A phase may be silent: zero.
func (c *checker) rate(path string, r *Rate, phase bool) {
	c.exactly(path, map[string]bool{
		"value": r.Value > 0 || !r.Curve(), "ramp": r.Ramp != nil, "steps": r.Steps != nil, "sine": r.Sine != nil, "spike": r.Spike != nil,
	}, "value, ramp, steps, sine, spike")
	if !r.Curve() && r.Value == 0 && !phase {
		c.bad(path, "must be above 0/s", "how many sessions arrive? rate: 12/s")
	}
	rates := []unit.Rate{r.Value}
	if r.Ramp != nil {
		rates = append(rates, r.Ramp.From, r.Ramp.To)
	}
	if r.Sine != nil {
		rates = append(rates, r.Sine.Mean)
	}
	if r.Spike != nil {
		rates = append(rates, r.Spike.Base, r.Spike.Peak)
	}
	for _, s := range r.Steps {
		rates = append(rates, s.Rate)
	}
	if slices.Max(rates) > maxRate {
		c.bad(path, fmt.Sprintf("is above %v", unit.Rate(maxRate)), "")
	}
	if x := r.Ramp; x != nil && x.From == 0 && x.To == 0 {
		c.bad(path+".ramp", "goes from 0/s to 0/s", "")
	}
	if r.Steps != nil {
		top := 0.0
		for i, s := range r.Steps {
			if top = max(top, float64(s.Rate)); s.For <= 0 {
				c.bad(fmt.Sprintf("%s.steps[%d].for", path, i), "missing, or 0", "how long is the step?")
			}
		}
		if top == 0 {
			c.bad(path+".steps", "no step has a rate above 0/s", "")
		}
	}
	if x := r.Sine; x != nil {
		if x.Mean <= 0 {
			c.bad(path+".sine.mean", "missing, or 0", "")
		} else if x.Amplitude > x.Mean {
			c.bad(path+".sine.amplitude", "is above the mean, so that the rate would fall below 0/s", "")
		}
		if x.Period <= 0 {
			c.bad(path+".sine.period", "missing, or 0", "")
		}
	}
	if x := r.Spike; x != nil {
		if x.Peak <= 0 {
			c.bad(path+".spike.peak", "missing, or 0", "")
		}
		if x.For <= 0 {
			c.bad(path+".spike.for", "missing, or 0", "how long does the peak last?")
		}
	}
}

func (c *checker) slo(path string, s *SLO) {
	for name, o := range s.Objectives() {
		at := join(path, name)
		if len(o.Quantiles) == 0 && o.Limit <= 0 {
			c.bad(at, "must be above 0s", "")
		}
		for _, q := range o.Quantiles {
			if q.Limit <= 0 {
				c.bad(join(at, q.name()), "must be above 0s", "")
			}
		}
		if !c.e.Target.Stream && name != "e2e" {
			c.bad(at, "does not exist where answers are not streamed", "set target.stream: true, or keep to e2e")
		}
	}
}

// file checks that a file is there.
func (c *checker) file(path, name string) {
	full := c.e.Path(name)
	info, err := os.Stat(full)
	switch {
	case os.IsNotExist(err):
		hint := "paths are relative to the experiment file's folder"
		if full != name {
			hint += ": looked for " + full
		}
		c.bad(path, fmt.Sprintf("there is no file %q", name), hint)
	case err != nil:
		c.bad(path, fmt.Sprintf("cannot use %q: %v", name, err), "")
	case info.IsDir():
		c.bad(path, fmt.Sprintf("%q is a folder", name), "")
	}
}

// named is a key that names a file.
type named struct {
	path string
	name *string
}

// files returns every key that names a file.
func (e *Experiment) files() (list []named) {
	add := func(path string, name *string) {
		if *name != "" {
			list = append(list, named{path, name})
		}
	}
	add("target.tls.ca", &e.Target.TLS.CA)
	for i := range e.Workload.Classes {
		k := &e.Workload.Classes[i]
		add(classPath(i, "text.sharegpt"), &k.Text.ShareGPT)
		add(classPath(i, "text.jsonl"), &k.Text.JSONL)
		if k.InputTokens != nil && k.InputTokens.Empirical != nil {
			add(classPath(i, "input_tokens.empirical.trace"), &k.InputTokens.Empirical.Trace)
		}
		if k.OutputTokens != nil && k.OutputTokens.Empirical != nil {
			add(classPath(i, "output_tokens.empirical.trace"), &k.OutputTokens.Empirical.Trace)
		}
		if k.Lengths != nil {
			add(classPath(i, "lengths.joint.trace"), &k.Lengths.Joint.Trace)
		}
	}
	if e.Workload.Trace != nil {
		add("workload.trace.file", &e.Workload.Trace.File)
	}
	return list
}
