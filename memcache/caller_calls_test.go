package memcache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

func (p *caller) alloc(v *slot, bytes int64, stream, pool int) error {
	s := p.streams[stream]
	b, err := p.cache.Alloc(p.in[pool], bytes, s)
	if p.twin != nil {
		if err := p.twin.alloc(v, b, err, bytes, stream, pool); err != nil {
			return err
		}
	}
	if err != nil {
		if p.o.tight && errors.Is(err, ErrOutOfMemory) {
			p.ooms++
			return nil
		}
		return fmt.Errorf("an allocation of %d bytes: %w", bytes, err)
	}
	if b.Size() < bytes || b.StreamID() != s.ID() || b.Ptr()%512 != 0 && !p.o.config.NoCaching || b.Serial() == 0 {
		return fmt.Errorf("a request of %d bytes on stream %d got %v at %d", bytes, s.ID(), b, b.Ptr())
	}
	from, to := b.ptr, b.ptr+device.Ptr(b.size)
	p.farUses = slices.DeleteFunc(p.farUses, func(u farUse) bool { return !slices.ContainsFunc(u.gates, (*gate).holds) })
	for _, u := range p.farUses {
		if from < u.to && u.from < to {
			return fmt.Errorf("%v is used by a stream of another device", b)
		}
	}
	for i := range p.slots {
		if o := &p.slots[i].b; from < o.ptr+device.Ptr(o.size) && o.ptr < to {
			return fmt.Errorf("%v overlaps %v", b, *o)
		}
	}
	v.b, v.asked, v.far = b, bytes, false
	p.live++
	p.bytes += b.Size()
	p.asked += bytes
	return nil
}

func (p *caller) free(v *slot) error {
	b := v.b
	if v.far && p.streams[callerStreams].held() && !p.o.config.Exact {
		p.farUses = append(p.farUses, farUse{b.ptr, b.ptr + device.Ptr(b.size), slices.Clone(p.streams[callerStreams].gates)})
	}
	err := b.Free()
	if p.twin != nil {
		if err := p.twin.free(v); err != nil {
			return err
		}
	}
	p.live--
	p.bytes -= b.Size()
	p.asked -= v.asked
	v.b, v.stale, v.asked = Block{}, b, 0
	if err != nil {
		return fmt.Errorf("a free: %w", err)
	}
	return nil
}

func (p *caller) freeAgain(v *slot) error {
	if v.stale.IsZero() {
		return nil
	}
	if err := v.stale.Free(); !errors.Is(err, ErrFreed) {
		return fmt.Errorf("a second free: %w", err)
	}
	if err := v.stale.RecordStream(p.streams[0]); !errors.Is(err, ErrFreed) {
		return fmt.Errorf("a record after the free: %w", err)
	}
	return p.compare()
}

func (p *caller) record(v *slot, stream int) error {
	err := v.b.RecordStream(p.streams[stream])
	v.far = v.far || stream == callerStreams && p.far != nil
	if p.twin != nil {
		p.twin.record(v, stream)
	}
	return errors.Join(err, p.compare())
}

func (p *caller) erase(v *slot, stream int) error {
	err := v.b.EraseStream(p.streams[stream])
	v.far = v.far && stream != callerStreams
	if p.twin != nil && v.m != nil {
		p.twin.model.Erase(v.m, p.twin.stream(stream))
	}
	return errors.Join(err, p.compare())
}

func (p *caller) waitStream(stream, other int) error {
	s, o := p.streams[stream], p.streams[other]
	err := p.cache.WaitStream(s, o)
	for _, g := range o.gates {
		if !g.open && !slices.Contains(s.gates, g) {
			s.gates = append(s.gates, g)
		}
	}
	if p.twin != nil {
		p.twin.model.WaitStream(s.ID(), o.ID())
	}
	return errors.Join(err, p.compare())
}

func (p *caller) hold(stream int) error {
	s := p.streams[stream]
	if slices.ContainsFunc(s.gates, func(g *gate) bool { return g.of == s && !g.open }) {
		return nil
	}
	release, err := s.Hold()
	s.gates = append(slices.DeleteFunc(s.gates, func(g *gate) bool { return g.open }), &gate{of: s, release: release})
	if p.twin != nil {
		p.twin.model.Hold(s.ID())
	}
	return err
}

func (p *caller) finish(stream int) {
	s := p.streams[stream]
	s.finish()
	if p.twin != nil {
		p.twin.model.Finish(s.ID())
	}
}

func (p *caller) empty() error {
	err := p.cache.EmptyCache(p.ctx)
	if p.twin != nil {
		p.twin.model.EmptyCache()
	}
	return errors.Join(err, p.compare())
}

// trim trims the cache to a part of what is reserved.
func (p *caller) trim(x byte) error {
	before := p.cache.MemoryReserved()
	to := before / 256 * int64(x)
	released, err := p.cache.TrimTo(p.ctx, to)
	if is := p.cache.MemoryReserved(); is != before-released {
		return fmt.Errorf("TrimTo released %d of %d bytes, %d are reserved: %w", released, before, is, err)
	}
	if p.twin != nil {
		p.twin.model.TrimTo(to)
	}
	return errors.Join(err, p.compare())
}

// emptyGiven empties a pool that was released.
func (p *caller) emptyGiven(x byte) error {
	if len(p.given) == 0 {
		return nil
	}
	i := int(x) % len(p.given)
	err := p.given[i].EmptyCache(p.ctx)
	if p.twin != nil {
		p.twin.model.EmptyPool(p.twin.given[i])
	}
	return errors.Join(err, p.compare())
}

func (p *caller) poll() error {
	err := p.cache.PollFrees()
	if p.twin != nil {
		p.twin.model.PollFrees()
	}
	return errors.Join(err, p.compare())
}

// enter enters a pool, or leaves one.
func (p *caller) enter(x byte) error {
	if n := len(p.leaves); n > 0 && (x%2 == 0 || n == 2) {
		p.leaves[n-1]()
		p.leaves = p.leaves[:n-1]
		if p.twin != nil {
			p.twin.model.Leave()
		}
	} else if len(p.pools) > 0 {
		leave, err := p.pools[int(x)%len(p.pools)].Enter()
		if err != nil {
			return err
		}
		p.leaves = append(p.leaves, leave)
		if p.twin != nil {
			p.twin.model.Enter()
		}
	}
	return p.compare()
}
