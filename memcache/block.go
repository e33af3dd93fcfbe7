package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Block is a piece of device memory that Alloc returned. It is a small value, and copies are the
// same block. The zero Block is empty: it has no memory, and recording and freeing it do nothing.
//
// Ptr, Size, StreamID and Serial read only the copy, also after the block was freed. RecordStream
// and Free may be called from any goroutine. On a freed block they return an error that wraps
// [ErrFreed].
type Block struct {
	handout *handout
	// chunk is the handout's chunk while the serial numbers agree. It is copied here so that both
	// load at once.
	chunk  *placement.Chunk
	serial uint64
	ptr    device.Ptr
	size   int64
	stream uint64
}

// Ptr returns the address of the first byte. Its offset in the segment is a multiple of 512.
func (b Block) Ptr() device.Ptr { return b.ptr }

// Size returns the block's bytes: the request rounded up to a multiple of 512 or, where the rest of
// a free block was not worth keeping, up to 1 MiB more. In a pool with NoSplit it is the whole
// segment, and with NoCaching the request.
func (b Block) Size() int64 { return b.size }

// StreamID returns the ID of the stream that the block was allocated on.
func (b Block) StreamID() uint64 { return b.stream }

// Serial returns the number of this allocation, which its cache never reuses. It is 0 for the zero
// Block.
func (b Block) Serial() uint64 { return b.serial }

// IsZero reports whether b is the zero Block.
func (b Block) IsZero() bool { return b.handout == nil }

// Range returns the part of the block at [offset, offset+bytes), for a launch. The stream that
// receives it checks it; Range does not.
func (b Block) Range(offset, bytes int64) device.Range {
	return device.Range{Ptr: b.ptr + device.Ptr(offset), Bytes: bytes}
}

// String returns the serial, size and stream, and never the address.
func (b Block) String() string {
	if b.IsZero() {
		return "empty block"
	}
	return fmt.Sprintf("block %d (%s, stream %d)", b.serial, sizes.Format(b.size), b.stream)
}
