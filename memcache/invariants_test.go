package memcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// TestChecksFindMistakes breaks one thing at a time, because checks that accept everything would
// prove nothing.
func TestChecksFindMistakes(t *testing.T) {
	for name, corrupt := range map[string]func(c *Cache, h *handout){
		"a state":               func(_ *Cache, h *handout) { h.pending = true },
		"a gauge":               func(_ *Cache, h *handout) { h.shard.used[placement.Small][gaugeActiveBlocks]++ },
		"a quota":               func(_ *Cache, h *handout) { h.shard.quota[allPools][gaugeAllocatedBytes]++ },
		"a peak":                func(c *Cache, _ *handout) { c.ledger.peaks[placement.Small][gaugeRequestedBytes]-- },
		"the reserved bytes":    func(c *Cache, _ *handout) { c.ledger.stats.ReservedBytes.add(placement.Small, 512) },
		"a sum of what came":    func(c *Cache, _ *handout) { c.ledger.stats.ReservedBytes.All.Allocated = -1 },
		"a sum of what went":    func(c *Cache, _ *handout) { c.ledger.stats.ReservedBytes.All.Freed = -1 },
		"a peak below":          func(c *Cache, _ *handout) { c.ledger.stats.ReservedBytes.All.Peak = 0 },
		"a block not in index":  func(_ *Cache, h *handout) { h.chunk.Next().TakeOut() },
		"a split counted twice": func(_ *Cache, h *handout) { h.shard.used[placement.Small][gaugeInactiveSplitBlocks]++ },
		"an owner":              func(_ *Cache, h *handout) { h.shard = nil },
		"a chunk":               func(_ *Cache, h *handout) { h.chunk = h.chunk.Next() },
		"a tag":                 func(_ *Cache, h *handout) { h.chunk.Tag = h.label },
	} {
		t.Run(name, func(t *testing.T) {
			c, dev := newCache(t, Config{})
			b := mustAlloc(t, c, 1000, dev.stream(1))
			require.NoError(t, c.check())
			corrupt(c, b.handout)
			require.Error(t, c.check())
			c.unverified.Store(0)
			require.Panics(t, c.verify)
		})
	}
}

// TestCountersBelowZero are reported in each build, whichever counter it is.
func TestCountersBelowZero(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(before)
	c, _ := newCache(t, Config{})
	reported := func(what string, mistake func()) {
		if invariants.Enabled {
			require.Panics(t, mistake, what)
			return
		}
		before := c.Stats().AccountingFaults
		mistake()
		require.Equal(t, before+1, c.Stats().AccountingFaults, what)
	}
	for g := range gauges {
		var below delta
		below[g] = -1
		var u usage
		reported(fmt.Sprintf("gauge %d", g), func() { u.tryAdd(placement.Small, &below) })
		u = usage{}
		reported(fmt.Sprintf("gauge %d at the end of a hand-out", g), func() { u.tryEnd(placement.Large, &below) })
	}
	var s Stat
	s.add(1)
	reported("a statistic", func() { s.sub(2) })
}

// TestFreedBlocksArePoisoned reads memory after its free: in builds with checks, it does not
// contain the owner's bytes.
func TestFreedBlocksArePoisoned(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	other := cisterntest.Stream(t, dev)
	for _, recorded := range []bool{false, true} {
		b, err := c.Alloc(t.Context(), 1000, s)
		require.NoError(t, err)
		require.NoError(t, s.Memset(b.Ptr(), 7, 1000))
		memory, err := dev.Bytes(b.Ptr(), 1000)
		require.NoError(t, err)
		if recorded {
			require.NoError(t, b.RecordStream(other))
		}
		require.NoError(t, errors.Join(b.Free(), other.Synchronize(t.Context())))
		_, err = c.Alloc(t.Context(), 4<<20, s) // notices that the other stream is past the block
		require.NoError(t, err)
		var first, last byte
		require.NoError(t, s.Launch(&device.Launch{Func: func() { first, last = memory[0], memory[999] }}))
		require.NoError(t, s.Synchronize(t.Context()))
		want := byte(7)
		if invariants.Enabled {
			want = poison
		}
		require.Equal(t, []byte{want, want}, []byte{first, last})
	}
	require.Error(t, errors.Join(c.Close(), dev.Close()), "two blocks were kept")
}

// TestReplaysPoisonWhatTheGraphHas: a block of the graph's pool that is freed in a capture is
// poisoned in each replay. A block that was allocated before the capture and freed in it is not,
// because it has another owner by then.
func TestReplaysPoisonWhatTheGraphHas(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	pool, err := c.NewPool(PoolOptions{})
	require.NoError(t, err)
	alloc := func(ctx context.Context) (*Block, []byte) {
		b, err := c.Alloc(ctx, 1000, s)
		require.NoError(t, err)
		memory, err := dev.Bytes(b.Ptr(), 1000)
		require.NoError(t, err)
		return &b, memory
	}
	before, _ := alloc(t.Context())
	capture := s.(device.GraphCapturer)
	require.NoError(t, capture.BeginCapture())
	require.NoError(t, before.Free())
	inside, graphs := alloc(pool.Context(t.Context()))
	require.NoError(t, inside.Free())
	graph, err := capture.EndCapture()
	require.NoError(t, err)
	after, theirs := alloc(t.Context())
	require.Equal(t, before.Ptr(), after.Ptr())
	for range 2 {
		require.NoError(t, errors.Join(s.Memset(after.Ptr(), 7, 1000), s.Memset(inside.Ptr(), 7, 1000), graph.Replay(s), s.Synchronize(t.Context())))
		want := byte(7)
		if invariants.Enabled {
			want = poison
		}
		require.Equal(t, []byte{want, want}, []byte{graphs[0], graphs[999]})
		require.Equal(t, []byte{7, 7}, []byte{theirs[0], theirs[999]})
	}
	require.NoError(t, errors.Join(graph.Close(), after.Free(), pool.Release(), c.Close(), dev.Close()))
}
