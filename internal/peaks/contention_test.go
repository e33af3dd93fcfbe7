package peaks

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goroutines that together never exceed the limit are never refused, and others never get more than
// the limit.
func TestLimitIsExact(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	const goroutines, each = 8, 3
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	for _, limit := range []int64{goroutines * each, goroutines*each - 5} {
		l := New(limit)
		var held, refused atomic.Int64
		var group sync.WaitGroup
		for range goroutines {
			s := l.Join()
			group.Go(func() {
				for i := range rounds {
					n := int64(0)
					for range each {
						if !s.lockedAdd(Change{0, 1}) {
							refused.Add(1)
							continue
						}
						n++
						if h := held.Add(1); h > limit {
							t.Errorf("%d are held, the limit is %d", h, limit)
						}
					}
					if i%64 == 0 {
						runtime.Gosched()
					}
					held.Add(-n)
					s.lockedAdd(Change{0, -n})
				}
			})
		}
		group.Wait()
		require.False(t, limit == goroutines*each && refused.Load() > 0, "refused %d times with room", refused.Load())
		l.LockAll()
		require.NoError(t, l.Audit())
		require.Zero(t, l.Total(0).Current)
		l.UnlockAll()
	}
}

// What was subtracted before an addition is not counted beside it, however often goroutines claim
// the same quota from each other.
func TestTurnsAreNoPeak(t *testing.T) {
	l := New(NoLimit)
	var turn sync.Mutex
	var group sync.WaitGroup
	for range 4 {
		s := l.Join()
		group.Go(func() {
			for range 5000 {
				turn.Lock()
				s.lockedAdd(Change{0, 7})
				runtime.Gosched()
				s.lockedAdd(Change{0, -7})
				turn.Unlock()
			}
		})
	}
	group.Wait()
	l.LockAll()
	defer l.UnlockAll()
	require.EqualValues(t, 7, l.Total(0).Peak)
}

// Nothing is allocated within a quota, nor by a claim.
func TestAddAllocatesNothing(t *testing.T) {
	l := New(NoLimit, NoLimit)
	a, b := l.Join(), l.Join()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, s := range []*Shard{a, b} {
			s.lockedAdd(Change{0, 1}, Change{1, 64})
			s.lockedAdd(Change{0, -1}, Change{1, -64})
		}
	}))
}

// TestShardsComeAndGoConcurrentSafe: shards join and are removed, while others that do the same
// wait for the first shard's lock. Counts of removed shards stay.
func TestShardsComeAndGoConcurrentSafe(t *testing.T) {
	const goroutines, rounds = 16, 10
	l := New(NoLimit)
	together := func(f func(i int)) {
		var group sync.WaitGroup
		var begun atomic.Int64
		l.rest.Lock()
		for i := range goroutines {
			group.Go(func() {
				begun.Add(1)
				f(i)
			})
		}
		for begun.Load() < goroutines {
			runtime.Gosched()
		}
		for range 1000 {
			runtime.Gosched()
		}
		l.rest.Unlock()
		group.Wait()
		l.LockAll()
		defer l.UnlockAll()
		require.NoError(t, l.Audit())
	}
	for range rounds {
		var shards [goroutines]*Shard
		together(func(i int) {
			shards[i] = l.Join()
			shards[i].lockedAdd(Change{0, 5})
		})
		together(func(i int) {
			shards[i].lockedAdd(Change{0, -4})
			l.Remove(shards[i])
		})
	}
	l.LockAll()
	defer l.UnlockAll()
	require.Equal(t, Total{goroutines * rounds, goroutines * (rounds + 4), 5 * goroutines * rounds}, l.Total(0))
}
