package recording

import (
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// A private pool that was deleted during the recording is recognised by its last entries: they
// release only its segments, whereas empty_cache and a request without memory release every free
// segment of the default pool.

// deletedPool returns the number of a new private pool if the releases up to entry i must be the
// deletion of one, because free memory of the default pool stays; else 0.
func (r *rewinder) deletedPool(rec *Recording, i int) (uint64, error) {
	next := slices.IndexFunc(rec.Entries[i+1:], func(e Entry) bool { return e.Action != FreeCompleted })
	if next >= 0 && rec.Entries[i].Action == SegmentUnmap {
		switch rec.Entries[i+1+next].Action {
		case SegmentAlloc, SegmentMap, OOM:
			// a request without memory, which keeps what it had mapped before it failed
			return 0, nil
		}
	}
	if !r.poolless {
		return 0, nil
	}
	if err := r.budget.Work(int64(8*len(r.memory) + max(next, 0))); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(r.memory, r.unused) {
		// they are sorted
		if err := r.budget.Work(int64(15*len(r.live) + 4*len(r.memory))); err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(r.memory, r.wholeGranules()) {
			return 0, nil
		}
	}
	return r.newPool(rec), nil
}

// newPool adds a private pool with a new ID and returns its number.
func (r *rewinder) newPool(rec *Recording) uint64 {
	if r.pools == nil {
		r.pools, r.ids = make(map[uint64][2]uint64), make(map[[2]uint64]bool)
		maps.Copy(r.pools, rec.Pools)
		for _, id := range r.pools {
			r.ids[id] = true
		}
	}
	for r.number = max(r.number, 1); r.pools[r.number] != [2]uint64{}; {
		r.number++
	}
	for r.id = max(r.id, 1); r.ids[[2]uint64{0, r.id}]; {
		r.id++
	}
	id := [2]uint64{0, r.id}
	r.pools[r.number], r.ids[id] = id, true
	return r.number
}

// tellsPools reports whether the entries record pools, as those of memcache's own snapshots do,
// together with block sizes.
func tellsPools(rec *Recording) bool {
	return slices.ContainsFunc(rec.Entries, func(e Entry) bool { return e.Action == FreeRequested && e.Bytes > 0 })
}

// releasesPart reports whether the options may let a request release only some of the free
// segments.
func (rec *Recording) releasesPart() bool {
	if s := rec.Settings; s != nil {
		return s.MaxSplitSize > 0 || s.GarbageCollectionThreshold > 0
	}
	return rec.Conf != "" && rec.Conf != "expandable_segments:True"
}

// unused reports whether a segment of the default pool has no block, so that empty_cache would
// release it.
func (r *rewinder) unused(s Segment) bool {
	return s.Pool == 0 && !s.Mapped && r.used[s.Address] == 0
}

// wholeGranules returns a function that reports whether a mapped part of the default pool has a
// free granule, which empty_cache would release.
func (r *rewinder) wholeGranules() func(Segment) bool {
	var blocks []earlier // made before the first use
	return func(s Segment) bool {
		if s.Pool != 0 || !s.Mapped {
			return false
		}
		if blocks == nil {
			blocks = make([]earlier, 0, len(r.live))
			for _, b := range r.live {
				blocks = append(blocks, b)
			}
			slices.SortFunc(blocks, byAddress)
		}
		at := s.Address // start of the range that may be free
		first, _ := slices.BinarySearchFunc(blocks, earlier{Block: Block{Address: s.Address}}, byAddress)
		if first > 0 {
			// a block may span parts that were mapped separately
			at = max(at, blocks[first-1].end())
		}
		for _, b := range blocks[first:] {
			if b.Address >= s.end() {
				break
			}
			if s.wholeGranule(at, b.Address, sizes.LargeSegment) {
				return true
			}
			at = b.end()
		}
		return s.wholeGranule(at, s.end(), sizes.LargeSegment)
	}
}

// end returns the address after the block, or after its request if only that is known.
func (b *Block) end() device.Ptr {
	return b.Address + device.Ptr((max(b.Size, b.Requested)+sizes.MinBlock-1)/sizes.MinBlock*sizes.MinBlock)
}

// wholeGranule reports whether a granule of the segment lies between two addresses.
func (s *Segment) wholeGranule(from, to device.Ptr, granule int64) bool {
	first := (int64(from-s.Address) + granule - 1) / granule * granule
	return from <= to && first+granule <= int64(to-s.Address)
}
