package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
)

// ask makes a call that changes no memory.
func (p *memcachePlayer) ask() (string, error) {
	switch p.random.IntN(8) {
	case 0:
		return fmt.Sprintf("peaks %d %d", p.cache.MaxMemoryAllocated(), p.cache.MaxMemoryReserved()), nil
	case 1:
		return fmt.Sprintf("categories %v", p.cache.AllocatedByCategory()), nil
	case 2:
		if len(p.live) > 0 {
			b := p.live[p.random.IntN(len(p.live))]
			l := memcache.Label{Module: fmt.Sprint("later", p.random.IntN(3)), Step: int64(p.random.IntN(2)), Category: memcache.Category(p.random.IntN(7))}
			return fmt.Sprintf("label %v %v", b, l), b.SetLabel(l)
		}
	case 3:
		if n := len(p.scopes); n > 0 {
			s := p.scopes[p.random.IntN(n)]
			return fmt.Sprintf("window of %s: %+v %+v", s.Name(), s.Window(), s.Own()), nil
		}
	case 4, 5:
		return p.changeScopes()
	case 6:
		if p.random.IntN(4) == 0 {
			return "profile " + profile(p.cache.Profile()), nil
		}
	case 7:
		if p.random.IntN(4) == 0 {
			return "peak profile " + profile(p.cache.PeakProfile()), nil
		}
	}
	return fmt.Sprintf("limit %d", p.cache.MemoryLimit()), nil
}

func (p *memcachePlayer) changeScopes() (string, error) {
	n := len(p.scopes)
	if n > 0 && (n >= 5 || p.random.IntN(2) == 0) {
		i := n - 1
		if p.random.IntN(4) == 0 {
			i = p.random.IntN(n) // not the innermost: scopes may end in any order
		}
		s := p.scopes[i]
		p.scopes, p.ctx = slices.Delete(p.scopes, i, i+1), slices.Delete(p.ctx, i+1, i+2)
		switch p.random.IntN(3) {
		case 0:
			return fmt.Sprintf("end %s: %s", s.Name(), profile(s.EndProfile())), nil
		case 1:
			w, holders := s.EndWindow(0)
			return fmt.Sprintf("end %s: %+v %s", s.Name(), w, profile(holders.Profile())), nil
		}
		s.End()
		return fmt.Sprintf("end %s: %+v %+v", s.Name(), s.Window(), s.Own()), nil
	}
	name := fmt.Sprint("scope", p.random.IntN(1000))
	ctx, s := p.cache.Scope(p.ctx[n], name)
	p.ctx, p.scopes = append(p.ctx, ctx), append(p.scopes, s)
	return "begin " + name, nil
}

// seldom makes a call that changes much.
func (p *memcachePlayer) seldom() (string, error) {
	switch p.random.IntN(12) {
	case 0:
		return "empty the cache", p.cache.EmptyCache(p.ctx[0])
	case 1, 2, 3:
		return p.changePools()
	case 4:
		fraction := []float64{0.25, 0.5, 0.9, 1, 0, -1, 2}[p.random.IntN(7)]
		if p.setting.capacity > 1<<40 {
			fraction = 1
		}
		return fmt.Sprintf("fraction %v", fraction), p.cache.SetMemoryFraction(fraction)
	case 5, 6:
		if p.setting.capacity < 1<<40 {
			p.failures = p.random.IntN(4)
		}
		return fmt.Sprintf("%d failures", p.failures), nil
	case 7:
		return p.replaceStream()
	case 8:
		if p.random.IntN(2) == 0 {
			p.cache.ResetPeakStats()
			return "reset peaks", nil
		}
		p.cache.ResetAccumulatedStats()
		return "reset totals", nil
	case 9:
		return "snapshot " + segments(p.cache.Snapshot()), nil
	case 10:
		return p.reclaim(), nil
	}
	ctx, cancel := context.WithCancel(p.ctx[0])
	cancel()
	_, err := p.cache.Alloc(ctx, 100, p.streams[0].Stream)
	return "alloc with a context that has ended", err
}

