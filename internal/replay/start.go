package replay

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/restore"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// restore gives the cache the memory with which the recording begins, at its addresses.
func (m *machine) restore(config memcache.Config) error {
	start := m.p.Start
	if start == nil {
		return nil
	}
	t := tiler{config: config, ends: endsOf(m.p)}
	var list []restore.Segment
	var at []device.Ptr
	ranges := make(map[rangeKey]int) // of list
	bases := rangeBases(m.p)
	for i := range start.Segments {
		s := &start.Segments[i]
		pieces, err := t.tile(s)
		if err != nil {
			return err
		}
		key := keyOfStart(s)
		k, ok := ranges[key]
		if !s.Mapped || !ok {
			k = len(list)
			list = append(list, restore.Segment{Context: m.pools.context(s.Pool), Stream: m.streams[m.streamIndex(s.Stream)],
				Small: s.Kind == recording.SmallKind, Expandable: s.Mapped})
			at = append(at, s.Address)
			if s.Mapped {
				ranges[key], at[k] = k, bases[key]
			}
		}
		if end := at[k] + device.Ptr(bytesOf(list[k].Pieces)); end < s.Address {
			list[k].Pieces = append(list[k].Pieces, restore.Piece{State: restore.Unmapped, Bytes: int64(s.Address - end)})
		}
		list[k].Pieces = append(list[k].Pieces, pieces...)
	}
	m.setRanges(list, at)
	next := 0
	m.dev.SetScript(null.Script{Before: func(c *null.Call) {
		if c.Op == null.OpAlloc || c.Op == null.OpReserve {
			c.Ptr = at[next]
		}
	}, After: func(c null.Call) {
		if c.Op == null.OpAlloc || c.Op == null.OpReserve {
			next++
		}
	}})
	if err := restore.Into(m.cache, list); err != nil {
		return err
	}
	block := 0
	for i := range list {
		for _, piece := range list[i].Pieces {
			if piece.State == restore.Used {
				m.blocks[block] = piece.Block.(memcache.Block)
				block++
			}
		}
	}
	return m.freePending()
}

// setRanges sets how many addresses each expandable segment has: 9/8 of the device's memory, or up to the next segment, since
// it may have begun before the first byte that is known to be its.
func (m *machine) setRanges(list []restore.Segment, at []device.Ptr) {
	total := m.dev.Properties().TotalMemory
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
		for k, other := range at {
			if k != i && other > at[i] && int64(other-at[i]) < s.Range {
				s.Range = int64(other-at[i]) / granule * granule
			}
		}
		s.Range = max(s.Range, (bytesOf(s.Pieces)+granule-1)/granule*granule)
	}
}

// freePending frees those of the first blocks whose frees are pending when the recording begins.
func (m *machine) freePending() error {
	block := int32(0)
	for i := range m.p.Start.Segments {
		for _, b := range m.p.Start.Segments[i].Blocks {
			if b.State != string(memcache.BlockAllocated) {
				if err := m.release(&recording.Step{Kind: recording.StepFree, Later: true, Block: block}, true); err != nil {
					return err
				}
			}
			block++
		}
	}
	return nil
}

// pendingAtStart is the number of frees that are pending when the recording begins.
func pendingAtStart(p *recording.Program) (n int64) {
	if p.Start == nil {
		return 0
	}
	for i := range p.Start.Segments {
		for _, b := range p.Start.Segments[i].Blocks {
			if b.State != string(memcache.BlockAllocated) {
				n++
			}
		}
	}
	return n
}

// place allocates what is in use when the recording begins, in the order of addresses, as if the program had begun with that:
// what other options would have left free then, and where, nobody knows.
func (m *machine) place() error {
	if m.p.Start == nil {
		return nil
	}
	block := 0
	for i := range m.p.Start.Segments {
		s := &m.p.Start.Segments[i]
		for _, b := range s.Blocks {
			var err error
			m.blocks[block], err = m.cache.Alloc(m.pools.context(s.Pool), b.Requested, m.streams[m.streamIndex(s.Stream)])
			if err != nil && !errors.Is(err, memcache.ErrOutOfMemory) {
				return err
			}
			block++
		}
	}
	return m.freePending()
}

func bytesOf(pieces []restore.Piece) (sum int64) {
	for i := range pieces {
		sum += pieces[i].Bytes
	}
	return sum
}

// tiler works out how large the blocks of a segment are.
type tiler struct {
	config memcache.Config
	ends   map[device.Ptr]device.Ptr
}

