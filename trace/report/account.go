package report

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cistern-ml/cistern/internal/recording"
)

// account is the data of a page, computed from a source. A moment is the number of an entry, or -1
// for the time before the first. A block is held at the moments from alloc up to but not including
// free.
type account struct {
	*source
	blocks []block
	ranges []memory
	steps  []stepAccount
	open   []int32 // of each moment: the innermost step, -1: none; nil: no steps
	sites  []kept

	segments      segments
	fragmentation *fragmentation // nil: too little to show

	peak         int32 // the first moment at which most is allocated
	peakBytes    int64
	peakReserved int64 // the most that is reserved, at any moment
	reservedAt   int32 // the first moment of that
	// forgotten is the cache's own profile of a peak that is not in the entries; nil: it is in
	// them.
	forgotten    *profile
	mostReserved int64 // by the entries and the cache
	// exact is set if blocks have the allocator's sizes, and not the rounded sizes of their
	// requests.
	exact bool
}

// block is a block from its allocation to its free.
type block struct {
	alloc, free, done int32 // moments; done: it no longer waits for a stream
	addr              uint64
	size, requested   int64
	stream            uint64
	owner             int32
	step              int64
}

// maxBytes is the largest number that a page's numbers represent exactly.
const maxBytes = 1 << 53

// errTooLarge is about entries that no device can have.
var errTooLarge = errors.New("more than 2^53 bytes are in use at once: no device has so much memory")

// newAccount computes the account of a source.
func newAccount(s *source) (*account, error) {
	if err := s.checkFinal(); err != nil {
		return nil, fmt.Errorf("report: %s: %w", s.name, err)
	}
	a := &account{source: s}
	a.exact = blockSizes(s) == nil
	a.addBlocks()
	a.addRanges()
	if err := a.findPeak(); err != nil {
		return nil, fmt.Errorf("report: %s: %w", s.name, err)
	}
	a.addSteps()
	a.addKept()
	a.addSegments()
	if err := a.addFragmentation(); err != nil {
		return nil, fmt.Errorf("report: %s: %w", s.name, err)
	}
	return a, nil
}

// moments returns the number of entries, which is the first moment after all.
func (a *account) moments() int32 { return int32(len(a.entries)) }

// addBlocks pairs allocations with frees. A block that is freed without an allocation existed
// before the recording. Contradictions are counted, and the later entry is believed.
func (a *account) addBlocks() {
	live := make(map[uint64]int32, 1024)
	n, odd := a.moments(), 0
	for i := range a.entries {
		e, at := &a.entries[i], int32(i)
		b, held := live[e.addr]
		switch e.action {
		case recording.Alloc:
			if held {
				a.blocks[b].end(at)
				odd++
			}
			live[e.addr] = int32(len(a.blocks))
			a.blocks = append(a.blocks, block{alloc: at, free: n, done: n, addr: e.addr, size: a.sizeOf(e), requested: e.requested,
				stream: e.stream, owner: e.owner, step: e.step})
		case recording.FreeRequested, recording.FreeCompleted:
			if !held {
				b = int32(len(a.blocks))
				freed := n
				if e.action == recording.FreeCompleted {
					freed = -1 // it was waiting for a stream
				}
				a.blocks = append(a.blocks, block{alloc: -1, free: freed, done: n, addr: e.addr, size: a.sizeOf(e), requested: e.requested,
					stream: e.stream, owner: a.earlier(e.owner), step: e.step})
				live[e.addr] = b
			}
			a.blocks[b].free = min(a.blocks[b].free, at)
			if e.action == recording.FreeCompleted {
				a.blocks[b].done = at
				delete(live, e.addr)
			}
		}
	}
	missing := a.addFinal(live)
	old := 0
	for i := range a.blocks {
		if a.blocks[i].alloc < 0 {
			old++
		}
	}
	if old > 0 {
		a.note("%s allocated before the recording began: shown as held from its start", countBlocks(old))
	}
	if odd > 0 {
		a.note("%s allocated at the address of a block that was not freed: entries are missing, and the earlier block counts as freed there", countBlocks(odd))
	}
	if missing > 0 {
		a.note("%s in use according to the entries, but absent from the segments at the end: entries are missing", countBlocks(missing))
	}
	if !a.exact {
		a.note("the entries lack the sizes of some blocks: such a block counts with its requested size, rounded up")
	}
}

