package recording

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
)

// begin reconstructs the start of the recording, and returns the first entry to read.
func (b *builder) begin() (int, error) {
	p := b.p
	if p.Own || p.Calls || p.Segments == nil {
		return 0, nil // the entries contain the start, or it is unknown
	}
	start, grown, err := rewind(p.Recording)
	if errors.Is(err, budget.ErrExceeded) {
		return 0, err
	}
	if err != nil {
		p.Contradiction = err.Error()
		return 0, nil
	}
	b.grown, b.inside = grown, start.Skipped
	if len(start.Segments) == 0 {
		return start.Skipped, nil
	}
	p.Start = start
	for i := range start.Segments {
		s := &start.Segments[i]
		b.stream(s.Stream)
		if p.PrivatePools {
			if err := b.setPool(poolRange{s.Address, s.end(), s.Pool}); err != nil {
				return 0, err
			}
		}
		for _, held := range s.Blocks {
			h := handOut{size: held.Requested, stream: s.Stream, block: int32(p.Blocks)}
			if held.State != allocatedState {
				h.freed, h.step = true, -1
				p.Pending++
			}
			if err := b.use(held.Address, h); err != nil {
				return 0, err
			}
			if p.PrivatePools {
				b.homes[h.block] = s.Pool
			}
			p.Blocks++
		}
	}
	return start.Skipped, nil
}

// servedBy returns the private pool of the request of entry i, which PyTorch does not record. It is
// the pool of the memory that serves the request; memory that the driver allocated for the request
// belongs to it.
func (b *builder) servedBy(i int, block int32) (uint64, error) {
	asked := uint64(b.p.Entries[i].Pool)
	for k := b.inside; k < i; k++ {
		if e := &b.p.Entries[k]; e.Action == SegmentAlloc || e.Action == SegmentMap {
			if err := b.setPool(poolRange{e.Addr, e.Addr + device.Ptr(e.Size), max(b.grown[int32(k)], asked)}); err != nil {
				return 0, err
			}
		}
	}
	if block < 0 {
		return asked, nil // it failed
	}
	pool, _ := b.poolAt(b.p.Entries[i].Addr)
	b.homes[block] = pool
	return pool, nil
}

// releasing sets the private pool of memory that returns to the driver.
func (b *builder) releasing(e *Entry) {
	if pool, ok := b.poolAt(e.Addr); ok {
		e.Pool = uint32(pool)
	}
}
