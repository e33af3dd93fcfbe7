package replay

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
)

// books track the memory that is reserved, in use and pending in a recording of ours, entry by
// entry. They do not depend on the rules of placement. They only check that a block lies in memory
// from the driver, overlaps no other block, and is freed once. Every recording must pass, however
// goroutines overlap, and its sums must be the cache's statistics.
type books struct {
	outcome
	p      *recording.Program
	memory []stretch // from the driver, by address
	gauges map[string]*gauge
	counts map[string]int64
}

// stretch is a segment, or contiguous mapped memory.
type stretch struct {
	from, to device.Ptr
	mapped   bool
	blocks   []held // by address
}

// held is a block that is in use or pending.
type held struct {
	at        device.Ptr
	size      int64
	requested int64
	pending   bool
}

// stretchBytes and heldBytes are the sizes of a stretch and a held.
const (
	stretchBytes = 48
	heldBytes    = 32
)

// gauge is a quantity of the statistics.
type gauge struct{ current, peak, allocated, freed int64 }

func (g *gauge) add(n int64) {
	g.current += n
	g.peak = max(g.peak, g.current)
	if n > 0 {
		g.allocated += n
	} else {
		g.freed -= n
	}
}

func checkBooks(p *recording.Program) (*books, error) {
	b := &books{p: p, gauges: make(map[string]*gauge), counts: make(map[string]int64)}
	for _, name := range []string{"allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes", "reserved_bytes", "segment"} {
		b.gauges[name] = new(gauge)
	}
	for i := range p.Entries {
		if err := p.Budget.Work(entryWork); err != nil {
			return nil, err
		}
		if wrong := b.enter(&p.Entries[i]); wrong != "" {
			b.countDeparture(1, &b.calls, "entry %d: %v: %s", i, p.Entries[i], wrong)
		}
	}
	b.compareStats()
	b.compareBlocks()
	return b, nil
}

// enter handles an entry, and returns its fault, or "".
func (b *books) enter(e *recording.Entry) string {
	if e.Action.Driver() {
		b.counts["driver calls"]++
	}
	switch e.Action {
	case recording.SegmentAlloc, recording.SegmentMap:
		return b.reserve(e)
	case recording.SegmentFree, recording.SegmentUnmap:
		return b.release(e)
	case recording.Alloc:
		return b.handOut(e)
	case recording.FreeRequested, recording.FreeCompleted:
		return b.free(e)
	case recording.OOM:
		b.counts["num_ooms"]++
	case recording.Flush:
		b.counts["num_sync_all_streams"]++
	case recording.ResetPeaks:
		for _, g := range b.gauges {
			g.peak = g.current
		}
	case recording.ResetTotals:
		for _, g := range b.gauges {
			g.allocated, g.freed = 0, 0
		}
		clear(b.counts)
	}
	return ""
}

// find returns the index of the stretch with an address, or of the next one.
func (b *books) find(at device.Ptr) int {
	i, _ := slices.BinarySearchFunc(b.memory, at, func(s stretch, at device.Ptr) int {
		if s.to <= at {
			return -1
		}
		return 1
	})
	return i
}

// reserve adds memory. Mapped memory extends adjacent mapped memory, because blocks span granules.
// A block of any other segment lies within it.
func (b *books) reserve(e *recording.Entry) string {
	end := e.Addr + device.Ptr(e.Size)
	i := b.find(e.Addr)
	if i < len(b.memory) && b.memory[i].from < end {
		return fmt.Sprintf("there is memory at %#x already", b.memory[i].from)
	}
	added := stretch{from: e.Addr, to: end, mapped: e.Action == recording.SegmentMap}
	b.gauges["reserved_bytes"].add(e.Size)
	if !added.mapped {
		b.gauges["segment"].add(1)
		_ = b.p.Budget.Move(stretchBytes * int64(len(b.memory)-i))
		b.memory = slices.Insert(b.memory, i, added)
		return ""
	}
	first, last := i, i
	if i > 0 && b.memory[i-1].mapped && b.memory[i-1].to == e.Addr {
		first--
		added.from, added.blocks = b.memory[first].from, b.memory[first].blocks
	}
	if i < len(b.memory) && b.memory[i].mapped && b.memory[i].from == end {
		last++
		_ = b.p.Budget.Move(heldBytes * int64(len(b.memory[i].blocks)+len(added.blocks)))
		added.to, added.blocks = b.memory[i].to, append(added.blocks, b.memory[i].blocks...)
	}
	// the next entry reports an excess
	_ = b.p.Budget.Move(stretchBytes * int64(len(b.memory)-first))
	b.memory = slices.Replace(b.memory, first, last, added)
	return ""
}

