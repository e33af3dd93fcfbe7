package memcache

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The blocks are copied with all shards locked, so the copy shows one moment: blocks tile segments,
// and sums agree with Stats. It takes about as long as walking all blocks, and every request waits
// for it. The history may be a hundred times larger. It is copied afterwards in pieces, up to that
// moment.

// copySegments returns the segments, by address. All shards are locked.
func (all *shards) copySegments() (list []SegmentSnapshot) {
	pending, unlock := all.pendingStreams()
	defer unlock()
	for _, shard := range all.list() {
		for seg := range shard.arena.Segments() {
			list = appendSegment(list, seg, pending)
		}
	}
	slices.SortFunc(list, func(a, b SegmentSnapshot) int { return cmp.Compare(a.Address, b.Address) })
	return list
}

// appendSegment appends the segment or, for an expandable one, each run of mapped chunks, as
// PyTorch shows them. All shards are locked.
func appendSegment(list []SegmentSnapshot, seg *placement.Segment, pending map[*handout][]uint64) []SegmentSnapshot {
	// open: the last segment of the list continues; unmapped addresses end it.
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
			b.State, b.Serial, b.Stack, b.Streams = BlockPendingFree, h.serial, h.stack, h.streams(pending)
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

// pendingStreams locks the pending frees, until unlock, and returns the streams of the events that
// each pending block waits for. All shards are locked.
func (all *shards) pendingStreams() (of map[*handout][]uint64, unlock func()) {
	list := all.allPending()
	of = make(map[*handout][]uint64)
	for _, p := range list {
		p.mu.Lock()
		for _, q := range p.queues {
			for e := q.head; e != nil; e = e.next {
				of[e.handout] = append(of[e.handout], q.stream)
			}
		}
	}
	return of, func() {
		for _, p := range list {
			p.mu.Unlock()
		}
	}
}

// streams returns BlockSnapshot.Streams. All shards and the pending frees are locked.
func (h *handout) streams(pending map[*handout][]uint64) (ids []uint64) {
	if h.pending && !h.recording {
		return pending[h]
	}
	for _, s := range h.uses {
		ids = append(ids, s.ID())
	}
	slices.Sort(ids)
	return ids
}
