package memcache

import "github.com/cistern-ml/cistern/device"

// Snapshot is the cache's memory at one moment, with the contents of torch.cuda.memory._snapshot.
type Snapshot struct {
	Device   string
	Segments []SegmentSnapshot // by address
	History  []HistoryEntry    // the entries of RecordHistory, the oldest first
}

// SegmentSnapshot is memory from the driver: a segment, or a contiguous mapped part of an
// expandable one. Sizes are bytes.
type SegmentSnapshot struct {
	Address       device.Ptr
	TotalSize     int64
	AllocatedSize int64 // of the allocated blocks
	ActiveSize    int64 // of the allocated and pending blocks
	RequestedSize int64 // requested bytes of the active blocks
	Stream        uint64
	Pool          string // "small" or "large"
	PoolID        PoolID // of the private pool; zero: the default pool (segment_pool_id)
	Expandable    bool
	Blocks        []BlockSnapshot // by address; they tile the segment
}

// BlockSnapshot is one block of a segment. Sizes are bytes.
type BlockSnapshot struct {
	Address       device.Ptr
	Size          int64
	RequestedSize int64 // of the present allocation; for an inactive block of an earlier one, or 0
	State         BlockState
	// Streams are the IDs of the streams that were recorded on the block ([Block.RecordStream]),
	// ascending; for a pending block, those whose work is not known to be complete. They include
	// the stream that a block is lent to by [Config.ReuseAcrossStreams].
	Streams []uint64
	Serial  uint64 // of the allocation; 0 if the block is not allocated
	Label   Label  // of the present or, if the block is not allocated, of an earlier allocation
	// Stack is the program counters of the call that allocated the block, with StacksState;
	// otherwise nil.
	Stack []uintptr
}

// BlockState is the state of a block.
type BlockState string

// The states of a block, with PyTorch's names.
const (
	BlockAllocated   BlockState = "active_allocated"
	BlockPendingFree BlockState = "active_pending_free" // freed, and waiting for a recorded stream
	BlockInactive    BlockState = "inactive"
)
