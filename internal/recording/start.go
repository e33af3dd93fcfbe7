package recording

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// Most PyTorch recordings begin after the model was built, and a ring buffer loses its oldest
// entries. The state at the first entry is reconstructed from the end: every entry is undone in
// reverse order, starting from the final segments and blocks.

// Start is the allocator's state at the first entry of a recording.
type Start struct {
	// Segments are sorted by address. Their Blocks are the live and pending ones; all other memory
	// is free. A block's Size is 0 if it is unknown, because a free entry records only the
	// requested size.
	Segments []Segment
	// Completed is the entry that completes each block's pending free, or -1.
	Completed []int32
	// Skipped is the number of leading entries that belong to earlier calls.
	Skipped int
}

// Blocks returns the number of live and pending blocks, which are the program's first hand-outs.
func (s *Start) Blocks() int {
	if s == nil {
		return 0
	}
	return len(s.Completed)
}

// Reserved returns the bytes of the segments.
func (s *Start) Reserved() (bytes int64) {
	if s == nil {
		return 0
	}
	for i := range s.Segments {
		bytes += s.Segments[i].Size
	}
	return bytes
}

// rewinder undoes entries.
type rewinder struct {
	budget *budget.Budget
	memory []Segment // by address, without blocks
	live   map[device.Ptr]earlier
	// live and pending blocks by segment, except expandable ones
	used map[device.Ptr]int
	// poolless reports that private pools are not recorded. They are found at their deletion.
	poolless bool
	// the private pool of the releases that are being undone; 0: the default pool
	run    uint64
	pools  map[uint64][2]uint64 // rec.Pools and the deleted pools that were found; nil: none was
	ids    map[[2]uint64]bool   // of pools
	number uint64               // the last number of a deleted pool
	id     uint64
	// the private pool of the memory that an entry allocated from the driver
	grown map[int32]uint64
}

// segmentBytes is the size of a Segment.
const segmentBytes = 64

// earlier is a live or pending block.
type earlier struct {
	Block
	stream uint64
}

func byAddress(a, b earlier) int { return cmp.Compare(a.Address, b.Address) }

const (
	allocatedState = "active_allocated"
	inactiveState  = "inactive"
	// pendingState is PyTorch's name since 2.0; before that it was active_awaiting_free.
	pendingState = "active_pending_free"
)

// rewind reconstructs the state at the first entry, and returns the private pool of each driver
// allocation by entry. Entries that contradict the final segments are an error.
func rewind(rec *Recording) (*Start, map[int32]uint64, error) {
	r := rewinder{budget: rec.Budget, live: make(map[device.Ptr]earlier), used: make(map[device.Ptr]int), grown: make(map[int32]uint64)}
	for i := range rec.Segments {
		s := rec.Segments[i]
		for _, b := range s.Blocks {
			if b.State != inactiveState {
				r.live[b.Address] = earlier{b, s.Stream}
			}
		}
		s.Blocks = nil
		if s.Kind == UnknownKind && !s.Mapped {
			s.Mapped = rec.expandable() // JSON lines do not record it
		}
		if err := r.add(s); err != nil {
			return nil, nil, fmt.Errorf("the segments at the end: %w", err)
		}
	}
	for p := range r.live {
		r.count(p, 1)
	}
	r.poolless = !tellsPools(rec) && !rec.releasesPart()
	start := new(Start)
	if len(rec.Entries) > 0 && rec.Entries[0].Action == FreeCompleted {
		// its free_requested was before, so the free is complete for the following entries
		start.Skipped = 1
	}
	for i := len(rec.Entries) - 1; i >= start.Skipped; i-- {
		if rec.Entries[i].Action.Releases() && (i+1 == len(rec.Entries) || !rec.Entries[i+1].Action.Releases()) {
			var err error
			if r.run, err = r.deletedPool(rec, i); err != nil {
				return nil, nil, err
			}
		}
		if err := r.budget.Work(entryWork); err != nil {
			return nil, nil, err
		}
		if err := r.undo(i, &rec.Entries[i]); err != nil {
			return nil, nil, fmt.Errorf("entry %d: %v: %w", i, rec.Entries[i], err)
		}
	}
	if r.pools != nil {
		rec.Pools, rec.PrivatePools = r.pools, true
	}
	return start, r.grown, r.finish(start)
}

