package store

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

func session(seq int64, turns int) *plan.Session {
	s := &plan.Session{Seq: seq, Scheduled: time.Duration(seq) * time.Second, Class: "chat", Phase: "steady", Tenant: "gold", Priority: 2}
	for i := range turns {
		s.Turns = append(s.Turns, plan.Turn{
			Index: int32(i), At: plan.Unset, Think: time.Duration(i) * time.Second, InputTokens: 100 + i, OutputTokens: 7,
			Prompt: plan.Prompt{Seed: 1<<63 + 5, Item: -1, Blocks: []uint64{1, 2, 1<<64 - 1}, BlockTokens: 512},
		})
	}
	return s
}

// finished is a record with every field set, so that a column forgotten in
// rows.go is a difference.
func finished(s *plan.Session, turn int) *record.Record {
	r := record.New(s, &s.Turns[turn])
	t := s.Scheduled
	*r = record.Record{
		ID: r.ID, Class: r.Class, Phase: "steady", Tenant: r.Tenant, Priority: r.Priority, Model: "lora-a", Outcome: record.OK,
		Error: "none", HTTPStatus: 200, RetryAfter: 3 * time.Second, LastTurn: turn == len(s.Turns)-1,
		Scheduled: t, Released: t + 1, Admitted: t + 2, Connected: t + 3, Sent: t + 4, Written: t + 5, Headers: t + 6,
		FirstOutput: t + 7, FirstAnswer: t + 8, LastOutput: t + 107, Done: t + 110,
		Events:     []record.Event{{At: t + 7, Tokens: 1}, {At: t + 57, Tokens: -1, Width: 4}, {At: t + 107, Tokens: 3, Width: 150_000}},
		AskedInput: 100, AskedOutput: 7, InputTokens: 101, OutputTokens: 6, ReasoningTokens: 0, CachedTokens: 64,
		TokenSource: record.TokensFromUsage, HiddenTokens: true, FinishReason: "length", Streamed: true,
		HangUpPlanned: true, HangUpAfter: time.Minute, Reused: true, Reconnects: 1, Retries: 2,
		StampSource: "kernel", Reads: 3, MultiEventReads: 1, RefusedStamps: 1,
	}
	return r
}

func create(t *testing.T) (*Writer, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "result")
	w, err := Create(dir, []byte("seed: 42\n"), map[string]string{"version": "test"})
	if err != nil {
		t.Fatal(err)
	}
	return w, dir
}

