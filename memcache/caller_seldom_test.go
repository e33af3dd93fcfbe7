package memcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/device"
)

func (p *caller) changePools(size, x byte) error {
	if len(p.pools) < 3 {
		o := PoolOptions{UseOnOOM: size&1 != 0, NoSplit: size&2 != 0}
		pool, err := p.cache.NewPool(o)
		if err != nil {
			return err
		}
		if p.twin != nil {
			p.twin.newPool(o)
		}
		p.pools = append(p.pools, pool)
		p.contexts()
		return nil
	}
	i := int(x) % 3
	pool := p.pools[i]
	ctx := p.in[1+i]
	if size&2 != 0 && p.o.config.Exact {
		if err := pool.EmptyCache(p.ctx); !errors.Is(err, ErrInvalid) {
			return fmt.Errorf("with Exact, emptying a pool: %w", err)
		}
	} else if size&2 != 0 {
		err := pool.EmptyCache(p.ctx)
		if p.twin != nil {
			p.twin.emptyPool(i)
		}
		if size&4 != 0 || err != nil {
			return errors.Join(err, p.compare())
		}
	}
	err := pool.Release()
	p.pools = append(p.pools[:i:i], p.pools[i+1:]...)
	p.given = append(p.given[max(0, len(p.given)-3):], pool)
	p.contexts()
	if _, refused := p.cache.Alloc(ctx, 1, p.streams[0]); !errors.Is(refused, ErrReleased) {
		return fmt.Errorf("a released pool: %w", refused)
	}
	if p.twin != nil {
		p.twin.releasePool(i)
	}
	if size&1 != 0 {
		err = errors.Join(err, pool.EmptyCache(p.ctx))
		if p.twin != nil {
			p.twin.model.EmptyPool(p.twin.given[len(p.twin.given)-1])
		}
	}
	return errors.Join(err, p.compare())
}

// refused makes calls that return errors and change nothing.
func (p *caller) refused(x byte) error {
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	s := p.streams[x%callerStreams]
	for _, r := range []struct {
		ctx   context.Context
		bytes int64
		s     device.Stream
		want  error
	}{
		{ended, 100, s, context.Canceled}, {p.ctx, -1, s, ErrInvalid}, {p.ctx, 1, nil, ErrInvalid}, {p.ctx, maxRequest, s, ErrOutOfMemory},
	} {
		if _, err := p.cache.Alloc(r.ctx, r.bytes, r.s); !errors.Is(err, r.want) {
			return fmt.Errorf("an allocation of %d bytes: got %w, want %w", r.bytes, err, r.want)
		}
	}
	if b, err := p.cache.Alloc(p.ctx, 0, s); err != nil || !b.IsZero() {
		return fmt.Errorf("no bytes gave %v, %w", b, err)
	}
	if err := p.cache.EmptyCache(ended); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled EmptyCache: %w", err)
	}
	return p.compare()
}

func (p *caller) changeScopes(size byte) error {
	if n := len(p.scopes); n < 3 {
		var s *Scope
		p.ctx, s = p.cache.Scope(p.ctx, "scope")
		p.scopes = append(p.scopes, s)
		if p.twin != nil {
			p.twin.openScope()
		}
	} else {
		p.scopes[n-1].End() // the outer ones last
		own, w := p.scopes[n-1].Own(), p.scopes[n-1].Window()
		if own.Live > own.Peak || w.Allocated.Current > w.Allocated.Peak || w.Requested.Current > w.Requested.Peak || w.Allocated.Current != p.bytes {
			return fmt.Errorf("a scope's own is %+v, its window %+v; %d bytes are live", own, w, p.bytes)
		}
		if err := p.endScopes(n - 1); err != nil {
			return err
		}
		if size&1 != 0 {
			if err := p.endScopes(0); err != nil {
				return err
			}
		}
	}
	p.contexts()
	return p.compare()
}

