package memcache

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// program is a random caller. It interprets bytes, so that a fuzzer can write it.
type program struct {
	t       testing.TB
	dev     *scripted
	cache   *Cache
	streams []*scriptedStream
	live    []Block
	freed   []Block
	bytes   int64 // of the live blocks
	peaks   [3]int64
	pools   []*Pool // the last four; the nil one first
}

func newProgram(t testing.TB, config Config) *program {
	dev := newScripted(256 << 20)
	config.PerProcessMemoryFraction = 0.5
	cache, err := New(dev, config)
	require.NoError(t, err)
	p := &program{t: t, dev: dev, cache: cache, pools: []*Pool{nil}}
	for id := range uint64(4) {
		p.streams = append(p.streams, dev.stream(id))
	}
	return p
}

// step runs one operation: what it is, and its argument.
func (p *program) step(op, arg byte) {
	s := p.streams[int(arg)%len(p.streams)]
	switch op % 16 {
	default:
		p.alloc(int64(math.Exp2(float64(arg)/255*24+float64(op)/256))+int64(op), s, nil)
	case 3, 4:
		pool := p.pools[int(op/16)%len(p.pools)]
		p.alloc(int64(math.Exp2(float64(arg)/255*24+float64(op)/256))+int64(op), s, pool)
	case 5, 6, 7, 8, 9:
		p.free(int(arg))
	case 10, 11:
		if len(p.live) > 0 {
			require.NoError(p.t, p.live[int(op)*int(arg)%len(p.live)].RecordStream(s))
		}
	case 12:
		s.busy = true
	case 13:
		s.finish()
	case 14:
		if len(p.freed) > 0 {
			require.ErrorIs(p.t, p.freed[int(arg)%len(p.freed)].Free(), ErrFreed)
		}
	case 15:
		if arg%16 > 8 {
			p.pool(int(op/16), arg/16)
		} else if arg%16 == 0 {
			require.NoError(p.t, p.cache.EmptyCache(context.Background()))
		} else if arg%16 == 1 {
			s.finish()
			s.closed.Store(true)
			p.streams[int(arg)%len(p.streams)] = p.dev.stream(s.id + 4)
		}
	}
	require.NoError(p.t, p.cache.check())
	require.Equal(p.t, p.bytes, p.cache.MemoryAllocated())
	// What one goroutine does has one order: the peak is the largest value after any call.
	st := p.cache.Stats()
	for i, s := range []Stat{st.AllocatedBytes.All, st.AllocatedBytes.LargePool, st.ReservedBytes.All} {
		p.peaks[i] = max(p.peaks[i], s.Current)
		require.Equal(p.t, p.peaks[i], s.Peak)
	}
}

// pool makes a pool, or releases one, perhaps with its segments.
func (p *program) pool(i int, arg byte) {
	if len(p.pools) < 4 {
		pool, err := p.cache.NewPool(PoolOptions{UseOnOOM: arg&1 != 0, NoSplit: arg&2 != 0})
		require.NoError(p.t, err)
		p.pools = append(p.pools, pool)
		return
	}
	i = 1 + i%3
	pool := p.pools[i]
	require.NoError(p.t, pool.Release())
	if arg&1 != 0 {
		require.NoError(p.t, pool.EmptyCache(context.Background()))
	}
	_, err := p.cache.Alloc(pool.Context(context.Background()), 1, p.streams[0])
	require.ErrorIs(p.t, err, ErrReleased)
	p.pools = append(p.pools[:i], p.pools[i+1:]...)
}

func (p *program) alloc(bytes int64, s *scriptedStream, pool *Pool) {
	b, err := p.cache.Alloc(pool.Context(context.Background()), bytes, s)
	if err != nil {
		require.ErrorIs(p.t, err, ErrOutOfMemory)
		return
	}
	require.GreaterOrEqual(p.t, b.Size(), bytes)
	require.Equal(p.t, s.id, b.StreamID())
	if of := b.meta.segment.lists.pool; of != pool {
		require.True(p.t, pool == nil && of.options.UseOnOOM && !of.isReleased(), "%v of %v is in %v", b, pool, of)
	} else if pool != nil && pool.options.NoSplit && !p.cache.config.ExpandableSegments {
		require.True(p.t, b.meta.whole())
	}
	if p.cache.config.NoCaching {
		require.Equal(p.t, bytes, b.Size())
		require.EqualValues(p.t, bytes, p.dev.live[b.Ptr()])
	}
	for _, o := range p.live {
		require.False(p.t, b.ptr < o.ptr+device.Ptr(o.size) && o.ptr < b.ptr+device.Ptr(b.size), "%v overlaps %v", b, o)
	}
	p.live = append(p.live, b)
	p.bytes += b.Size()
}

