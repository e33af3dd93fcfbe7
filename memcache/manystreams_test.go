package memcache

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

// scaled returns n, or less in builds that check every operation or every access.
func scaled(n int) int {
	if invariants.Enabled || race.Enabled || testing.Short() {
		return n / 20
	}
	return n
}

// heap returns the size of the Go heap.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestManyStreams opens and closes streams. Each leaves a block that the next one still uses when
// it closes. The reserved bytes and the Go heap must not grow with the number of streams.
func TestManyStreams(t *testing.T) {
	for name, config := range map[string]Config{"default": {}, "expandable": {ExpandableSegments: true}} {
		t.Run(name, func(t *testing.T) {
			c, dev := newCache(t, config)
			before := dev.stream(0)
			n := scaled(100_000)
			var reserved, held int64
			for i := range n {
				s := dev.stream(uint64(1 + i))
				small, large := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 3*mib, s)
				s.busy = true // with what the next stream still has to wait for
				require.NoError(t, errors.Join(small.RecordStream(before), small.Free()))
				require.NoError(t, errors.Join(large.RecordStream(before), large.Free()))
				before.finish()
				before.closed.Store(true)
				before = s
				if i == n/10 {
					reserved, held = c.MemoryReserved(), heap()
				}
			}
			require.Equal(t, reserved, c.MemoryReserved())
			require.LessOrEqual(t, reserved, int64(100*mib))
			require.Less(t, heap()-held, int64(256<<10))
			require.LessOrEqual(t, len(c.shards.list()), 4)
			require.LessOrEqual(t, len(dev.reserved), 6)
			require.EqualValues(t, 2*n, c.Stats().Allocation.All.Allocated)
			require.NoError(t, c.check())
			runtime.KeepAlive(c)
		})
	}
}

// TestSoak runs a million operations with recorded streams, flushes and many sizes. Records of
// blocks, events and queues are reused, so the Go heap does not grow.
func TestSoak(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	r := rand.New(rand.NewPCG(8, 9))
	streams := []*scriptedStream{dev.stream(1), dev.stream(2), dev.stream(3)}
	var live [200]Block
	const full = 1_000_000
	n := scaled(full)
	var held int64
	for i := range n {
		s := streams[i%len(streams)]
		at := r.IntN(len(live))
		b := live[at]
		if i%16 == 0 {
			require.NoError(t, b.RecordStream(s))
		}
		if err := b.Free(); err != nil {
			require.NoError(t, err)
		}
		b, err := c.Alloc(t.Context(), 1+int64(math.Exp2(r.Float64()*21)), s)
		if err != nil {
			require.NoError(t, err)
		}
		live[at] = b
		s.busy = i%64 < 8
		if i%1024 == 0 {
			s.finish()
			dev.calls = dev.calls[:0]
		}
		if i%(n/10) == 0 {
			require.NoError(t, c.EmptyCache(t.Context()))
		}
		if i == n/3 {
			held = heap()
		}
	}
	require.NoError(t, c.check())
	if n == full { // a shorter run is still filling its tables
		require.Less(t, heap()-held, int64(512<<10))
	}
	require.EqualValues(t, n, c.Stats().Allocation.All.Allocated)
	runtime.KeepAlive(&live)
}