// sizeOf returns the size of an entry's block. Frees have only the requested size.
func (a *account) sizeOf(e *entry) int64 {
	if e.size > 0 {
		return e.size
	}
	a.exact = false
	return a.sizing.round(e.requested)
}

// countBlocks formats a number of blocks.
func countBlocks(n int) string {
	if n == 1 {
		return "1 block"
	}
	return strconv.Itoa(n) + " blocks"
}

func (a *account) note(format string, args ...any) {
	a.notes = append(a.notes, fmt.Sprintf(format, args...))
}

// end ends a block that is still held.
func (b *block) end(at int32) { b.free, b.done = min(b.free, at), min(b.done, at) }

// earlier returns the owner of a block from before the recording: that of its free, if it has a
// label.
func (a *account) earlier(id int32) int32 {
	if o := a.owners.list[id]; o.category > 0 || o.module != "" {
		return id
	}
	return a.owners.add(owner{category: before, stack: -1})
}

// addFinal adds the blocks at the end, and returns how many held blocks are missing there.
func (a *account) addFinal(live map[uint64]int32) (missing int) {
	if a.final == nil {
		return 0
	}
	n := a.moments()
	seen := make(map[int32]bool)
	for _, seg := range a.final {
		for _, f := range seg.blocks {
			if i, ok := live[f.addr]; ok && a.blocks[i].requested == f.requested {
				seen[i] = true
				a.blocks[i].size = f.size
				continue
			}
			b := block{alloc: -1, free: n, done: n, addr: f.addr, size: f.size, requested: f.requested, stream: seg.stream, owner: f.owner, step: f.step}
			if f.pending {
				b.free = -1
			}
			a.blocks = append(a.blocks, b)
		}
	}
	for _, i := range live {
		if !seen[i] {
			missing++
		}
	}
	return missing
}

// curve returns a quantity at each moment, from -1 on: curve[i] is that of moment i-1.
func (a *account) curve(add func(delta func(at int32, by int64))) ([]int64, error) {
	c := make([]int64, int(a.moments())+1)
	tooLarge := false
	add(func(at int32, by int64) {
		if at < a.moments() {
			c[at+1] += by
			tooLarge = tooLarge || c[at+1] > maxBytes // so no sum wraps
		}
	})
	for i := range c {
		if i > 0 {
			c[i] += c[i-1]
		}
		if c[i] > maxBytes || tooLarge {
			return nil, errTooLarge
		}
	}
	return c, nil
}

// allocated returns the curve of the allocated bytes.
func (a *account) allocated() ([]int64, error) {
	return a.curve(func(delta func(int32, int64)) {
		for _, b := range a.blocks {
			delta(b.alloc, b.size)
			delta(b.free, -b.size)
		}
	})
}

// reserved returns the curve of the bytes held from the driver.
func (a *account) reserved() ([]int64, error) {
	return a.curve(func(delta func(int32, int64)) {
		for _, m := range a.ranges {
			delta(m.from, m.size)
			delta(m.to, -m.size)
		}
	})
}

// findPeak finds the first moment at which the most bytes are allocated.
func (a *account) findPeak() error {
	allocated, err := a.allocated()
	if err != nil {
		return err
	}
	reserved, err := a.reserved()
	if err != nil {
		return err
	}
	a.peak, a.peakBytes = -1, allocated[0]
	for i, v := range allocated {
		if v > a.peakBytes {
			a.peak, a.peakBytes = int32(i-1), v
		}
	}
	a.peakReserved = slices.Max(reserved)
	a.reservedAt = int32(slices.Index(reserved, a.peakReserved) - 1)
	a.mostReserved = a.peakReserved
	return nil
}
