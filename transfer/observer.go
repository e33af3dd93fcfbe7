package transfer

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/internal/observe"
)

// Op is what an [Observer] is told about.
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
	// OpBatch is a [Batch]: what [Batch.Submit] queues.
	OpBatch
	// OpLaunch is a kernel that uses buffers in place.
	OpLaunch
	// OpPinnedAlloc is a driver call that allocates pinned memory: a miss of the pool.
	OpPinnedAlloc
	// OpPinnedFree is a driver call that frees pinned memory.
	OpPinnedFree
	// OpRegister and OpUnregister are driver calls that pin a Go slice in place, and end that.
	OpRegister
	OpUnregister
	// OpNext is a wait of a loader's Next (package transfer/loader): for the device to be less than N steps behind, and for data.
	OpNext
)

// copyOps is how many operations are copies, which Stats counts: the first ones.
const copyOps = OpD2D + 1

var ops = [...]struct{ name, call string }{
	OpH2D: {"h2d", "H2D"}, OpD2H: {"d2h", "D2H"}, OpD2D: {"d2d", "D2D"}, OpFill: {"fill", "Fill"},
	OpBatch: {"batch", "Submit"}, OpLaunch: {"launch", "Launch"},
	OpPinnedAlloc: {"pinned_alloc", "Get"}, OpPinnedFree: {"pinned_free", "Release"},
	OpRegister: {"register", "Register"}, OpUnregister: {"unregister", "Release"}, OpNext: {"next", "Next"},
}

// String is such as "h2d", "pinned_alloc" or "next".
func (op Op) String() string {
	if int(op) < len(ops) {
		return ops[op].name
	}
	return "unknown"
}

// Queued reports whether the operation is queued on a stream, and ends when the device has done it.
func (op Op) Queued() bool { return op <= OpLaunch }

// call is the method that the operation belongs to.
func (op Op) call() string { return ops[op].call }

// OpInfo is a finished operation.
type OpInfo struct {
	// Op is the operation.
	Op Op
	// Device is the device's name.
	Device string
	// Stream is the ID of the stream; 0 for operations that are not queued.
	Stream uint64
	// Serial is the serial of the block that is copied from the host, to the host, or filled; for OpD2D that of the
	// destination, and 0 for other operations.
	Serial uint64
	// Bytes is the size of what is copied, allocated or registered.
	Bytes int64
	// Queued is when the copy was queued, or the call began.
	Queued time.Time
	// Done is when the copy was complete, or the call ended. Between them lie the stream's earlier work
	// and the copy itself.
	Done time.Time
	// Busy is what the copy itself took, by the device's clock; 0 if that is not known. Done - Queued - Busy was
	// spent behind the stream's earlier work, and Bytes / Busy is the bandwidth.
	Busy time.Duration
	// Waited is the time that Next waited for data: the share of Done - Queued that a faster source would
	// save.
	Waited time.Duration
	// Err is the error that the operation ended with.
	Err error
}

// Observer is told of copies and of driver calls. Its methods are called without locks, from any
// goroutine.
type Observer interface {
	// Start is called before an operation, on the caller's goroutine. A nil Operation means: not observed,
	// no cost.
	Start(ctx context.Context, op Op) (context.Context, Operation)
}

// Operation is one operation under observation.
type Operation interface {
	// End is called once, when the operation is complete: for a copy when the device has finished it, on a
	// goroutine of the pool that must not be blocked for long.
	End(OpInfo)
}

// Observers returns an observer that calls those in list that are not nil, in their order, and ends their
// operations in the opposite order; nil if there are none. Each observer gets the context that the one
// before it returned.
func Observers(list ...Observer) Observer { return observe.All[OpInfo](list) }
