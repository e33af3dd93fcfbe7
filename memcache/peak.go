package memcache

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Who held the memory at a peak is asked long after it, when most of that was freed. A composition for each new peak would
// cost every request of a program that grows a walk over all blocks; a log of all hand-outs and frees would have to be kept
// since the program's start, and replayed. Here a peak is a mark in time, and hits pay two comparisons:
//
//   - Peaks rise with all shards locked (addStopped), and nowhere else. What is in use at that moment, with what is handed out there, is the peak, to the
//     byte. It is not looked at: the epoch ends there (markPeak). A block keeps the epoch of its hand-out (handout.born), and
//     those born before the mark that are still in use were part of the peak.
//   - A block that was part of the peak leaves a note when it is freed (noteFree).
//
// So the composition is what is in use and was born before the mark, and the notes (notesOfPeak in profile.go). A new peak
// forgets the notes of the one before. There are never more of them than blocks at the peak, and a program whose steps
// repeat writes none any more: its blocks were born after the mark. The same for each open scope, with a mark of its own.

// peakMark is the moment of a peak: the figures that blocks don't tell.
type peakMark struct {
	active, reserved, graphs int64 // bytes
}

// peakLog is a shard's share of the composition of a peak.
type peakLog struct {
	before uint64       // blocks born up to this epoch were part of it; 0: none
	freed  []freedBlock // those that were freed since
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
