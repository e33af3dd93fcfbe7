package recording

import (
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// A private pool that is gone at the end shows by how it went: deleting it gives its memory back and no other. An empty_cache, and a
// request that finds no memory, give back all that the default pool has free.

// deletedPool is a new private pool if what the entries up to entry i release can only have been of one that was deleted, since free
// memory of the default pool stays; 0: it can be the default pool's.
func (r *rewinder) deletedPool(rec *Recording, i int) uint64 {
	next := slices.IndexFunc(rec.Entries[i+1:], func(e Entry) bool { return e.Action != FreeCompleted })
	if next >= 0 && rec.Entries[i].Action == SegmentUnmap {
		switch rec.Entries[i+1+next].Action {
		case SegmentAlloc, SegmentMap, OOM:
			return 0 // a request that found no memory: what it had mapped before it failed stays
		}
	}
	if tellsPools(rec) || rec.releasesPart() || !slices.ContainsFunc(r.memory, r.releasable()) {
		return 0
	}
	if r.pools == nil {
		r.pools = make(map[uint64][2]uint64)
		maps.Copy(r.pools, rec.Pools)
	}
	taken := slices.Collect(maps.Values(r.pools))
	id := [2]uint64{0, 1}
	for slices.Contains(taken, id) {
		id[1]++
	}
	number := uint64(1)
	for r.pools[number] != [2]uint64{} {
		number++
	}
	r.pools[number] = id
	return number
}

// tellsPools reports whether the entries tell of which pool memory is: those of our own snapshots do, and the sizes of freed blocks, too.
func tellsPools(rec *Recording) bool {
	return slices.ContainsFunc(rec.Entries, func(e Entry) bool { return e.Action == FreeRequested && e.Bytes > 0 })
}

// releasesPart reports whether the options let a request release some of what is free, or nobody knows.
func (rec *Recording) releasesPart() bool {
	if s := rec.Settings; s != nil {
		return s.MaxSplitSize > 0 || s.GarbageCollectionThreshold > 0
	}
	return rec.Conf != "" && rec.Conf != "expandable_segments:True"
}

// releasable tells of a segment whether it is the default pool's, and has what an empty_cache would give back: all of it, or a whole
// granule of an expandable one.
func (r *rewinder) releasable() func(Segment) bool {
	blocks := make([]earlier, 0, len(r.live))
	for _, b := range r.live {
		blocks = append(blocks, b)
	}
	slices.SortFunc(blocks, byAddress)
	return func(s Segment) bool {
		if s.Pool != 0 {
			return false
		}
		granule := s.Size
		if s.Mapped {
			granule = sizes.LargeSegment
		}
		at := s.Address // of what may be free
		first, _ := slices.BinarySearchFunc(blocks, earlier{Block: Block{Address: s.Address}}, byAddress)
		for _, b := range blocks[first:] {
			if b.Address >= s.end() {
				break
			}
			if s.wholeGranule(at, b.Address, granule) {
				return true
			}
			at = b.Address + device.Ptr((max(b.Size, b.Requested)+sizes.MinBlock-1)/sizes.MinBlock*sizes.MinBlock)
		}
		return s.wholeGranule(at, s.end(), granule)
	}
}

// wholeGranule reports whether a granule of the segment lies between two addresses.
func (s *Segment) wholeGranule(from, to device.Ptr, granule int64) bool {
	first := (int64(from-s.Address) + granule - 1) / granule * granule
	return from <= to && first+granule <= int64(to-s.Address)
}
