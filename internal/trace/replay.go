package trace

import (
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// Load reads the rows that are left, sorts them by time and rebases them so that
// the first is at 0, as a replay needs them; limit > 0 takes the first so many
// rows of the file only. It holds the rows in memory. outOfOrder counts the rows
// that came before their predecessor in the file.
func (r *Reader) Load(limit int) (rows []Row, outOfOrder int, err error) {
	for limit <= 0 || len(rows) < limit {
		row, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		rows = append(rows, row)
	}
	if err := r.Check(); err != nil {
		return nil, 0, err
	}
	outOfOrder = Sort(rows)
	Rebase(rows)
	return rows, outOfOrder, nil
}

// Sort sorts rows by time, rows of one time in the order they had, and returns
// how many came before their predecessor. Rows without a time go last.
func Sort(rows []Row) (outOfOrder int) {
	last := unset
	timed := func(r Row) time.Duration {
		if r.At == unset {
			return 1<<63 - 1
		}
		return r.At
	}
	for i := range rows {
		at := timed(rows[i])
		if at < last {
			outOfOrder++
		}
		last = at
	}
	if outOfOrder > 0 {
		slices.SortStableFunc(rows, func(a, b Row) int {
			switch x, y := timed(a), timed(b); {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		})
	}
	return outOfOrder
}

// Rebase shifts sorted rows so that the first is at 0 and returns the shift.
func Rebase(rows []Row) time.Duration {
	if len(rows) == 0 || rows[0].At == unset {
		return 0
	}
	base := rows[0].At
	for i := range rows {
		if rows[i].At != unset {
			rows[i].At -= base
		}
	}
	return base
}

// Spread moves each row of a trace whose times were cut to a quantum by a
// uniform draw inside that quantum, and sorts again. A replay that does this
// must say so: the recorded times are then not what is sent.
func Spread(rows []Row, quantum time.Duration, rng *rand.Rand) {
	if quantum <= 0 {
		return
	}
	for i := range rows {
		if rows[i].At != unset {
			rows[i].At += time.Duration(rng.Int64N(int64(quantum)))
		}
	}
	Sort(rows)
}

// Quantum returns the step that sorted times were cut to, or 0 where they do
// not look cut: more than half of the gaps must be zero. Row times that a clock
// of steps wrote are multiples of it only nearly, so it is the median of the
// gaps that are not zero.
func Quantum(at []time.Duration) time.Duration { return quantum(slices.Values(at)) }

func quantum(at iter.Seq[time.Duration]) time.Duration {
	gaps := func(yield func(time.Duration)) {
		last := unset
		for t := range at {
			if last != unset {
				yield(t - last)
			}
			last = t
		}
	}
	all, zero := 0, 0
	gaps(func(d time.Duration) {
		all++
		if d == 0 {
			zero++
		}
	})
	if all < minForQuantum || 2*zero <= all || zero == all {
		return 0
	}
	steps := make([]time.Duration, 0, all-zero)
	gaps(func(d time.Duration) {
		if d > 0 {
			steps = append(steps, d)
		}
	})
	slices.Sort(steps)
	return steps[(len(steps)-1)/2]
}

// minForQuantum is how many gaps it takes to call times cut: a few rows may
// come at one time in any trace.
const minForQuantum = 20
