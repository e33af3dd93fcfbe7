package transfer

import (
	"context"
	"time"
)

// Op is what an [Observer] is told about.
type Op uint8

const (
	// OpH2D is a copy from pinned host memory to a block.
	OpH2D Op = iota
	// OpD2H is a copy from a block to pinned host memory.
	OpD2H
	// OpPinnedAlloc is a driver call that allocates pinned memory: a miss of the pool.
	OpPinnedAlloc
	// OpPinnedFree is a driver call that frees pinned memory.
	OpPinnedFree
	// OpNext is a wait of [Loader.Next]: for the device to be less than N steps behind, and for data.
	OpNext
)

var opNames = [...]string{"h2d", "d2h", "pinned_alloc", "pinned_free", "next"}

// String is "h2d", "d2h", "pinned_alloc", "pinned_free" or "next".
func (op Op) String() string {
	if int(op) < len(opNames) {
		return opNames[op]
	}
	return "unknown"
}

// Event is a finished operation.
type Event struct {
	// Op is the operation.
	Op Op
	// Device is the device's name.
	Device string
	// Stream is the ID of the copy's stream; 0 for other operations.
	Stream uint64
	// Serial is the serial of the copy's block; 0 for other operations.
	Serial uint64
	// Bytes is the size of the copy, of the pinned allocation, or of the batch.
	Bytes int64
	// Queued is when the copy was queued, or the call began.
	Queued time.Time
	// Done is when the copy was complete, or the call ended. Between them lie the stream's earlier work
	// and the copy itself.
	Done time.Time
	// Waited is the time that Next waited for data: the share of Done - Queued that a faster source would
	// save.
	Waited time.Duration
	// Err is the error that the operation ended with.
	Err error
}

// Observer is told of copies and of driver calls. Its methods are called without locks, from any goroutine.
type Observer interface {
	// Start is called before an operation, on the caller's goroutine. A nil Operation means: not observed,
	// no cost.
	Start(ctx context.Context, op Op) (context.Context, Operation)
}

// Operation is one operation under observation.
type Operation interface {
	// End is called once, when the operation is complete: for a copy when the device has finished it, on a
	// goroutine of the pool that must not be blocked for long.
	End(Event)
}