func (p *program) free(i int) {
	if len(p.live) == 0 {
		return
	}
	i %= len(p.live)
	b := p.live[i]
	require.NoError(p.t, b.Free())
	p.live = append(p.live[:i], p.live[i+1:]...)
	p.freed = append(p.freed, b)
	p.bytes -= b.Size()
}

// finish frees everything; then a flush must return every byte.
func (p *program) finish() {
	for len(p.live) > 0 {
		p.free(0)
	}
	if p.cache.config.NoCaching {
		require.Empty(p.t, p.dev.live)
	}
	for _, pool := range p.pools[1:] {
		require.NoError(p.t, pool.Release())
	}
	require.NoError(p.t, p.cache.EmptyCache(context.Background()))
	require.NoError(p.t, p.cache.check())
	require.Zero(p.t, p.cache.MemoryReserved())
	require.Empty(p.t, p.dev.live)
	require.Empty(p.t, p.dev.mapped)
	require.Empty(p.t, p.dev.reserved)
	for _, s := range p.cache.table.Load().list {
		require.Empty(p.t, s.private)
	}
	require.NoError(p.t, p.cache.Close())
}

// programs are the configurations of random programs.
var programs = []Config{
	{}, {Exact: true}, {ExpandableSegments: true}, {NoCaching: true, ExpandableSegments: true},
	{GarbageCollectionThreshold: 0.3, MaxSplitSizeMB: 20, Exact: true},
}

func TestRandomPrograms(t *testing.T) {
	seeds := uint64(14)
	if race.Enabled { // one goroutine
		seeds = 2
	}
	for i, config := range programs {
		for seed := range seeds {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			p := newProgram(t, config)
			for range 2000 {
				p.step(byte(r.Uint32()), byte(r.Uint32()))
			}
			p.finish()
		}
	}
}

func FuzzProgram(f *testing.F) {
	f.Add([]byte{0, 200, 10, 3, 12, 3, 5, 0, 0, 200, 13, 3, 0, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newProgram(t, programs[len(data)%len(programs)])
		for i := 0; i+1 < len(data) && i < 2000; i += 2 {
			p.step(data[i], data[i+1])
		}
		p.finish()
	})
}

// TestExactChangesNothingElse runs one program with and without Exact: where neither a flush nor a closed
// stream comes into it, they must agree in every address.
func TestExactChangesNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	a, b := newProgram(t, Config{Exact: true}), newProgram(t, Config{})
	require.NoError(t, errors.Join(a.cache.SetMemoryFraction(1), b.cache.SetMemoryFraction(1)))
	a.dev.total, b.dev.total = 1<<40, 1<<40
	for range 3000 {
		op, arg := byte(r.Uint32()), byte(r.Uint32())
		if op%16 == 15 && arg%16 <= 8 {
			continue
		}
		a.step(op, arg)
		b.step(op, arg)
		require.Equal(t, a.dev.calls, b.dev.calls)
		if n := len(a.live); n > 0 {
			require.Equal(t, a.live[n-1].ptr, b.live[n-1].ptr)
		}
	}
	require.Equal(t, a.cache.Stats(), b.cache.Stats())
}

func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x index
	var set []*meta
	order := func(a, b *meta) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.ptr, b.ptr))
	}
	for i := range 6000 {
		if len(set) > 0 && r.IntN(3) == 0 {
			k := r.IntN(len(set))
			x.remove(set[k])
			set = append(set[:k], set[k+1:]...)
		} else {
			sizes := []int64{r.Int64N(20), r.Int64N(5000), largeSegment/512 + r.Int64N(3) - 1, r.Int64N(200_000)}
			m := &meta{size: 512 * (1 + sizes[r.IntN(4)]), ptr: device.Ptr(r.Uint32N(1<<30) | 1<<30 + uint32(i%2))}
			if slices.ContainsFunc(set, func(o *meta) bool { return order(o, m) == 0 }) {
				continue
			}
			x.insert(m)
			set = append(set, m)
			slices.SortFunc(set, order)
		}
		size := r.Int64N(1 << uint(r.IntN(28)+1))
		at, _ := slices.BinarySearchFunc(set, &meta{size: size}, order)
		at2 := func(i int) *meta {
			if i < 0 || i >= len(set) {
				return nil
			}
			return set[i]
		}
		require.Same(t, at2(at), x.from(size))
		require.Same(t, at2(len(set)-1), x.before(nil))
		if m := at2(at); m != nil {
			require.Same(t, at2(at+1), x.after(m))
			require.Same(t, at2(at-1), x.before(m))
		}
	}
	var all []*meta
	x.all(func(m *meta) { all = append(all, m) })
	require.Equal(t, set, all)
	require.Equal(t, len(set), x.len)
}
