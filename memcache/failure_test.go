package memcache_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/memcache"
)

// failing is a cache over a device whose calls may fail.
type failing struct {
	dev    device.Device
	cache  *memcache.Cache
	s1, s2 device.Stream
}

// openFailing opens caches with a configuration.
func openFailing(cfg memcache.Config) func(t testing.TB, f *failtest.Faults) *failing {
	return func(t testing.TB, f *failtest.Faults) *failing {
		t.Helper()
		dev, err := failtest.NewNull(f, null.Config{Capacity: 1 << 30})
		require.NoError(t, err)
		m := &failing{dev: dev}
		m.cache, err = memcache.New(dev, cfg)
		require.NoError(t, err)
		m.s1, err = dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		m.s2, err = dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			assert.NoError(t, errors.Join(m.s1.Close(), m.s2.Close()))
			assert.NoError(t, m.cache.Close())
			assert.NoError(t, dev.Close())
		})
		return m
	}
}

// live returns the number of blocks of a cache, and their bytes, after all frees that can complete.
func (m *failing) live() any {
	if err := m.cache.PollFrees(); err != nil {
		return err
	}
	s := m.cache.Stats()
	return [3]int64{s.Allocation.All.Current, s.AllocatedBytes.All.Current, s.RequestedBytes.All.Current}
}

// take allocates a block before the attempt.
func (m *failing) take(t testing.TB, bytes int64) memcache.Block {
	t.Helper()
	b, err := m.cache.Alloc(context.Background(), bytes, m.s1)
	require.NoError(t, err)
	return b
}

// allocates returns an attempt that allocates a block with alloc.
func (m *failing) allocates(alloc func(ctx context.Context) (memcache.Block, error)) failtest.Trial {
	var b memcache.Block
	return failtest.Trial{
		Do: func(ctx context.Context) (err error) {
			got, err := alloc(ctx)
			if err == nil {
				b = got
			} else if !got.IsZero() {
				return errors.Join(err, errors.New("there is a block beside the error"))
			}
			return err
		},
		See: func() any { return []any{b.Size(), m.cache.MemoryAllocated()} },
		Undo: func() error {
			err := b.Free()
			b = memcache.Block{}
			return err
		},
	}
}

