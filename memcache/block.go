package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
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
	return fmt.Sprintf("block %d (%s, stream %d)", b.serial, sizes.Format(b.size), b.stream)
}
