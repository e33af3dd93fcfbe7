package memcache_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// numbered is a block that is filled with its number.
type numbered struct {
	memcache.Block
	number uint64
	memory []byte
	stream device.Stream
}

// words returns the block's memory. A loop over words is several times faster than one over bytes.
func (n *numbered) words() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(n.memory))), len(n.memory)/8)
}

// fill writes the number to every word of the block.
func (n *numbered) fill(s device.Stream) error {
	words := n.words()
	return s.Launch(&device.Launch{Writes: []device.Range{n.Range(0, n.Size())}, Func: func() {
		for i := range words {
			words[i] = n.number
		}
	}})
}

// check counts the words with another value.
func (n *numbered) check(s device.Stream, wrong *int) error {
	words := n.words()
	return s.Launch(&device.Launch{Reads: []device.Range{n.Range(0, n.Size())}, Func: func() {
		for _, word := range words {
			if word != n.number {
				*wrong++
			}
		}
	}})
}

// TestContentsOfManyBlocks makes 10,000 random calls, as PyTorch's fuzz test of its allocator does,
// and fewer in a short run. Each block is filled with its number, and checked when it is freed, in
// half of the cases by a second stream that is only recorded.
func TestContentsOfManyBlocks(t *testing.T) {
	calls := uint64(10_000)
	if testing.Short() {
		calls = 3000
	}
	for name, config := range map[string]memcache.Config{
		"default":    {},
		"expandable": {ExpandableSegments: true},
		"max split":  {MaxSplitSizeMB: 20, GarbageCollectionThreshold: 0.2, PerProcessMemoryFraction: 0.9},
	} {
		t.Run(name, func(t *testing.T) {
			dev := cisterntest.Host(t, 256<<20)
			c, err := memcache.New(dev, config)
			require.NoError(t, err)
			var streams [2]device.Stream
			for i := range streams {
				streams[i] = cisterntest.Stream(t, dev)
			}
			side := cisterntest.Stream(t, dev)
			wrong, wrongAside := make([]int, len(streams)), 0

			r := rand.New(rand.NewPCG(1, 2))
			var live []*numbered
			for number := range calls {
				switch k := r.IntN(1000); {
				case k == 0:
					require.NoError(t, c.EmptyCache(t.Context()))
				case k < 500 && len(live) < 300:
					i := r.IntN(len(streams))
					b, err := c.Alloc(t.Context(), 1+int64(math.Exp2(r.Float64()*r.Float64()*21)), streams[i])
					require.NoError(t, err)
					n := &numbered{Block: b, number: number + 1, stream: streams[i]}
					n.memory, err = dev.Bytes(b.Ptr(), b.Size())
					require.NoError(t, err)
					require.NoError(t, n.fill(n.stream))
					live = append(live, n)
				case len(live) > 0:
					i := r.IntN(len(live))
					n := live[i]
					live = slices.Delete(live, i, i+1)
					if r.IntN(2) == 0 {
						require.NoError(t, n.check(n.stream, &wrong[slices.Index(streams[:], n.stream)]))
					} else {
						filled := newEvent(dev)
						require.NoError(t, errors.Join(n.stream.Record(filled), side.Wait(filled), filled.Close()))
						require.NoError(t, n.check(side, &wrongAside))
						require.NoError(t, n.RecordStream(side))
					}
					require.NoError(t, n.Free())
				}
			}
			for _, n := range live {
				require.NoError(t, n.check(n.stream, &wrong[slices.Index(streams[:], n.stream)]))
				require.NoError(t, n.Free())
			}
			for _, s := range append(streams[:], side) {
				require.NoError(t, s.Synchronize(t.Context()))
			}
			require.Equal(t, []int{0, 0, 0}, append(wrong, wrongAside), "words that changed while the block was in use")
			require.NoError(t, c.EmptyCache(t.Context()))
			require.Zero(t, c.MemoryReserved())
			require.Zero(t, c.Stats().NumOOMs)
			require.NoError(t, errors.Join(c.Close(), dev.Close()))
		})
	}
}

// TestRecordStreamOnTheHost holds up a second stream that uses a freed block. The block's own stream must not
// get the memory while that lasts, and must get it after the second stream is synchronized.
func TestRecordStreamOnTheHost(t *testing.T) {
	for _, config := range []memcache.Config{{}, {Exact: true}, {ExpandableSegments: true}} {
		dev := cisterntest.Host(t, 64<<20)
		c, err := memcache.New(dev, config)
		require.NoError(t, err)
		own := cisterntest.Stream(t, dev)
		side := cisterntest.Stream(t, dev)

		b, err := c.Alloc(t.Context(), 5<<20, own)
		require.NoError(t, err)
		leave := make(chan struct{})
		slow := &device.Launch{Func: func() { <-leave }, Reads: []device.Range{b.Range(0, b.Size())}}
		require.NoError(t, errors.Join(side.Launch(slow), b.RecordStream(side), b.Free()))
		var others []memcache.Block
		for range 3 {
			other, err := c.Alloc(t.Context(), 5<<20, own)
			require.NoError(t, err)
			require.NotEqual(t, b.Ptr(), other.Ptr(), "the second stream still reads it")
			others = append(others, other)
		}
		close(leave)
		require.NoError(t, side.Synchronize(t.Context()))
		again, err := c.Alloc(t.Context(), 5<<20, own)
		require.NoError(t, err)
		require.Equal(t, b.Ptr(), again.Ptr(), "the second stream is past it")
		for _, o := range append(others, again) {
			require.NoError(t, o.Free())
		}
		require.NoError(t, errors.Join(c.Close(), dev.Close()))
	}
}
