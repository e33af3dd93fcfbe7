package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/observe"
)

// An observer sees spans, not only events: it is called at the start of an operation, and returns
// the context for the operations inside of it, such as a driver call inside an Alloc. Package trace
// makes OpenTelemetry spans from that, and this package does not depend on OpenTelemetry. Without
// an observer an operation pays one comparison.

// Op is a kind of operation that an Observer sees.
type Op uint8

// The operations.
const (
	OpAlloc       Op = iota // Cache.Alloc
	OpFree                  // Block.Free, Block.FreeContext
	OpDriverAlloc           // a segment is allocated from the driver
	OpDriverFree            // a segment is returned to the driver
	OpSynchronize           // a flush waits for pending frees
	OpEmptyCache            // Cache.EmptyCache, Cache.TrimTo
	OpAllocFailed           // an OpAlloc has just failed; for observers that don't follow OpAlloc
	OpRelabel               // Block.SetLabel
	OpWait                  // a request waits for memory: Cache.Wait
)

// String returns the operation's name in lower case, with words joined by underscores.
func (op Op) String() string {
	names := [...]string{"alloc", "free", "driver_alloc", "driver_free", "synchronize", "empty_cache", "alloc_failed", "relabel", "wait"}
	if int(op) < len(names) {
		return names[op]
	}
	return "unknown"
}

// OpInfo is the outcome of an operation. Fields that don't apply to it are zero.
type OpInfo struct {
	Op        Op
	Device    string
	Cache     uint64 // the cache's number, unique in the process
	Stream    uint64 // the block's or segment's stream
	Serial    uint64 // the allocation's number, never reused by the cache, unlike the address
	Shard     uint64 // the shard whose order Seq counts
	Seq       uint64 // position among the allocations and frees of the shard
	Requested int64  // bytes asked for
	Bytes     int64  // the block's or segment's bytes
	Pool      string // "small" or "large"
	Hit       bool   // the allocation was served without the driver
	Label     Label  // of the block
	Err       error
}

// Observer is called for the operations of a cache. Its methods run on the goroutine of the call,
// without locks, and possibly in another order than the operations: sort by Seq and use Serial as
// the key.
type Observer interface {
	// Start is called before an operation. It returns the context for the operations inside of it,
	// and the Operation whose End is called; nil: no End is called.
	Start(ctx context.Context, op Op) (context.Context, Operation)
}

// Operation is one observed operation.
type Operation interface {
	// End is called once, when the operation is over.
	End(OpInfo)
}

// Observers returns an observer that calls the non-nil observers of list in their order, and ends
// their operations in reverse order; nil if there are none. Each observer gets the context that the
// one before it returned.
func Observers(list ...Observer) Observer { return observe.All[OpInfo](list) }

// reporter calls a cache's observer, if there is one.
type reporter struct {
	observer Observer
	dev      device.Device
	cache    uint64 // its number, unique in the process
}

// start calls the observer's Start, if there is one.
func (r *reporter) start(ctx context.Context, op Op) (context.Context, Operation) {
	if r.observer == nil {
		return ctx, nil
	}
	return r.observer.Start(ctx, op)
}

// failed reports a failed request to the observer. It costs hits nothing.
func (r *reporter) failed(ctx context.Context, info OpInfo) {
	info.Op = OpAllocFailed
	_, op := r.start(ctx, OpAllocFailed)
	r.end(op, info)
}

// end ends the observer's operation, if there is one.
func (r *reporter) end(o Operation, info OpInfo) {
	if o != nil {
		info.Device, info.Cache = r.dev.Name(), r.cache
		o.End(info)
	}
}
