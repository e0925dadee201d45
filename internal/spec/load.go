package spec

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// ReadFile reads the experiment file at path strictly, fills in every default
// and checks the whole. The error is Faults: all that is wrong.
func ReadFile(path string) (*Experiment, error) {
	e, err := Open(path)
	if e == nil {
		return nil, err
	}
	if err := e.Finish(); err != nil {
		return nil, err
	}
	return e, nil
}

// Open reads the experiment file at path for Flags.Apply, Set and Finish to go
// on with. As with Parse, the experiment is there even where some of it is at
// fault, and Finish tells of those faults too.
func Open(path string) (*Experiment, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, Faults{{File: path, Message: "is a folder, not an experiment file"}}
	case info.Size() > maxBytes:
		return nil, Faults{{File: path, Message: fmt.Sprintf("is larger than %d bytes", maxBytes), Hint: "an experiment names its data, it does not hold them"}}
	}
	text := make([]byte, maxBytes+1)
	n := 0
	for n < len(text) {
		k, err := f.Read(text[n:])
		if n += k; err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return parse(path, filepath.Dir(path), text[:n])
}

// Parse reads an experiment file's text; name is what errors call it. It checks
// form alone (keys, types, units): no default is derived and nothing is looked
// up. This is how a result's own experiment.yaml is read. Where the text is
// YAML at all, the experiment is returned beside the faults.
func Parse(name string, text []byte) (*Experiment, error) { return parse(name, "", text) }

func parse(name, dir string, text []byte) (*Experiment, error) {
	e := New()
	e.source = newSource(name, dir)
	d := &decoder{src: e.source, from: mark{file: name}, lines: splitLines(text)}
	whole := &yaml.Node{Line: 1, Column: 1}
	if len(text) > maxBytes {
		d.fault(whole, "", fmt.Sprintf("is larger than %d bytes", maxBytes), "an experiment names its data, it does not hold them")
		return nil, e.source.faults.err()
	}
	var docs []*yaml.Node
	if err := load(text, &docs); err != nil {
		d.syntax(err)
		return nil, e.source.faults.err()
	}
	root := whole
	if len(docs) > 0 {
		root = docs[0]
	}
	if root.Kind == yaml.DocumentNode && len(root.Content) > 0 {
		root = root.Content[0]
	}
	if root.Kind == 0 || root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		d.fault(whole, "", "the file is empty", "trueload schema and the examples show what stands in it")
		return nil, e.source.faults.err()
	}
	if len(docs) > 1 {
		d.fault(docs[1], "", "a second document begins here", "one file holds one experiment")
	}
	d.decode("", root, reflect.ValueOf(e).Elem(), "")
	return e, e.source.faults.err()
}

// load reads the YAML nodes. Duplicate keys are left to the decoder, which
// knows their paths. A panic of the library is answered as a fault of the file.
func load(text []byte, docs *[]*yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	l, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithUniqueKeys(false))
	if err != nil {
		return err
	}
	for len(*docs) < 2 {
		n := &yaml.Node{}
		if err := l.Load(n); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		*docs = append(*docs, n)
	}
	return nil
}

func splitLines(text []byte) (lines []string) {
	for l := range bytes.Lines(text) {
		lines = append(lines, strings.TrimRight(string(l), "\r\n"))
	}
	return append(lines, "")
}

// src returns where the values came from, for an experiment made in code too.
func (e *Experiment) src() *source {
	if e.source == nil {
		e.source = newSource("", "")
	}
	return e.source
}

// Finish fills in the defaults that depend on other values, and checks the
// whole: also that ${NAME} exist in the environment, and files on the disk. It
// comes after Flags.Apply and Set. The error is Faults: all that is wrong.
func (e *Experiment) Finish() error {
	e.derive()
	return slices.Concat(e.src().faults, e.validate()).err()
}

// Set sets one key to a YAML value: Set("load.rate", "12/s"). A list's entry is
// named by number or by its name: workload.classes.chat.share. Names of files
// are relative to the experiment file's folder.
func (e *Experiment) Set(path, value string) error {
	err := e.assign("--set "+path, path, value)
	if faults, ok := err.(Faults); ok {
		for i := range faults {
			if faults[i].Path == path {
				faults[i].Path = "" // the flag says it
			}
		}
	}
	return err
}

