package memcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
)

// TestSetConfigOfAUsedCache: requests follow the new options, existing memory stays, and counts of
// large blocks follow.
func TestSetConfigOfAUsedCache(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, bg := dev.stream(1), t.Context()
	with := func(options string) {
		t.Helper()
		config, err := c.Config().With(options)
		require.NoError(t, err)
		require.NoError(t, c.SetConfig(bg, config))
		require.Equal(t, config, c.Config())
		require.NoError(t, c.check())
	}
	large := mustAlloc(t, c, 40<<20, s)
	rest := mustAlloc(t, c, 70<<20, s)
	require.NoError(t, rest.Free())
	with("max_split_size_mb:30")
	require.Equal(t, []int64{1, 1, 2, 30 << 20}, []int64{c.Stats().OversizeAllocations.Current, c.Stats().OversizeAllocations.Allocated,
		c.Stats().OversizeSegments.Current, c.Stats().MaxSplitSize})
	require.EqualValues(t, 26<<20, mustAlloc(t, c, 25<<20, s).Size())
	require.EqualValues(t, 136<<20, c.MemoryReserved(), "a segment of its own: the free one is not split")
	with("max_split_size_mb:50,roundup_power2_divisions:4")
	require.Equal(t, []int64{0, 1}, []int64{c.Stats().OversizeAllocations.Current, c.Stats().OversizeAllocations.Freed})
	require.EqualValues(t, 6144, mustAlloc(t, c, 5300, s).Size())
	with("")
	require.EqualValues(t, -1, c.Stats().MaxSplitSize)
	require.EqualValues(t, 5120, mustAlloc(t, c, 4700, s).Size(), "no divisions")
	require.NoError(t, large.Free())
}

// TestSetConfigToExpandableAndBack: memory of expandable segments serves no request while they are
// off, and a flush returns it.
func TestSetConfigToExpandableAndBack(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, bg := dev.stream(1), t.Context()
	set := func(change func(*Config)) {
		t.Helper()
		config := c.Config()
		change(&config)
		require.NoError(t, c.SetConfig(bg, config))
	}
	set(func(c *Config) { c.ExpandableSegments = true })
	b := mustAlloc(t, c, 30<<20, s)
	set(func(c *Config) { c.LargeSegmentSizeMB = 32 })
	require.NoError(t, b.Free())
	require.EqualValues(t, 40<<20, c.MemoryReserved())
	b = mustAlloc(t, c, 50<<20, s)
	require.EqualValues(t, 60<<20, c.MemoryReserved(), "it grows by its own granules, of 20 MiB")
	require.NoError(t, b.Free())

	set(func(c *Config) { c.ExpandableSegments = false })
	b = mustAlloc(t, c, 12<<20, s)
	require.EqualValues(t, 72<<20, c.MemoryReserved(), "a segment of its own")
	require.NoError(t, errors.Join(b.Free(), c.EmptyCache(bg)))
	require.Zero(t, c.MemoryReserved())
	require.NoError(t, c.Close())
	require.Empty(t, dev.mapped)
	require.Empty(t, dev.reserved)
	require.Empty(t, dev.live)
}

// TestSetConfigSetsTheLimit: the configuration's limit is applied, and limits that were set are in
// the cache's Config.
func TestSetConfigSetsTheLimit(t *testing.T) {
	c, _ := newCache(t, Config{GarbageCollectionThreshold: 0.5})
	require.NoError(t, c.SetMemoryFraction(0.5))
	require.Equal(t, 0.5, c.Config().PerProcessMemoryFraction)
	require.True(t, c.shards.gcArmed.Load())
	require.NoError(t, c.SetMemoryLimit(100<<20))
	require.Equal(t, Config{GarbageCollectionThreshold: 0.5, MemoryLimit: 100 << 20}, c.Config())
	require.NoError(t, c.SetConfig(t.Context(), Config{PerProcessMemoryFraction: 0.25}))
	require.EqualValues(t, 256<<20, c.MemoryLimit())
	require.False(t, c.shards.gcArmed.Load())
	require.NoError(t, c.SetMemoryFraction(0))
	require.NoError(t, c.SetConfig(t.Context(), c.Config()))
	require.Zero(t, c.MemoryLimit())
	require.NoError(t, c.SetConfig(t.Context(), Config{}))
	require.EqualValues(t, 1<<30, c.MemoryLimit())
}

