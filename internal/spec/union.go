package spec

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"reflect"

	"github.com/trueload/trueload/internal/unit"
)

// This file reads and writes the values that have a short form beside the
// mapping: 512 for {fixed: 512}, poisson, 12/s, unlimited.

// into reads a scalar into one field.
func into[T any](d *decoder, path string, n *yaml.Node, v *T) {
	d.scalar(path, n, reflect.ValueOf(v).Elem(), "")
}

func (x *Dist[T]) fromScalar(d *decoder, path string, n *yaml.Node) {
	x.Fixed = new(T)
	into(d, path, n, x.Fixed)
}

// MarshalYAML writes a fixed value as itself.
func (x Dist[T]) MarshalYAML() (any, error) {
	if x.Fixed != nil && x.Min == nil && x.Max == nil {
		return *x.Fixed, nil
	}
	type plain Dist[T]
	return plain(x), nil
}

func (x *Empirical) fromScalar(d *decoder, path string, n *yaml.Node) { into(d, path, n, &x.Trace) }

func (x *Text) fromScalar(d *decoder, path string, n *yaml.Node) {
	d.choose(path, n, []string{"random", "words", "token_ids"})
	x.Random = n.Value
	if n.Value == "random" {
		x.Random = "words"
	}
}

func (x *Popularity) fromScalar(d *decoder, path string, n *yaml.Node) {
	d.choose(path, n, []string{"uniform"})
}

// MarshalYAML writes uniform, or {zipf: s}.
func (x Popularity) MarshalYAML() (any, error) {
	if x.Zipf == 0 {
		return "uniform", nil
	}
	type plain Popularity
	return plain(x), nil
}

func (x *Rows) fromScalar(d *decoder, path string, n *yaml.Node) {
	if n.Value == "all" {
		return
	}
	v, err := unit.ParseCount(n.Value)
	if err != nil || v == 0 {
		d.fault(n, path, fmt.Sprintf("%q is not a choice of rows", n.Value), "write all, a number of rows, or {first: 300s}")
		return
	}
	x.Count = v
}

// MarshalYAML writes all, a number of rows, or {first: duration}.
func (x Rows) MarshalYAML() (any, error) {
	switch {
	case x.First == 0 && x.Count == 0:
		return "all", nil
	case x.First == 0:
		return x.Count, nil
	}
	type plain Rows
	return plain(x), nil
}

func (x *MaxInFlight) fromScalar(d *decoder, path string, n *yaml.Node) {
	if n.Value == "unlimited" {
		return
	}
	v, err := unit.ParseCount(n.Value)
	if err != nil || v == 0 {
		d.fault(n, path, fmt.Sprintf("%q is not a cap", n.Value), "write unlimited, a number of requests, or {n: 64, policy: queue} (or shed)")
		return
	}
	x.N = v
}

// MarshalYAML writes unlimited, or the cap with its policy.
func (x MaxInFlight) MarshalYAML() (any, error) {
	if x.N == 0 {
		return "unlimited", nil
	}
	type plain MaxInFlight
	return plain(x), nil
}

func (x *Rate) fromScalar(d *decoder, path string, n *yaml.Node) { into(d, path, n, &x.Value) }

// MarshalYAML writes a constant rate of sessions as itself.
func (x Rate) MarshalYAML() (any, error) {
	if !x.Curve() && x.Per == "sessions" {
		return x.Value.String(), nil
	}
	type plain Rate
	return plain(x), nil
}

func (x *Arrivals) fromScalar(d *decoder, path string, n *yaml.Node) {
	switch n.Value {
	case Gamma, Weibull:
		d.fault(n, path, n.Value+" needs its cv", fmt.Sprintf("write {%s: {cv: 1.5}}", n.Value))
		return
	}
	d.choose(path, n, []string{Constant, Poisson, ByTrace, Gamma, Weibull})
	x.Process, x.CV = n.Value, 0
}

