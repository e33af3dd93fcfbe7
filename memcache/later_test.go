package memcache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestThrowOnCudaMallocOOM: a request beyond the limit fails at once. Nothing is flushed and no
// function is called, although the free segments would have sufficed.
func TestThrowOnCudaMallocOOM(t *testing.T) {
	for _, throws := range []bool{true, false} {
		c, dev := newCache(t, Config{MemoryLimit: 60 << 20, ThrowOnCudaMallocOOM: throws})
		s := dev.stream(1)
		asked := 0
		c.OnPressure(func(context.Context, int64) int64 { asked++; return 0 })
		require.NoError(t, allocIn(t, t.Context(), c, 40<<20, s).Free())
		_, err := c.Alloc(t.Context(), 50<<20, s)
		stats := c.Stats()
		if !throws {
			require.NoError(t, err)
			require.EqualValues(t, []int64{1, 0, 0}, []int64{stats.NumAllocRetries, stats.NumOOMs, stats.NumOOMRejections})
			continue
		}
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.Zero(t, asked)
		require.EqualValues(t, 40<<20, c.MemoryReserved())
		require.EqualValues(t, []int64{0, 1, 1, 0}, []int64{stats.NumAllocRetries, stats.NumOOMs, stats.NumOOMRejections, stats.NumSyncAllStreams})
		require.EqualValues(t, 1, stats.Map()["num_oom_rejections"])
		allocIn(t, t.Context(), c, 40<<20, s) // what is cached is served
		_, err = c.Alloc(t.Context(), 20<<20, s)
		require.NoError(t, err, "up to the limit")
		c.ResetAccumulatedStats()
		require.Zero(t, c.Stats().NumOOMRejections)
	}
}

// TestRejectionsAreFailures: a request that is rejected, waits and is served later counts as no
// rejection, and one that fails in the end counts once, however often it was retried.
func TestRejectionsAreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dev := newCache(t, Config{MemoryLimit: 100 * mib, ThrowOnCudaMallocOOM: true, NoCaching: true})
		s := dev.stream(1)
		held, err := c.Alloc(c.Wait(t.Context()), 80*mib, s)
		require.NoError(t, err)
		small, err := c.Alloc(c.Wait(t.Context()), 10*mib, s)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		served := asks(c.Wait(t.Context()), c, 60*mib, s)
		synctest.Wait()
		failed := asks(c.Wait(ctx), c, 90*mib, s) // after it in the queue
		synctest.Wait()
		require.NoError(t, small.Free()) // a retry that is in vain
		synctest.Wait()
		require.NoError(t, held.Free())
		b, err := served()
		require.NoError(t, err)
		require.Zero(t, c.Stats().NumOOMRejections)
		synctest.Wait()
		cancel()
		_, err = failed()
		require.ErrorIs(t, err, ErrOutOfMemory)
		stats := c.Stats()
		require.EqualValues(t, []int64{1, 1}, []int64{stats.NumOOMs, stats.NumOOMRejections})
		require.NoError(t, errors.Join(b.Free(), c.Close()))
	})
}

// TestExpandableSegmentsReserve: a segment has as many addresses as the option specifies, and a
// request for more is out of memory.
func TestExpandableSegmentsReserve(t *testing.T) {
	for _, test := range []struct {
		option string
		most   int64
	}{{"0.25", 256 << 20}, {"0.125G", 128 << 20}, {"40G", 1<<30 + 1<<27}, {"1", 1 << 30}} {
		config, err := ParseConfig("expandable_segments:True,expandable_segments_reserve:" + test.option)
		require.NoError(t, err)
		require.Contains(t, config.Options(), "expandable_segments_reserve:"+test.option)
		dev := newScripted(1 << 30)
		c, err := New(dev, config)
		require.NoError(t, err)
		s := dev.stream(1)
		most := (test.most + 20<<20 - 1) / (20 << 20) * (20 << 20) // whole granules
		if most < 1<<30 {
			allocIn(t, t.Context(), c, most, s)
		}
		_, err = c.Alloc(t.Context(), most+512, s)
		require.ErrorIs(t, err, ErrOutOfMemory)
		if test.most < 1<<30 {
			require.ErrorContains(t, err, "out of memory")
			allocIn(t, t.Context(), c, 20<<20, s) // another segment serves what fits one
		}
	}
	for _, option := range []string{"0", "-1", "2", "0G", "-1G", "x", "1e30G"} {
		_, err := ParseConfig("expandable_segments_reserve:" + option)
		require.ErrorIs(t, err, ErrInvalid, option)
	}
}

// TestReservedBytesByPrivatePools: each unreleased pool has its part of the reserved bytes, under
// PyTorch's names.
func TestReservedBytesByPrivatePools(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.Nil(t, c.Stats().ReservedBytesByPrivatePools)
	allocIn(t, t.Context(), c, 30<<20, s)
	p, inP := newPool(t, c, PoolOptions{})
	_, inQ := newPool(t, c, PoolOptions{ID: PoolID{7, 0}})
	allocIn(t, inP, c, 3<<20, s)
	require.NoError(t, allocIn(t, inQ, c, 100, s).Free())
	stats := c.Stats()
	require.EqualValues(t, 20<<20, stats.ReservedBytesByPrivatePools[PoolID{0, 1}].All.Current)
	m := stats.Map()
	require.EqualValues(t, 20<<20, m["reserved_bytes_by_private_pools.0_1.large_pool.peak"])
	require.EqualValues(t, 2<<20, m["reserved_bytes_by_private_pools.7_0.all.allocated"])
	require.Len(t, m, 123+2*12)
	require.NoError(t, p.Release())
	require.NotContains(t, c.Stats().ReservedBytesByPrivatePools, PoolID{0, 1})
}

// TestOptionsOfLaterVersions: options that PyTorch accepts and that have no meaning here change
// nothing. Values that it refuses are refused.
func TestOptionsOfLaterVersions(t *testing.T) {
	for options, want := range map[string]Config{
		"throw_on_cudamalloc_oom:True":                                 {ThrowOnCudaMallocOOM: true},
		"throw_on_hipmalloc_oom:True,release_lock_on_hipmalloc:True":   {ThrowOnCudaMallocOOM: true, ReleaseLockOnCudaMalloc: true},
		"pinned_free_catch_all:True,pinned_use_hip_host_register:True": {},
		"expandable_segments_reserve_by_class:[capture:0.25,work:40G]": {},
		"expandable_segments_reserve:0.5":                              {ExpandableSegmentsReserve: 0.5},
		"expandable_segments_reserve:40G":                              {ExpandableSegmentsReserve: 40 << 30},
	} {
		got, err := ParseConfig(options)
		require.NoError(t, err, options)
		require.Equal(t, want, got, options)
		back, err := ParseConfig(got.Options())
		require.NoError(t, err, got.Options())
		require.Equal(t, got, back)
	}
	for _, options := range []string{"throw_on_cudamalloc_oom:1", "throw_on_cudamalloc_oom", "expandable_segments_reserve_by_class:0.5", "pinned_free_catch_all:yes", "throw_on_oom:True"} {
		_, err := ParseConfig(options)
		require.ErrorIs(t, err, ErrInvalid, options)
	}
}
