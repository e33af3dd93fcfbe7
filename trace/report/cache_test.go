package report

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// TestSpansAreByTime: a step has the entries from its start to its end, both included, and all
// entries of equal times. A step that ended before the first entry has no span, and one that began
// before it is late.
func TestSpansAreByTime(t *testing.T) {
	const epoch = 1_000
	for seed := range uint64(300) {
		r := newRand(seed)
		s := &source{}
		now := int64(epoch)
		for range 1 + r.IntN(12) {
			now += r.Int64N(3)
			s.entries = append(s.entries, entry{time: now})
		}
		var want []span
		var steps []trace.StepProfile
		for i := range 1 + r.Int64N(5) {
			p := trace.StepProfile{Step: i, Start: time.Unix(0, epoch-4+r.Int64N(20)), HostTime: time.Duration(r.Int64N(6)), DeviceTimed: i%2 == 0, DeviceTime: 7}
			steps = append(steps, p)
		}
		for i := range steps {
			p := &steps[i]
			from, to := p.Start.UnixNano(), p.Start.UnixNano()+int64(p.HostTime)
			if to < s.entries[0].time {
				continue
			}
			sp := span{step: p.Step, hostTime: int64(p.HostTime), deviceTime: -1}
			if p.DeviceTimed {
				sp.deviceTime = 7
			}
			for _, e := range s.entries {
				if e.time < from {
					sp.from++
				}
				if e.time <= to {
					sp.to++
				}
			}
			if from < s.entries[0].time {
				sp.late = p
			}
			at := len(want)
			for at > 0 && steps[want[at-1].step].Start.After(p.Start) {
				at--
			}
			want = append(want[:at], append([]span{sp}, want[at:]...)...)
		}
		s.addSpans(steps)
		require.Equal(t, want, s.spans, seed)
	}
}

// TestHostileSizes: impossible sizes are refused before a sum of them wraps: against sums of any
// size.
func TestHostileSizes(t *testing.T) {
	refused := 0
	for seed := range uint64(200) {
		r := newRand(seed)
		s := &source{name: name(int(seed)), sizing: sizingOf("", nil), owners: newOwners()}
		nobody := s.owners.add(owner{category: unlabelled, stack: -1})
		addr := uint64(0)
		some := func() int64 {
			return []int64{1, maxBytes / 4, maxBytes/2 - 1, maxBytes / 2, maxBytes/2 + 1, maxBytes - 1, maxBytes}[r.IntN(7)]
		}
		for range r.IntN(4) {
			addr += 512
			s.entries = append(s.entries, entry{action: recording.Alloc, addr: addr, requested: 1, size: some(), owner: nobody})
			if r.IntN(2) == 0 {
				s.entries = append(s.entries, entry{action: recording.FreeCompleted, addr: addr, requested: 1, owner: nobody})
			}
		}
		for range []int{0, 1, 2, 1024, 2048}[r.IntN(5)] {
			n := int64(maxBytes)
			if seed%2 == 0 {
				n = some()
			}
			addr += 512
			s.final = append(s.final, finalSegment{addr: addr, size: 512, blocks: []finalBlock{{addr: addr, size: n, requested: 1, owner: nobody}}})
		}
		a := &account{source: s}
		a.addBlocks()
		most := new(big.Int)
		var curve []int64
		for m := int32(-1); m < a.moments(); m++ {
			held := new(big.Int)
			for _, b := range a.blocks {
				if b.alloc <= m && m < b.free {
					held.Add(held, big.NewInt(b.size))
				}
			}
			if held.Cmp(most) > 0 {
				most = held
			}
			curve = append(curve, held.Int64())
		}
		got, err := a.allocated()
		if most.Cmp(big.NewInt(maxBytes)) > 0 {
			require.ErrorIs(t, err, errTooLarge, seed)
			refused++
			continue
		}
		require.NoError(t, err, seed)
		require.Equal(t, curve, got, seed)
	}
	require.Greater(t, refused, 50)
	require.Less(t, refused, 150)
}

// TestHistoryTimes: entries of streams that waited for the history's lock have at least the time of
// the latest entry before them.
func TestHistoryTimes(t *testing.T) {
	r := newRand(1)
	s := &source{owners: newOwners()}
	l := labels{owners: s.owners, byPC: make(map[uintptr]frame), allocs: make(map[uint64]int)}
	latest := int64(0)
	for i := range uint64(200) {
		now := 1_000_000 + r.Int64N(100)
		latest = max(latest, now)
		s.addHistory(&memcache.HistoryEntry{Action: memcache.ActionAlloc, Serial: i, Address: 512, Size: 512, Block: 512, Time: time.Unix(0, now)}, &l, &recording.Recording{})
		require.Equal(t, latest, s.entries[i].time)
	}
}

// TestFirstStepOfHistory: a step that begins before the first entry has all figures if the history has
// all of its entries.
func TestFirstStepOfHistory(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, everything)
	l.silent = true
	var steps []trace.StepProfile
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: l.cache, OnProfile: func(p trace.StepProfile) { steps = append(steps, p) }})
	require.NoError(t, err)
	_, step := profiler.StartStep(t.Context(), 1)
	l.alloc(memcache.Label{Category: memcache.CategoryGradient}, 4<<20, 0)
	step.End()
	require.NoError(t, profiler.Close())
	r, err := FromCache(l.cache, steps, Options{})
	require.NoError(t, err)
	require.Len(t, r.account.steps, 1)
	row := r.account.steps[0]
	require.Equal(t, []int64{4 << 20, 4 << 20, 20 << 20}, []int64{row.allocatedBytes, row.left, row.reserved})
	require.Nil(t, row.late)
}
