package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/observe"
)

// An observer sees spans, not only events: it is told of the start of an operation, and gives the context in which the
// operations inside of it run, such as a call of the driver inside an Alloc. That is all that trace needs for spans of
// OpenTelemetry, and the cache knows nothing of it. Without an observer an operation pays one comparison.

// Op is a kind of operation that an Observer sees.
type Op uint8

// The operations.
const (
	OpAlloc       Op = iota // Cache.Alloc
	OpFree                  // Block.Free, Block.FreeContext
	OpDriverAlloc           // the driver makes a segment
	OpDriverFree            // the driver takes a segment back
	OpSynchronize           // a flush waits for the frees that are pending
	OpEmptyCache            // Cache.EmptyCache, Cache.TrimTo
	OpAllocFailed           // an OpAlloc failed, just now; for observers that don't follow each one
	OpRelabel               // Block.SetLabel
	OpWait                  // a request waits for memory: Cache.Wait
)

// String is the operation's name in lower case, words joined by underscores.
func (op Op) String() string {
	names := [...]string{"alloc", "free", "driver_alloc", "driver_free", "synchronize", "empty_cache", "alloc_failed", "relabel", "wait"}
	if int(op) < len(names) {
		return names[op]
	}
	return "unknown"
}

// OpInfo is what an operation did. Fields that don't apply to it are zero.
type OpInfo struct {
	Op        Op
	Device    string
	Cache     uint64 // the cache's number, unique in the process
	Stream    uint64 // the block's or segment's stream
	Serial    uint64 // the hand-out's number, never reused by the cache; the address may be
	Shard     uint64 // where Seq counts
	Seq       uint64 // the order of hand-outs and frees inside a shard
	Requested int64  // bytes asked for
	Bytes     int64  // the block's or segment's bytes
	Pool      string // "small" or "large"
	Hit       bool   // an allocation served without the driver
	Label     Label  // of the block
	Err       error
}

// Observer sees the operations of a cache. Its methods run on the goroutine of the call, without locks, and
// possibly in another order than the operations: sort by Seq and key on Serial.
type Observer interface {
	// Start is called before an operation. It returns the context for the operations inside of it, and
	// what to tell its end; a nil Operation is not told.
	Start(ctx context.Context, op Op) (context.Context, Operation)
}

// Operation is one observed operation.
type Operation interface {
	// End is called once, when the operation is over.
	End(OpInfo)
}

// Observers returns an observer that calls those in list that are not nil, in their order, and ends their
// operations in the opposite order; nil if there are none. Each observer gets the context that the one
// before it returned.
func Observers(list ...Observer) Observer { return observe.All[OpInfo](list) }

// reporter tells a cache's observer, if there is one.
type reporter struct {
	observer Observer
	dev      device.Device
	cache    uint64 // its number, unique in the process
}

// start tells the observer, if there is one.
func (r *reporter) start(ctx context.Context, op Op) (context.Context, Operation) {
	if r.observer == nil {
		return ctx, nil
	}
	return r.observer.Start(ctx, op)
}

// failed tells the observer of a request that failed. It costs hits nothing.
func (r *reporter) failed(ctx context.Context, info OpInfo) {
	info.Op = OpAllocFailed
	_, op := r.start(ctx, OpAllocFailed)
	r.end(op, info)
}

// end tells the observer's operation, if there is one, what was done.
func (r *reporter) end(o Operation, info OpInfo) {
	if o != nil {
		info.Device, info.Cache = r.dev.Name(), r.cache
		o.End(info)
	}
}