func readAll(t *testing.T, dir string) ([]*record.Record, *Result) {
	t.Helper()
	res, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []*record.Record
	if err := res.Records(func(r *record.Record) error { got = append(got, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return got, res
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	w, dir := create(t)
	var want []*record.Record
	for seq := range int64(3) {
		s := session(seq, 2)
		w.Session(s)
		bare := record.New(s, &s.Turns[1]) // every stamp unset, every count unknown
		bare.Outcome = record.Skipped
		for _, r := range []*record.Record{finished(s, 0), bare} {
			want = append(want, r)
			w.Record(r)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	got, res := readAll(t, dir)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("records changed (-want +got):\n%s", d)
	}
	if res.CutShort {
		t.Error("a finished result is told as cut short")
	}
	if _, err := os.Stat(filepath.Join(dir, JournalName)); err == nil {
		t.Error("the journal stayed after Finish")
	}
	if b, err := res.ReadFile(ExperimentName); err != nil || string(b) != "seed: 42\n" {
		t.Errorf("experiment: %q, %v", b, err)
	}
}

// What kill -9 leaves: a journal without its end, cut at any byte.
func TestCutJournalKeepsWhatCameBefore(t *testing.T) {
	w, dir := create(t)
	var want []*record.Record
	for seq := range int64(5) {
		s := session(seq, 1)
		w.Session(s)
		want = append(want, finished(s, 0))
		w.Record(want[seq])
	}
	if err := w.j.close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, JournalName))
	if err != nil {
		t.Fatal(err)
	}
	best := 0
	for cut := 0; cut <= len(whole); cut += 7 {
		if err := os.WriteFile(filepath.Join(dir, JournalName), whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		got, res := readAll(t, dir)
		if !res.CutShort {
			t.Fatal("a result with a journal is not told as cut short")
		}
		n := 0
		for _, r := range got {
			if r.Outcome == record.OK {
				if d := cmp.Diff(want[n], r); d != "" {
					t.Fatalf("cut at %d: record %d changed:\n%s", cut, n, d)
				}
				n++
			}
		}
		if n < best {
			t.Fatalf("cut at %d of %d: %d records, fewer than at an earlier cut (%d)", cut, len(whole), n, best)
		}
		best = n
	}
	if best < 4 {
		t.Errorf("only %d of 5 records came back from the nearly whole journal", best)
	}
}

// A journal that was damaged while it lay there must not become a table that
// looks whole.
func TestFinishKeepsAJournalThatDoesNotReadBack(t *testing.T) {
	w, dir := create(t)
	for seq := range int64(3) {
		s := session(seq, 1)
		w.Session(s)
		w.Record(finished(s, 0))
	}
	if err := w.j.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, JournalName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)-3], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := w.convert(); err == nil {
		t.Error("a journal without its end was converted")
	}
	if _, err := os.Stat(filepath.Join(dir, RecordsName)); err == nil {
		t.Error("there is a table of some of its records")
	}
}

func TestCutShortTellsWhatWasInFlight(t *testing.T) {
	w, dir := create(t)
	for seq := range int64(3) { // due at 0, 1 and 2 s
		w.Session(session(seq, 2))
	}
	w.Record(finished(session(0, 2), 0)) // its second turn is due 1 s after
	w.Beat(1500 * time.Millisecond)
	if err := w.j.close(); err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(t, dir)
	var lines []string
	for _, r := range got {
		lines = append(lines, strings.Join([]string{string(rune('0' + r.ID.Session)), string(rune('0' + r.ID.Turn)), r.Outcome.String()}, " "))
	}
	want := []string{"0 0 ok", "0 1 unfinished", "1 0 unfinished", "1 1 not_due", "2 0 not_due", "2 1 not_due"}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// In strict replay a session's turns are sent at their own times, whatever the
// ones before them do.
func TestCutShortInStrictReplay(t *testing.T) {
	w, dir := create(t)
	s := session(0, 3)
	s.Scripted = true
	for i := range s.Turns {
		s.Turns[i].At = s.Scheduled + time.Duration(i)*time.Second
	}
	w.Session(s)
	w.Beat(1500 * time.Millisecond)
	if err := w.j.close(); err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(t, dir)
	for i, want := range []record.Outcome{record.Unfinished, record.Unfinished, record.NotDue} {
		if got[i].Outcome != want {
			t.Errorf("turn %d is %v, want %v", i, got[i].Outcome, want)
		}
	}
}

// A closed loop's plan has no times: what was in flight is what had begun.
func TestCutShortInClosedLoop(t *testing.T) {
	w, dir := create(t)
	for seq := range int64(3) {
		s := session(seq, 1)
		s.Scheduled = plan.Unset
		w.Session(s)
	}
	w.Begun(0, 0)
	w.Begun(1, time.Second)
	s := session(0, 1)
	s.Scheduled = 0
	w.Record(finished(s, 0))
	w.Beat(4 * time.Second)
	if err := w.j.close(); err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(t, dir)
	for i, want := range []record.Outcome{record.OK, record.Unfinished, record.NotDue} {
		if got[i].Outcome != want {
			t.Errorf("session %d is %v, want %v", i, got[i].Outcome, want)
		}
	}
	if got[1].Scheduled != time.Second || got[1].Done != 4*time.Second {
		t.Errorf("due at %v, given up at %v", got[1].Scheduled, got[1].Done)
	}
}

func TestCreateRefusesAResult(t *testing.T) {
	w, dir := create(t)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, nil, nil); err == nil || !strings.Contains(err.Error(), "--out") {
		t.Errorf("got %v, want a refusal that names --out", err)
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), ManifestName) {
		t.Errorf("got %v", err)
	}
}

