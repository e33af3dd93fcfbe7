package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestGetBesideCloseTakesNoSlabs: a Get takes no slabs from the queues while the pool is being
// closed, because Close would take such a slab for one of a buffer that is out, and count it twice.
func TestGetBesideCloseTakesNoSlabs(t *testing.T) {
	p := newShards(t, Config{MaxCachedBytes: 30_000}, 1)
	s := cisterntest.Stream(t, p.dev)
	cache, err := memcache.New(p.dev, memcache.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cache.Close()) })
	block, err := cache.Alloc(t.Context(), 50_000, s)
	require.NoError(t, err)
	b, err := p.Get(t.Context(), 50_000)
	require.NoError(t, err)
	open := cisterntest.Hold(t, s)
	_, err = p.H2D(t.Context(), s, block, 0, b, 0, 50_000)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	open()
	require.NoError(t, s.Synchronize(t.Context()))

	p.shut() // as Close begins
	sh := p.cache.shards[0]
	class, _ := classOf(50_000)
	sh.Lock()
	require.Nil(t, sh.takeAndUnlock(class, 50_000))
	require.Len(t, sh.queues, 1)
	require.Empty(t, sh.excess)
	require.NoError(t, block.Free())
	require.NoError(t, p.Close())
	st := p.Stats()
	require.Zero(t, [4]int64{st.AllocatedBytes.Current, st.ActiveBytes.Current, st.CachedBytes.Current, st.Pending})
}
