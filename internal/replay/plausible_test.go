package replay

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// TestFindsAgainstCache: finds predicts from a snapshot whether free blocks, or blocks that will be
// free, serve a request, and the cache then does the same. The sizes are near those at which the
// options make a difference.
func TestFindsAgainstCache(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 20
	}
	found := map[bool]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		config := memcache.Config{Exact: true, MaxSplitSizeMB: []int64{0, 24, 44}[rng.IntN(3)]}
		if config.MaxSplitSizeMB > 0 {
			config.MaxNonSplitRoundingMB = []int64{0, 40}[rng.IntN(2)]
		}
		dev, err := null.New(null.Config{Capacity: 1 << 40})
		require.NoError(t, err)
		cache, err := memcache.New(dev, config)
		require.NoError(t, err)
		p := &recording.Program{Recording: &recording.Recording{Entries: make([]recording.Entry, 1)}}
		r := &run{machine: &machine{p: p}, config: config}
		var streams []device.Stream
		for range 2 {
			s, err := dev.NewStream(device.StreamOptions{})
			require.NoError(t, err)
			streams = append(streams, s)
		}
		var live []memcache.Block
		for range 120 {
			free, snapshot := map[device.Ptr]bool{}, cache.Snapshot().Segments
			for i := len(live) - 1; i >= 0; i-- {
				if rng.IntN(6) == 0 {
					free[live[i].Ptr()] = true
					require.NoError(t, live[i].Free())
					live = append(live[:i], live[i+1:]...)
				}
			}
			const mib = 1 << 20
			n := []int64{rng.Int64N(4096), mib, 1 + rng.Int64N(2*mib), 24 * mib, 44 * mib, 64 * mib, 84 * mib}[rng.IntN(7)]
			n = max(1, n+512*(rng.Int64N(3)-1))
			s := streams[rng.IntN(2)]
			p.Entries[0] = recording.Entry{Size: n, Stream: s.ID()}
			finds := r.finds(snapshot, &recording.Step{}, free)
			before := cache.Stats().Segment.All.Allocated
			b, err := cache.Alloc(t.Context(), n, s)
			require.NoError(t, err)
			live = append(live, b)
			require.Equal(t, cache.Stats().Segment.All.Allocated == before, finds, "seed %d: %d bytes with %+v", seed, n, config)
			found[finds]++
		}
		for _, b := range live {
			require.NoError(t, b.Free())
		}
		require.NoError(t, cache.Close())
		for _, s := range streams {
			require.NoError(t, s.Close())
		}
		require.NoError(t, dev.Close())
	}
	require.Greater(t, found[true], 100)
	require.Greater(t, found[false], 100)
}
