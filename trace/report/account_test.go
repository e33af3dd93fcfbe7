package report

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/record"
)

// TestAccountAgainstLedger compares the figures of a page, at every moment that the program
// recorded, with the program's own, and the peak with the cache's.
func TestAccountAgainstLedger(t *testing.T) {
	for i, config := range []memcache.Config{{}, {ExpandableSegments: true}, {RoundupPower2Divisions: memcache.AllDivisions(4)}, {MaxSplitSizeMB: 32}} {
		seeds := 8
		if testing.Short() {
			seeds = 3 // with one stream, two and three
		}
		for seed := range seeds {
			t.Run(name(seed), func(t *testing.T) { // which frees the memory of its ledger
				l := newLedger(t, config, 1+seed%3, everything)
				l.random(newRand(uint64(100*i+seed)), 12)
				a := l.report(Options{}).account
				require.True(t, a.exact, name(seed))
				for _, s := range l.states {
					require.Equal(t, s.held, a.heldAt(int32(s.entries-1)), "%v after %d entries", config, s.entries)
				}
				require.Equal(t, l.cache.MaxMemoryAllocated(), a.peakBytes)
				require.Equal(t, l.cache.MaxMemoryReserved(), a.peakReserved)
				require.Nil(t, a.forgotten)
				require.Equal(t, a.peakBytes, sum(a.heldAt(a.peak)))
				peak := make(map[memcache.Label]int64)
				for _, h := range l.cache.PeakProfile().Holdings {
					peak[memcache.Label{Module: h.Module, Category: h.Category}] += h.Bytes
				}
				require.Equal(t, peak, a.heldAt(a.peak))
				require.Empty(t, a.notes)
			})
		}
	}
}

// TestStepsAgainstLedger: each row of the table of steps, by hand.
func TestStepsAgainstLedger(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 2, everything)
	l.random(newRand(7), 40)
	a := l.report(Options{}).account
	require.Len(t, a.steps, 40)
	before := state{held: map[memcache.Label]int64{}}
	at := 0
	for _, row := range a.steps {
		// A step lasts from its first allocation to the next step's.
		start, peak, allocs, frees := sum(before.held), before, 0, 0
		for ; at < len(l.states) && l.states[at].step == row.step; at++ {
			s := l.states[at]
			if sum(s.held) > sum(peak.held) {
				peak = s
			}
			if sum(s.held) > sum(before.held) {
				allocs++
			} else {
				frees++
			}
			before = s
		}
		require.Equal(t, start, row.start, row.step)
		require.Equal(t, sum(before.held), row.end, row.step)
		require.Equal(t, sum(peak.held), row.peak, row.step)
		require.EqualValues(t, allocs, row.allocs, row.step)
		require.EqualValues(t, frees, row.frees, row.step)
		shares := make([]int64, categories)
		for label, n := range peak.held {
			shares[label.Category] += n
		}
		require.Equal(t, shares, row.shares, row.step)
		left := int64(0)
		for b, label := range l.held {
			if label.Step == row.step {
				left += b.Size()
			}
		}
		require.Equal(t, left, row.left, "step %d frees nothing of earlier steps here", row.step)
	}
	require.Equal(t, len(l.states), at)
}

// TestNeverFreed: blocks that each step leaves behind grow; blocks that the first one makes for all
// others don't.
func TestNeverFreed(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, everything)
	mlp(l, 20, 3000)
	a := l.report(Options{}).account
	require.True(t, a.sites[0].grows)
	leak := a.sites[0]
	require.Equal(t, "metrics", a.owners.list[leak.owner].module)
	require.Equal(t, kept{owner: leak.owner, bytes: 20 * 3072, blocks: 20, first: 1, last: 20, steps: 20, grows: true}, leak)
	held := make(map[int8]int64)
	for _, k := range a.sites[1:] {
		require.False(t, k.grows)
		held[a.owners.list[k.owner].category] += k.bytes
	}
	require.Len(t, held, 2)
	require.Equal(t, 2*held[int8(memcache.CategoryParameter)], held[int8(memcache.CategoryOptimizerState)])
	require.Equal(t, l.cache.MemoryAllocated(), leak.bytes+sum(held))
}

