package transfer

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// busyPool returns a pool of two shards with idle slabs of two classes, a registered slice, a
// buffer that is out, and a released one with two pending copies. It is not closed, because the
// test breaks it.
func busyPool(t *testing.T) *Pool {
	dev := cisterntest.Host(t, 0)
	leaktest.Excuse(dev)
	p := newPool(dev, Config{MaxCachedBytes: 1 << 20}, 2)
	p.cache.processor = func() int { return 0 }
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
		p.idleIn(t, p.cache.shards[0], 64)
	}
	p.idleIn(t, p.cache.shards[0], 1000)
	p.idleIn(t, p.cache.shards[1], 1000)
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

// register registers a slice without the driver.
func (p *Pool) register(bytes int64) *slab {
	s := &slab{pool: p, mem: make([]byte, bytes), registered: true}
	p.pinned.link(s)
	return s
}

// TestAuditFindsMistakes breaks one thing at a time, because an audit that accepts everything would
// prove nothing.
func TestAuditFindsMistakes(t *testing.T) {
	for name, corrupt := range map[string]func(p *Pool, sh *shard, top *slab){
		"a gauge":                 func(_ *Pool, sh *shard, _ *slab) { sh.countStopped(gaugeActiveBytes, -1) },
		"a peak above the budget": func(p *Pool, _ *shard, _ *slab) { p.cache.ledger = newLedger(p.cache.budget, 9) },
		"what is cached": func(_ *Pool, sh *shard, _ *slab) {
			sh.countStopped(gaugeCachedBytes, -1)
			sh.countStopped(gaugeActiveBytes, 1)
		},
		"a place":                      func(_ *Pool, sh *shard, top *slab) { sh.countStopped(gaugeClass+top.class, -1) },
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
		"a slab that is not listed":    func(p *Pool, _ *shard, _ *slab) { p.pinned.first = p.pinned.first.next },
		"a link of the slabs":          func(p *Pool, _ *shard, _ *slab) { p.pinned.first.next.prev = nil },
		"the allocations":              func(_ *Pool, sh *shard, _ *slab) { sh.countStopped(gaugeAllocations, 1) },
		"the registered bytes":         func(p *Pool, _ *shard, _ *slab) { p.pinned.registered.Current++ },
		"what is allocated": func(p *Pool, _ *shard, _ *slab) {
			p.pinned.first.mem = p.pinned.first.mem[:1]
		},
		"the held bytes":          func(p *Pool, _ *shard, _ *slab) { p.pinned.held.Current -= 64 },
		"the limit":               func(p *Pool, _ *shard, _ *slab) { p.pinned.limit = p.pinned.held.Current - 1 },
		"what is being allocated": func(p *Pool, _ *shard, _ *slab) { p.pinned.allocating = -1 },
		"what is being freed":     func(p *Pool, _ *shard, _ *slab) { p.pinned.freeing = 1 << 20 },
		"a slab to be freed":      func(p *Pool, _ *shard, top *slab) { p.cache.evicted = append(p.cache.evicted, top) },
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
			corrupt(p, p.cache.shards[0], p.cache.shards[0].idle[class])
			_, err = p.audit()
			require.Error(t, err)
			p.unverified.Store(0)
			require.Panics(t, p.verify)
		})
	}
}

// Wrong statistics are reported: at once in builds with invariants, otherwise by the next call that
// frees memory.
func TestBrokenAccountingIsReported(t *testing.T) {
	empty := func(*Pool, *slab) {}
	stats := func(p *Pool, _ *slab) { p.Stats() }
	for name, c := range map[string]struct {
		corrupt func(p *Pool)
		use     func(p *Pool, registered *slab)
		text    string
	}{
		"held bytes":         {func(p *Pool) { p.pinned.held.Current = 63 }, empty, "held bytes fell to -1"},
		"registered bytes":   {func(p *Pool) { p.pinned.registered.Current = 99 }, func(p *Pool, s *slab) { p.pinned.unlink(s) }, "registered bytes fell to -1"},
		"below zero":         {func(p *Pool) { p.cache.shards[0].countStopped(gaugeRequests, -1) }, stats, "ActiveRequests is {Current:-1"},
		"above the peak":     {func(p *Pool) { p.pinned.held.Peak = 0 }, stats, "HeldBytes is {Current:64 Peak:0"},
		"not what came":      {func(p *Pool) { p.pinned.held.Allocated++ }, stats, "HeldBytes is {Current:64 Peak:64 Allocated:65 Freed:0}"},
		"neither of the two": {func(p *Pool) { p.cache.shards[1].countStopped(gaugeActiveBytes, 1) }, stats, "64 bytes are allocated, 1 active, 64 cached"},
		"less held": {func(p *Pool) { p.pinned.held = memcache.Stat{Current: 63, Peak: 64, Allocated: 64, Freed: 1} }, stats,
			"64 bytes are allocated, 0 active, 64 cached and 63 held"},
	} {
		t.Run(name, func(t *testing.T) {
			dev := cisterntest.Host(t, 0)
			leaktest.Excuse(dev) // a pool with wrong statistics frees nothing
			p := newPool(dev, Config{}, 2)
			p.idleIn(t, p.cache.shards[0], 64)
			registered := p.register(100)
			p.Stats()
			require.NoError(t, p.pinned.unpark(), "nothing is wrong yet")
			c.corrupt(p)
			report := func() error {
				c.use(p, registered)
				return p.EmptyCache(t.Context())
			}
			if invariants.Enabled {
				require.Panics(t, func() { _ = report() })
			} else {
				before := accounting.Faults()
				require.ErrorContains(t, report(), "transfer: the accounting of the pool of host is broken: "+c.text)
				require.Greater(t, accounting.Faults(), before)
				require.Positive(t, p.Stats().AccountingFaults)
			}
			_ = dev.Close() // the error lists the pool's memory
		})
	}
}