// release removes memory, which may be any part of mapped memory.
func (b *books) release(e *recording.Entry) string {
	at, end := e.Addr, e.Addr+device.Ptr(e.Size)
	mapped := e.Action == recording.SegmentUnmap
	i := b.find(at)
	if i == len(b.memory) || b.memory[i].from > at || b.memory[i].mapped != mapped {
		return fmt.Sprintf("there is no such memory at %#x", at)
	}
	s := b.memory[i]
	if !mapped && (s.from != at || s.to != end) {
		return fmt.Sprintf("the segment there has %d bytes", s.to-s.from)
	}
	if end > s.to {
		return fmt.Sprintf("there is no such memory at %#x", s.to)
	}
	if h, ok := s.over(at, end); ok {
		return fmt.Sprintf("a block of %d bytes at %#x is in use", h.size, h.at)
	}
	before, after := s, s
	before.to, after.from = at, end
	k, _ := slices.BinarySearchFunc(s.blocks, at, byAddress)
	before.blocks, after.blocks = s.blocks[:k:k], s.blocks[k:]
	var rest []stretch
	for _, part := range []stretch{before, after} {
		if part.from < part.to {
			rest = append(rest, part)
		}
	}
	_ = b.p.Budget.Move(stretchBytes * int64(len(b.memory)-i))
	b.memory = slices.Replace(b.memory, i, i+1, rest...)
	b.gauges["reserved_bytes"].add(-e.Size)
	if !mapped {
		b.gauges["segment"].add(-1)
	}
	return ""
}

func byAddress(h held, at device.Ptr) int {
	if h.at < at {
		return -1
	}
	if h.at > at {
		return 1
	}
	return 0
}

// over returns a block of the stretch that overlaps [from, to).
func (s *stretch) over(from, to device.Ptr) (held, bool) {
	// the first that begins after it
	k, _ := slices.BinarySearchFunc(s.blocks, to, byAddress)
	if k == 0 {
		return held{}, false
	}
	h := s.blocks[k-1]
	return h, h.at+device.Ptr(h.size) > from
}

func (b *books) handOut(e *recording.Entry) string {
	size := e.Bytes
	if size == 0 {
		return "it does not say how large the block is"
	}
	end := e.Addr + device.Ptr(size)
	i := b.find(e.Addr)
	if i == len(b.memory) || b.memory[i].from > e.Addr {
		return fmt.Sprintf("there is no memory at %#x", e.Addr)
	}
	s := &b.memory[i]
	if h, ok := s.over(e.Addr, min(end, s.to)); ok {
		return fmt.Sprintf("the block of %d bytes at %#x is in use", h.size, h.at)
	}
	if end > s.to {
		if i+1 < len(b.memory) && b.memory[i+1].from == s.to {
			return fmt.Sprintf("it ends after its segment, which ends at %#x", s.to)
		}
		return fmt.Sprintf("there is no memory at %#x", s.to)
	}
	k, _ := slices.BinarySearchFunc(s.blocks, e.Addr, byAddress)
	_ = b.p.Budget.Move(heldBytes * int64(len(s.blocks)-k))
	s.blocks = slices.Insert(s.blocks, k, held{at: e.Addr, size: size, requested: e.Size})
	for name, n := range map[string]int64{"allocation": 1, "allocated_bytes": size, "active": 1, "active_bytes": size, "requested_bytes": e.Size} {
		b.gauges[name].add(n)
	}
	return ""
}

// free ends the use of a block, or its wait for other streams. The program has checked that the
// block was in use.
func (b *books) free(e *recording.Entry) string {
	i := b.find(e.Addr)
	if i == len(b.memory) {
		return "there is no memory"
	}
	s := &b.memory[i]
	k, found := slices.BinarySearchFunc(s.blocks, e.Addr, byAddress)
	if !found {
		return "there is no block"
	}
	h := &s.blocks[k]
	if e.Action == recording.FreeRequested {
		h.pending = true
		b.gauges["allocation"].add(-1)
		b.gauges["allocated_bytes"].add(-h.size)
		return ""
	}
	b.gauges["active"].add(-1)
	b.gauges["active_bytes"].add(-h.size)
	b.gauges["requested_bytes"].add(-h.requested)
	_ = b.p.Budget.Move(heldBytes * int64(len(s.blocks)-k))
	s.blocks = slices.Delete(s.blocks, k, k+1)
	return ""
}