// TestSetConfigRefuses invalid changes, changes of fixed options, and changes after Close. The
// options stay.
func TestSetConfigRefuses(t *testing.T) {
	c, _ := newCache(t, Config{MaxSplitSizeMB: 40})
	for want, config := range map[string]Config{
		"MaxSplitSizeMB is 10":          {MaxSplitSizeMB: 10},
		"memory fraction 2":             {PerProcessMemoryFraction: 2},
		"NoCaching is false, and can't": {NoCaching: true},
		"Exact is false, and can't":     {Exact: true},
	} {
		err := c.SetConfig(t.Context(), config)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.SetConfig(ended, Config{}), context.Canceled)
	var none context.Context
	require.ErrorIs(t, c.SetConfig(none, Config{}), ErrInvalid)
	require.Equal(t, Config{MaxSplitSizeMB: 40}, c.Config())
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.SetConfig(t.Context(), Config{}), ErrClosed)

	dev, err := host.New(host.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	plain, err := New(noAddresses{dev}, Config{})
	require.NoError(t, err)
	err = plain.SetConfig(t.Context(), Config{ExpandableSegments: true})
	require.ErrorContains(t, err, "no virtual memory")
	require.NoError(t, errors.Join(plain.Close(), dev.Close()))
}

// TestOptionsOfAHistoryStream: each set_options has its own options, and an unknown number does not
// panic.
func TestOptionsOfAHistoryStream(t *testing.T) {
	c, _ := newCache(t, Config{MemoryLimit: 1 << 30})
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	require.NoError(t, c.SetConfig(t.Context(), Config{MaxSplitSizeMB: 40, MemoryLimit: 1 << 20}))
	require.NoError(t, c.SetConfig(t.Context(), Config{}))
	stream.Close()
	require.Equal(t, []string{"max_split_size_mb:40", "", ""}, []string{stream.Options(0), stream.Options(1), stream.Options(2)})
	require.Equal(t, []Action{ActionSetOptions, ActionSetLimit, ActionSetOptions, ActionSetLimit}, actions(t, stream))
}

// TestConfigWith: like PyTorch it resets four options with each string, and keeps the others.
func TestConfigWith(t *testing.T) {
	c := Config{MaxSplitSizeMB: 40, MaxNonSplitRoundingMB: 30, RoundupPower2Divisions: AllDivisions(4), GarbageCollectionThreshold: 0.5,
		ExpandableSegments: true, LargeSegmentSizeMB: 24, PerProcessMemoryFraction: 0.5}
	got, err := c.With("max_split_size_mb:64")
	require.NoError(t, err)
	require.Equal(t, Config{MaxSplitSizeMB: 64, ExpandableSegments: true, LargeSegmentSizeMB: 24, PerProcessMemoryFraction: 0.5}, got)
	got, err = Config{MemoryLimit: 5, MaxCachedBytes: 6}.With("memory_limit:0,max_cached_bytes:0")
	require.NoError(t, err)
	require.Equal(t, Config{}, got, "limits can be lifted")
	_, err = c.With("max_split_size_mb:22")
	require.ErrorContains(t, err, `With("max_split_size_mb:22")`)
	require.ErrorContains(t, err, "24 MiB")
}

// TestSetConfigConcurrentSafe: options change while goroutines allocate, under -race, and the
// statistics add up.
func TestSetConfigConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{})
	var wg sync.WaitGroup
	for g := range 4 {
		s := dev.stream(uint64(g + 1))
		wg.Go(func() {
			for i := range 300 {
				b, err := c.Alloc(context.Background(), int64(1+i*7919%(30<<20)), s)
				if err != nil || b.Free() != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 100 {
		config := Config{MaxSplitSizeMB: int64(i%3) * 20, ExpandableSegments: i%2 == 0, RoundupPower2Divisions: AllDivisions(i % 2 * 4), GraphCaptureRecordStreamReuse: i%2 == 1}
		require.NoError(t, c.SetConfig(t.Context(), config))
	}
	wg.Wait()
	require.NoError(t, c.check())
	require.Zero(t, c.Stats().OversizeAllocations.Current)
	require.NoError(t, c.Close())
}

// TestSetConfigPool: the statistics of a private pool follow as the cache's do.
func TestSetConfigPool(t *testing.T) {
	c, dev := newCache(t, Config{})
	p, ctx := newPool(t, c, PoolOptions{})
	allocIn(t, ctx, c, 40<<20, dev.stream(1))
	require.NoError(t, c.SetConfig(t.Context(), Config{MaxSplitSizeMB: 30}))
	require.EqualValues(t, 1, p.Stats().OversizeAllocations.Current)
	require.NoError(t, c.SetConfig(t.Context(), Config{}))
	require.Equal(t, Stat{Peak: 1, Allocated: 1, Freed: 1}, p.Stats().OversizeAllocations)
}

// changeOptions changes the options that determine sizes and placement.
func (w *crowd) changeOptions(ctx context.Context, r *rand.Rand) error {
	config := w.cache.Config()
	config.MaxSplitSizeMB, config.MaxNonSplitRoundingMB, config.LargeSegmentSizeMB = []int64{0, 20, 40}[r.IntN(3)], 0, []int64{0, 12}[r.IntN(2)]
	config.RoundupPower2Divisions = AllDivisions(r.IntN(2) * 4)
	if config.ExpandableRemap = false; w.bytes == nil {
		config.ExpandableSegments = r.IntN(2) == 0
	}
	err := w.cache.SetConfig(ctx, config)
	if w.expected(err) {
		err = nil
	}
	return err
}
