package replay

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// unknownMemory is the memory of a device of unknown size, in bytes, if nothing bounds it.
const unknownMemory = 1 << 40

// totalMemory is the device's memory in bytes. Where it is not recorded, all that depends on it is how many addresses an
// expandable segment reserves, 9/8 of it: as many as there are before the next segment.
func totalMemory(p *recording.Program) int64 {
	if p.TotalMemory > 0 {
		return p.TotalMemory
	}
	type place struct {
		address device.Ptr
		segment [2]uint64 // of an expandable one: stream and pool
	}
	var places []place
	for i := range p.Steps {
		s := &p.Steps[i]
		pool := uint64(1)
		if p.Entries[s.Entry].Size > sizes.SmallLimit {
			pool = 2
		}
		for _, e := range p.Inside(s) {
			switch e.Action {
			case recording.SegmentMap:
				places = append(places, place{e.Addr, [2]uint64{e.Stream, pool}})
			case recording.SegmentAlloc:
				places = append(places, place{e.Addr, [2]uint64{}})
			}
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.address, b.address) })
	room := device.Ptr(unknownMemory / 8 * 9)
	for i, first := 0, 0; i < len(places); i++ {
		if places[i].segment != places[first].segment {
			if places[first].segment[1] != 0 {
				room = min(room, places[i].address-places[first].address)
			}
			first = i
		}
	}
	const rounding = 64 << 20 // a reservation is rounded up
	return max(int64(room)-rounding, granule) / 9 * 8
}
