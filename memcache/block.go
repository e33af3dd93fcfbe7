package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Block is a piece of device memory that Alloc handed out. It is a small value: copies are the same block.
// The zero Block is empty: it has no memory, and recording and freeing it do nothing.
//
// Ptr, Size, StreamID and Serial belong to the copy and touch no shared memory, also after the block was
// freed. RecordStream and Free may be called from any goroutine; a block that was freed is an error that
// wraps [ErrFreed].
type Block struct {
	handout *handout
	chunk   *placement.Chunk // the handout's, as long as the serial numbers agree: both are looked up at once
	serial  uint64
	ptr     device.Ptr
	size    int64
	stream  uint64
}

// Ptr is the address of the first byte, a multiple of 512 from the start of its segment.
func (b Block) Ptr() device.Ptr { return b.ptr }

// Size is the block's bytes: the request rounded to a multiple of 512 or, where the rest of a free block
// was not worth keeping, up to 1 MiB more; in a pool with NoSplit a whole segment, and with NoCaching the request.
func (b Block) Size() int64 { return b.size }

// StreamID is the ID of the stream that the block was allocated on.
func (b Block) StreamID() uint64 { return b.stream }

// Serial is the number of this hand-out, never reused by its cache. The zero Block has 0.
func (b Block) Serial() uint64 { return b.serial }

// IsZero reports whether b is the zero Block.
func (b Block) IsZero() bool { return b.handout == nil }

// Range is the part of the block at [offset, offset+bytes), for a launch. It is not checked here: the
// stream that gets it does that.
func (b Block) Range(offset, bytes int64) device.Range {
	return device.Range{Ptr: b.ptr + device.Ptr(offset), Bytes: bytes}
}

// String gives the serial, size and stream; never the address.
func (b Block) String() string {
	if b.IsZero() {
		return "empty block"
	}
	return fmt.Sprintf("block %d (%s, stream %d)", b.serial, formatBytes(b.size), b.stream)
}

// RecordStream tells the cache that work queued on s uses the block (Tensor.record_stream). When the block
// is freed it is reused only after everything queued on s up to the free is done. Recording the block's own
// stream, a stream twice, or a closed stream does nothing. s may be a stream of another device that reaches this one's
// memory ([device.Properties].Peers). Call it before Free; there is no un-record.
func (b Block) RecordStream(s device.Stream) error {
	if b.IsZero() {
		return nil
	}
	if err := b.handout.shard.cache.checkUser("RecordStream", s); err != nil {
		return err
	}
	if invariants.Enabled {
		defer b.handout.shard.cache.verify()
	}
	// What is asked of a stream under the shard's lock, its ID and whether it is closed, waits for nothing.
	id := s.ID()
	owner := b.handout.shard
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if err := owner.checkLive(b); err != nil {
		return fmt.Errorf("memcache: RecordStream of %s: %w", b, err)
	}
	if id == b.stream || s.Closed() {
		return nil
	}
	// A block is used by a handful of streams: a walk is quicker than a set.
	for _, u := range b.handout.uses {
		if u.ID() == id {
			return nil
		}
	}
	b.handout.uses = append(b.handout.uses, s)
	return nil
}

// Free gives the block back. For the host it is free at once; its memory is handed out again to its own
// stream at once, and after RecordStream when every recorded stream is past the work queued before Free.
// A second Free is an error.
//
// Free waits only where recording an event does: when a recorded stream's queue is full, or it is being closed.
// With NoCaching it waits for the recorded streams and for the driver, and beside a [HistoryStream] for a reader that is behind.
func (b Block) Free() error { return b.FreeContext(context.Background()) }

// FreeContext is Free; ctx is the parent of what observers see, and ends the wait for the reader of a [HistoryStream]: the
// block is freed all the same.
func (b Block) FreeContext(ctx context.Context) error {
	if b.IsZero() {
		return nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	c := b.handout.shard.cache
	var was freeRecord
	if c.config.Observer == nil {
		err := c.freeBlock(ctx, b, &was)
		was.history.leave()
		return err
	}
	_, op := c.reporter.start(ctx, OpFree)
	err := c.freeBlock(ctx, b, &was)
	was.history.leave()
	if op == nil {
		return err
	}
	info := OpInfo{Op: OpFree, Stream: b.stream, Serial: b.serial, Bytes: b.size, Err: err}
	if was.sequence > 0 {
		info.Shard, info.Seq, info.Requested, info.Pool, info.Label = was.shard, was.sequence, was.requested, was.kind.String(), was.label.value()
	}
	c.reporter.end(op, info)
	return err
}
