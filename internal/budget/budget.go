// Package budget bounds the memory and the work that a file may cost its reader.
package budget

import (
	"errors"
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
)

// The default limits of a file: Floor bytes of memory and Floor units of work, or PerByte of each
// per byte of a larger file. A unit of work takes about 20 ns.
const (
	Floor   = 256 << 20
	PerByte = 8
	// MaxRatio is the maximum number of decompressed bytes that count per compressed byte, so that
	// a small file can't expand to a large budget.
	MaxRatio = 64
)

// ErrExceeded is the class of errors about files that cost more than their budget, for errors.Is.
var ErrExceeded = errors.New("the file costs too much")

// Limits are the options of a budget. A limit of 0 stands for the default, which grows with the
// file.
type Limits struct {
	MaxMemory int64 // bytes
	MaxWork   int64 // units of about 20 ns
}

// Check returns an error if a limit is negative.
func (l Limits) Check() error {
	if l.MaxMemory < 0 || l.MaxWork < 0 {
		return fmt.Errorf("max-memory is %d and max-work is %d: want positive numbers, or 0 for the default", l.MaxMemory, l.MaxWork)
	}
	return nil
}

// Budget is the limits of one file, and the charges so far. Memory and work are charged before they
// are used. A nil Budget has no limits. Its methods must not be called concurrently.
type Budget struct {
	limits       Limits
	parts        int64 // number of parts that share the floor of the work
	recordings   int64 // number of recordings that share the work of each part
	shared       bool  // this is a share of the work of whole, which may be nil
	share        int64 // units
	whole        *Budget
	input        int64 // bytes of the file that count for the limits
	memory, work int64
}

// New returns a budget for a file of which nothing has been read.
func New(l Limits) *Budget { return &Budget{limits: l, parts: 1, recordings: 1} }

// Divide sets the number of recordings in the file, which share the work of each part.
func (b *Budget) Divide(n int) {
	if b != nil {
		b.recordings = int64(max(n, 1))
	}
}

// Part returns a budget for one of n further pieces of work on a recording of the same file, such
// as a replay. It has the same limits, except that the pieces share the floor of the work, and the
// recordings all of it.
func (b *Budget) Part(n int) *Budget {
	if b == nil {
		return nil
	}
	part := *b
	part.work, part.parts = 0, int64(max(n, 1))*b.recordings
	return &part
}

// Share returns a budget for at most n units of b's work.
func (b *Budget) Share(n int64) *Budget { return &Budget{shared: true, share: n, whole: b} }

// Grow counts n more bytes of the file, and raises the default limits accordingly.
func (b *Budget) Grow(n int64) {
	if b != nil {
		b.input += n
	}
}

// Memory charges n bytes; a negative n is a refund.
func (b *Budget) Memory(n int64) error {
	switch {
	case b == nil:
		return nil
	case b.shared:
		return b.whole.Memory(n)
	}
	b.memory = add(b.memory, n)
	if limit := b.limit(b.limits.MaxMemory, Floor); b.memory > limit {
		return fmt.Errorf("%w: more than %s of memory; raise --max-memory if you trust it", ErrExceeded, humanize.IBytes(uint64(limit)))
	}
	return nil
}

// Work charges n units.
func (b *Budget) Work(n int64) error {
	if b == nil {
		return nil
	}
	b.work = add(b.work, n)
	if b.shared {
		if err := b.whole.Work(n); err != nil {
			return err
		}
		if b.work > b.share {
			return fmt.Errorf("%w: its first replay needs more than %s units of work; raise --max-work if you trust it", ErrExceeded, humanize.Comma(b.share))
		}
		return nil
	}
	if limit := b.workLimit(); b.work > limit {
		return fmt.Errorf("%w: more than %s units of work; raise --max-work if you trust it", ErrExceeded, humanize.Comma(limit))
	}
	return nil
}

// Charge charges bytes of memory and units of work.
func (b *Budget) Charge(memory, work int64) error {
	if err := b.Memory(memory); err != nil {
		return err
	}
	return b.Work(work)
}

// Move charges the work of moving n bytes in memory, as an insertion into a slice does.
func (b *Budget) Move(n int64) error { return b.Work(n / 60) }

// Scan charges the work of reading n elements.
func (b *Budget) Scan(n int) error { return b.Work(int64(n) / 8) }

// Left returns how many units of work are left.
func (b *Budget) Left() int64 {
	switch {
	case b == nil:
		return math.MaxInt64
	case b.shared:
		return max(0, min(b.share-b.work, b.whole.Left()))
	}
	return max(0, b.workLimit()-b.work)
}

// Spent returns the memory in bytes that is charged, and the units of work.
func (b *Budget) Spent() (memory, work int64) {
	if b == nil {
		return 0, 0
	}
	return b.memory, b.work
}

func (b *Budget) workLimit() int64 {
	if b.parts == 1 {
		return b.limit(b.limits.MaxWork, Floor)
	}
	if b.limits.MaxWork > 0 {
		return b.limits.MaxWork / b.recordings
	}
	return max(Floor/b.parts, b.input*PerByte/b.recordings)
}

// limit returns the limit in force.
func (b *Budget) limit(set, floor int64) int64 {
	if set > 0 {
		return set
	}
	return max(floor, b.input*PerByte)
}

// add returns a+n, or the largest number instead of an overflow.
func add(a, n int64) int64 {
	if n > 0 && a > math.MaxInt64-n {
		return math.MaxInt64
	}
	return max(0, a+n)
}
