package analysis

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/trueload/trueload/internal/record"
)

func TestWriteAndRead(t *testing.T) {
	recs, opt := mixedRun()
	opt.Run.Name = "a < b & c"
	sum, err := Summarize(opt, func(yield func(*record.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	if err := sum.Write(&first); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(first.String(), "a < b & c") {
		t.Error("the name is escaped")
	}
	again, err := Read(bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(&second); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Error("what was read is not what was written")
	}
	if _, err := Read(strings.NewReader(`{"schema": "trueload.summary/2"}`)); err == nil || !strings.Contains(err.Error(), "summary/2") {
		t.Errorf("another schema: %v", err)
	}
	if _, err := Read(strings.NewReader(`{"schema": `)); err == nil {
		t.Error("half a file is read")
	}
}

func TestSummarizeStopsAtAnError(t *testing.T) {
	broken := errors.New("row 7 of records.parquet: bad page")
	_, err := Summarize(Options{}, func(yield func(*record.Record, error) bool) { yield(nil, broken) })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if _, err := Summarize(Options{Batches: 1}, nil); err == nil {
		t.Error("bad options are taken")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"schema": "trueload.summary/1", "latency": {"ttft_s": {"all": {"n": 3}}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		if err := s.Write(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	})
}
