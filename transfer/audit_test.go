package transfer

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/cisterntest"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// busyPool is a pool of two shards with idle slabs of two classes, a registered slice, a buffer that is out, and a released one
// whose two copies are held up. It is not closed: the test breaks it.
func busyPool(t *testing.T) *Pool {
	dev := cisterntest.Host(t, 0)
	p := newPool(dev, Config{MaxCachedBytes: 1 << 20}, 2)
	p.hints.New = func() any { return p.shards[0] }
	stream := cisterntest.Stream(t, dev)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	block, err := cache.Alloc(t.Context(), 64, stream)
	require.NoError(t, err)
	open := make(chan struct{})
	require.NoError(t, stream.Launch(&device.Launch{Name: "hold", Func: func() { <-open }}))
	t.Cleanup(func() {
		close(open)
		require.NoError(t, errors.Join(stream.Synchronize(context.Background()), block.Free(), cache.Close()))
		require.ErrorContains(t, dev.Close(), "pinned")
	})
	for range 3 {
		p.idleIn(t, p.shards[0], 64)
	}
	p.idleIn(t, p.shards[0], 1000)
	p.idleIn(t, p.shards[1], 1000)
	p.register(100)
	_, err = p.Get(t.Context(), 5000)
	require.NoError(t, err)
	waiting, err := p.Get(t.Context(), 3000)
	require.NoError(t, err)
	for range 2 {
		_, err = p.H2D(t.Context(), stream, block, 0, waiting, 0, 64)
		require.NoError(t, err)
	}
	require.NoError(t, waiting.Release())
	return p
}

// register puts a slice on the books.
func (p *Pool) register(bytes int64) *slab {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &slab{pool: p, mem: make([]byte, bytes), registered: true}
	p.link(s)
	up(&p.registered, bytes)
	return s
}

// TestAuditFindsMistakes breaks one thing at a time: an audit that accepts everything would prove nothing.
func TestAuditFindsMistakes(t *testing.T) {
	for name, corrupt := range map[string]func(p *Pool, sh *shard, top *slab){
		"a gauge":                 func(_ *Pool, sh *shard, _ *slab) { sh.used[gaugeActiveBytes]-- },
		"a gauge above its quota": func(_ *Pool, sh *shard, _ *slab) { sh.used[gaugeRequests] += 9 },
		"a gauge below zero":      func(p *Pool, sh *shard, _ *slab) { sh.used[gaugeRequestedBytes] -= 1 << 20 },
		"a quota":                 func(_ *Pool, sh *shard, _ *slab) { sh.quota[gaugeRequests]++ },
		"a peak":                  func(p *Pool, _ *shard, _ *slab) { p.peaks[gaugeCachedBytes]-- },
		"a peak above the budget": func(p *Pool, sh *shard, _ *slab) {
			p.peaks[gaugeCachedBytes] += 1 << 20
			sh.quota[gaugeCachedBytes] += 1 << 20
		},
		"the budget":                   func(p *Pool, _ *shard, _ *slab) { p.byteAllowance -= 64 },
		"a shard's part of the budget": func(p *Pool, sh *shard, _ *slab) { p.byteAllowance += sh.byteAllowance + 1; sh.byteAllowance = -1 },
		"a place":                      func(_ *Pool, sh *shard, top *slab) { sh.bufferAllowance[top.class]++ },
		"an idle slab less":            func(_ *Pool, sh *shard, top *slab) { sh.idle[top.class] = top.below },
		"a link of a stack":            func(_ *Pool, _ *shard, top *slab) { top.below.above = nil },
		"a class":                      func(_ *Pool, _ *shard, top *slab) { top.class++ },
		"an idle slab that is out":     func(_ *Pool, _ *shard, top *slab) { top.serial.Add(1) },
		"an idle slab that is tainted": func(_ *Pool, _ *shard, top *slab) { top.tainted = true },
		"an idle slab that waits":      func(_ *Pool, _ *shard, top *slab) { top.waiting = 1 },
		"an age":                       func(_ *Pool, sh *shard, _ *slab) { sh.oldest.since = sh.newest.since },
		"a link of the ages":           func(_ *Pool, sh *shard, _ *slab) { sh.newest.older = nil },
		"the oldest":                   func(_ *Pool, sh *shard, _ *slab) { sh.oldest = sh.newest },
		"the newest":                   func(_ *Pool, sh *shard, _ *slab) { sh.newest = sh.oldest },
		"a newest of none":             func(_ *Pool, sh *shard, _ *slab) { sh.oldest = nil },
		"a slab that is not listed":    func(p *Pool, _ *shard, _ *slab) { p.first = p.first.next },
		"a link of the slabs":          func(p *Pool, _ *shard, _ *slab) { p.first.next.prev = nil },
		"the allocations":              func(p *Pool, _ *shard, _ *slab) { p.allocations.Current++ },
		"the registered bytes":         func(p *Pool, _ *shard, _ *slab) { p.registered.Current++ },
		"what is allocated": func(p *Pool, _ *shard, _ *slab) {
			p.first.mem = p.first.mem[:1]
			p.allocatedBytes.Current = 0
			for s := p.first; s != nil; s = s.next {
				p.allocatedBytes.Current += s.size()
			}
		},
		"the held bytes":          func(p *Pool, _ *shard, _ *slab) { p.held.Current -= 64 },
		"the limit":               func(p *Pool, _ *shard, _ *slab) { p.limit = p.held.Current - 1 },
		"what is being allocated": func(p *Pool, _ *shard, _ *slab) { p.allocating = -1 },
		"what is being freed":     func(p *Pool, _ *shard, _ *slab) { p.freeing = 1 << 20 },
		"a slab to be freed":      func(p *Pool, _ *shard, top *slab) { p.evicted = append(p.evicted, top) },
		"the pending ones":        func(_ *Pool, sh *shard, _ *slab) { sh.pending++ },
		"the orphans":             func(_ *Pool, sh *shard, _ *slab) { sh.orphans++ },
		"what a slab waits for": func(_ *Pool, sh *shard, _ *slab) {
			for _, w := range sh.queues[0].entries {
				if w.slab != nil {
					w.slab.waiting++
				}
			}
		},
		"the order of a queue": func(_ *Pool, sh *shard, _ *slab) {
			q := sh.queues[0]
			q.entries = append(q.entries, waiting{until: &completion{stream: q.stream}})
			sh.orphans++
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := busyPool(t)
			n, err := p.audit()
			require.NoError(t, err)
			require.EqualValues(t, 7, n)
			require.NotPanics(t, p.verify)
			class, _ := classOf(64)
			corrupt(p, p.shards[0], p.shards[0].idle[class])
			_, err = p.audit()
			require.Error(t, err)
			p.unverified.Store(0)
			require.Panics(t, p.verify)
		})
	}
}