// TestForgetfulHistory: a ring that has forgotten its beginning still ends with the cache's blocks.
func TestForgetfulHistory(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 2, memcache.HistoryOptions{Entries: 150})
	l.free(l.alloc(memcache.Label{Module: "head"}, 160<<20, 0)) // more than what follows reserves
	require.NoError(t, l.cache.EmptyCache(t.Context()))
	l.random(newRand(3), 30)
	a := l.report(Options{}).account
	require.EqualValues(t, 150, a.moments())
	require.True(t, a.exact, "a free tells how large its block is")
	held := a.heldAt(a.moments() - 1)
	delete(held, memcache.Label{}) // unknown owner
	for label, n := range held {
		require.Equal(t, l.states[len(l.states)-1].held[label], n, label)
	}
	allocated, err := a.allocated()
	require.NoError(t, err)
	require.Equal(t, l.cache.MemoryAllocated(), allocated[len(allocated)-1])
	require.Equal(t, l.cache.MaxMemoryAllocated(), a.profiles[1].allocated, "the cache's own profile is exact all the same")
	require.Less(t, a.peakBytes, l.cache.MaxMemoryAllocated())
	require.Same(t, &a.profiles[1], a.forgotten, "and so is what the page says first")
	require.Less(t, a.peakReserved, l.cache.MaxMemoryReserved())
	require.Equal(t, l.cache.MaxMemoryReserved(), a.mostReserved)
	require.Contains(t, strings.Join(a.notes, "\n"), "the history does not contain the peak")
}

// life is the moments and the size of a block, as TestAnyEntries computes them.
type life struct {
	addr              uint64
	alloc, free, done int32
	size              int64
}

// lives returns the blocks of a source and the contradictions about them, one address after the
// other.
func (s *source) lives() (all []life, replaced, missing int) {
	end := int32(len(s.entries))
	at := map[uint64][]int32{} // entries
	for i, e := range s.entries {
		if slices.Contains([]recording.Action{recording.Alloc, recording.FreeRequested, recording.FreeCompleted}, e.action) {
			at[e.addr] = append(at[e.addr], int32(i))
		}
	}
	final := map[uint64][]finalBlock{}
	for _, seg := range s.final {
		for _, b := range seg.blocks {
			final[b.addr] = append(final[b.addr], b)
		}
	}
	for addr := uint64(1) << 12; addr <= 6<<12; addr += 1 << 12 {
		var open *life
		requested := int64(0)
		close := func(i int32) {
			open.free, open.done = min(open.free, i), i
			all, open = append(all, *open), nil
		}
		for _, i := range at[addr] {
			e := s.entries[i]
			if e.action == recording.Alloc && open != nil {
				close(i)
				replaced++
			}
			if open == nil {
				requested = e.requested
				open = &life{addr: addr, alloc: -1, free: end, done: end, size: cmp.Or(e.size, s.sizing.round(e.requested))}
				if e.action == recording.Alloc {
					open.alloc = i
				}
				if e.action == recording.FreeCompleted {
					open.free = -1
				}
			}
			if e.action == recording.FreeRequested {
				open.free = min(open.free, i)
			}
			if e.action == recording.FreeCompleted {
				close(i)
			}
		}
		found := false
		for _, b := range final[addr] {
			if open != nil && requested == b.requested {
				open.size, found = b.size, true
				continue
			}
			f := life{addr: addr, alloc: -1, free: end, done: end, size: b.size}
			if b.pending {
				f.free = -1
			}
			all = append(all, f)
		}
		if open != nil {
			all = append(all, *open)
			if !found && s.final != nil {
				missing++
			}
		}
	}
	return all, replaced, missing
}

