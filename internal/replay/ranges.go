package replay

import (
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/restore"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// setRanges sets the address range of each expandable segment: 9/8 of the device's memory, or up to
// the next segment, because the segment may begin before its first known byte.
func (m *machine) setRanges(list []restore.Segment, at []device.Ptr) {
	total := m.dev.Properties().TotalMemory
	sorted := slices.Sorted(slices.Values(at))
	for i := range list {
		s := &list[i]
		granule := int64(sizes.SmallSegment)
		if !s.Small {
			granule = sizes.LargeSegment
			if mb := m.cache.Config().LargeSegmentSizeMB; mb > 0 {
				granule = mb << 20
			}
		}
		s.Range = (total + total/8 + granule - 1) / granule * granule
		if next, _ := slices.BinarySearch(sorted, at[i]+1); next < len(sorted) && int64(sorted[next]-at[i]) < s.Range {
			s.Range = int64(sorted[next]-at[i]) / granule * granule
		}
		s.Range = max(s.Range, (bytesOf(s.Pieces)+granule-1)/granule*granule)
	}
}

// keyOfStart returns the key of the expandable segment of a mapped part.
func keyOfStart(s *recording.Segment) rangeKey {
	kind := uint64(1)
	if s.Kind == recording.LargeKind {
		kind = 2
	}
	return rangeKey{s.Stream, kind, s.Pool}
}

// rangeBases returns the lowest address that each initial expandable segment ever maps. Lower
// addresses of its range never serve a request.
func rangeBases(p *recording.Program) map[rangeKey]device.Ptr {
	type extent struct {
		from, to device.Ptr
		mapped   int64
	}
	open := make(map[rangeKey]*extent)
	for i := range p.Start.Segments {
		s := &p.Start.Segments[i]
		if !s.Mapped {
			continue
		}
		key := keyOfStart(s)
		if open[key] == nil {
			open[key] = &extent{from: s.Address}
		}
		open[key].to = s.Address + device.Ptr(s.Size)
		open[key].mapped += s.Size
	}
	bases := make(map[rangeKey]device.Ptr)
	for key, x := range open {
		bases[key] = x.from
	}
	if len(open) == 0 {
		return bases
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, e := range p.Inside(s) {
			switch e.Action {
			case recording.SegmentMap:
				key := keyOf(p, s, e.Stream)
				if x := open[key]; x != nil {
					x.from, x.to, x.mapped = min(x.from, e.Addr), max(x.to, e.Addr+device.Ptr(e.Size)), x.mapped+e.Size
					bases[key] = x.from
				}
			case recording.SegmentUnmap:
				if p.Budget.Scan(len(open)) != nil {
					return bases // the next charge reports it
				}
				for key, x := range open {
					if x.from <= e.Addr && e.Addr < x.to {
						if x.mapped -= e.Size; x.mapped <= 0 {
							// the range was released; another one may be anywhere
							delete(open, key)
						}
					}
				}
			}
		}
	}
	return bases
}