// endScopes ends the scopes from index n on, the outer ones first.
func (p *caller) endScopes(n int) (err error) {
	for _, s := range p.scopes[n:] {
		s.End()
	}
	if p.twin != nil {
		err = p.twin.endScopes(n)
	}
	p.scopes = p.scopes[:n]
	p.rescope()
	return err
}

// limit changes the limit near the configured one.
func (p *caller) limit(size byte) {
	if !p.o.tight {
		return
	}
	limit := int64(math.MaxInt64)
	if size%8 != 0 {
		limit = p.o.config.MemoryLimit/2 + int64(size)*p.o.config.MemoryLimit/256
	}
	if err := p.cache.SetMemoryLimit(limit); err != nil {
		panic(err)
	}
	if p.twin != nil {
		p.twin.model.SetLimit(modelLimit(limit))
	}
}

// changeOptions changes all options that can change, or tries invalid changes.
func (p *caller) changeOptions(size, x byte) error {
	r := rand.New(rand.NewPCG(uint64(size), uint64(x)))
	c := p.cache.Config()
	c.LargeSegmentSizeMB = []int64{0, 0, 12, 32}[r.IntN(4)]
	c.MaxSplitSizeMB = []int64{0, 20, 24, 40}[r.IntN(4)]
	c.MaxNonSplitRoundingMB = []int64{0, 32}[r.IntN(2)]
	c.RoundupPower2Divisions = []Divisions{{}, AllDivisions(4), {8, 0, 2, 1, 16, 4, 2, 2}}[r.IntN(3)]
	if r.IntN(2) == 0 {
		c.GarbageCollectionThreshold = p.o.config.GarbageCollectionThreshold - c.GarbageCollectionThreshold
	}
	c.ExpandableSegments = r.IntN(2) == 0
	c.ExpandableGranuleMB = []int64{0, 2, 8}[r.IntN(3)]
	c.ExpandableRemap = r.IntN(3) == 0
	_, wrong := c.rules()
	if r.IntN(16) == 0 {
		c.Exact, wrong = !c.Exact, ErrInvalid
	}
	err := p.cache.SetConfig(p.ctx, c)
	if (err == nil) != (wrong == nil) || err != nil && !errors.Is(err, ErrInvalid) {
		return fmt.Errorf("SetConfig of %q: %w, want %w", c.Options(), err, wrong)
	}
	if err == nil && p.twin != nil {
		p.twin.model.SetOptions(p.modelOptions(c))
	}
	return p.compare()
}

// replaceStream closes a stream and creates another.
func (p *caller) replaceStream(i int) error {
	s := p.streams[i]
	p.finish(i)
	if err := s.Close(); err != nil {
		return err
	}
	if p.twin != nil {
		p.twin.model.Close(s.ID())
	}
	if _, err := p.cache.Alloc(p.ctx, 1, s); !errors.Is(err, device.ErrClosed) {
		return fmt.Errorf("a closed stream: %w", err)
	}
	return errors.Join(p.newStream(i), p.compare())
}

func (p *caller) reset(x byte) {
	if x&1 != 0 {
		p.cache.ResetPeakStats()
	} else {
		p.cache.ResetAccumulatedStats()
	}
	if p.twin != nil {
		p.twin.model.Reset(x&1 != 0)
	}
}

// reclaim registers a reclaimer that frees a few blocks one at a time, or removes it.
func (p *caller) reclaim(x byte) {
	if p.remove != nil {
		p.remove()
		p.remove = nil
		return
	}
	p.asks = int(x % 8)
	if p.twin != nil {
		p.twin.asks = p.asks
	}
	p.remove = p.cache.OnPressure(func(context.Context, int64) int64 {
		for i := range p.slots {
			if v := &p.slots[i]; p.asks > 0 && !v.b.IsZero() {
				p.asks--
				n := v.b.Size()
				twin := p.twin
				p.twin = nil // it asks by itself
				if err := p.free(v); err != nil && !p.fired {
					panic(err)
				}
				if p.twin = twin; p.fired {
					p.twin = nil
				}
				return n
			}
		}
		return 0
	})
}