// failureRows are programs of the cache's operations.
var failureRows = []failtest.Row[*failing]{
	{Of: "New", Make: func(_ testing.TB, m *failing) failtest.Trial {
		var cache *memcache.Cache
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				cache, err = memcache.New(m.dev, m.cache.Config())
				return err
			},
			Undo: func() error { return cache.Close() },
		}
	}},
	{Of: "Cache.Alloc small", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.allocates(func(ctx context.Context) (memcache.Block, error) { return m.cache.Alloc(ctx, 512, m.s1) })
	}},
	{Of: "Cache.Alloc large", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.allocates(func(ctx context.Context) (memcache.Block, error) { return m.cache.Alloc(ctx, 30<<20, m.s1) })
	}},
	{Of: "Cache.Alloc that flushes", Make: func(t testing.TB, m *failing) failtest.Trial {
		a, b := m.take(t, 400<<20), m.take(t, 400<<20)
		require.NoError(t, errors.Join(a.Free(), b.Free()))
		return m.allocates(func(ctx context.Context) (memcache.Block, error) { return m.cache.Alloc(ctx, 700<<20, m.s1) })
	}},
	{Of: "Cache.Alloc of what another stream has used", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 600<<20)
		require.NoError(t, errors.Join(a.RecordStream(m.s2), a.Free()))
		return m.allocates(func(ctx context.Context) (memcache.Block, error) { return m.cache.Alloc(ctx, 600<<20, m.s1) })
	}},
	{Of: "Cache.Alloc of what another stream has free", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 600<<20)
		require.NoError(t, a.Free())
		return m.allocates(func(ctx context.Context) (memcache.Block, error) { return m.cache.Alloc(ctx, 600<<20, m.s2) })
	}},
	{Of: "Cache.Alloc that releases the largest", Make: func(t testing.TB, m *failing) failtest.Trial {
		a, b := m.take(t, 300<<20), m.take(t, 310<<20)
		require.NoError(t, errors.Join(a.Free(), b.Free()))
		return m.allocates(func(ctx context.Context) (memcache.Block, error) { return m.cache.Alloc(ctx, 600<<20, m.s1) })
	}},
	{Of: "Cache.AllocWorkspace", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.allocates(func(ctx context.Context) (memcache.Block, error) {
			return m.cache.AllocWorkspace(ctx, 3<<20, m.s1)
		})
	}},
	{Of: "Cache.Wait", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 700<<20)
		require.NoError(t, a.Free())
		return m.allocates(func(ctx context.Context) (memcache.Block, error) {
			return m.cache.Alloc(m.cache.Wait(ctx), 800<<20, m.s1)
		})
	}},
	{Of: "Blocks.Alloc", Make: func(_ testing.TB, m *failing) failtest.Trial {
		var all memcache.Blocks
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				_, err := all.Alloc(ctx, m.cache, 3<<20, m.s1)
				return err
			},
			See:  func() any { return m.cache.MemoryAllocated() },
			Undo: func() error { return all.Free() },
		}
	}},
	{Of: "Blocks.RecordStream", Make: func(t testing.TB, m *failing) failtest.Trial {
		var all memcache.Blocks
		for range 2 {
			_, err := all.Alloc(context.Background(), m.cache, 512, m.s1)
			require.NoError(t, err)
		}
		return failtest.Trial{Do: func(context.Context) error { return all.RecordStream(m.s2) }, Undo: all.Free}
	}},
	{Of: "Block.Free Blocks.Free", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 512)
		return failtest.Trial{Do: func(context.Context) error { return a.Free() }, See: func() any { return m.cache.MemoryAllocated() }}
	}},
	{Of: "Block.FreeContext of what another stream uses", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 512)
		require.NoError(t, a.RecordStream(m.s2))
		return failtest.Trial{
			Do:   func(ctx context.Context) error { return a.FreeContext(ctx) },
			See:  func() any { return m.cache.MemoryAllocated() },
			Undo: m.cache.PollFrees,
		}
	}},
	{Of: "Block.RecordStream Block.EraseStream", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 512)
		return failtest.Trial{Do: func(context.Context) error { return errors.Join(a.RecordStream(m.s2), a.EraseStream(m.s2)) }, Undo: a.Free}
	}},
	{Of: "Cache.PollFrees", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 512)
		require.NoError(t, errors.Join(a.RecordStream(m.s2), a.Free()))
		return failtest.Trial{Do: func(context.Context) error { return m.cache.PollFrees() }, See: func() any { return m.cache.MemoryAllocated() }}
	}},
	{Of: "Cache.WaitStream", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 512)
		require.NoError(t, a.RecordStream(m.s2))
		return failtest.Trial{Do: func(context.Context) error { return m.cache.WaitStream(m.s1, m.s2) }, Undo: a.Free}
	}},
	{Of: "Cache.EmptyCache", Make: func(t testing.TB, m *failing) failtest.Trial {
		small, large := m.take(t, 512), m.take(t, 30<<20)
		require.NoError(t, errors.Join(small.Free(), large.Free()))
		return failtest.Trial{
			Do: m.cache.EmptyCache,
		}
	}},
	{Of: "Cache.TrimTo", Make: func(t testing.TB, m *failing) failtest.Trial {
		small, large := m.take(t, 512), m.take(t, 30<<20)
		require.NoError(t, errors.Join(small.Free(), large.Free()))
		return failtest.Trial{Do: func(ctx context.Context) error {
			_, err := m.cache.TrimTo(ctx, 0)
			return err
		}}
	}},
	{Of: "Cache.SetConfig", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 30<<20)
		require.NoError(t, a.Free())
		cfg := m.cache.Config()
		cfg.MaxSplitSizeMB = 40
		return failtest.Trial{
			Do:  func(ctx context.Context) error { return m.cache.SetConfig(ctx, cfg) },
			See: func() any { return m.cache.Config().MaxSplitSizeMB },
		}
	}},
	{Of: "Cache.SetMemoryFraction", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return failtest.Trial{
			Do:  func(context.Context) error { return m.cache.SetMemoryFraction(0.5) },
			See: func() any { return m.cache.MemoryLimit() },
		}
	}},
	{Of: "Cache.SetMemoryLimit", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return failtest.Trial{
			Do:  func(context.Context) error { return m.cache.SetMemoryLimit(700 << 20) },
			See: func() any { return m.cache.MemoryLimit() },
		}
	}},
	{Of: "Cache.NewPool Pool.Context Pool.EmptyCache Pool.Release", Make: func(_ testing.TB, m *failing) failtest.Trial {
		var pool *memcache.Pool
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				p, err := m.cache.NewPool(memcache.PoolOptions{})
				if err != nil {
					return err
				}
				b, err := m.cache.Alloc(p.Context(ctx), 3<<20, m.s1)
				if err == nil {
					err = b.Free()
				}
				if err == nil && !m.cache.Config().Exact { // its segments stay until Release
					err = p.EmptyCache(ctx)
				}
				if err != nil {
					return errors.Join(err, p.Release())
				}
				pool = p
				return nil
			},
			Undo: func() error { return pool.Release() },
		}
	}},
	{Of: "Pool.Enter", Make: func(t testing.TB, m *failing) failtest.Trial {
		pool, err := m.cache.NewPool(memcache.PoolOptions{})
		require.NoError(t, err)
		var b memcache.Block
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				leave, err := pool.Enter()
				if err != nil {
					return err
				}
				defer leave()
				got, err := m.cache.Alloc(ctx, 3<<20, m.s1)
				if err == nil {
					b = got
				}
				return err
			},
			See:  func() any { return []any{b.Size(), pool.Stats().AllocatedBytes.All.Current} },
			Undo: func() error { return errors.Join(b.Free(), pool.Release()) },
		}
	}},
	{Of: "Block.SetLabel Cache.SetHistoryStacks", Make: func(t testing.TB, m *failing) failtest.Trial {
		a := m.take(t, 512)
		require.NoError(t, m.cache.RecordHistory(memcache.HistoryOptions{Entries: 10}))
		return failtest.Trial{
			Do: func(context.Context) error {
				return errors.Join(a.SetLabel(memcache.Label{Module: "m"}), m.cache.SetHistoryStacks(memcache.StacksAlloc))
			},
			See:  func() any { return a.Label().Module },
			Undo: a.Free,
		}
	}},
	{Of: "Cache.StreamHistory HistoryStream.Next", Make: func(_ testing.TB, m *failing) failtest.Trial {
		var seen int
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				stream, err := m.cache.StreamHistory(memcache.HistoryOptions{Entries: 100})
				if err != nil {
					return err
				}
				defer stream.Close()
				b, err := m.cache.Alloc(ctx, 3<<20, m.s1)
				if err != nil {
					return err
				}
				if err := b.Free(); err != nil {
					return err
				}
				entries, err := stream.Next(0)
				seen = 0 // a failure is in the history too
				for _, e := range entries {
					if e.Action == memcache.ActionAlloc {
						seen++
					}
				}
				return err
			},
			See: func() any { return seen },
		}
	}},
	{Of: "Cache.RecordHistory", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return failtest.Trial{
			Do:  func(context.Context) error { return m.cache.RecordHistory(memcache.HistoryOptions{Entries: 10}) },
			See: func() any { return len(m.cache.History()) },
		}
	}},
}

