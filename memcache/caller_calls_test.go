package memcache

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

func (p *caller) alloc(v *slot, bytes int64, stream, pool int) error {
	s := p.streams[stream]
	b, err := p.cache.Alloc(p.in[pool], bytes, s.Stream)
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
	for i := range p.slots {
		if o := &p.slots[i].b; from < o.ptr+device.Ptr(o.size) && o.ptr < to {
			return fmt.Errorf("%v overlaps %v", b, *o)
		}
	}
	v.b, v.asked = b, bytes
	p.live++
	p.bytes += b.Size()
	p.asked += bytes
	return nil
}

func (p *caller) free(v *slot) error {
	b := v.b
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
	if err := v.stale.RecordStream(p.streams[0].Stream); !errors.Is(err, ErrFreed) {
		return fmt.Errorf("a record after the free: %w", err)
	}
	return p.compare()
}

func (p *caller) record(v *slot, stream int) error {
	err := v.b.RecordStream(p.streams[stream].Stream)
	if p.twin != nil {
		p.twin.record(v, stream)
	}
	return errors.Join(err, p.compare())
}

func (p *caller) hold(stream int) error {
	s := p.streams[stream]
	if s.release != nil {
		return nil
	}
	release, err := s.Hold()
	s.release = release
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
