package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Fault is one thing wrong with an experiment.
type Fault struct {
	// File is the experiment file, or the flag (--rate) the value came from.
	File string
	// Line and Column count from 1, in characters; 0 where there is no file.
	Line, Column int
	// Path is the key's full name: workload.classes[0].share.
	Path string
	// Message says what is wrong, Hint what to do; Hint may be empty.
	Message, Hint string
	// Excerpt is the line at fault; empty where there is no file.
	Excerpt string
}

func (f Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Message)
	if f.Excerpt != "" {
		text, caret := excerpt(f.Excerpt, f.Column)
		fmt.Fprintf(&b, "\n    %s\n    %s", text, caret)
	}
	if f.Hint != "" {
		b.WriteString("\n  hint: " + f.Hint)
	}
	return b.String()
}

// Faults are all that is wrong with an experiment, in the order of the file.
type Faults []Fault

func (f Faults) Error() string {
	all := make([]string, len(f))
	for i := range f {
		all[i] = f[i].Error()
	}
	return strings.Join(all, "\n")
}

// err returns the faults in order, or nil where there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.File, b.File))
	})
	return slices.Compact(f)
}

// excerpt cuts a long line around the column and puts a caret under it.
func excerpt(line string, column int) (text, caret string) {
	const width = 100
	runes := []rune(line)
	at := min(max(column-1, 0), len(runes))
	if at > width*3/4 {
		cut := at - width/2
		runes, at = append([]rune("…"), runes[cut:]...), at-cut+1
	}
	if len(runes) > width {
		runes = append(runes[:width:width], '…')
	}
	for i, r := range runes {
		if r != '\t' && (r < ' ' || r == utf8.RuneError) {
			runes[i] = '?'
		}
	}
	pad := make([]rune, at)
	for i := range pad {
		pad[i] = ' '
		if runes[i] == '\t' {
			pad[i] = '\t' // so that the caret stands right whatever a tab's width
		}
	}
	return string(runes), string(pad) + "^"
}

// mark is where a value was written.
type mark struct {
	file      string
	line, col int
	text      string // the line
}

// source says where each value of an experiment was written, by path.
type source struct {
	dir    string // of the file: what relative names are relative to
	file   string
	marks  map[string]mark
	faults Faults          // found while reading
	broken map[string]bool // paths whose value could not be read
}

func newSource(file, dir string) *source {
	return &source{dir: dir, file: file, marks: map[string]mark{}, broken: map[string]bool{}}
}

// add notes a fault at m.
func (s *source) add(m mark, path, message, hint string) {
	s.broken[path] = true
	if len(s.faults) < maxFaults {
		s.faults = append(s.faults, Fault{File: m.file, Line: m.line, Column: m.col, Path: path, Message: message, Hint: hint, Excerpt: m.text})
	}
}

// find returns where the value at path was written, or the nearest one around it.
func (s *source) find(path string) mark {
	for p := path; ; p = parent(p) {
		if m, ok := s.marks[p]; ok {
			return m
		}
		if p == "" {
			return mark{file: s.file}
		}
	}
}

// has tells whether the path was written.
func (s *source) has(path string) bool { _, ok := s.marks[path]; return ok }

// spoiled tells whether a fault at path would only echo one already found: in
// the value itself, in one around it, or directly in it.
func (s *source) spoiled(path string) bool {
	for b := range s.broken {
		if b == path || parent(b) == path || b == "" || strings.HasPrefix(path, b+".") || strings.HasPrefix(path, b+"[") {
			return true
		}
	}
	return false
}

// forget drops what is known of path and all beneath it, which is to be set anew.
func (s *source) forget(path string) {
	for p := range s.marks {
		if p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[") {
			delete(s.marks, p)
		}
	}
}

// parent cuts the last key or index off a path.
func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// join puts a key behind a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// pattern turns the indices of a path into [].
func pattern(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		b.WriteByte(path[i])
		if path[i] == '[' {
			for i+1 < len(path) && path[i+1] != ']' {
				i++
			}
		}
	}
	return b.String()
}

// near returns the name closest to word, if it is close enough to be meant.
func near(word string, names []string) string {
	best, name := max(1, len(word)/3), ""
	for _, n := range names {
		if d := distance(strings.ToLower(word), n); d <= best {
			best, name = d-1, n
		}
	}
	return name
}

// distance is the number of letters to insert, delete, change or swap with
// their neighbour (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
