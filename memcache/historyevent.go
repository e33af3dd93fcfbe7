package memcache

import (
	"slices"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// historyEvent is a HistoryEntry in less than half of its bytes, as a stream stores it. The
// allocating goroutine writes it and the reader's goroutine reads it on another core, so each cache
// line moves between cores. The reader makes the larger entry.
type historyEvent struct {
	at             time.Duration // since the start of the stream
	address        device.Ptr
	size, block    int64 // block: of an oom, the driver's free bytes
	stream, serial uint64
	label          *Label // never changed
	pool           *placement.Pool
	stack          *uintptr // its first frame
	frames         uint8    // number of frames in stack; at most mostFrames
	action         uint8    // index in allActions
	grew, atOnce   bool
}

// allActions are the actions, those of hits first.
var allActions = [...]Action{
	ActionAlloc, ActionFreeRequested, ActionFreeCompleted, ActionNote, ActionMiss, ActionSegmentAlloc, ActionSegmentFree,
	ActionSegmentMap, ActionSegmentUnmap, ActionOOM, ActionSnapshot, ActionRelabel, ActionFlush, ActionReserve, ActionRefused,
	ActionFailed, ActionEmptyCache, ActionTrim, ActionStreamClosed, ActionResetPeaks, ActionResetTotals, ActionSetLimit,
	ActionSetOptions, ActionOverlap,
}

// event returns an event with only its action set.
func event(a Action) historyEvent { return historyEvent{action: uint8(slices.Index(allActions[:], a))} }

func (e *historyEvent) setStack(pcs []uintptr) {
	e.stack, e.frames = unsafe.SliceData(pcs), uint8(len(pcs))
}

// entry returns the event in its exported form.
func (e *historyEvent) entry(at time.Time) HistoryEntry {
	h := HistoryEntry{Action: allActions[e.action], Address: e.address, Size: e.size, Block: e.block, Stream: e.stream, Serial: e.serial,
		Time: at, Label: e.label.value(), Pool: idOf(e.pool), Grew: e.grew, AtOnce: e.atOnce}
	if e.frames > 0 {
		h.Stack = unsafe.Slice(e.stack, e.frames)
	}
	if h.Action == ActionOOM {
		h.Free, h.Block = h.Block, 0
	}
	return h
}
