package memcache

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// between runs f with c.all locked after another goroutine, which waits for it from about a millisecond after the call on,
// has had it once, and before it can have it again: a mutex that somebody has waited for longer than a millisecond passes
// on from one to the next in the order in which they came.
func between(c *Cache, f func()) {
	c.all.Lock()
	time.Sleep(3 * time.Millisecond)
	var next sync.WaitGroup
	next.Go(func() {
		c.all.Lock()
		defer c.all.Unlock()
		time.Sleep(time.Millisecond) // the other one goes on to where it locks again
		f()
	})
	time.Sleep(2 * time.Millisecond)
	c.all.Unlock() // wakes the other one,
	c.all.Lock()   // who finds it locked, and has waited long enough
	time.Sleep(time.Millisecond)
	c.all.Unlock()
	next.Wait()
}

// TestFreeWhileASegmentExpands: a block that is freed when the hole before it has just been mapped, and not yet handed
// out, merges with what is left of the hole.
func TestFreeWhileASegmentExpandsConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	const granule = 20 * mib
	for round := range 10 {
		left, hole, right := mustAlloc(t, c, granule, s), mustAlloc(t, c, granule, s), mustAlloc(t, c, granule, s)
		last := mustAlloc(t, c, granule, s)
		require.NoError(t, hole.Free())
		require.NoError(t, c.EmptyCache(t.Context()))
		var freed sync.WaitGroup
		dev.hang = func() {
			dev.hang = nil
			freed.Go(func() {
				between(c, func() {
					if err := right.Free(); err != nil {
						t.Error(err)
					}
				})
			})
			time.Sleep(time.Millisecond) // so that between has the lock
		}
		part := mustAlloc(t, c, 5*mib, s)
		freed.Wait()
		require.Equal(t, hole.Ptr(), part.Ptr())
		require.NoError(t, c.check())
		whole := mustAlloc(t, c, 2*granule-5*mib, s)
		require.Equal(t, part.Ptr()+5*mib, whole.Ptr(), "round %d: two free neighbours stay apart", round)
		for _, b := range []Block{left, part, whole, last} {
			require.NoError(t, b.Free())
		}
		require.NoError(t, c.EmptyCache(t.Context()))
	}
}