// TestAnyEntries: whatever the entries say, the account adds up and nothing panics.
func TestAnyEntries(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		r := newRand(uint64(seed))
		s := &source{name: name(seed), sizing: sizingOf("", nil), owners: newOwners()}
		nobody := s.owners.add(owner{category: unlabelled, stack: -1})
		for range r.IntN(60) {
			s.entries = append(s.entries, entry{action: recording.Action(r.IntN(8)), addr: uint64(1+r.IntN(6)) << 12, requested: 1 + r.Int64N(3), owner: nobody, step: r.Int64N(4), size: 4096 * r.Int64N(3)})
		}
		for range r.IntN(3) {
			s.final = append(s.final, finalSegment{addr: uint64(1+r.IntN(6)) << 12, size: 1 << 13, blocks: []finalBlock{{addr: uint64(1+r.IntN(6)) << 12, size: 4096 + 512*r.Int64N(2), requested: 1, pending: r.IntN(2) == 0, owner: nobody}}})
		}
		s.spans = randomSpans(r, len(s.entries))
		a, err := newAccount(s)
		require.NoError(t, err)
		want, replaced, missing := s.lives()
		var got []life
		for _, b := range a.blocks {
			got = append(got, life{b.addr, b.alloc, b.free, b.done, b.size})
		}
		require.ElementsMatch(t, want, got)
		notes := strings.Join(a.notes, "\n")
		require.Equal(t, replaced > 0, strings.Contains(notes, countBlocks(replaced)+" allocated at the address of a block that was not freed"), notes)
		require.Equal(t, missing > 0, strings.Contains(notes, countBlocks(missing)+" in use according to the entries"), notes)
		peak, at := int64(-1), int32(0)
		for m := int32(-1); m < a.moments(); m++ {
			held := sum(a.heldAt(m))
			require.GreaterOrEqual(t, held, int64(0))
			if held > peak {
				peak, at = held, m
			}
		}
		require.Equal(t, peak, a.peakBytes)
		require.Equal(t, at, a.peak)
		for _, row := range a.steps {
			for m := row.from - 1; m < row.to; m++ {
				require.LessOrEqual(t, sum(a.heldAt(m)), row.peak)
			}
			require.Equal(t, row.peak, sum(a.heldAt(row.peakAt)))
			all := int64(0)
			for _, n := range row.shares {
				all += n
			}
			require.Equal(t, row.peak, all)
			left := int64(0)
			for _, b := range a.blocks {
				if b.alloc >= row.from && b.alloc < row.to && b.free >= row.to {
					left += b.size
				}
			}
			require.Equal(t, left, row.left)
		}
		for i := range a.blocks {
			b := &a.blocks[i]
			require.Equal(t, a.innermost(b), a.stepOf(b))
		}
		curve, err := a.nonReleasable()
		require.NoError(t, err)
		require.Len(t, curve, len(s.entries)+1)
		for i, r := range a.segments.of {
			if b := &a.blocks[i]; r >= 0 {
				m := &a.ranges[r]
				require.True(t, m.from <= b.alloc && b.done <= m.to && m.addr <= b.addr && b.addr+uint64(b.size) <= m.end(), "%v is not in %v", b, m)
			}
		}
		require.NoError(t, Write(&bytes.Buffer{}, &Report{account: a}))
	}
}

func randomSpans(r *rand.Rand, n int) (list []span) {
	for i := range r.IntN(4) {
		from := r.IntN(n + 1)
		list = append(list, span{step: int64(i), from: int32(from), to: int32(from + r.IntN(n+1-from))})
	}
	return list
}

// innermost returns the step in which a block was allocated, by a search of all steps.
func (a *account) innermost(b *block) int64 {
	if b.step != 0 || b.alloc < 0 {
		return b.step
	}
	step, from := int64(0), int32(-1)
	for i := range a.steps {
		if s := &a.steps[i]; s.from <= b.alloc && b.alloc < s.to && s.from >= from {
			step, from = s.step, s.from
		}
	}
	return step
}

// TestOverlappingSteps: a block is of the innermost open step.
func TestOverlappingSteps(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, everything)
	for range 6 {
		l.alloc(memcache.Label{}, 512, 0)
	}
	a := l.report(Options{}).account
	first := a.blocks[0].alloc // after the segment
	a.spans = []span{{step: 1, from: first, to: first + 6}, {step: 2, from: first + 1, to: first + 3}, {step: 3, from: first + 2, to: first + 5}}
	a, err := newAccount(a.source)
	require.NoError(t, err)
	var got []int64
	for i := range a.blocks {
		got = append(got, a.stepOf(&a.blocks[i]))
	}
	require.Equal(t, []int64{1, 2, 3, 3, 3, 1}, got)
}

