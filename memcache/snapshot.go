package memcache

import (
	"cmp"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// A snapshot is a copy, made with all shards locked: it shows one moment, in which blocks tile segments and sums agree with
// Stats. It takes about as long as walking all blocks, and every request waits for it. The history may be a hundred times as
// much: it is copied afterwards, in pieces, up to that moment.

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
	Serial        uint64 // of the hand-out; 0 if the block is not handed out
	Label         Label  // of the present or, in a block that is not handed out, of an earlier hand-out
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

// Snapshot returns the segments and blocks, and the history up to that moment. It holds up allocations while it copies the
// blocks, some 50 ns each, and not while it copies the history, of which a program that goes on overwrites the oldest part.
func (c *Cache) Snapshot() Snapshot {
	s, ring, end := c.snapshot()
	if ring != nil {
		s.History = ring.before(end)
	}
	return s
}

// snapshot is Snapshot without the history, which is what the ring has up to its end-th entry.
func (c *Cache) snapshot() (s Snapshot, ring *historyRing, end int) {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	s = Snapshot{Device: c.dev.Name(), Segments: c.shards.copySegments()}
	if ring = c.shards.history.ring(); ring != nil {
		end = ring.added()
		ring.add(&HistoryEntry{Action: ActionSnapshot, Size: c.ledger.sumGauge(allPools, gaugeActiveBytes).Current, Time: time.Now()})
	}
	return s, ring, end
}

// copySegments are the segments, by address. All shards are locked.
func (all *shards) copySegments() (list []SegmentSnapshot) {
	for _, shard := range all.list() {
		for seg := range shard.arena.Segments() {
			list = appendSegment(list, seg)
		}
	}
	slices.SortFunc(list, func(a, b SegmentSnapshot) int { return cmp.Compare(a.Address, b.Address) })
	return list
}

// appendSegment adds the segment, or for an expandable one each run of mapped chunks, as PyTorch shows them. All shards are
// locked.
func appendSegment(list []SegmentSnapshot, seg *placement.Segment) []SegmentSnapshot {
	// open: the last segment of the list goes on; addresses without memory end it.
	open := false
	for m := seg.First(); m != nil; m = m.Next() {
		if m.Unmapped() {
			open = false
			continue
		}
		if !open {
			open = true
			list = append(list, SegmentSnapshot{Address: m.Ptr(), Stream: seg.Stream(), Pool: m.Kind().String(), PoolID: idOf(seg.Pool()), Expandable: seg.Expandable()})
		}
		l := &list[len(list)-1]
		b := BlockSnapshot{Address: m.Ptr(), Size: m.Size(), RequestedSize: m.Requested, State: BlockInactive, Label: labelOf(m)}
		if h := handoutOf(m); h != nil {
			b.State, b.Serial, b.Stack = BlockPendingFree, h.serial, h.stack
			if h.serial != 0 {
				b.State = BlockAllocated
				l.AllocatedSize += m.Size()
			}
			l.ActiveSize += m.Size()
			l.RequestedSize += m.Requested
		}
		l.TotalSize += m.Size()
		l.Blocks = append(l.Blocks, b)
	}
	return list
}
