package transfer

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/internal/observe"
)

// Op is a kind of operation that is reported to an [Observer].
type Op uint8

const (
	// OpH2D is a copy from pinned host memory to a block.
	OpH2D Op = iota
	// OpD2H is a copy from a block to pinned host memory.
	OpD2H
	// OpD2D is a copy from a block to a block.
	OpD2D
	// OpFill sets the bytes of a block.
	OpFill
	// OpBatch is everything that [Batch.Submit] queues.
	OpBatch
	// OpLaunch is a kernel that uses buffers in place.
	OpLaunch
	// OpPinnedAlloc is a driver call that allocates pinned memory: a miss of the pool.
	OpPinnedAlloc
	// OpPinnedFree is a driver call that frees pinned memory.
	OpPinnedFree
	// OpRegister and OpUnregister are driver calls that pin and unpin a Go slice in place.
	OpRegister
	OpUnregister
	// OpNext is a wait of a loader's Next (package transfer/loader), for data and for earlier steps
	// on the device.
	OpNext
)

// copyOps is the number of operations that are copies, which come first. Stats counts these.
const copyOps = OpD2D + 1

var ops = [...]struct{ name, call string }{
	OpH2D: {"h2d", "H2D"}, OpD2H: {"d2h", "D2H"}, OpD2D: {"d2d", "D2D"}, OpFill: {"fill", "Fill"},
	OpBatch: {"batch", "Submit"}, OpLaunch: {"launch", "Launch"},
	OpPinnedAlloc: {"pinned_alloc", "Get"}, OpPinnedFree: {"pinned_free", "Release"},
	OpRegister: {"register", "Register"}, OpUnregister: {"unregister", "Release"}, OpNext: {"next", "Next"},
}

// String returns a name such as "h2d", "pinned_alloc" or "next".
func (op Op) String() string {
	if int(op) < len(ops) {
		return ops[op].name
	}
	return "unknown"
}

// Queued reports whether the operation is queued on a stream, so that it ends when the device has
// finished it.
func (op Op) Queued() bool { return op <= OpLaunch }

// call returns the name of the method that starts the operation.
func (op Op) call() string { return ops[op].call }

// OpInfo describes a finished operation.
type OpInfo struct {
	// Op is the operation.
	Op Op
	// Device is the device's name.
	Device string
	// Stream is the ID of the stream; 0 for operations that are not queued.
	Stream uint64
	// Serial is the serial of the block that is copied to or from the host, or filled. For OpD2D it
	// is the destination's, and for other operations 0.
	Serial uint64
	// Bytes is the size of what is copied, allocated or registered.
	Bytes int64
	// Queued is when the copy was queued, or the call began.
	Queued time.Time
	// Done is when the copy was complete, or the call returned. A copy's time since Queued includes
	// the stream's earlier work.
	Done time.Time
	// Busy is the copy's own time by the device's clock, or 0 if it is not known. Done - Queued -
	// Busy is its wait for the stream's earlier work, and Bytes / Busy is the bandwidth.
	Busy time.Duration
	// Waited is the part of Done - Queued for which Next waited for data; a faster source would
	// save it.
	Waited time.Duration
	// Err is the operation's error, or nil.
	Err error
}

// Observer is notified of copies and driver calls. Its methods are called without locks, from any
// goroutine.
type Observer interface {
	// Start is called before an operation, on the caller's goroutine. If it returns a nil
	// Operation, this operation is not observed and costs nothing more.
	Start(ctx context.Context, op Op) (context.Context, Operation)
}

// Operation is one operation under observation.
type Operation interface {
	// End is called once, when the operation is complete. For a copy that is when the device has
	// finished it; End then runs on a goroutine of the pool and must not block for long.
	End(OpInfo)
}

// Observers returns an observer that calls the non-nil ones of list in their order, and ends their
// operations in reverse order. It returns nil if there are none. Each observer gets the context
// that the previous one returned.
func Observers(list ...Observer) Observer { return observe.All[OpInfo](list) }