// expandable reports whether the options enable expandable segments.
func (rec *Recording) expandable() bool {
	if rec.Settings != nil {
		return rec.Settings.ExpandableSegments
	}
	return strings.Contains(rec.Conf, "expandable_segments:True")
}

// undo undoes an entry.
func (r *rewinder) undo(i int, e *Entry) error {
	switch e.Action {
	case SegmentAlloc, SegmentMap:
		pool, err := r.cut(e)
		if pool != 0 {
			r.grown[int32(i)] = pool
		}
		return err
	case SegmentFree, SegmentUnmap:
		s := Segment{Address: e.Addr, Size: e.Size, Stream: e.Stream, Pool: r.run, Mapped: e.Action == SegmentUnmap}
		if e.Pool != 0 {
			s.Pool = uint64(e.Pool)
		}
		if !s.Mapped {
			s.Kind = LargeKind
			if s.Size == sizes.SmallSegment {
				s.Kind = SmallKind
			}
		}
		return r.add(s)
	case FreeCompleted, FreeRequested:
		return r.undoFree(e)
	case Alloc:
		b, ok := r.live[e.Addr]
		switch {
		case !ok || b.State != allocatedState:
			return fmt.Errorf("later entries and the final segments have no such block in use")
		case b.Requested != e.Size && b.Requested != unknownSize:
			return fmt.Errorf("the block has %d bytes by later entries or the final segments", b.Requested)
		}
		delete(r.live, e.Addr)
		r.count(e.Addr, -1)
		r.seen(e)
	}
	return nil
}

// unknownSize is the requested size of a final block if the snapshot has none.
const unknownSize = -1

func (r *rewinder) undoFree(e *Entry) error {
	b, ok := r.live[e.Addr]
	if e.Action == FreeRequested {
		if !ok || b.State == allocatedState {
			return fmt.Errorf("the free is neither completed nor pending at the end")
		}
		b.State = allocatedState
		b.Size = max(b.Size, e.Bytes)
		if b.Requested == unknownSize {
			b.Requested = e.Size
		}
		r.live[e.Addr] = b
		return nil
	}
	if ok {
		return fmt.Errorf("a block of %d bytes is there after it", b.Requested)
	}
	r.live[e.Addr] = earlier{Block{Address: e.Addr, Size: e.Bytes, Requested: e.Size, State: pendingState}, e.Stream}
	r.count(e.Addr, 1)
	r.seen(e)
	return nil
}

// count adds n to the number of blocks in a segment.
func (r *rewinder) count(at device.Ptr, n int) {
	if i := r.find(at); i < len(r.memory) && !r.memory[i].Mapped {
		r.used[r.memory[i].Address] += n
	}
}

// seen derives the kind of mapped memory from the size of a block in it.
func (r *rewinder) seen(e *Entry) {
	if i := r.find(e.Addr); i < len(r.memory) && r.memory[i].Address <= e.Addr && r.memory[i].Kind == UnknownKind {
		r.memory[i].Kind = kindFor(e.Size)
	}
}

// find returns the index of the memory with an address, or of the next one.
func (r *rewinder) find(at device.Ptr) int {
	i, _ := slices.BinarySearchFunc(r.memory, at, func(s Segment, at device.Ptr) int {
		if s.end() <= at {
			return -1
		}
		return 1
	})
	return i
}

// end returns the first address after the segment.
func (s *Segment) end() device.Ptr { return s.Address + device.Ptr(s.Size) }

// add adds memory.
func (r *rewinder) add(s Segment) error {
	if s.Size <= 0 || s.end() < s.Address {
		return fmt.Errorf("a segment of %d bytes at %#x", s.Size, s.Address)
	}
	i := r.find(s.Address)
	if i < len(r.memory) && r.memory[i].Address < s.end() {
		return fmt.Errorf("the segments at %#x and %#x overlap", r.memory[i].Address, s.Address)
	}
	r.memory = slices.Insert(r.memory, i, s)
	return r.budget.Move(segmentBytes * int64(len(r.memory)-i))
}

