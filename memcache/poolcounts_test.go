package memcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// naivePool computes a pool's statistics by walks over snapshots: current, peak and total.
type naivePool struct{ now, peak, up map[string]int64 }

func (n *naivePool) look(segments []SegmentSnapshot) {
	before := n.now
	n.now = make(map[string]int64)
	add := func(name, kind string, v int64) {
		n.now[name] += v
		n.now[name+" "+kind] += v
	}
	for _, s := range segments {
		if !s.Expandable {
			add("segments", s.Pool, 1)
		}
		add("reserved", s.Pool, s.TotalSize)
		for _, b := range s.Blocks {
			switch {
			case b.State == BlockAllocated:
				add("blocks", s.Pool, 1)
				add("allocated", s.Pool, b.Size)
				fallthrough
			case b.State == BlockPendingFree:
				add("active blocks", s.Pool, 1)
				add("active", s.Pool, b.Size)
				add("requested", s.Pool, b.RequestedSize)
			}
		}
	}
	for name, v := range n.now {
		n.peak[name] = max(n.peak[name], v)
		n.up[name] += max(0, v-before[name])
	}
}

func (n *naivePool) want(name string) StatArray {
	stat := func(name string) Stat {
		return Stat{Current: n.now[name], Peak: n.peak[name], Allocated: n.up[name], Freed: n.up[name] - n.now[name]}
	}
	return StatArray{stat(name), stat(name + " small"), stat(name + " large")}
}

// TestPoolStats compares the statistics of pools with walks over snapshots after each call of
// random programs. The programs have several streams, blocks that wait, pools that lend and pools
// that end. A call changes each quantity in one direction, except calls that return segments to get
// others.
func TestPoolStats(t *testing.T) {
	for i, config := range []Config{{}, {ExpandableSegments: true}, {NoCaching: true}, {Exact: true, MaxSplitSizeMB: 20}, {ExpandableSegments: true, ExpandableRemap: true}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := rand.New(rand.NewPCG(16, uint64(i)))
			c, dev := newCache(t, config)
			streams := []*scriptedStream{dev.stream(1), dev.stream(2), dev.stream(3)}
			var pools []*Pool
			naive := make(map[*Pool]*naivePool)
			contexts := []context.Context{context.Background()}
			for range 3 {
				p, ctx := newPool(t, c, PoolOptions{UseOnOOM: len(pools) == 1})
				pools, contexts = append(pools, p), append(contexts, ctx)
				naive[p] = &naivePool{now: map[string]int64{}, peak: map[string]int64{}, up: map[string]int64{}}
			}
			var live []Block
			look := func() {
				for _, p := range pools {
					naive[p].look(p.Snapshot())
				}
			}
			steps := 500
			if testing.Short() {
				steps = 150
			}
			for step := range steps {
				// which the request would do, and then hand out as much as has come back
				require.NoError(t, c.PollFrees())
				look()
				switch x := r.IntN(100); {
				case x < 52:
					size := int64(1 + r.IntN(1<<(8+r.IntN(17))))
					b, err := c.Alloc(contexts[r.IntN(len(contexts))], size, streams[r.IntN(len(streams))])
					if err != nil {
						require.ErrorIs(t, err, ErrOutOfMemory)
					} else {
						live = append(live, b)
					}
				case x < 60 && len(live) > 0:
					require.NoError(t, live[r.IntN(len(live))].RecordStream(streams[r.IntN(len(streams))]))
				case x < 97 && len(live) > 0:
					k := r.IntN(len(live))
					require.NoError(t, live[k].Free())
					live = slices.Delete(live, k, k+1)
				case x < 98:
					require.NoError(t, c.EmptyCache(context.Background()))
				case x < 99:
					p := pools[r.IntN(len(pools))]
					p.ResetPeakStats()
					naive[p].peak = make(map[string]int64)
				}
				look()
				for _, p := range pools {
					n := naive[p]
					got := p.Stats()
					for name, array := range map[string]StatArray{"segments": got.Segment, "reserved": got.ReservedBytes, "blocks": got.Allocation, "allocated": got.AllocatedBytes,
						"active blocks": got.Active, "active": got.ActiveBytes, "requested": got.RequestedBytes} {
						want := n.want(name)
						if config.ExpandableRemap && name == "reserved" { // one call unmaps and maps
							for _, s := range []*Stat{&want.All, &want.SmallPool, &want.LargePool, &array.All, &array.SmallPool, &array.LargePool} {
								s.Allocated, s.Freed = 0, 0
							}
						}
						require.Equal(t, want, array, "%s of %s in step %d", name, p, step)
					}
				}
				require.NoError(t, c.check())
			}
			for _, p := range pools {
				assert.NotZero(t, p.Stats().AllocatedBytes.All.Peak, p)
			}
		})
	}
}

// TestPoolStatsTogether: with goroutines on streams of their own, inside a pool and outside, no
// change is lost, and the pool contains no part of the memory outside.
func TestPoolStatsTogether(t *testing.T) {
	c, dev := newCache(t, Config{})
	p, ctx := newPool(t, c, PoolOptions{})
	other, _ := newPool(t, c, PoolOptions{})
	const goroutines, rounds, bytes = 4, 300, 1 << 20
	done := make(chan error, goroutines)
	for g := range goroutines {
		s := dev.stream(uint64(g + 1))
		in := ctx
		if g == 3 {
			in = context.Background()
		}
		go func() {
			for range rounds {
				b, err := c.Alloc(in, bytes, s)
				if err == nil {
					err = b.Free()
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range goroutines {
		require.NoError(t, <-done)
	}
	got := p.Stats()
	n := int64((goroutines - 1) * rounds)
	assert.Equal(t, [3]int64{n, n, 0}, [3]int64{got.Allocation.All.Allocated, got.Allocation.All.Freed, got.Allocation.All.Current})
	assert.Equal(t, n*bytes, got.AllocatedBytes.SmallPool.Allocated)
	assert.LessOrEqual(t, got.AllocatedBytes.All.Peak, int64((goroutines-1)*bytes))
	assert.Zero(t, other.Stats())
	assert.Zero(t, (*Pool)(nil).Stats())
	assert.Contains(t, got.Summary(p.String(), true), strings.TrimSpace("| Allocated memory      |"))
	require.NoError(t, c.Close())
	assert.Equal(t, got, p.Stats())
}

// TestLends: Lends reports the pool's option, and its name contains its number.
func TestLends(t *testing.T) {
	c, _ := newCache(t, Config{})
	keeps, _ := newPool(t, c, PoolOptions{})
	lends, _ := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.Equal(t, []string{"private pool 1", "private pool 2", "default pool"}, []string{keeps.String(), lends.String(), (*Pool)(nil).String()})
	require.Equal(t, []bool{false, true, false}, []bool{keeps.Lends(), lends.Lends(), (*Pool)(nil).Lends()})
}

// TestFreeBytesOfOtherPools: they are those of the default pool's two sizes and of the other pools.
func TestFreeBytesOfOtherPools(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 100 << 20})
	s := dev.stream(1)
	_, ctx := newPool(t, c, PoolOptions{})
	_, other := newPool(t, c, PoolOptions{})
	mustAlloc(t, c, 512, s)                    // of 2 MiB
	mustAlloc(t, c, 4<<20, s)                  // of 20 MiB
	allocIn(t, other, c, 5<<20, s)             // of 20 MiB
	allocIn(t, other, c, 1<<20, dev.stream(2)) // of 2 MiB
	_, err := c.Alloc(ctx, 60<<20, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.EqualValues(t, 44<<20-512-10<<20, oom.OtherPools)
}