// assign sets the key at path to a YAML value; origin is what faults call it.
func (e *Experiment) assign(origin, path, value string) error {
	src := newSource("", e.src().dir)
	d := &decoder{src: src, from: mark{file: origin}}
	var docs []*yaml.Node
	err := load([]byte(value), &docs)
	if err != nil || len(value) > maxBytes {
		d.syntax(fmt.Errorf("%q", value))
		return src.faults.err()
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str"}
	if len(docs) > 0 && len(docs[0].Content) > 0 {
		n = docs[0].Content[0]
	}
	v := reflect.ValueOf(e).Elem()
	tag := reflect.StructTag("")
	at := ""
	keysLeft := strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) })
	if len(keysLeft) == 0 {
		return Faults{{File: origin, Message: "names no key", Hint: "write --set load.rate=12/s"}}
	}
	for len(keysLeft) > 0 {
		key := keysLeft[0]
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
				if x, ok := v.Interface().(defaulter); ok {
					x.setDefaults()
				}
			}
			v = v.Elem()
		}
		if _, ok := v.Addr().Interface().(mapping); ok {
			return Faults{{File: origin, Message: at + " is set as a whole", Hint: "write --set " + at + "='{" + strings.Join(keysLeft, ": {") + ": ..}'"}}
		}
		switch v.Kind() {
		case reflect.Struct:
			f := fieldByKey(v.Type(), key)
			if f.Name == "" || f.Name == "_" {
				d.unknown(join(at, key), at, &yaml.Node{Value: key}, keys(v.Type()))
				return src.faults.err()
			}
			v, tag, at = v.FieldByIndex(f.Index), f.Tag, join(at, key)
			keysLeft = keysLeft[1:]
		case reflect.Slice:
			i := entry(v, key)
			if i == v.Len() && i < 1000 {
				grown := reflect.MakeSlice(v.Type(), i+1, i+1)
				reflect.Copy(grown, v)
				v.Set(grown)
				if x, ok := v.Index(i).Addr().Interface().(defaulter); ok {
					x.setDefaults()
				}
			}
			if i < 0 || i >= v.Len() {
				return Faults{{File: origin, Message: fmt.Sprintf("%s has no entry %q", at, key), Hint: fmt.Sprintf("it has %d, counted from 0", v.Len())}}
			}
			v, tag, at = v.Index(i), "", fmt.Sprintf("%s[%d]", at, i)
			keysLeft = keysLeft[1:]
		case reflect.Map:
			if v.IsNil() {
				v.Set(reflect.MakeMap(v.Type()))
			}
			key = strings.Join(keysLeft, ".")
			x := reflect.New(v.Type().Elem()).Elem()
			if x.Kind() == reflect.String && n.Kind == yaml.ScalarNode {
				x.SetString(n.Value)
			} else {
				d.decode(join(at, key), n, x, "")
			}
			v.SetMapIndex(reflect.ValueOf(key), x)
			e.src().marks[join(at, key)] = d.from
			return src.faults.err()
		default:
			return Faults{{File: origin, Message: fmt.Sprintf("%s has no keys", at)}}
		}
	}
	v.SetZero()
	if x, ok := v.Addr().Interface().(defaulter); ok {
		x.setDefaults()
	}
	d.decode(at, n, v, tag)
	e.src().forget(at)
	for p, m := range src.marks {
		e.src().marks[p] = m
	}
	return src.faults.err()
}

// entry returns the index of a list's entry by number or name, or -1.
func entry(list reflect.Value, key string) int {
	if i, err := strconv.Atoi(key); err == nil {
		return i
	}
	for i := range list.Len() {
		if f := list.Index(i).FieldByName("Name"); f.IsValid() && f.String() == key {
			return i
		}
	}
	return -1
}

// Path returns the place of a file that the experiment names: relative names
// are relative to the experiment file's folder.
func (e *Experiment) Path(name string) string {
	if name == "" || filepath.IsAbs(name) || e.src().dir == "" {
		return name
	}
	return filepath.Join(e.src().dir, name)
}

// Marshal writes the experiment as a file that ReadFile reads back to the same
// thing. Names of files are written relative to dir where that is not empty.
// No secret is written: a header keeps its ${NAME}, and a credential that was
// typed out is replaced by "redacted".
func (e *Experiment) Marshal(dir string) ([]byte, error) {
	text, err := yaml.Dump(e)
	if err != nil {
		return nil, err
	}
	own, err := parse("experiment", e.src().dir, text) // a deep copy, and proof that it reads back
	if err != nil {
		return nil, fmt.Errorf("writing the experiment: %w", err)
	}
	own.redact()
	if dir != "" {
		base, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		for _, f := range own.files() {
			full, err := filepath.Abs(own.Path(*f.name))
			if err != nil {
				return nil, err
			}
			if *f.name, err = filepath.Rel(base, full); err != nil {
				*f.name = full // another drive
			}
			*f.name = filepath.ToSlash(*f.name)
		}
	}
	return yaml.Dump(own)
}

