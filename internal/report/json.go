package report

import (
	"encoding/json"
	"io"

	"github.com/trueload/trueload/internal/analysis"
)

// JSON writes summary.json.
func JSON(w io.Writer, s *analysis.Summary) error { return indented(w, s) }

// FindingsJSON writes the findings alone.
func FindingsJSON(w io.Writer, s *analysis.Summary) error {
	f := s.Findings
	if f == nil {
		f = []analysis.Finding{}
	}
	return indented(w, f)
}

func indented(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
