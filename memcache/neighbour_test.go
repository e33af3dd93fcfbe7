package memcache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// between runs f with c.shards.mu locked: after another goroutine, which starts waiting for it
// about a millisecond after the call, has held it once, and before that goroutine can lock it
// again. A mutex with a waiter of more than a millisecond is passed on in the order of arrival.
func between(c *Cache, f func()) {
	c.shards.mu.Lock()
	time.Sleep(3 * time.Millisecond)
	var next sync.WaitGroup
	next.Go(func() {
		c.shards.mu.Lock()
		defer c.shards.mu.Unlock()
		time.Sleep(time.Millisecond) // the other one goes on to where it locks again
		f()
	})
	time.Sleep(2 * time.Millisecond)
	c.shards.mu.Unlock() // wakes the other one,
	c.shards.mu.Lock()   // the other goroutine finds it locked, and has waited long enough
	time.Sleep(time.Millisecond)
	c.shards.mu.Unlock()
	next.Wait()
}

// TestFreeWhileASegmentExpands: a block is freed when the hole before it has just been mapped and
// not yet allocated. It merges with the rest of the hole.
func TestFreeWhileASegmentExpandsConcurrentSafe(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks after each call take the lock that the other goroutine must have")
	}
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

// pieces returns the free and the unmapped pieces of the only expandable segment of the large pool,
// by offset.
func pieces(c *Cache) (free, unmapped [][2]int64) {
	c.shards.lockAll()
	defer c.shards.unlockAll()
	for _, s := range c.shards.list() {
		for seg := range s.arena.Segments() {
			for m := seg.First(); m != nil; m = m.Next() {
				from := int64(m.Ptr()-seg.Ptr()) / mib
				at := [2]int64{from, from + m.Size()/mib}
				switch {
				case m.Unmapped() && m.Next() != nil: // the rest of the range is of no interest
					unmapped = append(unmapped, at)
				case m.Free():
					free = append(free, at)
				}
			}
		}
	}
	return free, unmapped
}

// TestNeighboursFreedDuringAnUnmap: while a flush unmaps the middle of a free block, which no
// request can find meanwhile, its neighbours are freed. The rest at its ends merges with them, and
// so does the whole block if the unmapping fails.
func TestNeighboursFreedDuringAnUnmap(t *testing.T) {
	for _, fails := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: true})
		s := dev.stream(1)
		a, b, d := mustAlloc(t, c, 30*mib, s), mustAlloc(t, c, 40*mib, s), mustAlloc(t, c, 30*mib, s)
		end := mustAlloc(t, c, 20*mib, s)
		require.NoError(t, b.Free()) // from 30 to 70 MiB, with a granule from 40 to 60
		h := hangAt(dev, "Unmap")
		gate := dev.gate
		refused := errors.New("unmap refused")
		dev.gate = func(ctx context.Context, call string) error {
			err := gate(ctx, call)
			if call == "Unmap" && fails {
				return refused
			}
			return err
		}
		wait := async(func() error { return c.EmptyCache(context.Background()) })
		<-h.entered
		require.NoError(t, errors.Join(a.Free(), d.Free()))
		close(h.leave)
		err := wait()
		require.NoError(t, c.check())
		free, unmapped := pieces(c)
		if fails {
			require.ErrorIs(t, err, refused)
			require.Equal(t, [][2]int64{{0, 100}}, free)
			require.Empty(t, unmapped)
			require.EqualValues(t, 120*mib, c.MemoryReserved())
		} else {
			require.NoError(t, err)
			require.Equal(t, [][2]int64{{0, 40}, {60, 100}}, free)
			require.Equal(t, [][2]int64{{40, 60}}, unmapped)
			require.EqualValues(t, 100*mib, c.MemoryReserved())
			dev.gate = nil
			// The next flush unmaps what is left on both sides: the holes become one.
			require.NoError(t, c.EmptyCache(t.Context()))
			free, unmapped = pieces(c)
			require.Empty(t, free)
			require.Equal(t, [][2]int64{{0, 100}}, unmapped)
		}
		require.NoError(t, c.check())
		dev.gate = nil
		require.NoError(t, end.Free())
		require.NoError(t, c.EmptyCache(t.Context()))
		require.Zero(t, c.MemoryReserved())
		require.Empty(t, dev.reserved)
	}
}

