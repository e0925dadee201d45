package spec

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/trueload/trueload/internal/unit"
)

// Bounds on what is read: a file is written by hand, and an alias bomb is not.
const (
	maxBytes  = 1 << 20
	maxNodes  = 200_000
	maxDepth  = 64
	maxFaults = 200
)

// decoder reads YAML nodes into the structs, strictly. It goes its own way past
// the library's, because every fault is to bear the key's path and a hint in
// the words of this file: the unit that is missing, the key that was meant.
type decoder struct {
	src   *source
	from  mark     // file, and for flags the whole mark
	lines []string // of the file; nil for a flag
	nodes int
	depth int
}

// shorthand is implemented by types that may also be written as one scalar.
type shorthand interface {
	fromScalar(d *decoder, path string, n *yaml.Node)
}

// mapping is implemented by types that read a mapping in their own way.
type mapping interface {
	fromMapping(d *decoder, path string, n *yaml.Node)
}

// defaulter is implemented by structs with defaults.
type defaulter interface{ setDefaults() }

// mark returns where a node stands.
func (d *decoder) mark(n *yaml.Node) mark {
	m := d.from
	if d.lines != nil {
		m.line, m.col = n.Line, n.Column
		if m.line < 1 || m.col < 1 {
			m.line, m.col = 1, 1
		}
		if m.line <= len(d.lines) {
			m.text = d.lines[m.line-1]
		}
	}
	return m
}

func (d *decoder) fault(n *yaml.Node, path, message, hint string) {
	d.src.add(d.mark(n), path, message, hint)
}

// fail notes an error of package unit, whose words after a colon are the hint.
func (d *decoder) fail(n *yaml.Node, path string, err error) {
	message, hint, _ := strings.Cut(err.Error(), ": ")
	d.fault(n, path, message, hint)
}

// decode reads n into v, which is addressable. tag is the struct field's.
func (d *decoder) decode(path string, n *yaml.Node, v reflect.Value, tag reflect.StructTag) {
	if d.nodes++; d.nodes > maxNodes || d.depth > maxDepth {
		if !d.src.broken[""] {
			d.fault(n, "", "the file is nested too deep or expands to too much", "write aliases out")
		}
		return
	}
	d.depth++
	defer func() { d.depth-- }()
	for hops := 0; n.Kind == yaml.AliasNode && n.Alias != nil; hops++ {
		if hops > maxDepth {
			return
		}
		n = n.Alias
	}
	d.src.marks[path] = d.mark(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" && v.Kind() != reflect.Interface {
		d.fault(n, path, "has no value", "give it one, or leave the key out")
		return
	}
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		if x, ok := p.Interface().(defaulter); ok {
			x.setDefaults()
		}
		v.Set(p)
		v = p.Elem()
	}
	if x, ok := v.Addr().Interface().(shorthand); ok && n.Kind == yaml.ScalarNode {
		x.fromScalar(d, path, n)
		return
	}
	if x, ok := v.Addr().Interface().(mapping); ok && n.Kind == yaml.MappingNode {
		x.fromMapping(d, path, n)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(path, n, v)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.fault(n, path, "must be a list", "write each entry on a line of its own after a dash")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			e := v.Index(i)
			if x, ok := e.Addr().Interface().(defaulter); ok {
				x.setDefaults()
			}
			d.decode(fmt.Sprintf("%s[%d]", path, i), c, e, "")
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.pairs(path, n, func(key string, at string, _, c *yaml.Node) {
			e := reflect.New(v.Type().Elem()).Elem()
			if v.Type().Elem().Kind() == reflect.String && c.Kind == yaml.ScalarNode && c.ShortTag() != "!!null" {
				e.SetString(c.Value) // a label of 8 is the text 8
				d.src.marks[at] = d.mark(c)
			} else {
				d.decode(at, c, e, "")
			}
			v.SetMapIndex(reflect.ValueOf(key), e)
		})
	case reflect.Interface:
		if x := d.any(path, n); x != nil {
			v.Set(reflect.ValueOf(x))
		}
	default:
		if n.Kind != yaml.ScalarNode {
			d.fault(n, path, "must be one value, not a list or a mapping", "")
			return
		}
		d.scalar(path, n, v, tag)
	}
}

