package memcache

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMemoryAllocatedTakesNoLock: the other figures take no lock that an allocation takes; they
// equal those of Stats.
func TestMemoryAllocatedTakesNoLock(t *testing.T) {
	c, dev := newCache(t, Config{})
	r := rand.New(rand.NewPCG(3, 4))
	var live []Block
	for range 300 {
		if len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			require.NoError(t, live[i].Free())
			live = append(live[:i], live[i+1:]...)
		} else {
			live = append(live, mustAlloc(t, c, 1+r.Int64N(4*mib), dev.stream(1+r.Uint64N(5))))
		}
		require.Equal(t, c.Stats().AllocatedBytes.All.Current, c.MemoryAllocated())
	}
	want := c.Stats()
	shards := c.shards.list()
	for _, s := range shards {
		s.mu.Lock()
	}
	told := make(chan []int64)
	go func() {
		told <- []int64{c.MemoryAllocated(), c.MaxMemoryAllocated(), c.MemoryReserved(), c.MaxMemoryReserved()}
	}()
	select {
	case got := <-told:
		require.Equal(t, []int64{want.AllocatedBytes.All.Current, want.AllocatedBytes.All.Peak, want.ReservedBytes.All.Current, want.ReservedBytes.All.Peak}, got)
	case <-time.After(10 * time.Second):
		t.Error("a figure waits for an allocation")
	}
	for _, s := range shards {
		s.mu.Unlock()
	}
	freeAll(t, live)
	require.Zero(t, c.MemoryAllocated())
	b := mustAlloc(t, c, 1000, dev.stream(1))
	require.Error(t, c.Close())
	require.Zero(t, c.MemoryAllocated(), "what leaked has no memory any more")
	require.ErrorIs(t, b.Free(), ErrClosed)
}
