package memcache

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The owners of the memory at a peak are queried long after it, when most of that memory was freed.
// Recording the composition of each new peak would cost every request of a growing program a walk
// over all blocks. A log of all allocations and frees would have to be kept since the program's
// start, and replayed. Instead a peak is a mark in time, and hits pay two comparisons:
//
//   - Peaks rise only with all shards locked (addStopped). The blocks in use at that moment, with
//     the one that is being allocated, are the peak to the byte. They are not listed then; the peak
//     only ends the epoch (markPeak). A block keeps the epoch of its allocation (handout.born), and
//     the blocks born before the mark that are still in use were part of the peak.
//   - A block that was part of the peak leaves a note when it is freed (noteFree).
//
// So the composition is the blocks in use that were born before the mark, together with the notes
// (notesOfPeak in ledger.go). A new peak drops the notes of the previous one. There are never more
// notes than blocks at the peak, and a program whose steps repeat writes none any more, because its
// blocks were born after the mark. Each open scope works the same way, with a mark of its own.

// peakMark is the moment of a peak: the figures that can't be derived from blocks.
type peakMark struct {
	active, reserved, graphs int64 // bytes
}

// peakLog is a shard's share of the composition of a peak.
type peakLog struct {
	before uint64       // blocks born up to this epoch were part of the peak; 0: none
	freed  []freedBlock // blocks of the peak that were freed since
}

// freedBlock is a note of a block that was part of a peak.
type freedBlock struct {
	label           *Label
	stack           []uintptr
	serial          uint64
	ptr             device.Ptr
	pool            *placement.Pool // nil: the default pool
	size, requested int64
}

// forget empties the list, and keeps its memory.
func (l *peakLog) forget() {
	clear(l.freed)
	l.freed = l.freed[:0]
}