// TestEveryFailure: if any driver call or check of a context fails, a cache operation has either
// completed or changed nothing, and succeeds when repeated.
func TestEveryFailure(t *testing.T) {
	for name, cfg := range map[string]memcache.Config{
		"plain": {}, "expandable": {ExpandableSegments: true}, "exact": {Exact: true}, "collected": {GarbageCollectionThreshold: 0.5, MaxSplitSizeMB: 200},
		"reused": {ReuseAcrossStreams: memcache.ReuseBeforeGrowth}, "reused when full": {ReuseAcrossStreams: memcache.ReuseWhenFull}, "little cached": {MaxCachedBytes: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			failtest.Suite[*failing]{Open: openFailing(cfg), Live: func(m *failing) any { return m.live() }, Rows: failureRows}.Run(t)
		})
	}
}

// TestGranulesThatStayMapped: granules that a request without memory had mapped, and that the
// driver fails to unmap, are used by the next request, or unmapped by EmptyCache or Close.
func TestGranulesThatStayMapped(t *testing.T) {
	stuck := 0
	for k := 1; ; k++ {
		f := new(failtest.Faults)
		m := openFailing(memcache.Config{ExpandableSegments: true})(t, f)
		held := m.take(t, 600<<20)
		f.Arm(failtest.Failed, k)
		_, err := m.cache.Alloc(context.Background(), 600<<20, m.s2)
		failed, _ := f.Disarm()
		require.Error(t, err)
		if failed == "" {
			require.NoError(t, held.Free())
			break
		}
		free, _, err := m.dev.MemInfo()
		require.NoError(t, err)
		if mapped := 1<<30 - free - 600<<20; mapped > 0 && failed == "Unmap" {
			stuck++
			if k%2 == 0 {
				require.NoError(t, m.cache.EmptyCache(context.Background()))
				free, _, err = m.dev.MemInfo()
				require.NoError(t, err)
				require.EqualValues(t, 424<<20, free)
			} else {
				b, err := m.cache.Alloc(context.Background(), 300<<20, m.s2)
				require.NoError(t, err)
				require.NoError(t, b.Free())
			}
		}
		require.NoError(t, held.Free())
	}
	require.Greater(t, stuck, 10)
}

// TestCloseThatFails: Close returns all memory except that of the failed call, and reports the
// error.
func TestCloseThatFails(t *testing.T) {
	for _, cfg := range []memcache.Config{{}, {ExpandableSegments: true}} {
		for k := 1; ; k++ {
			f := new(failtest.Faults)
			dev, err := failtest.NewNull(f, null.Config{Capacity: 1 << 30})
			require.NoError(t, err)
			cache, err := memcache.New(dev, cfg)
			require.NoError(t, err)
			s, err := dev.NewStream(device.StreamOptions{})
			require.NoError(t, err)
			for _, bytes := range []int64{512, 3 << 20, 30 << 20} {
				b, err := cache.Alloc(context.Background(), bytes, s)
				require.NoError(t, err)
				require.NoError(t, b.Free())
			}
			f.Arm(failtest.Failed, k)
			err = cache.Close()
			failed, calls := f.Disarm()
			free, total, infoErr := dev.MemInfo()
			require.NoError(t, infoErr)
			if failed == "" {
				require.NoError(t, err)
				require.Zero(t, total-free)
				require.Greater(t, calls[failtest.Failed], 1)
				require.NoError(t, errors.Join(s.Close(), dev.Close()))
				break
			}
			require.ErrorIs(t, err, failtest.ErrFailed, failed)
			require.NoError(t, cache.Close(), "a second time")
			require.LessOrEqual(t, total-free, int64(30<<20), "%s: memory that was not given back", failed)
			leaktest.Excuse(dev)
			require.Error(t, errors.Join(s.Close(), dev.Close()), "the device says what is still in use")
		}
	}
}