// variable is a ${NAME} of the environment.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// expand replaces each ${NAME}. It names all that are missing.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	var missing []string
	out := variable.ReplaceAllStringFunc(s, func(m string) string {
		name := m[2 : len(m)-1]
		v, ok := lookup(name)
		if !ok {
			missing = append(missing, name)
		}
		return v
	})
	if missing != nil {
		return "", fmt.Errorf("the environment has no %s", strings.Join(missing, ", "))
	}
	if strings.Contains(variable.ReplaceAllString(s, ""), "${") {
		return "", fmt.Errorf("${ is not followed by a name and }")
	}
	return out, nil
}

// Resolved is what of a target comes from the environment. It holds secrets:
// it is never to be written or printed.
type Resolved struct {
	URL     string
	Headers map[string]string
	// Secrets are the credentials among the body's fields: they must not be told
	// when a server echoes them.
	Secrets []string
}

// Resolve replaces each ${NAME} in the target's URL and headers by what lookup
// (os.LookupEnv) gives.
func (t *Target) Resolve(lookup func(name string) (string, bool)) (Resolved, error) {
	u, err := expand(t.URL, lookup)
	if err != nil {
		return Resolved{}, fmt.Errorf("target.url: %w", err)
	}
	r := Resolved{URL: u, Headers: make(map[string]string, len(t.Headers))}
	for name, v := range t.Headers {
		if r.Headers[name], err = expand(v, lookup); err != nil {
			return Resolved{}, fmt.Errorf("target.headers.%s: %w", name, err)
		}
	}
	credentials(t.Body, func(fields map[string]any, name string) { r.Secrets = append(r.Secrets, fields[name].(string)) })
	return r, nil
}

// secretName matches names of headers, parameters and body fields whose values
// nobody else may see.
var secretName = regexp.MustCompile(`(?i)auth|api[-_]?key|token$|secret|cookie|password|credential|^key$|[-_]key$`)

const redacted = "redacted"

// redact takes typed credentials out.
func (e *Experiment) redact() {
	t := &e.Target
	for name, v := range t.Headers {
		typed := variable.ReplaceAllString(v, "")
		for _, scheme := range []string{"Bearer", "Basic", "Token"} {
			typed = strings.TrimPrefix(strings.TrimSpace(typed), scheme)
		}
		if secretName.MatchString(name) && strings.TrimSpace(typed) != "" {
			t.Headers[name] = redacted
		}
	}
	redactFields(t.Body)
	t.URL = redactURL(t.URL)
}

// redactFields takes typed credentials out of a body, at any depth.
func redactFields(v map[string]any) {
	credentials(v, func(fields map[string]any, name string) { fields[name] = redacted })
}

// credentials calls yield with every field of a body whose name says that its
// text is a credential, at any depth.
func credentials(v any, yield func(fields map[string]any, name string)) {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			if _, text := field.(string); text && secretName.MatchString(name) {
				yield(v, name)
			}
			credentials(field, yield)
		}
	case []any:
		for _, entry := range v {
			credentials(entry, yield)
		}
	}
}

// redactURL takes passwords and key parameters out of an address, leaving the
// rest, and every ${NAME}, as typed.
func redactURL(s string) string {
	if scheme, rest, ok := strings.Cut(s, "://"); ok {
		host, path, _ := strings.Cut(rest, "/")
		if user, h, ok := cutLast(host, "@"); ok && strings.TrimLeft(variable.ReplaceAllString(user, ""), ":") != "" {
			s = scheme + "://" + redacted + "@" + h
			if strings.Contains(rest, "/") {
				s += "/" + path
			}
		}
	}
	base, query, ok := strings.Cut(s, "?")
	if !ok {
		return s
	}
	params := strings.Split(query, "&")
	for i, p := range params {
		name, v, _ := strings.Cut(p, "=")
		plain, err := url.QueryUnescape(name)
		if err == nil && secretName.MatchString(plain) && variable.ReplaceAllString(v, "") != "" {
			params[i] = name + "=" + redacted
		}
	}
	return base + "?" + strings.Join(params, "&")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
