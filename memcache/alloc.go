package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The path of a request: alloc checks it and looks for a free chunk in its shard's arena
// (search.go), which is all that a hit does. A miss continues in miss.go.

// Alloc returns a block of at least bytes bytes for work on stream. The contents are undefined.
// Work that was queued on the stream before the block's last free may still write to it, and runs
// before work that is queued on the stream afterwards.
//
// Alloc takes a free block of the stream if one fits, and otherwise a new segment from the driver.
// If the driver refuses, Alloc waits for pending frees, returns all free segments, tries again, and
// calls the functions of OnPressure, before it returns an [*OutOfMemoryError].
//
// For zero bytes Alloc returns the zero Block. ctx carries the scope, the label and the private
// pool, is the parent of the observer's contexts, and ends waiting. If ctx has ended at the start,
// Alloc fails and nothing changes.
func (c *Cache) Alloc(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	if bytes == 0 {
		return Block{}, nil
	}
	if invariants.Enabled {
		defer c.verify()
	}
	if c.reporter.observer != nil {
		return allocObserved(ctx, c, bytes, stream, false)
	}
	var r request
	err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	c.settle(ctx)
	// Field by field, here and below: copying the whole block would load 16 bytes at a time just
	// after they were stored 8 bytes at a time. The processor stalls on that, which costs 4 % of an
	// Alloc and Free pair.
	b := &r.block
	return Block{b.handout, b.chunk, b.serial, b.ptr, b.size, b.stream}, err
}

// AllocWorkspace is Alloc for scratch memory of kernels and libraries: the block's label is that of
// ctx with [CategoryWorkspace]. It is equivalent to Alloc with a context of [WithCategory], and
// avoids making that context.
func (c *Cache) AllocWorkspace(ctx context.Context, bytes int64, stream device.Stream) (Block, error) {
	if bytes == 0 {
		return Block{}, nil
	}
	if invariants.Enabled {
		defer c.verify()
	}
	if c.reporter.observer != nil {
		return allocObserved(ctx, c, bytes, stream, true)
	}
	r := request{work: true}
	err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	c.settle(ctx)
	b := &r.block
	return Block{b.handout, b.chunk, b.serial, b.ptr, b.size, b.stream}, err
}

// allocObserved is Alloc with an observer. It reports from r, which was filled in under the shard's
// lock, because the block may be freed, and its chunk reused, before the observer runs.
func allocObserved(ctx context.Context, c *Cache, bytes int64, stream device.Stream, work bool) (Block, error) {
	ctx, op := c.reporter.start(ctx, OpAlloc)
	r := request{work: work}
	err := c.alloc(ctx, bytes, stream, &r)
	r.history.leave()
	c.settle(ctx)
	b := r.block
	if op == nil && err == nil {
		return b, err
	}
	info := OpInfo{Op: OpAlloc, Requested: bytes, Pool: placement.KindFor(c.shards.rules().RoundSize(min(bytes, maxRequest))).String(), Err: err}
	if stream != nil {
		info.Stream, info.Shard = stream.ID(), stream.ID()
	}
	info.Serial, info.Bytes, info.Hit, info.Seq, info.Label = b.serial, b.size, r.hit, r.sequence, r.label.value()
	if err != nil {
		c.reporter.failed(ctx, info)
	}
	c.reporter.end(op, info)
	return b, err
}

// alloc serves a request and records the outcome in r. It is the path of every hit: it makes no Go
// allocation, takes one lock, and calls only methods of the context and the stream that don't
// block.
func (c *Cache) alloc(ctx context.Context, bytes int64, stream device.Stream, r *request) error {
	if err := checkRequest(ctx, c.dev, bytes, stream); err != nil {
		return r.refuse(ctx, err)
	}
	r.Requested, r.Bytes, r.shard = bytes, c.shards.rules().RoundSize(bytes), c.shards.of(stream)
	if r.work {
		r.label = &workspace
	}
	if state, ok := ctx.Value(ctxKey{}).(*ctxState); ok {
		r.scope = state.scope.innermostOf(&c.ledger)
		switch {
		case !r.work:
			r.label = state.label
		case state.work != nil:
			r.label = state.work
		}
		r.task = state.taskOf(c)
		if p := state.poolOf(c); p != nil {
			r.Pool = &p.place
			if !r.Pool.Captured.Load() && captured([]device.Stream{stream}) {
				r.Pool.Captured.Store(true)
			}
		}
	}
	r.Kind = placement.KindFor(r.Bytes)
	if h := c.shards.history.Load(); h != nil {
		r.stack = h.stack(StacksState)
		if err := h.stream.enter(ctx, bytes); err != nil {
			return err
		}
		r.history = h.stream
	}
	if c.shards.noCaching {
		r.Bytes, r.segmentBytes = bytes, bytes
		return c.grower.allocMiss(ctx, stream, r)
	}
	if r.task != nil && c.grower.waits.count.Load() > 0 {
		r.segmentBytes = r.segmentSize(c.shards.rules())
		return c.grower.allocMiss(ctx, stream, r)
	}
	// A hit needs no frees that are pending on other shards, because it can't use their memory. A
	// miss polls them, too.
	if r.shard.pending.events.Load() != 0 {
		if err := r.shard.pending.poll(stream); err != nil {
			return err
		}
	}
	// The poll comes first, so that the chunks that it frees get a clock value before this request,
	// as in PyTorch.
	if c.shards.gcArmed.Load() && r.Pool == nil {
		c.shards.gcClock[r.Kind].Add(1)
	}
	if served, err := r.search(); served || err != nil {
		return err
	}
	r.segmentBytes = r.segmentSize(c.shards.rules())
	return c.grower.allocMiss(ctx, stream, r)
}
