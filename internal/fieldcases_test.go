package internal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/field-cases.md names a test for every case, and every test it names
// exists; every test that bears an id is named there.
func TestFieldCasesNameTheirTests(t *testing.T) {
	page, err := os.ReadFile("../docs/field-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	row := regexp.MustCompile(`(?m)^\| ([LSACI]\d+) \|(.*)\|\s*$`)
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		id := m[1]
		found := regexp.MustCompile(`[a-z/]+\.Test`+id+`_\w+`).FindAllString(m[2], -1)
		if len(found) == 0 && !strings.Contains(m[2], "not yet: ") {
			t.Errorf("%s names no test", id)
		}
		for _, f := range found {
			named[f] = true
		}
	}
	declared := map[string]bool{}
	test := regexp.MustCompile(`(?m)^func (Test[LSACI]\d+_\w+)\(`)
	files, err := filepath.Glob("../*/*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	deep, _ := filepath.Glob("../*/*/*/*_test.go")
	for _, file := range append(files, deep...) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		pkg := strings.TrimPrefix(strings.TrimPrefix(dir, "../"), "internal/")
		for _, m := range test.FindAllStringSubmatch(string(b), -1) {
			name := pkg + "." + m[1]
			declared[name] = true
			if !named[name] {
				t.Errorf("%s is not in docs/field-cases.md", name)
			}
		}
	}
	for name := range named {
		if !declared[name] {
			t.Errorf("docs/field-cases.md names %s, which does not exist", name)
		}
	}
	if len(declared) < 60 {
		t.Errorf("only %d tests found: is the search still right?", len(declared))
	}
}
