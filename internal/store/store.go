// Package store keeps a result directory. A Writer appends what happens to a
// journal that is synced at least once a second, and turns it into Parquet when
// the run ends; Open reads a directory back, finished or cut short. It knows
// nothing of what the numbers mean: summaries pass through as bytes.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// Names of the files of a result directory.
const (
	ExperimentName = "experiment.yaml"
	ManifestName   = "manifest.json"
	PlanName       = "plan.parquet"
	RecordsName    = "records.parquet"
	SummaryName    = "summary.json"
	FindingsName   = "findings.json"
	HTMLName       = "report.html"
	MarkdownName   = "report.md"
)

// rowGroup bounds the memory of writing and reading Parquet.
const rowGroup = 20_000

// Writer writes one result directory. Session, Begun, Record and Beat may be called
// from several goroutines; Finish once, after them.
type Writer struct {
	dir string
	j   *journal
}

// Create makes dir (its parents too) and starts its journal. A directory that
// holds a result already is refused: a measurement is never overwritten.
func Create(dir string, experiment []byte, manifest any) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the result directory: %w", err)
	}
	for _, name := range []string{ManifestName, JournalName, RecordsName, SummaryName} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return nil, fmt.Errorf("%s already holds a result (%s): name another directory with --out", dir, name)
		}
	}
	w := &Writer{dir: dir}
	if err := w.WriteFile(ExperimentName, experiment); err != nil {
		return nil, err
	}
	if err := w.WriteJSON(ManifestName, manifest); err != nil {
		return nil, err
	}
	j, err := createJournal(filepath.Join(dir, JournalName))
	if err != nil {
		return nil, err
	}
	w.j = j
	return w, nil
}

// Dir is the directory's path.
func (w *Writer) Dir() string { return w.dir }

// Session notes a planned session.
func (w *Writer) Session(s *plan.Session) { w.j.in <- entry{Session: s} }

// Begun notes when the first turn of a closed loop's session was due. It stands
// on the send path and never waits: where the disk is far behind, the note is
// left out.
func (w *Writer) Begun(session int64, at time.Duration) {
	select {
	case w.j.in <- entry{Begun: &begun{session, at}}:
	default:
	}
}

// Record notes what happened to a turn. The caller must not change r afterwards.
func (w *Writer) Record(r *record.Record) { w.j.in <- entry{Record: pack(r)} }

// Beat notes that the run has got as far as t: a turn due before t without a
// record was still in flight.
//
// It never waits: where the disk is behind, a beat is left out.
func (w *Writer) Beat(t time.Duration) {
	select {
	case w.j.in <- entry{Beat: &t}:
	default:
	}
}

// Err is the first error of writing the journal, or nil. The load should stop
// when it appears: what follows can no longer be kept.
func (w *Writer) Err() error { return w.j.Err() }

// Finish writes plan.parquet and records.parquet from the journal and removes
// it. On an error the journal stays, and Open reads that instead.
func (w *Writer) Finish() error {
	if err := w.j.close(); err != nil {
		return err
	}
	if err := w.convert(); err != nil {
		return fmt.Errorf("write Parquet (the journal is kept, `trueload report %s` reads it): %w", w.dir, err)
	}
	return os.Remove(filepath.Join(w.dir, JournalName))
}

func (w *Writer) convert() (err error) {
	plans, err := newTable[planRow](filepath.Join(w.dir, PlanName))
	if err != nil {
		return err
	}
	defer plans.abandon()
	records, err := newTable[recordRow](filepath.Join(w.dir, RecordsName))
	if err != nil {
		return err
	}
	defer records.abandon()
	var rows []planRow
	lost, err := readJournal(filepath.Join(w.dir, JournalName), func(e entry) error {
		if e.Session != nil {
			rows = sessionRows(e.Session, rows[:0])
			if err := plans.write(rows...); err != nil {
				return err
			}
		}
		if e.Record != nil {
			r, err := e.Record.unpack()
			if err != nil {
				return err
			}
			return records.write(toRow(r))
		}
		return nil
	})
	if lost > 0 {
		err = errors.New("the journal does not read back to its end")
	}
	if err != nil {
		return err
	}
	if err := plans.close(); err != nil {
		return err
	}
	return records.close()
}

// WriteFile writes one file of the directory so that it is either whole or absent.
func (w *Writer) WriteFile(name string, b []byte) error { return writeFile(w.dir, name, b) }

// WriteJSON writes v as indented JSON.
func (w *Writer) WriteJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return w.WriteFile(name, append(b, '\n'))
}

func writeFile(dir, name string, b []byte) error {
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}

// table writes one Parquet file under a temporary name until it is closed.
type table[T any] struct {
	path string
	f    *os.File
	w    *parquet.GenericWriter[T]
	buf  []T
}

func newTable[T any](path string) (*table[T], error) {
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return nil, err
	}
	// A codec of its own: the library's shared one would tie two test bubbles together.
	w := parquet.NewGenericWriter[T](f, parquet.Compression(&zstd.Codec{}), parquet.MaxRowsPerRowGroup(rowGroup))
	return &table[T]{path: path, f: f, w: w}, nil
}

func (t *table[T]) write(rows ...T) error {
	t.buf = append(t.buf, rows...)
	if len(t.buf) < 1000 {
		return nil
	}
	return t.flush()
}

func (t *table[T]) flush() error {
	_, err := t.w.Write(t.buf)
	t.buf = t.buf[:0]
	return err
}

