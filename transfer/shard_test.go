package transfer

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/cisterntest"
)

// newShards is a pool of so many shards, of which every call uses the last, on a device of its own.
func newShards(t *testing.T, cfg Config, shards int) *Pool {
	dev := cisterntest.Host(t, 0)
	p := newPool(dev, cfg, shards)
	p.hints.New = func() any { return p.shards[shards-1] }
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, dev.Close())
	})
	return p
}

// idleIn makes a slab that nothing uses, in a shard, which gets room for it if it is not larger than the budget.
func (p *Pool) idleIn(t *testing.T, sh *shard, bytes int64) {
	class, size := classOf(bytes)
	s, err := p.allocSlab(t.Context(), class, size, false)
	require.NoError(t, err)
	p.addSlab(sh, s, bytes)
	sh.apply(&delta{gaugeRequests: -1, gaugeRequestedBytes: -bytes})
	if size > p.budget {
		sh.reclaim(s)
		return
	}
	p.grantBytes(sh, size)
	p.grantBuffer(sh, class)
	sh.pushIdle(s)
	p.raisePeaks(sh)
}

// Gets that lose to others again and again make one slab more, up to half as many idle ones as there are shards, and no
// large ones; once in a while they don't.
func TestShort(t *testing.T) {
	const shards = 8
	p := newShards(t, Config{}, shards)
	class, size := classOf(64 << 10)
	lose := func(class int, size int64, apart time.Duration) bool {
		p.lostRaces = 0
		for range manyLostRaces - 1 {
			p.lastLostRace = time.Now().Add(-apart)
			if p.needsExtraSlab(class, size) {
				return true
			}
		}
		p.lastLostRace = time.Now().Add(-apart)
		return p.needsExtraSlab(class, size)
	}
	require.False(t, lose(class, size, time.Hour))
	large, largeSize := classOf(DefaultMaxCachedBytes/shards/8 + 1)
	require.False(t, lose(large, largeSize, -time.Hour))
	for n := range shards {
		require.Equal(t, 2*n < shards, lose(class, size, -time.Hour), "with %d idle", n)
		p.idleIn(t, p.shards[n], size)
	}
}

// A Get that came late too often gets a slab of its own, though one has just become idle; unless that is forbidden.
func TestLateGets(t *testing.T) {
	const size = 64 << 10
	for name, c := range map[string]struct {
		before int
		limit  int64
		want   int64
	}{"for the first time": {0, 0, 1}, "again and again": {manyLostRaces - 1, 0, 2}, "at the limit": {manyLostRaces - 1, size, 1}} {
		t.Run(name, func(t *testing.T) {
			p := newShards(t, Config{MaxBytes: c.limit}, 4)
			p.idleIn(t, p.shards[0], size)
			p.lostRaces, p.lastLostRace = c.before, time.Now().Add(time.Hour)
			p.shards[0].mu.Lock() // by another processor
			got := make(chan error)
			go func() {
				b, err := p.Get(t.Context(), size)
				if err == nil {
					err = b.Release()
				}
				got <- err
			}()
			for !p.lockingAll.Load() {
				runtime.Gosched()
			}
			p.shards[0].mu.Unlock()
			require.NoError(t, <-got)
			require.Equal(t, c.want, p.Stats().Allocations.Current)
		})
	}
}

// What Stats finds to be over the budget the next Release frees, in whatever shard that is.
func TestReleaseFreesWhatStatsFound(t *testing.T) {
	p := newShards(t, Config{MaxCachedBytes: 1 << 20}, 4)
	p.idleIn(t, p.shards[3], 64)
	p.idleIn(t, p.shards[3], 64)
	b, err := p.Get(t.Context(), 64) // its place is kept
	require.NoError(t, err)
	p.idleIn(t, p.shards[0], 2<<20) // as if a copy had ended just now
	left := p.shards[3].byteAllowance
	for range 2 {
		st := p.Stats()
		require.Equal(t, left, p.shards[3].byteAllowance, "no budget is enough for what was found")
		require.EqualValues(t, 64, st.CachedBytes.Current)
		require.EqualValues(t, 128, st.AllocatedBytes.Current)
		require.EqualValues(t, 2<<20+128, st.HeldBytes.Current)
	}
	require.NoError(t, b.Release())
	require.EqualValues(t, 128, p.Stats().HeldBytes.Current)
}

// Two shards that use the same quota in turn keep the peak, if nobody ever waits for another; if somebody does, they have one
// each after a while.
func TestPeaksOfTurns(t *testing.T) {
	for waits, want := range map[int64]int64{0: 1, 1: 2} {
		p := newShards(t, Config{}, 2)
		for i := range 100 {
			sh := p.shards[i%2]
			p.lockAllWaits.Add(waits)
			out := handOutDelta(64, 64)
			sh.apply(&out)
			p.raisePeaks(sh)
			back := delta{gaugeRequests: -1, gaugeActiveBytes: -64, gaugeRequestedBytes: -64}
			sh.apply(&back)
		}
		require.Equal(t, want, p.Stats().ActiveRequests.Peak)
		require.Equal(t, 64*want, p.Stats().ActiveBytes.Peak)
	}
}