// tile are the blocks of a segment, and what is free between them.
func (t *tiler) tile(s *recording.Segment) (pieces []restore.Piece, err error) {
	at, end := s.Address, s.Address+device.Ptr(s.Size)
	gap := func(to device.Ptr) {
		if at < to {
			pieces = append(pieces, restore.Piece{State: restore.Free, Bytes: int64(to - at)})
		}
	}
	for i, b := range s.Blocks {
		next := end
		if i+1 < len(s.Blocks) {
			next = s.Blocks[i+1].Address
		}
		size := b.Size
		if size == 0 {
			size = t.sizeOf(&b, s, int64(next-b.Address))
		}
		if b.Address < at || size <= 0 || b.Address+device.Ptr(size) > next {
			return nil, fmt.Errorf("the block of %d bytes at %#x, with which the recording begins, does not fit between its neighbours", b.Requested, b.Address)
		}
		gap(b.Address)
		pieces = append(pieces, restore.Piece{State: restore.Used, Bytes: size, Requested: b.Requested})
		at = b.Address + device.Ptr(size)
	}
	gap(end)
	return pieces, nil
}

// sizeOf is the size of a block with room bytes up to its neighbour. It was the front of a free chunk, of which the rest was
// split off if it was large enough (Arena.Fit in memcache/internal/placement).
func (t *tiler) sizeOf(b *recording.Block, s *recording.Segment, room int64) int64 {
	size := t.config.RoundSize(b.Requested)
	if end, ok := t.ends[b.Address]; ok {
		room = int64(end - b.Address)
	}
	rest := room - size
	split := rest >= sizes.MinBlock
	if s.Kind == recording.LargeKind && !t.config.ExpandableSegments {
		split = rest > sizes.SmallLimit && (t.config.MaxSplitSizeMB == 0 || size < t.config.MaxSplitSizeMB<<20)
	}
	if rest >= 0 && !split {
		return room
	}
	return size
}

// endsOf are the ends of those of the first blocks for which a later one tells it. Two blocks that were neighbours can have a
// gap between them, and the first may be larger than its request: but the first block that is placed into the gap lies at its
// front.
func endsOf(p *recording.Program) map[device.Ptr]device.Ptr {
	ends := make(map[device.Ptr]device.Ptr)
	open := make(map[int32]device.Ptr) // by hand-out: in use, and with an unknown end
	var bounds []device.Ptr            // of all blocks and segments, ascending
	block := int32(0)
	owner := make(map[device.Ptr]int32)
	for i := range p.Start.Segments {
		s := &p.Start.Segments[i]
		for _, b := range s.Blocks {
			bounds = append(bounds, b.Address)
			if owner[b.Address] = block; b.Size == 0 {
				open[block] = b.Address
			}
			block++
		}
		bounds = append(bounds, s.Address+device.Ptr(s.Size))
	}
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Kind {
		case recording.StepFree:
			delete(open, s.Block)
		case recording.StepAlloc:
			at := p.Entries[s.Entry].Addr
			k := lastUpTo(bounds, at)
			if k < 0 {
				continue
			}
			before := bounds[k]
			if at == before || k+1 < len(bounds) && at >= bounds[k+1] {
				continue
			}
			if b, ok := owner[before]; ok && open[b] == before && before != 0 {
				ends[before] = at
				delete(open, b)
			}
		}
		if len(open) == 0 {
			break
		}
	}
	return ends
}

// lastUpTo is the index of the last address that is not above at; -1: none.
func lastUpTo(list []device.Ptr, at device.Ptr) int {
	lo, hi := 0, len(list)
	for lo < hi {
		if mid := (lo + hi) / 2; list[mid] <= at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// keyOfStart is the key of the range of a mapped part.
func keyOfStart(s *recording.Segment) rangeKey {
	kind := uint64(1)
	if s.Kind == recording.LargeKind {
		kind = 2
	}
	return rangeKey{s.Stream, kind, s.Pool}
}

// rangeBases are the first addresses of the expandable ranges with which the recording begins, as far as they ever had memory:
// what lies before is never served from.
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
				for key, x := range open {
					if x.from <= e.Addr && e.Addr < x.to {
						if x.mapped -= e.Size; x.mapped <= 0 {
							delete(open, key) // the range is gone; another one may be anywhere
						}
					}
				}
			}
		}
	}
	return bases
}

// streamIndex is the index of a stream that steps have.
func (m *machine) streamIndex(id uint64) int {
	for i, s := range m.p.Streams {
		if s == id {
			return i
		}
	}
	return 0
}

// startNote says with what the recording begins.
func startNote(s *recording.Start) string {
	return fmt.Sprintf("the recording began late: %d blocks in %d segments of %.1f MiB were there, as follows from its end", s.Blocks(), len(s.Segments), float64(s.Reserved())/(1<<20))
}
