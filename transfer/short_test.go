package transfer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
)

// Gets that lose to others again and again make one slab more, up to half as many idle ones as there are shards, and no
// large ones; once in a while they don't.
func TestShort(t *testing.T) {
	dev, err := host.New(host.Config{})
	require.NoError(t, err)
	const shards = 8
	p := newPool(dev, Config{}, shards)
	class, size := classOf(64 << 10)
	lose := func(class int, size int64, apart time.Duration) bool {
		p.late = 0
		for range manyLate - 1 {
			p.lateAt = time.Now().Add(-apart)
			if p.short(class, size) {
				return true
			}
		}
		p.lateAt = time.Now().Add(-apart)
		return p.short(class, size)
	}
	require.False(t, lose(class, size, time.Hour))
	large, largeSize := classOf(DefaultMaxCachedBytes/shards/8 + 1)
	require.False(t, lose(large, largeSize, -time.Hour))
	for n := range shards {
		require.Equal(t, 2*n < shards, lose(class, size, -time.Hour), "with %d idle", n)
		s, err := p.allocSlab(t.Context(), class, size)
		require.NoError(t, err)
		p.lend(p.shards[n], size)
		p.lendSlot(p.shards[n], class)
		require.True(t, p.shards[n].put(s))
		p.shards[n].apply(&change{gaugeCached: size})
		p.raise(p.shards[n])
	}
	require.NoError(t, p.Close())
	require.NoError(t, dev.Close())
}