func (t *table[T]) close() error {
	err := errors.Join(t.flush(), t.w.Close(), t.f.Sync(), t.f.Close())
	t.f = nil
	if err != nil {
		return err
	}
	return os.Rename(t.path+".tmp", t.path)
}

// abandon removes what an error left behind; after close it does nothing.
func (t *table[T]) abandon() {
	if t.f != nil {
		t.f.Close()
		os.Remove(t.path + ".tmp")
	}
}

// Result is a result directory that is read.
type Result struct {
	dir string
	// CutShort is set where the run did not end by itself: records come from the
	// journal, and the turns that were in flight are told as unfinished.
	CutShort bool
	// Lost is how many bytes of the journal could not be read: its torn end, or
	// all that follows a damaged place. Known after Records.
	Lost int64
}

// Open opens a result directory.
func Open(dir string) (*Result, error) {
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	switch {
	case !exists(ManifestName):
		return nil, fmt.Errorf("%s is not a result directory: it has no %s", dir, ManifestName)
	case exists(JournalName):
		return &Result{dir: dir, CutShort: true}, nil
	case exists(RecordsName):
		return &Result{dir: dir}, nil
	}
	return nil, fmt.Errorf("%s has neither %s nor %s", dir, RecordsName, JournalName)
}

// Dir is the directory's path.
func (r *Result) Dir() string { return r.dir }

// WriteFile adds or replaces one file, such as the summary of a run that was cut
// short.
func (r *Result) WriteFile(name string, b []byte) error { return writeFile(r.dir, name, b) }

// ReadFile returns one file of the directory.
func (r *Result) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(r.dir, name))
}

// ReadJSON decodes one file of the directory.
func (r *Result) ReadJSON(name string, v any) error {
	b, err := r.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(r.dir, name), err)
	}
	return nil
}

// Records calls each with every record. Where the run was cut short, planned
// turns without a record follow, as unfinished (due before the last beat) or
// not due.
func (r *Result) Records(each func(*record.Record) error) (err error) {
	if r.CutShort {
		return r.journalRecords(each)
	}
	f, err := os.Open(filepath.Join(r.dir, RecordsName))
	if err != nil {
		return err
	}
	defer f.Close()
	// The library panics on some damaged files.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v", filepath.Join(r.dir, RecordsName), p)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", filepath.Join(r.dir, RecordsName), err)
	}
	rd := parquet.NewGenericReader[recordRow](file)
	defer rd.Close()
	rows := make([]recordRow, 256)
	for {
		clear(rows)
		n, err := rd.Read(rows)
		for i := range rows[:n] {
			rec, err := rows[i].record()
			if err != nil {
				return fmt.Errorf("%s: %w", RecordsName, err)
			}
			if err := each(rec); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", RecordsName, err)
		}
	}
}

func (r *Result) journalRecords(each func(*record.Record) error) error {
	type open struct {
		s    *plan.Session
		left map[int32]bool // turns without a record
		due  time.Duration  // of the first of them, where known
	}
	sessions := map[int64]*open{}
	var order []int64
	var until time.Duration
	lost, err := readJournal(filepath.Join(r.dir, JournalName), func(e entry) error {
		switch {
		case e.Session != nil:
			o := &open{s: e.Session, left: map[int32]bool{}, due: e.Session.Scheduled}
			for _, t := range e.Session.Turns {
				o.left[t.Index] = true
			}
			sessions[e.Session.Seq] = o
			order = append(order, e.Session.Seq)
		case e.Begun != nil:
			if o := sessions[e.Begun.Session]; o != nil {
				o.due = e.Begun.At
			}
		case e.Beat != nil:
			until = max(until, *e.Beat)
		case e.Record != nil:
			rec, err := e.Record.unpack()
			if err != nil {
				return err
			}
			if rec.Done != record.Unset {
				until = max(until, rec.Done)
			}
			if o := sessions[rec.ID.Session]; o != nil {
				delete(o.left, rec.ID.Turn)
				o.due = plan.Unset
				for i, t := range o.s.Turns {
					if t.Index == rec.ID.Turn && i+1 < len(o.s.Turns) && rec.Done != record.Unset {
						o.due = rec.Done + o.s.Turns[i+1].Think
					}
				}
				if len(o.left) == 0 {
					delete(sessions, rec.ID.Session)
				}
			}
			return each(rec)
		}
		return nil
	})
	r.Lost = lost
	if err != nil {
		return err
	}
	for _, seq := range order {
		o := sessions[seq]
		if o == nil {
			continue
		}
		first := true
		for i := range o.s.Turns {
			t := &o.s.Turns[i]
			if !o.left[t.Index] {
				continue
			}
			rec := record.New(o.s, t)
			rec.Phase, rec.AskedInput = o.s.Phase, o.s.AskedInput(i)
			rec.LastTurn = i == len(o.s.Turns)-1
			rec.Outcome = record.NotDue
			due := o.due
			if t.At != plan.Unset {
				due = t.At
			}
			// Turns with a time of their own are under way side by side; of others
			// only the first can be.
			if alone := t.At == plan.Unset || !o.s.Scripted; due != plan.Unset && due <= until && (first || !alone) {
				rec.Scheduled, rec.Done, rec.Outcome = due, until, record.Unfinished
				rec.Error = "the run was cut short while this was in flight"
			}
			first = false
			if err := each(rec); err != nil {
				return err
			}
		}
	}
	return nil
}