// Books that can't be right are reported: at once where builds check, otherwise with the next call that gives memory back.
func TestBrokenAccountingIsReported(t *testing.T) {
	empty := func(*Pool, *slab) {}
	stats := func(p *Pool, _ *slab) { p.Stats() }
	for name, c := range map[string]struct {
		corrupt func(p *Pool)
		use     func(p *Pool, registered *slab)
		text    string
	}{
		"allocations":        {func(p *Pool) { p.allocations.Current = 0 }, empty, "allocations fell to -1"},
		"allocated bytes":    {func(p *Pool) { p.allocatedBytes.Current = 63 }, empty, "allocated bytes fell to -1"},
		"held bytes":         {func(p *Pool) { p.held.Current = 63 }, empty, "held bytes fell to -1"},
		"registered bytes":   {func(p *Pool) { p.registered.Current = 99 }, (*Pool).removeRegistered, "registered bytes fell to -1"},
		"below zero":         {func(p *Pool) { p.shards[0].used[gaugeRequests] = -1 }, stats, "ActiveRequests is {Current:-1"},
		"above the peak":     {func(p *Pool) { p.allocations.Peak = 0 }, stats, "Allocations is {Current:1 Peak:0"},
		"not what came":      {func(p *Pool) { p.held.Allocated++ }, stats, "HeldBytes is {Current:64 Peak:64 Allocated:65 Freed:0}"},
		"neither of the two": {func(p *Pool) { p.shards[1].used[gaugeActiveBytes]++; p.peaks[gaugeActiveBytes]++ }, stats, "64 bytes are allocated, 1 active, 64 cached"},
		"less held": {func(p *Pool) { p.held = memcache.Stat{Current: 63, Peak: 64, Allocated: 64, Freed: 1} }, stats,
			"64 bytes are allocated, 0 active, 64 cached and 63 held"},
	} {
		t.Run(name, func(t *testing.T) {
			dev := cisterntest.Host(t, 0)
			p := newPool(dev, Config{}, 2)
			p.idleIn(t, p.shards[0], 64)
			registered := p.register(100)
			p.Stats()
			require.NoError(t, p.unpark(), "nothing is wrong yet")
			c.corrupt(p)
			report := func() error {
				c.use(p, registered)
				return p.EmptyCache(t.Context())
			}
			if invariants.Enabled {
				require.Panics(t, func() { _ = report() })
			} else {
				require.ErrorContains(t, report(), "transfer: the accounting of the pool of host is broken: "+c.text)
			}
			_ = dev.Close() // it tells of what the pool holds
		})
	}
}
