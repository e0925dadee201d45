package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// maxProfileFile bounds a profile file, in bytes.
const maxProfileFile = 1 << 20

// profileFile is a Profile as it stands in a file: the same terms, in the units
// that people write them in.
type profileFile struct {
	Name   string `json:"name"`
	GPU    string `json:"gpu"`
	Model  string `json:"model"`
	Basis  Basis  `json:"basis"`
	Source string `json:"source"`

	HostMS       float64      `json:"host_ms"`
	FloorMS      float64      `json:"floor_ms,omitempty"`
	BaseMS       float64      `json:"base_ms,omitempty"`
	PerTokenUS   float64      `json:"per_token_us,omitempty"`
	PointsMS     [][2]float64 `json:"points_ms,omitempty"` // tokens, milliseconds
	DecodeBaseMS float64      `json:"decode_base_ms,omitempty"`
	PerDecodeUS  float64      `json:"per_decode_us,omitempty"`
	PerContextUS float64      `json:"per_context_us"`
	PrefillMS    float64      `json:"prefill_base_ms,omitempty"`
	PerAttendNS  float64      `json:"per_attended_ns"`
	HeadBaseMS   float64      `json:"head_base_ms"`
	HeadPerSeqUS float64      `json:"head_per_seq_us,omitempty"`

	MaxBatchedTokens int `json:"max_batched_tokens"`
	MaxSeqs          int `json:"max_seqs"`
	Blocks           int `json:"blocks"`
}

// times pairs the file's numbers with the profile's, and the unit.
func (f *profileFile) times(p *Profile) []profileTime {
	return []profileTime{
		{"host_ms", &f.HostMS, &p.Host, 1e3}, {"floor_ms", &f.FloorMS, &p.Floor, 1e3}, {"base_ms", &f.BaseMS, &p.Base, 1e3},
		{"per_token_us", &f.PerTokenUS, &p.PerToken, 1e6},
		{"decode_base_ms", &f.DecodeBaseMS, &p.DecodeBase, 1e3}, {"per_decode_us", &f.PerDecodeUS, &p.PerDecode, 1e6}, {"per_context_us", &f.PerContextUS, &p.PerContext, 1e6},
		{"prefill_base_ms", &f.PrefillMS, &p.PrefillBase, 1e3}, {"per_attended_ns", &f.PerAttendNS, &p.PerAttended, 1e9},
		{"head_base_ms", &f.HeadBaseMS, &p.HeadBase, 1e3}, {"head_per_seq_us", &f.HeadPerSeqUS, &p.HeadPerSeq, 1e6},
	}
}

type profileTime struct {
	key           string
	file, profile *float64 // in the unit, and in seconds
	unit          float64  // in one second
}

// ReadProfile reads a profile from JSON, as WriteProfile writes it. name is
// where it comes from, for errors. A key that is not known, a time below 0 or
// above a second for a token, or a missing size is an error.
func ReadProfile(r io.Reader, name string) (Profile, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxProfileFile+1))
	if err != nil {
		return Profile{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > maxProfileFile {
		return Profile{}, fmt.Errorf("%s: longer than %d bytes: this is no engine profile", name, maxProfileFile)
	}
	p, err := parseProfile(b)
	if err != nil {
		return Profile{}, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func parseProfile(b []byte) (Profile, error) {
	var f profileFile
	if err := decodeStrict(b, &f); err != nil {
		return Profile{}, err
	}
	p := Profile{
		Name: f.Name, GPU: f.GPU, Model: f.Model, Basis: f.Basis, Source: f.Source,
		MaxBatchedTokens: f.MaxBatchedTokens, MaxSeqs: f.MaxSeqs, Blocks: f.Blocks,
	}
	if p.Name == "" {
		return Profile{}, fmt.Errorf("name: missing")
	}
	switch p.Basis {
	case Measured, PartMeasured, Scaled, Invented:
	default:
		return Profile{}, fmt.Errorf("basis: %q: say %q, %q, %q or %q", p.Basis, Measured, PartMeasured, Scaled, Invented)
	}
	for _, t := range f.times(&p) {
		*t.profile = *t.file / t.unit
		if !(*t.profile >= 0 && *t.profile <= 1) {
			return Profile{}, fmt.Errorf("%s: %v: must be 0 to a second", t.key, *t.file)
		}
	}
	for i, pt := range f.PointsMS {
		n, s := pt[0], pt[1]/1e3
		if n != math.Trunc(n) || !(n >= 1 && n <= 1e9) || !(s >= 0 && s <= 1e3) {
			return Profile{}, fmt.Errorf("points_ms[%d]: [%v, %v]: give a whole number of tokens and milliseconds", i, pt[0], pt[1])
		}
		p.Points = append(p.Points, Point{int(n), s})
		if i > 0 && (p.Points[i].Tokens <= p.Points[i-1].Tokens || s < p.Points[i-1].Seconds) {
			return Profile{}, fmt.Errorf("points_ms[%d]: tokens must grow from point to point, and their time not shrink", i)
		}
	}
	switch {
	case len(p.Points) == 1:
		return Profile{}, fmt.Errorf("points_ms: one point makes no line: give two or more")
	case len(p.Points) == 0 && p.Floor == 0 && p.Base == 0 && p.PerToken == 0:
		return Profile{}, fmt.Errorf("give points_ms, or floor_ms, base_ms and per_token_us: without them a step takes no time")
	}
	for _, n := range []struct {
		key    string
		v, min int
	}{{"max_batched_tokens", p.MaxBatchedTokens, 1}, {"max_seqs", p.MaxSeqs, 1}, {"blocks", p.Blocks, 2}} {
		if n.v < n.min || n.v > 1<<30 {
			return Profile{}, fmt.Errorf("%s: %d: must be at least %d", n.key, n.v, n.min)
		}
	}
	return p, nil
}

// decodeStrict decodes one JSON object and nothing behind it. Errors name the
// line and column.
func decodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		err = fmt.Errorf("more than one JSON object")
	}
	if err == nil {
		return nil
	}
	at := d.InputOffset()
	switch e := err.(type) {
	case *json.SyntaxError:
		at = e.Offset
	case *json.UnmarshalTypeError:
		at = e.Offset
	}
	before := b[:max(0, min(int(at)-1, len(b)))] // the offset is behind the fault
	line := 1 + bytes.Count(before, []byte("\n"))
	col := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Errorf("%d:%d: %w", line, col, err)
}

// WriteProfile writes p as JSON, a file to start one's own from.
func WriteProfile(w io.Writer, p Profile) error {
	f := profileFile{
		Name: p.Name, GPU: p.GPU, Model: p.Model, Basis: p.Basis, Source: p.Source,
		MaxBatchedTokens: p.MaxBatchedTokens, MaxSeqs: p.MaxSeqs, Blocks: p.Blocks,
	}
	for _, t := range f.times(&p) {
		*t.file = round(*t.profile * t.unit)
	}
	for _, pt := range p.Points {
		f.PointsMS = append(f.PointsMS, [2]float64{float64(pt.Tokens), round(pt.Seconds * 1e3)})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(f)
}

// round drops what the change of units left in the last digits.
func round(x float64) float64 { return math.Round(x*1e9) / 1e9 }
