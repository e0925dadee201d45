package sim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const (
	traces     = "../../testdata/traces"
	traceBlock = 512 // tokens that one id of a Mooncake trace stands for
)

// traceRow is one request of a Mooncake trace.
type traceRow struct {
	Timestamp int64 `json:"timestamp"` // ms
	Input     int   `json:"input_length"`
	Output    int   `json:"output_length"`
	IDs       []int `json:"hash_ids"`
}

func readTrace(t *testing.T, name string) []traceRow {
	t.Helper()
	f, err := os.Open(filepath.Join(traces, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []traceRow
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var r traceRow
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if sc.Err() != nil {
		t.Fatal(sc.Err())
	}
	return rows
}

// prompt spells a row's ids out as tokens, the same ones for the same id.
func (r traceRow) prompt() []Token {
	p := make([]Token, r.Input)
	for i := range p {
		p[i] = Token(r.IDs[i/traceBlock]*traceBlock + i%traceBlock)
	}
	return p
}

// oracle is a block cache after the description of vLLM's, made to be obvious
// and to share nothing with pool: it knows blocks by their trace ids and not by
// hashes, and evicts by searching all slots for the one freed longest ago.
type oracle struct {
	size     int
	infinite bool // never evicts, makes a new slot each time
	uncapped bool // may hit a whole prompt
	slots    []oracleSlot
	where    map[int][]int // slots that hold a key, the oldest first
	keys     map[[2]int]int
	clock    int
}

type oracleSlot struct {
	key   int // 0: nothing cached
	held  int
	freed int
}

// newOracle makes an oracle of n usable slots; 0: without limit.
func newOracle(n int) *oracle {
	o := &oracle{size: traceBlock, infinite: n == 0, where: map[int][]int{}, keys: map[[2]int]int{}}
	for range n {
		o.clock++
		o.slots = append(o.slots, oracleSlot{freed: o.clock})
	}
	return o
}

// key numbers block i of a row that comes after a block of key parent: by its id
// where it lies whole in the prompt, else as that row's own.
func (o *oracle) key(r traceRow, row, i, parent int) int {
	k := [2]int{parent, -1 - row}
	if (i+1)*o.size <= r.Input {
		k[1] = r.IDs[i]
	}
	if o.keys[k] == 0 {
		o.keys[k] = len(o.keys) + 1
	}
	return o.keys[k]
}

// use is one row's hold on the oracle's slots.
type use struct {
	row      traceRow
	n        int   // of the row
	slots    []int // held
	labelled []int // keys of the leading full ones
}

// begin takes the hits among the known first tokens and returns how many of them
// the hits cover.
func (o *oracle) begin(u *use, known int) int {
	full := (known - 1) / o.size
	if o.uncapped {
		full = known / o.size
	}
	parent := 0
	for i := range full {
		k := o.key(u.row, u.n, i, parent)
		if len(o.where[k]) == 0 {
			break
		}
		s := o.where[k][0]
		o.slots[s].held++
		u.slots = append(u.slots, s)
		u.labelled = append(u.labelled, k)
		parent = k
	}
	return len(u.slots) * o.size
}

// fits tells whether upTo tokens of u find room.
func (o *oracle) fits(u *use, upTo int) bool {
	need := (upTo+o.size-1)/o.size - len(u.slots)
	for _, s := range o.slots {
		if need <= 0 {
			break
		}
		if s.held == 0 {
			need--
		}
	}
	return need <= 0 || o.infinite
}

// compute makes the tokens of u up to upTo present.
func (o *oracle) compute(u *use, upTo int) {
	for len(u.slots)*o.size < upTo {
		best := -1
		if o.infinite {
			best = len(o.slots)
			o.slots = append(o.slots, oracleSlot{})
		} else {
			for i, s := range o.slots {
				if s.held == 0 && (best < 0 || s.freed < o.slots[best].freed) {
					best = i
				}
			}
		}
		s := &o.slots[best]
		if s.key != 0 {
			at := o.where[s.key]
			for i := range at {
				if at[i] == best {
					o.where[s.key] = append(at[:i:i], at[i+1:]...)
					break
				}
			}
		}
		*s = oracleSlot{held: 1}
		u.slots = append(u.slots, best)
	}
	for i := len(u.labelled); (i+1)*o.size <= upTo; i++ {
		parent := 0
		if i > 0 {
			parent = u.labelled[i-1]
		}
		k := o.key(u.row, u.n, i, parent)
		u.labelled = append(u.labelled, k)
		o.slots[u.slots[i]].key = k
		o.where[k] = append(o.where[k], u.slots[i])
	}
}

// end frees what u holds, the tail first.
func (o *oracle) end(u *use) {
	for i := len(u.slots) - 1; i >= 0; i-- {
		s := &o.slots[u.slots[i]]
		if s.held--; s.held == 0 {
			o.clock++
			s.freed = o.clock
		}
	}
	u.slots, u.labelled = nil, nil
}

// The excerpts, and capacities in blocks of 512 tokens, 0 being without limit,
// from little more than the longest request to about half of all blocks. The
// arXiv excerpt has 17 rows, of at most 33 blocks.
var excerpts = []struct {
	name       string
	capacities []int
}{
	{"mooncake_conversation.jsonl", []int{0, 300, 1000, 5000, 10000}},
	{"mooncake_synthetic.jsonl", []int{0, 300, 1000, 5000, 10000}},
	{"mooncake_arxiv.jsonl", []int{0, 35, 50, 70, 90}},
}

// unlimited is more blocks than any excerpt fills.
const unlimited = 40_000

func traceConfig(capacity int) Config {
	if capacity == 0 {
		capacity = unlimited
	}
	return Config{BlockSize: traceBlock, Blocks: capacity + 1, MaxSeqs: 64, MaxBatchedTokens: 8192, MaxModelLen: min(150_000, capacity*traceBlock)}
}

// The oracle itself against the figures that are published with the excerpts.
func TestOracleAgainstGolden(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(traces, "GOLDEN.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]json.RawMessage
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	for _, x := range excerpts {
		name := x.name
		var want struct {
			Prefix struct {
				FullBlockHit float64 `json:"full_block_hit"`
			} `json:"prefix_hit_infinite_B512"`
		}
		if err := json.Unmarshal(golden[name], &want); err != nil {
			t.Fatal(err)
		}
		o := newOracle(0)
		o.uncapped = true
		hits, full := 0, 0
		for i, r := range readTrace(t, name) {
			u := &use{row: r, n: i}
			hits += o.begin(u, r.Input) / traceBlock
			full += r.Input / traceBlock
			o.compute(u, r.Input)
			o.end(u)
		}
		// The file has six decimals.
		if got := float64(hits) / float64(full); fmt.Sprintf("%.6f", got) != fmt.Sprintf("%.6f", want.Prefix.FullBlockHit) {
			t.Errorf("%s: %d of %d full blocks hit, %.6f; published %.6f", name, hits, full, got, want.Prefix.FullBlockHit)
		}
	}
}

// One request at a time, prompt and output: the hits of every single request.
func TestCacheTruth(t *testing.T) {
	for _, x := range excerpts {
		name, rows := x.name, readTrace(t, x.name)
		for _, capacity := range x.capacities {
			if testing.Short() && capacity >= 5000 {
				continue
			}
			e := mustNew(t, traceConfig(capacity))
			o := newOracle(capacity)
			total := 0
			for i, r := range rows {
				u := &use{row: r, n: i}
				want := o.begin(u, r.Input)
				o.compute(u, r.Input+r.Output-1) // the last token is only sampled
				o.end(u)
				q := &Request{Prompt: r.prompt(), MaxTokens: r.Output}
				if got := hit(t, e, q); got != want {
					t.Fatalf("%s, %d blocks, row %d of %d tokens: engine hits %d, oracle %d", name, capacity, i+1, r.Input, got, want)
				}
				total += want
			}
			if got := e.Counters(); got.PrefixHits != int64(total) || got.CachedPromptTokens != int64(total) {
				t.Errorf("%s, %d blocks: counters %+v, want %d hits", name, capacity, got, total)
			}
			t.Logf("%s, %d blocks: %d of %d prompt tokens hit", name, capacity, total, e.Counters().PrefixQueries)
		}
	}
}

// At the trace's own times many requests run at once, share blocks, are
// preempted and resume. The oracle follows the engine's order of requests, and
// nothing else of it: the hits of every admission, first or resumed.
func TestCacheTruthConcurrent(t *testing.T) {
	for _, x := range excerpts {
		name, rows := x.name, readTrace(t, x.name)
		if testing.Short() {
			x.capacities = x.capacities[:2]
		}
		for _, capacity := range x.capacities {
			c := traceConfig(capacity)
			c.AdmitByChunk = true // so that preemption happens at all
			e := mustNew(t, c)
			o := newOracle(capacity)
			live := map[*Request]*use{}
			resumed, peak, total := 0, 0, 0
			i := -1
			_, err := Run(e, func() (time.Duration, *Request, bool) {
				if i++; i >= len(rows) {
					return 0, nil, false
				}
				r := &Request{Prompt: rows[i].prompt(), MaxTokens: rows[i].Output}
				live[r] = &use{row: rows[i], n: i}
				return time.Duration(rows[i].Timestamp) * time.Millisecond, r, true
			}, func(s *Step) {
				peak = max(peak, e.Running())
				victims := s.Preempted
				preempt := func() {
					o.end(live[victims[0]])
					victims = victims[1:]
				}
				for _, c := range e.chunks {
					u := live[c.s.r]
					upTo, known := c.s.computed, c.s.total()
					if c.s.computed == 0 { // it has finished, and released all
						upTo, known = len(c.s.r.Prompt)+len(c.s.out)-1, len(c.s.r.Prompt)+len(c.s.out)
					}
					if upTo == known-1 && len(c.s.out) > 0 {
						known-- // this step's own token
					}
					if len(u.slots) == 0 {
						want := o.begin(u, known)
						if got := upTo - c.n; got != want {
							t.Fatalf("%s, %d blocks, row %d at %v: engine hits %d, oracle %d", name, capacity, u.n+1, s.Start, got, want)
						}
						if c.s.r.Life.Preemptions > 0 {
							resumed++
						} else {
							total += want
						}
					}
					for !o.fits(u, upTo) && len(victims) > 0 {
						preempt()
					}
					o.compute(u, upTo)
				}
				for len(victims) > 0 { // one that preempted itself
					preempt()
				}
				for _, em := range s.Emitted {
					if em.Finish != NotFinished {
						o.end(live[em.Request])
						delete(live, em.Request)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := e.Counters().PrefixHits; got != int64(total) {
				t.Errorf("%s, %d blocks: %d hits counted, want %d", name, capacity, got, total)
			}
			if capacity > 0 && (peak < 2 || capacity == x.capacities[1] && resumed == 0) {
				t.Errorf("%s, %d blocks: %d running at most, %d resumed: too little happens", name, capacity, peak, resumed)
			}
			t.Logf("%s, %d blocks: %d prompt tokens hit, %d running at most, %d resumed", name, capacity, total, peak, resumed)
		}
	}
}
