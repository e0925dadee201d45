// Package internal_test keeps the layout that docs/architecture.md describes.
package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/trueload/trueload"

// floors says how high each package stands. Imports only go down.
var floors = map[string]int{
	"internal/plan": 0, "internal/record": 0, "internal/stats": 0, "internal/unit": 0,
	"internal/sim": 0, "internal/corpus": 0, "internal/wire": 0, "internal/draw": 0,

	"internal/spec": 1, "internal/arrival": 1, "internal/synth": 1, "internal/trace": 1,
	"internal/protocol": 1, "internal/loadgen": 1, "internal/store": 1, "internal/analysis": 1,

	"internal/workload": 2, "internal/sim/httpapi": 2, "internal/report": 2, "internal/simulate": 2,
	"internal/calibrate": 2,

	"internal/experiment": 3,

	"cmd/trueload": 4,
}

// sameFloor lists the imports between neighbours that are meant, with the reason.
var sameFloor = map[[2]string]string{
	{"internal/record", "internal/plan"}: "a record names its turn by plan's identifiers",
}

// doors names the one package through which each third-party module enters.
var doors = map[string][]string{
	"github.com/alecthomas/kong":       {"cmd/trueload"},
	"go.yaml.in/yaml/v4":               {"internal/spec"},
	"github.com/invopop/jsonschema":    {"internal/spec"},
	"github.com/parquet-go/parquet-go": {"internal/store"},
	"github.com/tidwall/gjson":         {"internal/protocol"},
	"github.com/klauspost/compress":    {"internal/trace"},
	"golang.org/x/net":                 {"internal/wire"},
	"golang.org/x/term":                {"cmd/trueload"},
	"gonum.org/v1/gonum":               {"internal/stats"},
	// The system calls that the standard library lacks: stamps, pacing, limits.
	"golang.org/x/sys": {"internal/wire", "internal/loadgen", "internal/sim/httpapi", "internal/experiment"},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestImportsOnlyGoDown(t *testing.T) {
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		floor, ok := floors[from]
		if !ok {
			if from == "internal" {
				continue
			}
			t.Errorf("%s stands on no floor: add it to the table here and to docs/architecture.md", from)
			continue
		}
		for _, imp := range p.Imports {
			to, own := strings.CutPrefix(imp, module+"/")
			if !own {
				continue
			}
			if _, meant := sameFloor[[2]string{from, to}]; floors[to] >= floor && !meant {
				t.Errorf("%s (floor %d) imports %s (floor %d): imports only go down", from, floor, to, floors[to])
			}
		}
	}
}

func TestEachLibraryEntersAtOnePackage(t *testing.T) {
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imp := range p.Imports {
			first, _, _ := strings.Cut(imp, "/")
			if !strings.Contains(first, ".") || strings.HasPrefix(imp, module) {
				continue
			}
			door := ""
			for lib := range doors {
				if imp == lib || strings.HasPrefix(imp, lib+"/") {
					door = lib
				}
			}
			if door == "" {
				t.Errorf("%s imports %s, which has no door: add it to the table with a note in docs/decisions", from, imp)
			} else if !slices.Contains(doors[door], from) {
				t.Errorf("%s imports %s, which enters at %v only", from, imp, doors[door])
			}
		}
	}
}
