package replay

import (
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
)

// compareStats compares the sums over the entries with the statistics at the end. For a recording
// that began with memory in use only current values are compared.
func (b *books) compareStats() {
	want := b.p.Stats
	if want == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(b.gauges)) {
		g := b.gauges[name]
		b.compareStat(name+".all.current", g.current)
		if b.p.Initial == 0 {
			b.compareStat(name+".all.peak", g.peak)
			b.compareStat(name+".all.allocated", g.allocated)
			b.compareStat(name+".all.freed", g.freed)
		}
	}
	if b.p.Initial == 0 {
		for _, name := range []string{"num_ooms", "num_sync_all_streams"} {
			b.compareStat(name, b.counts[name])
		}
	}
}

func (b *books) compareStat(name string, got int64) {
	if want, ok := b.p.Stats[name]; ok && got != want {
		b.countDeparture(1, &b.stats, "%s is %d by the entries, and %d at the end", name, got, want)
	}
}

// compareBlocks compares the memory and blocks after the last entry with those at the end of the
// recording.
func (b *books) compareBlocks() {
	if b.p.Segments == nil {
		return
	}
	var memory [][2]device.Ptr // contiguous ranges joined
	var blocks []recording.Block
	for _, s := range b.memory {
		memory = join2(memory, s.from, s.to)
		for _, h := range s.blocks {
			state := "active_allocated"
			if h.pending {
				state = "active_pending_free"
			}
			blocks = append(blocks, recording.Block{Address: h.at, Size: h.size, Requested: h.requested, State: state})
		}
	}
	var wantMemory [][2]device.Ptr
	var want []recording.Block
	segments := slices.Clone(b.p.Segments)
	slices.SortFunc(segments, func(x, y recording.Segment) int {
		if x.Address < y.Address {
			return -1
		}
		return 1
	})
	for _, s := range segments {
		wantMemory = join2(wantMemory, s.Address, s.Address+device.Ptr(s.Size))
		for _, block := range s.Blocks {
			if block.State != "inactive" {
				want = append(want, block)
			}
		}
	}
	if !slices.Equal(memory, wantMemory) {
		b.countDeparture(1, &b.outcome.blocks, "the entries leave the memory %#x, and at the end it is %#x", first(memory, wantMemory), first(wantMemory, memory))
	}
	for i := range max(len(blocks), len(want)) {
		if i >= len(blocks) || i >= len(want) || blocks[i] != want[i] {
			b.countDeparture(1, &b.outcome.blocks, "block %d in use is %+v by the entries, and %+v at the end", i, at(blocks, i), at(want, i))
		}
	}
}

// join2 adds [from, to) to a sorted list of ranges.
func join2(list [][2]device.Ptr, from, to device.Ptr) [][2]device.Ptr {
	if n := len(list); n > 0 && list[n-1][1] == from {
		list[n-1][1] = to
		return list
	}
	return append(list, [2]device.Ptr{from, to})
}

// first returns the first range of a list that is not in another.
func first(list, other [][2]device.Ptr) [2]device.Ptr {
	for i, r := range list {
		if i >= len(other) || other[i] != r {
			return r
		}
	}
	return [2]device.Ptr{}
}

func at(list []recording.Block, i int) recording.Block {
	if i < len(list) {
		return list[i]
	}
	return recording.Block{}
}

// verification returns the result of the books.
func (b *books) verification() *Verification {
	p := b.p
	v := &Verification{
		Allocs: allocations(p), CallMismatches: b.calls, StatMismatches: b.stats, BlockMismatches: b.outcome.blocks, First: b.first,
		PeakAllocated: b.gauges["allocated_bytes"].peak, PeakReserved: b.gauges["reserved_bytes"].peak,
		Retries: -1, OOMs: b.counts["num_ooms"], DriverCalls: b.counts["driver calls"], Calls: len(p.Steps),
	}
	if n, ok := p.Stats["num_alloc_retries"]; ok {
		v.Retries = n
	}
	return v
}