func (p *memcachePlayer) changePools() (string, error) {
	n := len(p.pools)
	if n < 3 && p.random.IntN(3) > 0 {
		pool, err := p.cache.NewPool(memcache.PoolOptions{UseOnOOM: p.random.IntN(2) == 0, NoSplit: p.random.IntN(3) == 0})
		if err != nil {
			return "new pool", err
		}
		p.pools = append(p.pools, pool)
		return fmt.Sprintf("new pool %v", pool.ID()), nil
	}
	if n == 0 {
		return "no pool", nil
	}
	i := p.random.IntN(n)
	pool := p.pools[i]
	if p.random.IntN(2) == 0 {
		return fmt.Sprintf("empty pool %v", pool.ID()), pool.EmptyCache(p.ctx[0])
	}
	p.pools = slices.Delete(p.pools, i, i+1)
	return fmt.Sprintf("release pool %v", pool.ID()), pool.Release()
}

func (p *memcachePlayer) replaceStream() (string, error) {
	i := p.random.IntN(len(p.streams))
	s := p.streams[i]
	s.finish()
	if err := s.Close(); err != nil {
		return "close a stream", err
	}
	p.streams = slices.Delete(p.streams, i, i+1)
	return fmt.Sprintf("close stream %d", s.ID()), p.newStream()
}

// reclaim registers or removes a function that frees memory when it is short.
func (p *memcachePlayer) reclaim() string {
	p.frees = p.random.IntN(4)
	if p.remove != nil {
		p.remove()
		p.remove = nil
		return "remove the reclaimer"
	}
	p.remove = p.cache.OnPressure(func(_ context.Context, bytes int64) (freed int64) {
		p.log.add("pressure of %d", bytes)
		for ; p.frees > 0 && len(p.live) > 0; p.frees-- {
			b := p.take()
			err := b.Free()
			p.log.add("reclaimed %v: %v", b, err)
			freed += b.Size()
		}
		return freed
	})
	return fmt.Sprintf("a reclaimer of %d blocks", p.frees)
}

func (p *memcachePlayer) printStats() {
	stats := p.cache.Stats().Map()
	fmt.Fprint(p.w, " stats")
	for _, key := range slices.Sorted(maps.Keys(stats)) {
		fmt.Fprintf(p.w, " %s=%d", key, stats[key])
	}
	fmt.Fprintln(p.w)
}

// end ends the cache's life, with blocks that are live or without.
func (p *memcachePlayer) end() error {
	for _, s := range p.streams {
		s.finish()
	}
	for len(p.live) > 0 && p.random.IntN(100) > 0 {
		b := p.take()
		p.print(fmt.Sprintf("free %v", b), b.Free())
	}
	for _, e := range p.cache.History() {
		fmt.Fprintf(p.w, " %s %#x %d %d %d %d %d %v %v %t %t\n", e.Action, e.Address, e.Size, e.Block, e.Stream, e.Serial, e.Free, e.Pool, e.Label, e.Grew, e.AtOnce)
	}
	fmt.Fprintln(p.w, " "+segments(p.cache.Snapshot()))
	p.printStats()
	p.print("close", p.cache.Close())
	return p.log.wrong()
}

// profile is who holds the memory.
func profile(p memcache.Profile) string {
	s := fmt.Sprintf("%d %d %d", p.Allocated, p.Active, p.Reserved)
	var holdings []string
	for _, h := range p.Holdings {
		holdings = append(holdings, fmt.Sprintf(" %v %d %d %d", h.Label, h.Blocks, h.Bytes, h.Requested))
	}
	slices.Sort(holdings) // equal ones may come in any order
	return s + fmt.Sprint(holdings)
}

func segments(s memcache.Snapshot) string {
	return fmt.Sprintf("%+v", s.Segments)
}