// TestStepBeforeHistory: the figures of a step that began before the history are the profiler's,
// and none is computed from the rest.
func TestStepBeforeHistory(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, memcache.HistoryOptions{Entries: 4})
	l.silent = true
	var steps []trace.StepProfile
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: l.cache, Holders: true, OnProfile: func(p trace.StepProfile) { steps = append(steps, p) }})
	require.NoError(t, err)
	var blocks []memcache.Block
	for n := range int64(3) {
		_, step := profiler.StartStep(t.Context(), n+1)
		for range 4 {
			blocks = append(blocks, l.alloc(memcache.Label{Category: memcache.CategoryGradient}, 4<<20, 0))
		}
		for _, b := range blocks {
			l.free(b)
		}
		blocks = blocks[:0]
		step.End()
	}
	require.NoError(t, profiler.Close())
	require.Len(t, steps, 3)
	r, err := FromCache(l.cache, steps, Options{})
	require.NoError(t, err)
	require.Len(t, r.account.steps, 1, "of the last step the history has some, of those before nothing")
	row, want := r.account.steps[0], steps[2]
	require.Equal(t, want.Step, row.step)
	require.EqualValues(t, 16<<20, row.peak)
	require.Equal(t, []int64{want.AllocatedPeak, want.AllocatedStart, want.AllocatedEnd, want.Allocations, want.Frees, unknown, unknown, unknown},
		[]int64{row.peak, row.start, row.end, row.allocs, row.frees, row.allocatedBytes, row.left, row.reserved})
	require.EqualValues(t, 16<<20, row.shares[memcache.CategoryGradient])
	s := encodeSteps(r.account.steps)
	require.Equal(t, []int64{1}, s.Columns["late"])
}

// TestMaxima compares with a walk over all values.
func TestMaxima(t *testing.T) {
	r := newRand(1)
	values := make([]int64, 5000)
	for i := range values {
		values[i] = r.Int64N(300)
	}
	m := newMaxima(values)
	for range 2000 {
		from := r.IntN(len(values))
		to := from + 1 + r.IntN(len(values)-from)
		require.Equal(t, m.scan(from, to), m.in(from, to), "%d to %d", from, to)
	}
}

// byLabel returns a profile by label.
func byLabel(p memcache.Profile) map[memcache.Label]int64 {
	held := make(map[memcache.Label]int64)
	for _, h := range p.Holdings {
		held[memcache.Label{Module: h.Module, Category: h.Category}] += h.Bytes
	}
	return held
}

// TestChangedLabels: a label that is changed later applies from the block's start, as in the
// cache's own profile of the peak.
func TestChangedLabels(t *testing.T) {
	l := newLedger(t, memcache.Config{}, 1, everything)
	weight := l.alloc(memcache.Label{Category: memcache.CategoryOther, Step: 3}, 10_000, 0)
	l.free(l.alloc(memcache.Label{Module: "loss", Category: memcache.CategoryWorkspace}, 5_000, 0))
	require.NoError(t, weight.SetLabel(memcache.Label{Module: "head", Category: memcache.CategoryParameter}))
	a := l.report(Options{}).account
	require.Equal(t, byLabel(l.cache.PeakProfile()), a.heldAt(a.peak))
	require.Equal(t, map[memcache.Label]int64{{Module: "head", Category: memcache.CategoryParameter}: weight.Size()}, a.heldAt(a.moments()-1))
	require.Empty(t, a.steps)
}

// TestOwnRecording: the recording of a program makes the same page as its cache does.
func TestOwnRecording(t *testing.T) {
	l := newLedger(t, memcache.Config{ExpandableSegments: true}, 2, everything)
	var file bytes.Buffer
	recorder, err := record.Start(&file, l.cache, record.Options{Gzip: true, Stacks: memcache.StacksAlloc})
	require.NoError(t, err)
	l.random(newRand(5), 30)
	require.NoError(t, recorder.Close())
	list, err := Read(&file, "run.jsonl.gz", Options{WhatIf: []string{""}})
	require.NoError(t, err)
	live, recorded := l.report(Options{}).account, list[0].account
	require.True(t, recorded.exact)
	require.Equal(t, l.cache.MaxMemoryAllocated(), recorded.peakBytes)
	require.Equal(t, l.cache.MaxMemoryReserved(), recorded.peakReserved)
	require.Equal(t, byLabel(l.cache.PeakProfile()), recorded.heldAt(recorded.peak))
	require.Equal(t, l.states[len(l.states)-1].held, recorded.heldAt(recorded.moments()-1))
	require.Len(t, recorded.steps, len(live.steps))
	for i, row := range recorded.steps {
		want := live.steps[i]
		require.Equal(t, []int64{want.step, want.peak, want.start, want.end, want.left, want.allocs, want.frees, want.allocatedBytes},
			[]int64{row.step, row.peak, row.start, row.end, row.left, row.allocs, row.frees, row.allocatedBytes})
		require.Equal(t, want.shares, row.shares)
	}
	require.Len(t, list[0].whatIf, 2)
	require.Empty(t, list[0].whatIf[0].Error)
}
