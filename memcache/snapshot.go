package memcache

import "github.com/cistern-ml/cistern/device"

// Snapshot is the cache's memory at one moment, as torch.cuda.memory._snapshot shows it.
type Snapshot struct {
	Device   string
	Segments []SegmentSnapshot // by address
	History  []HistoryEntry    // what RecordHistory recorded, the oldest first
}

// SegmentSnapshot is memory from the driver: a segment, or a contiguous mapped part of an expandable one. Sizes
// are bytes.
type SegmentSnapshot struct {
	Address       device.Ptr
	TotalSize     int64
	AllocatedSize int64 // of the blocks handed out
	ActiveSize    int64 // of the blocks handed out or pending
	RequestedSize int64 // what was asked for in the active blocks
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
	RequestedSize int64 // of the present hand-out; in an inactive block of an earlier one, or 0
	State         BlockState
	// Streams are the IDs of the streams that were recorded on the block ([Block.RecordStream]), ascending;
	// of a pending block those whose work is not known to be done. A block of [Config.ReuseAcrossStreams]
	// that another stream got has that stream's ID.
	Streams []uint64
	Serial  uint64 // of the hand-out; 0 if the block is not handed out
	Label   Label  // of the present or, in a block that is not handed out, of an earlier hand-out
	// Stack are the program counters of the call that allocated the block, with StacksState; else nil.
	Stack []uintptr
}

// BlockState is what a block is used for.
type BlockState string

// The states of a block, with PyTorch's names.
const (
	BlockAllocated   BlockState = "active_allocated"
	BlockPendingFree BlockState = "active_pending_free" // freed, and waiting for a recorded stream
	BlockInactive    BlockState = "inactive"
)
