package replay

import (
	"maps"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/restore"
	"github.com/cistern-ml/cistern/memcache"
)

// compareStats compares the statistics at the end that both sides have.
func (r *run) compareStats() (unknown []string) {
	got := r.cache.Stats().Map()
	for _, name := range slices.Sorted(maps.Keys(r.p.Stats)) {
		want := r.p.Stats[name]
		if r.p.Start != nil && !strings.HasSuffix(name, ".current") {
			continue // it includes the time before the recording
		}
		v, ok := got[name]
		if !ok {
			unknown = append(unknown, name)
		} else if v != want {
			r.countDeparture(1, &r.stats, "%s is %d here, and %d in the recording", name, v, want)
		}
	}
	return unknown
}

// compareBlocks compares the segments and blocks at the end.
func (r *run) compareBlocks() {
	if r.p.Segments == nil {
		return
	}
	want := make(map[device.Ptr]recording.Segment)
	for _, s := range r.p.Segments {
		want[s.Address] = s
	}
	for _, s := range r.cache.Snapshot().Segments {
		w, ok := want[s.Address]
		delete(want, s.Address)
		switch {
		case !ok:
			r.countDeparture(max(1, len(s.Blocks)), &r.outcome.blocks, "the segment of %d bytes at %#x is not in the recording", s.TotalSize, s.Address)
		case w.Size != s.TotalSize || w.Stream != s.Stream:
			r.countDeparture(1, &r.outcome.blocks, "the segment at %#x has %d bytes and stream %d here, and %d and %d in the recording",
				s.Address, s.TotalSize, s.Stream, w.Size, w.Stream)
		case r.pools.id(w.Pool) != s.PoolID:
			r.countDeparture(1, &r.outcome.blocks, "the segment at %#x is of the pool %v here, and of %v in the recording",
				s.Address, s.PoolID, r.pools.id(w.Pool))
		}
		if ok {
			r.compareSegment(s, w)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(want)) {
		r.countDeparture(max(1, len(want[address].Blocks)), &r.outcome.blocks, "the segment at %#x is missing here", address)
	}
}

// compareSegment compares the blocks of a segment that both sides have.
func (r *run) compareSegment(s memcache.SegmentSnapshot, w recording.Segment) {
	for i := range max(len(s.Blocks), len(w.Blocks)) {
		var got, want recording.Block
		if i < len(s.Blocks) {
			b := s.Blocks[i]
			got = recording.Block{Address: b.Address, Size: b.Size, Requested: b.RequestedSize, State: string(b.State)}
		}
		if i < len(w.Blocks) {
			want = w.Blocks[i]
		}
		// of a hand-out from before the recording
		if got.Requested == restore.UnknownRequest {
			got.Requested = want.Requested
		}
		if want.Requested < 0 { // the file does not record it
			want.Requested = got.Requested
		}
		if got != want {
			r.countDeparture(1, &r.outcome.blocks, "the block %+v is %+v here", want, got)
		}
	}
}