func (x *Arrivals) fromMapping(d *decoder, path string, n *yaml.Node) {
	names := []string{Gamma, Weibull}
	x.Process, x.CV = "", 0
	d.pairs(path, n, func(key, at string, k, c *yaml.Node) {
		switch {
		case slices.Contains([]string{Constant, Poisson, ByTrace}, key):
			d.fault(k, at, "has no settings", "write arrivals: "+key)
			return
		case !slices.Contains(names, key):
			d.unknown(at, path, k, names)
			return
		case x.Process != "":
			d.fault(k, at, "only one arrival process can be given", "")
			return
		}
		var shape struct {
			CV *float64 `yaml:"cv"`
		}
		d.decode(at, c, reflect.ValueOf(&shape).Elem(), "")
		x.Process = key
		switch {
		case shape.CV != nil && *shape.CV > 0:
			x.CV = *shape.CV
		case !d.src.spoiled(join(at, "cv")):
			d.fault(c, join(at, "cv"), "must be above 0", "cv is the gaps' standard deviation over their mean; 1 is like poisson")
		}
	})
	if len(n.Content) == 0 {
		d.fault(n, path, "names no arrival process", "valid: constant, poisson, trace, {gamma: {cv: ..}}, {weibull: {cv: ..}}")
	}
}

// IsZero lets an unset process be left out.
func (x Arrivals) IsZero() bool { return x.Process == "" }

// MarshalYAML writes the process's name, with its cv where it has one.
func (x Arrivals) MarshalYAML() (any, error) {
	if x.Process == Gamma || x.Process == Weibull {
		return map[string]map[string]float64{x.Process: {"cv": x.CV}}, nil
	}
	return x.Process, nil
}

func (x *Objective) fromScalar(d *decoder, path string, n *yaml.Node) { into(d, path, n, &x.Limit) }

func (x *Objective) fromMapping(d *decoder, path string, n *yaml.Node) {
	d.pairs(path, n, func(key, at string, k, c *yaml.Node) {
		p, ok := percentile(key)
		if !ok {
			hint := "write a quantile, such as p99: 100ms, or one duration for each request"
			if slices.Contains([]string{"mean", "avg", "average", "max", "min"}, key) {
				hint = "an objective is a limit for each request, or on a quantile: p50, p90, p95, p99, p99.9"
			}
			d.fault(k, at, "is not a quantile", hint)
			return
		}
		if strings.HasSuffix(path, "slo.itl") {
			d.fault(k, at, "is a quantile of pooled gaps, which are not independent: no verdict can rest on it", "write one duration, the largest ITL of each request, or use tpot or stall")
			return
		}
		var limit time.Duration
		d.decode(at, c, reflect.ValueOf(&limit).Elem(), "")
		if slices.ContainsFunc(x.Quantiles, func(q Quantile) bool { return q.P == p }) {
			d.fault(k, at, "the same quantile is given twice", "")
			return
		}
		x.Quantiles = append(x.Quantiles, Quantile{P: p, Limit: limit})
	})
	sort.Slice(x.Quantiles, func(i, j int) bool { return x.Quantiles[i].P < x.Quantiles[j].P })
	if len(n.Content) == 0 {
		d.fault(n, path, "names no quantile", "write {p99: 100ms}, or one duration for each request")
	}
}

// percentile reads p50, p99 or p99.9 as a share strictly between 0 and 1.
func percentile(key string) (float64, bool) {
	digits, ok := strings.CutPrefix(key, "p")
	if !ok || digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(digits+"e-2", 64) // 99.9/100 in binary is not 0.999
	if err != nil || v <= 0 || v >= 1 {
		return 0, false
	}
	return v, true
}

// MarshalYAML writes one duration, or the quantiles.
func (x Objective) MarshalYAML() (any, error) {
	if len(x.Quantiles) == 0 {
		return x.Limit, nil
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, q := range x.Quantiles {
		n.Content = append(n.Content,
			&yaml.Node{Kind: yaml.ScalarNode, Value: q.name()},
			&yaml.Node{Kind: yaml.ScalarNode, Value: q.Limit.String()})
	}
	return n, nil
}

// name is p99 or p99.9; p/100 and back is not exact in binary, so it takes the
// shortest name that reads back to the same share.
func (q Quantile) name() string {
	for digits := 1; digits < 17; digits++ {
		s := "p" + unprecise(q.P*100, digits)
		if p, ok := percentile(s); ok && p == q.P {
			return s
		}
	}
	return "p" + strconv.FormatFloat(q.P*100, 'f', -1, 64)
}

func unprecise(x float64, digits int) string {
	v, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	return strconv.FormatFloat(v, 'f', -1, 64)
}
