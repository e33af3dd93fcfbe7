package report

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestFromCacheOfOneMoment: while a goroutine allocates, the blocks of a report are those of its
// profile, and its peak is not below them.
func TestFromCacheOfOneMoment(t *testing.T) {
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20})
	var worker sync.WaitGroup
	var stop atomic.Bool
	defer worker.Wait()
	defer stop.Store(true)
	worker.Go(func() {
		var held []memcache.Block
		for n := int64(1); !stop.Load(); n++ {
			b, err := s.Cache.Alloc(t.Context(), n%64<<10|1, s.Stream)
			if err != nil {
				t.Error(err)
				return
			}
			if held = append(held, b); len(held) == 100 {
				s.Cache.ResetPeakStats()
				for _, b := range held {
					if err := b.Free(); err != nil {
						t.Error(err)
					}
				}
				held = held[:0]
			}
		}
		for _, b := range held {
			if err := b.Free(); err != nil {
				t.Error(err)
			}
		}
	})
	last := int64(-1)
	for changes := 0; changes < 20; {
		r, err := FromCache(s.Cache, nil, Options{})
		require.NoError(t, err)
		blocks := int64(0)
		for _, seg := range r.account.final {
			for _, b := range seg.blocks {
				blocks += b.size
			}
		}
		now, peak := r.account.profiles[0], r.account.profiles[1]
		require.Equal(t, blocks, now.allocated)
		require.LessOrEqual(t, now.allocated, peak.allocated)
		require.LessOrEqual(t, now.reserved, r.account.mostReserved)
		if now.allocated != last {
			changes++
		}
		last = now.allocated
	}
}