// fullDisk takes some bytes and then no more.
type fullDisk struct {
	room   int
	synced int
}

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) > d.room {
		n := d.room
		d.room = 0
		return n, errors.New("no space left on device")
	}
	d.room -= len(b)
	return len(b), nil
}
func (d *fullDisk) Sync() error  { d.synced++; return nil }
func (d *fullDisk) Close() error { return nil }

func TestFullDiskIsToldAndNeverBlocks(t *testing.T) {
	j := &journal{in: make(chan entry, 1), done: make(chan struct{})}
	go j.run(&fullDisk{room: 10_000})
	s := session(0, 1)
	for range 20_000 {
		j.in <- entry{Record: pack(finished(s, 0))}
	}
	if err := j.close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v, want the disk's own words", err)
	}
}

func TestParquetColumnsAreReadable(t *testing.T) {
	w, dir := create(t)
	s := session(0, 2)
	w.Session(s)
	w.Record(finished(s, 0))
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{PlanName, RecordsName} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(b[:4]) != "PAR1" || string(b[len(b)-4:]) != "PAR1" {
			t.Errorf("%s is not a Parquet file (%v)", name, err)
		}
	}
}

func TestWriteFileIsWholeOrAbsent(t *testing.T) {
	w, dir := create(t)
	if err := w.WriteJSON(SummaryName, map[string]any{"a": 1}); err != nil {
		t.Fatal(err)
	}
	var back map[string]int
	b, _ := os.ReadFile(filepath.Join(dir, SummaryName))
	if err := json.Unmarshal(b, &back); err != nil || back["a"] != 1 {
		t.Errorf("%s: %v", b, err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(left) > 0 {
		t.Errorf("temporary files stayed: %v", left)
	}
}

func FuzzReadJournal(f *testing.F) {
	dir := f.TempDir()
	w, err := Create(filepath.Join(dir, "seed"), nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	s := session(1, 2)
	w.Session(s)
	w.Record(finished(s, 0))
	w.j.close()
	b, _ := os.ReadFile(filepath.Join(dir, "seed", JournalName))
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		d := t.TempDir()
		os.WriteFile(filepath.Join(d, ManifestName), []byte("{}"), 0o644)
		os.WriteFile(filepath.Join(d, JournalName), b, 0o644)
		res, err := Open(d)
		if err != nil {
			t.Fatal(err)
		}
		res.Records(func(*record.Record) error { return nil })
	})
}

func TestDamageIsAnErrorNotAPanic(t *testing.T) {
	w, dir := create(t)
	s := session(0, 2)
	for range 500 {
		w.Record(finished(s, 0))
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, RecordsName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 3000)
	for i := range noise {
		noise[i] = byte(i * 7)
	}
	middle := append([]byte{}, whole...)
	copy(middle[len(middle)/3:], noise[:min(len(noise), len(middle)/3)])
	for name, b := range map[string][]byte{"cut": whole[:len(whole)/2], "noise": noise, "empty": nil, "damaged inside": middle} {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		res, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = res.Records(func(*record.Record) error { return nil })
		if err == nil || !strings.Contains(err.Error(), RecordsName) {
			t.Errorf("%s: %v, want an error that names the file", name, err)
		}
	}
}

func TestTheLossOfADamagedJournalIsTold(t *testing.T) {
	w, dir := create(t)
	s := session(0, 1)
	for range 100 {
		w.Record(finished(s, 0))
	}
	if err := w.j.close(); err != nil {
		t.Fatal(err)
	}
	if _, res := readAll(t, dir); res.Lost != 0 {
		t.Errorf("%d bytes lost of a whole journal", res.Lost)
	}
	path := filepath.Join(dir, JournalName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		b[len(b)/2+i] = 0xff
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, res := readAll(t, dir); res.Lost < int64(len(b)/2-500) || res.Lost > int64(len(b)/2+500) {
		t.Errorf("%d bytes lost, of %d damaged in the middle", res.Lost, len(b))
	}
}