// TestFrontFreedDuringAMap: a request maps the unmapped addresses after a live block, which is
// freed meanwhile. The mapped memory then begins at the start of that block.
func TestFrontFreedDuringAMap(t *testing.T) {
	for _, fails := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: true})
		s := dev.stream(1)
		front := mustAlloc(t, c, 20*mib, s)
		h := hangAt(dev, "Map")
		if fails {
			dev.failures = 2 // the flush and the retry don't help
		}
		var got Block
		wait := async(func() (err error) {
			got, err = c.Alloc(context.Background(), 30*mib, s)
			return err
		})
		<-h.entered
		require.NoError(t, front.Free())
		close(h.leave)
		err := wait()
		require.NoError(t, c.check())
		if fails {
			require.ErrorIs(t, err, ErrOutOfMemory)
			mustAlloc(t, c, 30*mib, s)
			require.EqualValues(t, 40*mib, c.MemoryReserved())
			require.EqualValues(t, 1, c.Stats().Active.All.Current)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, front.Ptr(), got.Ptr())
		free, _ := pieces(c)
		require.Equal(t, [][2]int64{{30, 60}}, free)
	}
}

// TestGrowsFromAFreeFront: a free block at the end of the mapped memory is used, and only the rest
// is mapped. If that fails the block is free again, and keeps its age.
func TestGrowsFromAFreeFront(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	first := mustAlloc(t, c, 25*mib, s) // of 40: 15 are free
	dev.failures = 2
	_, err := c.Alloc(t.Context(), 30*mib, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	free, _ := pieces(c)
	require.Equal(t, [][2]int64{{25, 40}}, free)
	require.NoError(t, c.check())
	second := mustAlloc(t, c, 30*mib, s)
	require.Equal(t, first.Ptr()+25*mib, second.Ptr())
	require.EqualValues(t, 60*mib, c.MemoryReserved())
	free, _ = pieces(c)
	require.Equal(t, [][2]int64{{55, 60}}, free)
}

// TestMapsOverFreeBlocksBetweenHoles: holes and the free memory between them form one block. Each
// hole is mapped by itself.
func TestMapsOverFreeBlocksBetweenHoles(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	var b []Block
	for range 7 {
		b = append(b, mustAlloc(t, c, 20*mib, s))
	}
	require.NoError(t, errors.Join(b[1].Free(), b[3].Free(), b[5].Free()))
	require.NoError(t, c.EmptyCache(t.Context()))
	require.NoError(t, errors.Join(b[2].Free(), b[4].Free()))
	dev.calls = nil
	got := mustAlloc(t, c, 100*mib, s) // just enough
	require.Equal(t, b[1].Ptr(), got.Ptr())
	require.Len(t, dev.calls, 3)
	free, unmapped := pieces(c)
	require.Empty(t, free)
	require.Empty(t, unmapped)
	require.NoError(t, c.check())
}

// TestFailedMapLeavesNothingMapped: either all granules of a mapping are mapped, or none.
func TestFailedMapLeavesNothingMapped(t *testing.T) {
	for at := 1; at <= 3; at++ {
		c, dev := newCache(t, Config{ExpandableSegments: true})
		s := dev.stream(1)
		granules, unmaps := 0, 0
		dev.gate = func(_ context.Context, call string) error {
			if call == "Unmap" {
				unmaps++
			}
			if call != "Map" {
				return nil
			}
			if granules++; granules < at {
				return nil
			}
			granules = 0
			return &device.Error{Op: call, Device: "scripted", Err: device.ErrOutOfMemory}
		}
		_, err := c.Alloc(t.Context(), 60*mib, s)
		var oom *OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		require.NotContains(t, oom.Err.Error(), "\n", "a second error, of an unmapping")
		require.Empty(t, dev.mapped)
		require.Equal(t, 2*(at-1), unmaps, "those that were mapped, of the first attempt and of the retry")
		require.Zero(t, c.MemoryReserved())
		require.NoError(t, c.check())
		dev.gate = nil
		mustAlloc(t, c, 60*mib, s)
		require.Len(t, dev.mapped, 3)
	}
}
