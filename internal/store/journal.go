package store

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
)

// JournalName is the file that grows while a run goes on. It is turned into
// plan.parquet and records.parquet when the run ends and is then removed; a
// result directory that still has one was cut short.
const JournalName = "journal.gob"

// syncEvery bounds what kill -9 or a power failure can take: half of the second
// that the contract allows.
const syncEvery = 500 * time.Millisecond

// entry is one step of the journal: a planned session, when one began that the
// plan gives no time, a finished turn, or the time up to which everything due is
// known.
type entry struct {
	Session *plan.Session
	Begun   *begun
	Record  *packed
	Beat    *time.Duration
}

type begun struct {
	Session int64
	At      time.Duration
}

// packed is a record whose events are columns of small numbers, which gob
// writes in a few bytes each.
type packed struct {
	Record record.Record
	After  []int64 // ns since the event before; the first: since the run's start
	Tokens []int32
	Width  []int32
}

func pack(r *record.Record) *packed {
	p := &packed{Record: *r}
	p.Record.Events = nil
	if n := len(r.Events); n > 0 {
		p.After, p.Tokens, p.Width = make([]int64, n), make([]int32, n), make([]int32, n)
		last := time.Duration(0)
		for i, e := range r.Events {
			p.After[i], p.Tokens[i], p.Width[i] = int64(e.At-last), e.Tokens, e.Width
			last = e.At
		}
	}
	return p
}

func (p *packed) unpack() (*record.Record, error) {
	r := p.Record
	if len(p.Tokens) != len(p.After) || len(p.Width) != len(p.After) {
		return nil, errors.New("event columns of different lengths")
	}
	if len(p.After) > 0 {
		r.Events = make([]record.Event, len(p.After))
		at := time.Duration(0)
		for i := range r.Events {
			at += time.Duration(p.After[i])
			r.Events[i] = record.Event{At: at, Tokens: p.Tokens[i], Width: p.Width[i]}
		}
	}
	return &r, nil
}

// journal appends entries from one goroutine and syncs them to disk.
type journal struct {
	in   chan entry
	done chan struct{}

	mu  sync.Mutex
	err error
}

func createJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	j := &journal{in: make(chan entry, 4096), done: make(chan struct{})}
	go j.run(f)
	return j, nil
}

// run owns the file until in is closed. After a write error (a full disk) it
// keeps draining, so that the load is never held up; what was synced stays.
func (j *journal) run(f journalFile) {
	defer close(j.done)
	w := bufio.NewWriterSize(f, 1<<18)
	enc := gob.NewEncoder(w)
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	dirty := false
	sync := func() {
		if !dirty || j.Err() != nil {
			return
		}
		err := w.Flush()
		if err == nil {
			err = f.Sync()
		}
		j.fail(err)
		dirty = false
	}
	for {
		select {
		case e, ok := <-j.in:
			if !ok {
				sync()
				j.fail(f.Close())
				return
			}
			if j.Err() == nil {
				j.fail(enc.Encode(e))
				dirty = true
			}
		case <-tick.C:
			sync()
		}
	}
}

// journalFile is what the journal needs of a file; a test gives it a full disk.
type journalFile interface {
	io.WriteCloser
	Sync() error
}

func (j *journal) fail(err error) {
	if err == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = fmt.Errorf("write the journal: %w", err)
	}
}

// Err is the first write error, or nil.
func (j *journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

func (j *journal) close() error {
	close(j.in)
	<-j.done
	return j.Err()
}

// readJournal calls each for every whole entry. A torn end, which is what
// kill -9 leaves, is not an error; lost says how many bytes could not be read.
func readJournal(path string, each func(entry) error) (lost int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size := int64(0)
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	count := &counter{r: f}
	buf := bufio.NewReaderSize(count, 1<<18)
	dec := gob.NewDecoder(buf)
	for {
		whole := count.n - int64(buf.Buffered())
		var e entry
		switch err := dec.Decode(&e); {
		case errors.Is(err, io.EOF):
			return 0, nil
		case err != nil:
			// gob cannot find the next entry after a broken one, so this is the end
			// either way.
			return size - whole, nil
		}
		if err := each(e); err != nil {
			return 0, err
		}
	}
}

// counter counts the bytes read through it.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}
