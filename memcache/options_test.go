package memcache

import (
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

// act is one step of a program whose course does not depend on the allocator.
type act struct {
	op     byte // alloc, free, record, busy, finish, empty, reset
	slot   int
	bytes  int64
	stream int
}

func randomCalls(seed uint64, n int) []act {
	r := rand.New(rand.NewPCG(seed, 99))
	var calls []act
	var live []int
	for slot := range n {
		c := act{op: 'a', slot: slot, stream: r.IntN(3), bytes: 1 + int64(math.Exp2(r.Float64()*25.5))}
		switch k := r.IntN(20); {
		case len(live) > 40 || k < 8 && len(live) > 0:
			i := r.IntN(len(live))
			c.op, c.slot = 'f', live[i]
			live = slices.Delete(live, i, i+1)
		case k < 11 && len(live) > 0:
			c.op, c.slot = 'r', live[r.IntN(len(live))]
		case k == 11:
			c.op = 'b'
		case k == 12:
			c.op = 'd'
		case k == 13 && r.IntN(6) == 0:
			c.op = 'e'
		default:
			live = append(live, slot)
		}
		calls = append(calls, c)
	}
	return calls
}

// runCalls runs a program and returns what any allocator has in common after each step: how many blocks are
// live, and the bytes that were asked for in them.
func runCalls(t *testing.T, config Config, calls []act) (common [][2]int64) {
	dev := newScripted(8 << 30)
	c, err := New(dev, config)
	require.NoError(t, err)
	streams := []*scriptedStream{dev.stream(1), dev.stream(2), dev.stream(3)}
	blocks, requested := map[int]Block{}, map[int]int64{}
	var sum int64
	for i, k := range calls {
		s := streams[k.stream]
		switch k.op {
		case 'a':
			b := mustAlloc(t, c, k.bytes, s)
			require.GreaterOrEqual(t, b.Size(), config.RoundSize(k.bytes))
			require.Zero(t, b.Size()%minBlock)
			for _, o := range blocks {
				require.False(t, b.ptr < o.ptr+device.Ptr(o.size) && o.ptr < b.ptr+device.Ptr(b.size), "call %d: %v overlaps %v", i, b, o)
			}
			blocks[k.slot], requested[k.slot] = b, k.bytes
			sum += k.bytes
		case 'f':
			require.NoError(t, blocks[k.slot].Free())
			sum -= requested[k.slot]
			delete(blocks, k.slot)
		case 'r':
			require.NoError(t, blocks[k.slot].RecordStream(s))
		case 'b':
			s.busy = true
		case 'd':
			s.finish()
		case 'e':
			require.NoError(t, c.EmptyCache(context.Background()))
			require.Zero(t, c.Stats().Active.All.Current-c.Stats().Allocation.All.Current)
		}
		require.NoError(t, c.check(), "call %d", i)
		st := c.Stats()
		require.EqualValues(t, len(blocks), st.Allocation.All.Current)
		require.LessOrEqual(t, st.AllocatedBytes.All.Current, st.ActiveBytes.All.Current)
		require.LessOrEqual(t, st.ActiveBytes.All.Current, st.ReservedBytes.All.Current)
		require.LessOrEqual(t, st.RequestedBytes.All.Current, st.ActiveBytes.All.Current)
		common = append(common, [2]int64{st.Allocation.All.Current, sum})
	}
	require.Zero(t, c.Stats().NumOOMs)
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
	require.NoError(t, c.EmptyCache(context.Background()))
	st := c.Stats()
	for _, s := range st.quantities() {
		require.Zero(t, s.Current)
		require.Equal(t, s.Allocated, s.Freed)
	}
	require.Empty(t, dev.live)
	require.Empty(t, dev.mapped)
	require.Empty(t, dev.reserved)
	require.NoError(t, c.Close())
	return common
}

// TestOptionsChangeNoResults runs the same programs under different options: placement differs, and nothing
// that a caller relies on.
func TestOptionsChangeNoResults(t *testing.T) {
	options := map[string]Config{
		"exact":                 {Exact: true},
		"max split":             {MaxSplitSizeMB: 20},
		"max split, exact":      {MaxSplitSizeMB: 25, MaxNonSplitRoundingMB: 30, Exact: true},
		"large segment":         {LargeSegmentSizeMB: 12},
		"divisions":             {RoundupPower2Divisions: AllDivisions(4)},
		"divisions by size":     {RoundupPower2Divisions: Divisions{8, 0, 2, 1, 16, 4, 2, 2}},
		"collection":            {GarbageCollectionThreshold: 0.02, PerProcessMemoryFraction: 0.9},
		"collection, max split": {GarbageCollectionThreshold: 0.01, PerProcessMemoryFraction: 0.9, MaxSplitSizeMB: 21, Exact: true},
		"expandable":            {ExpandableSegments: true},
		"expandable, exact":     {ExpandableSegments: true, Exact: true},
		"expandable, max split": {ExpandableSegments: true, MaxSplitSizeMB: 20},
		"expandable, remap":     {ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true},
		"remap, large granules": {ExpandableSegments: true, ExpandableRemap: true, MaxSplitSizeMB: 20},
		"everything": {ExpandableSegments: true, MaxSplitSizeMB: 64, MaxNonSplitRoundingMB: 80, LargeSegmentSizeMB: 32,
			RoundupPower2Divisions: AllDivisions(8), GarbageCollectionThreshold: 0.05, PerProcessMemoryFraction: 0.9},
	}
	seeds := uint64(3)
	if race.Enabled {
		seeds = 1
	}
	for seed := range seeds {
		calls := randomCalls(seed, 1200)
		want := runCalls(t, Config{}, calls)
		for name, config := range options {
			require.Equal(t, want, runCalls(t, config, calls), "%s, seed %d", name, seed)
		}
	}
}

// TestFailuresLeaveNothingBehind lets driver calls fail at random, under different options: an allocation
// works or says out of memory, and every byte comes back at the end.
func TestFailuresLeaveNothingBehind(t *testing.T) {
	for _, config := range []Config{{}, {Exact: true}, {MaxSplitSizeMB: 20}, {ExpandableSegments: true}, {ExpandableSegments: true, MaxSplitSizeMB: 20, Exact: true}} {
		r := rand.New(rand.NewPCG(11, 12))
		c, dev := newCache(t, config)
		s, side := dev.stream(1), dev.stream(2)
		var live []Block
		failed := 0
		for range 2000 {
			dev.failures = max(0, r.IntN(12)-8)
			if n := len(live); n > 30 || n > 0 && r.IntN(3) == 0 {
				i := r.IntN(n)
				side.busy = r.IntN(2) == 0
				require.NoError(t, errors.Join(live[i].RecordStream(side), live[i].Free()))
				live = slices.Delete(live, i, i+1)
			} else if b, err := c.Alloc(t.Context(), 1+int64(math.Exp2(r.Float64()*26)), s); err == nil {
				live = append(live, b)
			} else {
				require.ErrorIs(t, err, ErrOutOfMemory)
				failed++
			}
			require.NoError(t, c.check())
		}
		require.Positive(t, failed)
		dev.failures = 0
		for _, b := range live {
			require.NoError(t, b.Free())
		}
		require.NoError(t, c.EmptyCache(t.Context()))
		require.Zero(t, c.MemoryReserved())
		require.Empty(t, dev.live)
		require.Empty(t, dev.mapped)
		require.NoError(t, c.Close())
	}
}

// TestUnmapThatFailsHalfWay: granules that the driver took back before one that it refused are gone, the others stay free
// memory, and both serve the next requests.
func TestUnmapThatFailsHalfWay(t *testing.T) {
	c, dev := newCache(t, Config{ExpandableSegments: true})
	s := dev.stream(1)
	b := mustAlloc(t, c, 80*mib, s)
	require.NoError(t, b.Free())
	n, refused := 0, errors.New("refused")
	dev.gate = func(_ context.Context, call string) error {
		if n++; call == "Unmap" && n == 3 {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, c.EmptyCache(t.Context()), refused)
	require.NoError(t, c.check())
	require.EqualValues(t, 40*mib, c.MemoryReserved())
	require.EqualValues(t, 1, c.Stats().NumDeviceFree)
	require.Equal(t, b.Ptr()+40*mib, mustAlloc(t, c, 40*mib, s).Ptr(), "still mapped")
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 40*mib, s).Ptr(), "mapped again")
	require.NoError(t, c.check())
}
