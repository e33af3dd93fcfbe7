package transfer_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// model is what a pool's statistics must be after calls of one goroutine.
type model struct {
	slots, limit int64
	out          []modelled
	idle         map[int64]int64 // buffers, by the size of their allocation
	pending      map[int64]int64 // the same, of released ones whose copies wait
	st           transfer.Stats
}

type modelled struct {
	buffer transfer.Buffer
	held   bool // a copy of it waits
}

func set(s *memcache.Stat, n int64) {
	s.Current += n
	s.Allocated += max(n, 0)
	s.Freed += max(-n, 0)
	s.Peak = max(s.Peak, s.Current)
}

// get says whether a Get of n bytes succeeds.
func (m *model) get(n int64) bool {
	size := transfer.RoundSize(n)
	if m.idle[size] > 0 {
		m.idle[size]--
		m.st.Hits++
		set(&m.st.CachedBytes, -size)
	} else {
		if m.limit > 0 && m.st.AllocatedBytes.Current+size > m.limit {
			m.flush()
			if m.st.AllocatedBytes.Current+size > m.limit {
				return false
			}
		}
		m.st.Misses++
		m.st.HostAllocs++
		set(&m.st.Allocations, 1)
		set(&m.st.AllocatedBytes, size)
		set(&m.st.HeldBytes, size)
	}
	set(&m.st.ActiveRequests, 1)
	set(&m.st.ActiveBytes, size)
	set(&m.st.RequestedBytes, n)
	return true
}

func (m *model) release(b modelled) {
	n := int64(b.buffer.Len())
	size := transfer.RoundSize(n)
	set(&m.st.ActiveRequests, -1)
	set(&m.st.RequestedBytes, -n)
	if b.held {
		m.pending[size]++
		m.st.Pending++
		return
	}
	m.unused(size)
}

// unused is what becomes of memory that nothing uses any more.
func (m *model) unused(size int64) {
	set(&m.st.ActiveBytes, -size)
	if m.idle[size] == m.slots {
		m.free(size)
		return
	}
	set(&m.st.CachedBytes, size)
	m.idle[size]++
}

func (m *model) free(size int64) {
	m.st.HostFrees++
	set(&m.st.Allocations, -1)
	set(&m.st.AllocatedBytes, -size)
	set(&m.st.HeldBytes, -size)
}

func (m *model) flush() {
	for size, n := range m.idle {
		for range n {
			set(&m.st.CachedBytes, -size)
			m.free(size)
		}
		delete(m.idle, size)
	}
}

// copied is what the end of all copies does.
func (m *model) copied() {
	for i := range m.out {
		m.out[i].held = false
	}
	for size, n := range m.pending {
		for range n {
			m.unused(size)
		}
		m.st.Pending -= n
		delete(m.pending, size)
	}
}

// check compares what does not depend on the clock.
func (m *model) check(t *testing.T, p *transfer.Pool, step int) {
	t.Helper()
	st := p.Stats()
	require.Equal(t, [2]int64{st.HostAllocs, st.HostFrees}, [2]int64{st.HostAllocTime.Count, st.HostFreeTime.Count})
	st.HostAllocTime, st.HostFreeTime = transfer.DurationStat{}, transfer.DurationStat{}
	require.Equal(t, m.st, st, "step %d", step)
}

// The statistics, peaks and driver calls included, are those of a simple model, whatever shard a call meets.
func TestStatsAreExact(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // as many shards
	for _, c := range []struct {
		name         string
		slots, limit int64
		copies       bool
	}{{"plain", 1 << 20, 0, false}, {"slots", 3, 0, false}, {"limit", 1 << 20, 60_000, false}, {"copies", 1 << 20, 0, true}} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(c.name, " ", seed), func(t *testing.T) {
				r := newRig(t, transfer.Config{MaxCachedBuffers: int(c.slots), MaxBytes: c.limit})
				m := &model{slots: c.slots, limit: c.limit, idle: map[int64]int64{}, pending: map[int64]int64{}}
				script(t, r, m, rand.New(rand.NewPCG(seed, 7)), c.copies)
			})
		}
	}
}

func script(t *testing.T, r *rig, m *model, rng *rand.Rand, copies bool) {
	block := r.alloc(t, 1<<20, r.a)
	open := func() {}
	if copies {
		open = hold(t, r.a)
	}
	for step := range 500 {
		switch k := rng.IntN(100); {
		case k < 50 && len(m.out) < 60:
			n := 1 + rng.Int64N(3)*rng.Int64N(4000)
			b, err := r.pool.Get(t.Context(), n)
			if m.get(n) {
				require.NoError(t, err, "step %d", step)
				m.out = append(m.out, modelled{buffer: b})
			} else {
				require.ErrorIs(t, err, transfer.ErrLimit, "step %d", step)
			}
		case k < 85 && len(m.out) > 0:
			i := rng.IntN(len(m.out))
			b := m.out[i]
			m.out = append(m.out[:i], m.out[i+1:]...)
			require.NoError(t, b.buffer.Release())
			require.ErrorIs(t, b.buffer.Release(), transfer.ErrReleased)
			m.release(b)
		case k < 95 && copies && len(m.out) > 0:
			b := &m.out[rng.IntN(len(m.out))]
			n := int64(b.buffer.Len())
			_, err := r.pool.H2D(t.Context(), r.a, block, 0, b.buffer, 0, n)
			require.NoError(t, err)
			b.held = true
			m.st.H2DCopies++
			m.st.H2DBytes += n
		case k < 97 && copies:
			open()
			require.NoError(t, r.a.Synchronize(t.Context()))
			m.copied()
			open = hold(t, r.a)
		case k == 97 && !copies:
			require.NoError(t, r.pool.EmptyCache(t.Context()))
			m.flush()
		case k == 98:
			r.pool.ResetPeakStats()
			for _, s := range []*memcache.Stat{&m.st.Allocations, &m.st.AllocatedBytes, &m.st.HeldBytes, &m.st.ActiveRequests,
				&m.st.ActiveBytes, &m.st.RequestedBytes, &m.st.CachedBytes} {
				s.Peak = s.Current
			}
		case k == 99: // the next calls meet another shard
			runtime.GC()
			runtime.GC()
		}
		m.check(t, r.pool, step)
	}
	open()
	for _, b := range m.out {
		require.NoError(t, b.buffer.Release())
	}
	require.NoError(t, block.Free())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	idle(t, r.pool)
}
