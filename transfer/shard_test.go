package transfer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// newShards returns a pool of n shards, of which every call uses the last, on its own device.
func newShards(t *testing.T, cfg Config, shards int) *Pool {
	dev := cisterntest.Host(t, 0)
	p := newPool(dev, cfg, shards)
	p.cache.processor = func() int { return shards - 1 }
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, dev.Close())
	})
	return p
}

// idleIn adds an idle slab to a shard.
func (p *Pool) idleIn(t *testing.T, sh *shard, bytes int64) {
	t.Helper()
	class, size := classOf(bytes)
	mem, err := p.pinned.alloc(t.Context(), size)
	require.NoError(t, err)
	s := &slab{pool: p, mem: mem, class: class}
	sh.putNew(s, bytes)
	sh.Lock()
	defer sh.Unlock()
	sh.takeBack(s, bytes)
}

// A Get waits for a busy shard before it calls the driver, and takes the slab that is there.
func TestGetWaitsForABusyShard(t *testing.T) {
	for busy := range 3 {
		p := newShards(t, Config{}, 4)
		p.idleIn(t, p.cache.shards[busy], 64)
		p.cache.shards[busy].Lock() // by another processor
		got := make(chan error)
		go func() {
			b, err := p.Get(t.Context(), 64)
			if err == nil {
				err = b.Release()
			}
			got <- err
		}()
		select {
		case <-got:
			t.Error("it did not wait")
		case <-time.After(20 * time.Millisecond):
		}
		p.cache.shards[busy].Unlock()
		require.NoError(t, <-got)
		require.EqualValues(t, 1, p.Stats().Allocations.Current)
		require.Equal(t, []int{0, 0, 0, 1}, p.idles(64))
	}
}

// A Get begins its search at the shard of its last success.
func TestSearchBeginsWhereItFound(t *testing.T) {
	p := newShards(t, Config{}, 4)
	p.idleIn(t, p.cache.shards[2], 64)
	p.idleIn(t, p.cache.shards[2], 64)
	var bufs []Buffer
	for _, want := range [][]int{{0, 0, 1, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}} {
		b, err := p.Get(t.Context(), 64)
		require.NoError(t, err)
		bufs = append(bufs, b)
		require.Equal(t, want, p.idles(64))
		if len(bufs) == 1 {
			p.idleIn(t, p.cache.shards[0], 64)
			require.Equal(t, []int{1, 0, 1, 0}, p.idles(64))
		}
	}
	for _, b := range bufs {
		require.NoError(t, b.Release())
	}
}

// The next Release frees memory that Stats finds over the budget, in any shard.
func TestReleaseFreesWhatStatsFound(t *testing.T) {
	p := newShards(t, Config{MaxCachedBytes: 1 << 20}, 4)
	p.idleIn(t, p.cache.shards[3], 64)
	p.idleIn(t, p.cache.shards[3], 64)
	b, err := p.Get(t.Context(), 64) // keeps its share of the limit
	require.NoError(t, err)
	p.idleIn(t, p.cache.shards[0], 2<<20) // as if a copy had ended just now
	for range 2 {
		st := p.Stats()
		require.EqualValues(t, 64, st.CachedBytes.Current)
		require.EqualValues(t, 128, st.AllocatedBytes.Current)
		require.EqualValues(t, 2<<20+128, st.HeldBytes.Current)
	}
	require.NoError(t, b.Release())
	require.EqualValues(t, 128, p.Stats().HeldBytes.Current)
}
