package replay

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/restore"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

func bytesOf(pieces []restore.Piece) (sum int64) {
	for i := range pieces {
		sum += pieces[i].Bytes
	}
	return sum
}

// tiler reconstructs block sizes.
type tiler struct {
	config memcache.Config
	ends   map[device.Ptr]device.Ptr
}

// tile returns the blocks of a segment and the free pieces between them.
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
			return nil, fmt.Errorf("the block of %d bytes at %#x, live at the start, does not fit between its neighbours", b.Requested, b.Address)
		}
		gap(b.Address)
		pieces = append(pieces, restore.Piece{State: restore.Used, Bytes: size, Requested: b.Requested})
		at = b.Address + device.Ptr(size)
	}
	gap(end)
	return pieces, nil
}

// sizeOf returns the size of a block that has room bytes up to its neighbour. The block was the
// front of a free chunk, whose rest was split off if it was large enough (Arena.Fit in
// memcache/internal/placement).
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

// endsOf returns the end addresses of initial blocks that a later block reveals. If a block's
// former neighbour was freed, the free gap hides where the block ends; the first block that is
// placed into the gap lies at its front.
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

// lastUpTo returns the index of the last address that is at most at, or -1.
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