// scalar reads one value.
func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value, tag reflect.StructTag) {
	switch x := v.Addr().Interface().(type) {
	case *time.Duration:
		var err error
		if *x, err = unit.ParseDuration(n.Value); err != nil {
			d.fail(n, path, err)
		}
		return
	case *unit.Rate:
		var err error
		if *x, err = unit.ParseRate(n.Value); err != nil {
			d.fail(n, path, err)
		}
		return
	case *unit.Share:
		var err error
		if *x, err = unit.ParseShare(n.Value); err != nil {
			d.fail(n, path, err)
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		if values := enum(tag); values != nil {
			d.choose(path, n, values)
		} else if n.ShortTag() != "!!str" {
			d.fault(n, path, fmt.Sprintf("must be text, not %s", kind(n)), fmt.Sprintf("write %q in quotes", n.Value))
			return
		}
		v.SetString(n.Value)
	case reflect.Bool:
		if n.ShortTag() != "!!bool" {
			d.fault(n, path, fmt.Sprintf("must be true or false, not %q", n.Value), "")
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int:
		if slices.Contains(options(tag), "signed") && strings.HasPrefix(n.Value, "-") {
			i, err := strconv.ParseInt(n.Value, 10, 32)
			if err != nil {
				d.fault(n, path, fmt.Sprintf("%q is not a whole number", n.Value), "")
				return
			}
			v.SetInt(i)
			return
		}
		i, err := unit.ParseCount(n.Value)
		if err != nil {
			d.fail(n, path, err)
			return
		}
		v.SetInt(int64(i))
	case reflect.Uint64:
		u, err := strconv.ParseUint(n.Value, 10, 64)
		if err != nil {
			d.fault(n, path, fmt.Sprintf("%q is not a whole number from 0 to 18446744073709551615", n.Value), "")
			return
		}
		v.SetUint(u)
	case reflect.Float64:
		f, err := parseNumber(n.Value)
		if err != nil {
			d.fail(n, path, err)
			return
		}
		if f < 0 && !slices.Contains(options(tag), "signed") {
			d.fault(n, path, fmt.Sprintf("must not be negative, but is %s", n.Value), "")
			return
		}
		v.SetFloat(f)
	default:
		panic("spec: no way to read a " + v.Type().String())
	}
}

// parseNumber reads a plain number, or a count with k, M or G.
func parseNumber(s string) (float64, error) {
	if strings.Trim(s, "0123456789.+-eE") == "" {
		if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsInf(f, 0) {
			return f, nil
		}
	}
	if i, err := unit.ParseCount(s); err == nil {
		return float64(i), nil
	}
	switch {
	case strings.HasSuffix(s, "%"):
		return 0, fmt.Errorf("%q is not a number: write it without the percent sign", s)
	case strings.Contains(s, "/"):
		return 0, fmt.Errorf("%q is a rate where a plain number is needed: leave the unit out", s)
	}
	if _, err := time.ParseDuration(s); err == nil {
		return 0, fmt.Errorf("%q is a duration where a plain number is needed: leave the unit out", s)
	}
	return 0, fmt.Errorf("%q is not a number", s)
}

// choose checks one of a set of names.
func (d *decoder) choose(path string, n *yaml.Node, values []string) {
	if slices.Contains(values, n.Value) {
		return
	}
	if why, ok := unsupported(path, n.Value); ok {
		d.fault(n, path, why, "valid: "+strings.Join(values, ", "))
		return
	}
	hint := "valid: " + strings.Join(values, ", ")
	if name := near(n.Value, values); name != "" {
		hint = fmt.Sprintf("did you mean %s? %s", name, hint)
	}
	d.fault(n, path, fmt.Sprintf("unknown value %q", n.Value), hint)
}

// object reads a mapping into a struct.
func (d *decoder) object(path string, n *yaml.Node, v reflect.Value) {
	names := keys(v.Type())
	d.pairs(path, n, func(key, at string, k, c *yaml.Node) {
		i := slices.Index(names, key)
		if i < 0 {
			d.unknown(at, path, k, names)
			return
		}
		f := fieldByKey(v.Type(), key)
		d.decode(at, c, v.FieldByIndex(f.Index), f.Tag)
	})
}

// otherWords are other tools' names for what is called something else here.
var otherWords = map[string]string{
	"burstiness":      "another tool's burstiness b is a gamma process of cv 1/√b: arrivals: {gamma: {cv: ..}}",
	"request_rate":    "write load.rate: 12/s",
	"qps":             "write load.rate: 12/s",
	"rps":             "write load.rate: 12/s",
	"concurrency":     "clients that wait for their answers are load.closed: {clients: 64}; a cap on requests under way is load.max_in_flight: 64",
	"max_concurrency": "a cap on requests under way is load.max_in_flight: 64; clients that wait for their answers are load.closed: {clients: 64}",
	"num_prompts":     "write load.phases: [{name: steady, requests: 2000}]",
	"num_requests":    "write load.phases: [{name: steady, requests: 2000}]",
	"duration":        "write load.phases: [{name: steady, for: 5m}]",
	"warmup":          "write load.phases: [{name: warm-up, for: 60s, measured: false}, {name: steady, for: 5m}]",
	"api_key":         "write target.headers: {Authorization: \"Bearer ${API_KEY}\"}",
}

// unknown answers a key that does not belong here.
func (d *decoder) unknown(at, path string, k *yaml.Node, names []string) {
	if why, ok := unsupported(at, ""); ok {
		d.fault(k, at, why, "leave it out")
		return
	}
	if hint := otherWords[k.Value]; hint != "" {
		d.fault(k, at, "unknown key", hint)
		return
	}
	here := "here"
	if path != "" {
		here = "in " + path
	}
	hint := fmt.Sprintf("known %s: %s", here, strings.Join(names, ", "))
	if homes := homesOf(k.Value); len(homes) > 0 && k.Value != "" {
		hint = "it belongs under " + strings.Join(homes, " or ")
	} else if name := near(k.Value, names); name != "" {
		hint = fmt.Sprintf("did you mean %s?", name)
		d.src.broken[join(path, name)] = true // what was meant is not missing
	}
	d.fault(k, at, "unknown key", hint)
}

// pairs calls f with each key of a mapping, its path, and the nodes of key and value.
func (d *decoder) pairs(path string, n *yaml.Node, f func(key, at string, k, c *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		what := "keys with values (key: value)"
		d.fault(n, path, "must be "+what+", not "+kind(n), "")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, c := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			d.fault(k, path, "a key must be one word", "")
			continue
		}
		at := join(path, k.Value)
		if line, dup := seen[k.Value]; dup {
			d.fault(k, at, fmt.Sprintf("written twice; first on line %d", line), "keep one of them")
			continue
		}
		seen[k.Value] = k.Line
		f(k.Value, at, k, c)
	}
}

// any reads a value of any shape, for the request's body.
func (d *decoder) any(path string, n *yaml.Node) any {
	if d.nodes++; d.nodes > maxNodes || d.depth > maxDepth {
		if !d.src.broken[""] {
			d.fault(n, "", "the file is nested too deep or expands to too much", "write aliases out")
		}
		return nil
	}
	d.depth++
	defer func() { d.depth-- }()
	switch n.Kind {
	case yaml.AliasNode:
		return d.any(path, n.Alias)
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, c := range n.Content {
			list[i] = d.any(fmt.Sprintf("%s[%d]", path, i), c)
		}
		return list
	case yaml.MappingNode:
		m := map[string]any{}
		d.pairs(path, n, func(key, at string, _, c *yaml.Node) { m[key] = d.any(at, c) })
		return m
	}
	var x any
	if err := n.Decode(&x); err != nil {
		d.fault(n, path, fmt.Sprintf("%q cannot be read", n.Value), "put it in quotes")
		return nil
	}
	switch x := x.(type) {
	case nil, string, bool, int, int64, uint64:
		return x
	case float64:
		if !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x
		}
		d.fault(n, path, n.Value+" does not exist in JSON", "")
		return nil
	}
	return n.Value // a date, say, is text in JSON
}