// cut removes the memory that an entry allocated, and returns its private pool.
func (r *rewinder) cut(e *Entry) (pool uint64, err error) {
	mapped := e.Action == SegmentMap
	end := e.Addr + device.Ptr(e.Size)
	first := r.find(e.Addr)
	last := first
	for at := e.Addr; at < end; last++ {
		if last == len(r.memory) || r.memory[last].Address > at || r.memory[last].Mapped != mapped {
			return 0, fmt.Errorf("later entries and the final segments have no memory at %#x", at)
		}
		at = r.memory[last].end()
	}
	front, back := r.memory[first], r.memory[last-1]
	if !mapped && (front.Address != e.Addr || front.Size != e.Size) {
		return 0, fmt.Errorf("the segment there has %d bytes at the end", front.Size)
	}
	var rest []Segment
	if front.Address < e.Addr {
		front.Size = int64(e.Addr - front.Address)
		rest = append(rest, front)
	}
	if back.end() > end {
		back.Size = int64(back.end() - end)
		back.Address = end
		rest = append(rest, back)
	}
	pool = r.memory[first].Pool
	r.memory = slices.Replace(r.memory, first, last, rest...)
	return pool, r.budget.Move(segmentBytes * int64(len(r.memory)-first))
}

// finish moves the remaining memory and blocks to start.
func (r *rewinder) finish(start *Start) error {
	for _, s := range r.memory {
		if n := len(start.Segments); n > 0 && s.continues(&start.Segments[n-1]) {
			last := &start.Segments[n-1]
			last.Size += s.Size
			last.Kind = max(last.Kind, s.Kind)
			continue
		}
		start.Segments = append(start.Segments, s)
	}
	blocks := make([]earlier, 0, len(r.live))
	for _, b := range r.live {
		blocks = append(blocks, b)
	}
	slices.SortFunc(blocks, byAddress)
	at := 0
	for _, b := range blocks {
		for at < len(start.Segments) && start.Segments[at].end() <= b.Address {
			at++
		}
		if at == len(start.Segments) || start.Segments[at].Address > b.Address || start.Segments[at].Stream != b.stream {
			return fmt.Errorf("the block of %d bytes at %#x, live at the start, lies in no segment of its stream", b.Requested, b.Address)
		}
		// from before the history: any request of that size explains it
		if b.Requested == unknownSize {
			b.Requested = b.Size
		}
		if size := start.Segments[at].Size; b.Requested > size {
			return fmt.Errorf("the block at %#x is of a request of %d bytes; its segment has %d", b.Address, b.Requested, size)
		}
		start.Segments[at].Blocks = append(start.Segments[at].Blocks, b.Block)
		start.Completed = append(start.Completed, -1)
	}
	for i := range start.Segments {
		start.Segments[i].guessKind()
	}
	return nil
}

// continues reports whether s directly follows mapped memory of the same expandable segment.
func (s *Segment) continues(o *Segment) bool {
	return s.Mapped && o.Mapped && o.end() == s.Address && s.Stream == o.Stream && s.Pool == o.Pool &&
		(s.Kind == o.Kind || s.Kind == UnknownKind || o.Kind == UnknownKind)
}

// guessKind derives an unknown kind from the segment's blocks, or from its size.
func (s *Segment) guessKind() {
	switch {
	case s.Kind != UnknownKind:
		return
	case len(s.Blocks) > 0:
		s.Kind = kindFor(s.Blocks[0].Requested)
	case s.Mapped && s.Size%sizes.LargeSegment != 0, s.Size == sizes.SmallSegment:
		s.Kind = SmallKind
	default:
		s.Kind = LargeKind
	}
}

// kindFor returns the kind of memory that serves a request of this size.
func kindFor(bytes int64) Kind {
	if bytes <= sizes.SmallLimit {
		return SmallKind
	}
	return LargeKind
}
