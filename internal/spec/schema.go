package spec

import (
	_ "embed"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/trueload/trueload/internal/unit"
)

// structs is the source of the structs: their comments are the schema's
// descriptions, so that each key is described once.
//
//go:embed experiment.go
var structs string

// Patterns of the quantities, as package unit reads them.
const (
	numberPattern   = `[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?`
	durationPattern = `^(0|(` + numberPattern + `(ns|us|µs|μs|ms|s|m|h))+)$`
	ratePattern     = `^` + numberPattern + ` */ *(s|sec|second|m|min|minute|h|hour)$`
	sharePattern    = `^` + numberPattern + ` *%?$`
	countPattern    = `^` + numberPattern + `[kKMG]?$`
)

// Schema returns the file's JSON Schema (draft 2020-12), indented. It accepts
// what Parse does; what Finish finds (a file that is not there, two keys that
// exclude each other) is beyond it.
func Schema() ([]byte, error) {
	comments := comments()
	r := &jsonschema.Reflector{
		Anonymous:                  true,
		FieldNameTag:               "yaml",
		RequiredFromJSONSchemaTags: true,
		ExpandedStruct:             true,
		Mapper:                     quantity,
		Namer:                      typeName,
		LookupComment: func(t reflect.Type, field string) string {
			return comments[strings.TrimSuffix(typeName(t)+"."+field, ".")]
		},
	}
	s := r.Reflect(&Experiment{})
	s.Title = "Trueload experiment"
	for name, def := range s.Definitions {
		for p := def.Properties.Oldest(); p != nil; p = p.Next() {
			switch name + "." + p.Key {
			case "Class.priority", "LogNormalCounts.mu", "LogNormalTimes.mu": // may be negative
				p.Value = &jsonschema.Schema{Type: "number", Description: p.Value.Description}
			}
		}
		if name == "Times" { // no count, no token
			def.Properties.Delete("geometric")
			def.Properties.Delete("empirical")
		}
		if short := shortForm(name); short != nil {
			long := *def
			long.Description = ""
			s.Definitions[name] = &jsonschema.Schema{Description: def.Description, OneOf: []*jsonschema.Schema{short, &long}}
		}
	}
	return json.MarshalIndent(s, "", "  ")
}

// typeName names a type in the schema: Counts and Times, not Dist[float64].
func typeName(t reflect.Type) string {
	name, arg, generic := strings.Cut(t.Name(), "[")
	if !generic {
		return name
	}
	name = strings.TrimPrefix(name, "Dist")
	if strings.HasPrefix(arg, "float64") {
		return name + "Counts"
	}
	return name + "Times"
}

// comments returns the doc comments by Type and Type.Field, for generic types
// under both their names.
func comments() map[string]string {
	m := map[string]string{}
	file, err := parser.ParseFile(token.NewFileSet(), "experiment.go", structs, parser.ParseComments)
	if err != nil {
		return m // it compiled, so it parses
	}
	text := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, sp := range g.Specs {
			t := sp.(*ast.TypeSpec)
			names := []string{t.Name.Name}
			if t.TypeParams != nil {
				base := strings.TrimPrefix(t.Name.Name, "Dist")
				names = []string{base + "Counts", base + "Times"}
			}
			for _, name := range names {
				m[name] = text(g.Doc)
				if s, ok := t.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, id := range f.Names {
							m[name+"."+id.Name] = text(f.Doc)
						}
					}
				}
			}
		}
	}
	return m
}

func text(pattern string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: pattern}
}

func oneOf(s ...*jsonschema.Schema) *jsonschema.Schema { return &jsonschema.Schema{OneOf: s} }

func constant(values ...any) *jsonschema.Schema { return &jsonschema.Schema{Enum: values} }

// object is a mapping of exactly these keys.
func object(keys map[string]*jsonschema.Schema) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: jsonschema.NewProperties(), AdditionalProperties: jsonschema.FalseSchema}
	for name, v := range keys {
		s.Properties.Set(name, v)
	}
	return s
}

// The reflector writes each key's description into the schema it is given, so
// that every use needs its own.
func count() *jsonschema.Schema {
	return oneOf(&jsonschema.Schema{Type: "integer", Minimum: "0"}, text(countPattern))
}

func number() *jsonschema.Schema {
	return oneOf(&jsonschema.Schema{Type: "number", Minimum: "0"}, text(countPattern))
}

func duration() *jsonschema.Schema { return oneOf(text(durationPattern), constant(0)) }

// quantity gives the schema of the types that are written as one value, or in
// ways of their own.
func quantity(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return duration()
	case reflect.TypeFor[unit.Rate]():
		return text(ratePattern)
	case reflect.TypeFor[unit.Share]():
		return oneOf(&jsonschema.Schema{Type: "number", Minimum: "0", Maximum: "1"}, text(sharePattern))
	case reflect.TypeFor[map[string]string]():
		return &jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{
			OneOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}, {Type: "boolean"}}}}
	case reflect.TypeFor[Arrivals]():
		cv := object(map[string]*jsonschema.Schema{"cv": {Type: "number", ExclusiveMinimum: "0"}})
		cv.Required = []string{"cv"}
		gamma, weibull := object(map[string]*jsonschema.Schema{Gamma: cv}), object(map[string]*jsonschema.Schema{Weibull: cv})
		gamma.Required, weibull.Required = []string{Gamma}, []string{Weibull}
		return oneOf(constant(Constant, Poisson, ByTrace), gamma, weibull)
	case reflect.TypeFor[Objective]():
		one := uint64(1)
		return oneOf(duration(), &jsonschema.Schema{Type: "object", MinProperties: &one, AdditionalProperties: jsonschema.FalseSchema,
			PatternProperties: map[string]*jsonschema.Schema{`^p[0-9]{1,2}(\.[0-9]+)?$`: duration()}})
	}
	switch t.Kind() {
	case reflect.Int:
		return count()
	case reflect.Float64:
		return number()
	}
	return nil
}

// shortForm gives the schema of a struct's one-value form, or nil.
func shortForm(name string) *jsonschema.Schema {
	switch name {
	case "Counts":
		return number()
	case "Times":
		return duration()
	case "Empirical":
		return &jsonschema.Schema{Type: "string"}
	case "Text":
		return constant("random", "words", "token_ids")
	case "Popularity":
		return constant("uniform")
	case "Rows":
		return oneOf(constant("all"), &jsonschema.Schema{Type: "integer", Minimum: "1"}, text(`^`+numberPattern+`[kKMG]$`))
	case "Rate":
		return text(ratePattern)
	case "MaxInFlight":
		return oneOf(constant("unlimited"), &jsonschema.Schema{Type: "integer", Minimum: "1"}, text(`^`+numberPattern+`[kKMG]$`))
	}
	return nil
}
