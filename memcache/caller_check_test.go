package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
)

// snapshot requires a snapshot to show the live blocks.
func (p *caller) snapshot() error {
	shot := p.cache.Snapshot()
	if p.twin != nil {
		p.twin.snapshot()
	}
	shown := map[uint64]int64{}
	for _, g := range shot.Segments {
		at := g.Address
		for _, b := range g.Blocks {
			if b.Address != at {
				return fmt.Errorf("the blocks of a segment leave a hole at %d", at)
			}
			at += device.Ptr(b.Size)
			if b.State == BlockAllocated {
				shown[b.Serial] = b.Size
			}
		}
		if at != g.Address+device.Ptr(g.TotalSize) {
			return fmt.Errorf("the blocks of a segment of %d bytes end at %d", g.TotalSize, at-g.Address)
		}
	}
	for i := range p.slots {
		if b := p.slots[i].b; !b.IsZero() && shown[b.serial] != b.size {
			return fmt.Errorf("%v is not in the snapshot", b)
		}
	}
	if len(shown) != p.live {
		return fmt.Errorf("%d blocks are live, the snapshot has %d", p.live, len(shown))
	}
	return nil
}

// check checks the structure, and compares it with the program's record.
func (p *caller) check() error {
	if err := p.cache.check(); err != nil {
		return err
	}
	st := p.cache.Stats()
	if st.Allocation.All.Current != int64(p.live) || st.AllocatedBytes.All.Current != p.bytes {
		return fmt.Errorf("%d blocks of %d bytes are live, the statistics say %+v and %+v", p.live, p.bytes, st.Allocation.All, st.AllocatedBytes.All)
	}
	free, total, err := p.dev.MemInfo()
	if err != nil || st.ReservedBytes.All.Current != total-free {
		return fmt.Errorf("%d bytes are reserved, the device gave %d, %w", st.ReservedBytes.All.Current, total-free, err)
	}
	if !p.o.tight {
		if st.NumOOMs != 0 {
			return fmt.Errorf("%d requests failed", st.NumOOMs)
		}
		if st.Active.All.Current == st.Allocation.All.Current && st.RequestedBytes.All.Current != p.asked {
			return fmt.Errorf("%d bytes were asked for, the statistics say %+v", p.asked, st.RequestedBytes.All)
		}
		p.fold(&st)
	}
	return nil
}

// fold adds figures that are the same for every allocator to the digest: how many blocks are live,
// in which pool, their bytes at the peak, and the requested bytes. When a pending block is seen to
// be free depends on which requests miss.
func (p *caller) fold(st *Stats) {
	add := func(list ...int64) {
		for _, v := range list {
			p.digest = (p.digest ^ uint64(v)) * 0x100000001B3
		}
	}
	for _, a := range [...]*StatArray{&st.Allocation, &st.Active, &st.RequestedBytes} {
		for _, s := range [...]Stat{a.All, a.SmallPool, a.LargePool} {
			add(s.Allocated)
			if a == &st.Allocation {
				add(s.Current, s.Peak, s.Freed)
			}
		}
	}
}

// end frees everything, and requires that every byte returns to the device. With leak it closes the
// cache while blocks are live.
func (p *caller) end(leak bool) error {
	p.failures, p.fault = 0, 0
	if p.remove != nil {
		p.remove()
		p.remove = nil
	}
	if p.twin != nil {
		p.twin.driver.failures = 0
	}
	for len(p.leaves) > 0 {
		if err := p.enter(0); err != nil {
			return err
		}
	}
	if err := p.endScopes(0); err != nil {
		return err
	}
	if leak && p.live > 0 {
		if err := p.cache.Close(); err == nil {
			return fmt.Errorf("Close with %d live blocks says nothing", p.live)
		}
		for i := range p.slots {
			if b := p.slots[i].b; !b.IsZero() && !errors.Is(b.Free(), ErrClosed) {
				return fmt.Errorf("a free after Close: %w", b.Free())
			}
		}
		if _, err := p.cache.Alloc(context.Background(), 1, p.streams[0]); !errors.Is(err, ErrClosed) {
			return fmt.Errorf("an allocation after Close: %w", err)
		}
		return p.endDevice()
	}
	for i := range p.slots {
		if v := &p.slots[i]; !v.b.IsZero() {
			if err := p.free(v); err != nil {
				return err
			}
		}
	}
	for i := range p.streams {
		p.finish(i)
	}
	for range p.pools {
		if err := p.pools[0].Release(); err != nil {
			return err
		}
		p.pools = p.pools[1:]
		if p.twin != nil {
			p.twin.release(0)
		}
	}
	if err := errors.Join(p.empty(), p.check()); err != nil {
		return err
	}
	st := p.cache.Stats()
	lost := p.o.config.NoCaching && p.faulted // a block whose free failed stays until Close
	if !lost && (st.ReservedBytes.All.Current != 0 || st.Active.All.Current != 0 || st.Segment.All.Current != 0) {
		return fmt.Errorf("%+v is reserved, %+v active, in %+v segments", st.ReservedBytes.All, st.Active.All, st.Segment.All)
	}
	return errors.Join(p.cache.Close(), p.endDevice())
}

// endDevice requires that all memory was returned to the device.
func (p *caller) endDevice() error {
	for _, s := range p.streams {
		s.finish()
	}
	p.cancel()
	var errs []error
	for _, d := range []*peerDevice{p.dev, p.far} {
		if d == nil {
			continue
		}
		errs = append(errs, d.Close())
		for _, l := range opened.Take(d.ID()) {
			if !l.ByTest() {
				errs = append(errs, fmt.Errorf("%v", l))
			}
		}
	}
	return errors.Join(errs...)
}