// kind names a node for a message.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the truth value " + n.Value
	}
	return fmt.Sprintf("%q", n.Value)
}

// options returns a field's spec tag: "signed" where a number may be negative.
func options(tag reflect.StructTag) []string { return strings.Split(tag.Get("spec"), ",") }

// enum returns the valid values in a field's jsonschema tag.
func enum(tag reflect.StructTag) (values []string) {
	for p := range strings.SplitSeq(tag.Get("jsonschema"), ",") {
		if v, ok := strings.CutPrefix(p, "enum="); ok {
			values = append(values, v)
		}
	}
	return values
}

// keyOf returns a field's key in the file; empty where it has none.
func keyOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if name == "-" {
		return ""
	}
	return name
}

// keys returns a struct's keys in order.
func keys(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if k := keyOf(t.Field(i)); k != "" {
			names = append(names, k)
		}
	}
	return names
}

func fieldByKey(t reflect.Type, key string) reflect.StructField {
	for i := range t.NumField() {
		if keyOf(t.Field(i)) == key {
			return t.Field(i)
		}
	}
	return reflect.StructField{}
}

// homesOf returns where in the file a key is known, for one that is misplaced.
func homesOf(key string) (homes []string) {
	var walk func(path string, t reflect.Type, depth int)
	walk = func(path string, t reflect.Type, depth int) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			if t.Kind() == reflect.Slice {
				path += "[]"
			}
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || depth > 3 {
			return
		}
		for i := range t.NumField() {
			k := keyOf(t.Field(i))
			if k == key {
				if path == "" {
					path = "the top level"
				}
				homes = append(homes, path)
			}
			if k != "" {
				walk(join(path, k), t.Field(i).Type, depth+1)
			}
		}
	}
	walk("", reflect.TypeFor[Experiment](), 0)
	return homes[:min(len(homes), 3)]
}

// syntax turns the library's errors into faults.
func (d *decoder) syntax(err error) {
	var all *yaml.LoadErrors
	var one *yaml.LoadError
	list := []*yaml.LoadError{}
	if errors.As(err, &all) {
		list = all.Errors
	} else if errors.As(err, &one) {
		list = append(list, one)
	}
	for _, e := range list {
		m := e.Mark
		if m.Line == 0 {
			m = e.ContextMark
		}
		d.fault(&yaml.Node{Line: m.Line, Column: m.Column}, "", "not YAML: "+e.Message, "")
	}
	if len(list) == 0 {
		d.fault(&yaml.Node{Line: 1, Column: 1}, "", "not YAML: "+err.Error(), "")
	}
}
