package replay

import (
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// A search through every reading of every call would not end. Before a call is replayed the cache
// is in the recorded state, if all readings were right so far, so its free and reserved memory
// predicts the call. The check takes a snapshot for each ambiguous call, and avoids most replays.

// plausible keeps the readings of an allocation, or of a free and the allocation after it, that
// agree with the cache's current state. If none is left, it keeps all.
func (r *run) plausible(i int, list []reading) []reading {
	if len(list) < 2 {
		return list
	}
	var freed device.Ptr // of a free just before
	if r.p.Steps[i].Kind == recording.StepFree {
		freed = r.p.Entries[r.p.Steps[i].Entry].Addr
		i++
	}
	s := &r.p.Steps[i]
	e, inside := &r.p.Entries[s.Entry], r.p.Inside(s)
	sh := shapeOf(inside)
	released := sh.releases || s.Kind == recording.StepOOM
	reserved := r.cacheStats().ReservedBytes.All.Current
	over := r.limit > 0 && reserved+r.config.SegmentSize(e.Size) > r.limit
	collects := r.limit > 0 && r.config.GarbageCollectionThreshold > 0 && !r.config.ExpandableSegments &&
		reserved > int64(r.config.GarbageCollectionThreshold*float64(r.limit))
	left := keep(list, func(how reading) bool {
		if how.empty || !released && !how.waits() {
			return true
		}
		// the limit or the driver refused, or there was a collection
		return how.full != over || collects && !how.full
	})
	if len(left) > 1 {
		r.work(blockWork * 2 * r.p.MostLive)
		segments := r.cache.Snapshot().Segments
		left = keep(left, func(how reading) bool {
			if how.empty || !released && !how.waits() {
				return true
			}
			free := make(map[device.Ptr]bool)
			free[freed] = !how.late
			if !how.waits() {
				for _, e := range inside[:sh.lead] {
					free[e.Addr] = true
				}
			}
			return !r.finds(segments, s, free) && !(how.waits() && r.releasesFirst(segments, s, collects))
		})
	}
	if len(left) == 0 {
		return list
	}
	return left
}

// keep returns the readings for which ok is true.
func keep(list []reading, ok func(reading) bool) (kept []reading) {
	for _, how := range list {
		if ok(how) {
			kept = append(kept, how)
		}
	}
	return kept
}

// releasesFirst reports whether a failing allocation releases free blocks before it waits for
// frees: by a collection, or because of max_split_size_mb.
func (r *run) releasesFirst(segments []memcache.SegmentSnapshot, step *recording.Step, collects bool) bool {
	e, pool := &r.p.Entries[step.Entry], r.pools.id(step.Pool)
	split := r.config.MaxSplitSizeMB << 20
	for _, s := range segments {
		if s.Expandable || s.Pool == "small" || len(s.Blocks) > 1 || s.Blocks[0].State != memcache.BlockInactive {
			continue
		}
		if collects && s.PoolID == (memcache.PoolID{}) || s.PoolID == pool && split > 0 && s.TotalSize >= split && s.Stream == e.Stream && e.Size > sizes.SmallLimit {
			return true
		}
	}
	return false
}

// finds reports whether a free block serves a request. Blocks in free count as free.
func (r *run) finds(segments []memcache.SegmentSnapshot, step *recording.Step, free map[device.Ptr]bool) bool {
	e, pool := &r.p.Entries[step.Entry], r.pools.id(step.Pool)
	bytes, kind := r.config.RoundSize(e.Size), "small"
	if bytes > sizes.SmallLimit {
		kind = "large"
	}
	best := int64(math.MaxInt64)
	for _, s := range segments {
		if s.Stream != e.Stream || s.Pool != kind || s.PoolID != pool {
			continue
		}
		var size int64 // of the preceding free blocks, which merge
		for i, b := range s.Blocks {
			if b.State == memcache.BlockInactive || free[b.Address] {
				if size += b.Size; i+1 < len(s.Blocks) {
					continue
				}
			}
			if size >= bytes {
				best = min(best, size)
			}
			size = 0
		}
	}
	if best == math.MaxInt64 {
		return false
	}
	if split := r.config.MaxSplitSizeMB << 20; split > 0 {
		rounding := max(r.config.MaxNonSplitRoundingMB, r.config.LargeSegmentSizeMB) << 20
		if rounding == 0 {
			rounding = sizes.LargeSegment
		}
		return bytes < split == (best < split) && (bytes < split || best < bytes+rounding)
	}
	return true
}
