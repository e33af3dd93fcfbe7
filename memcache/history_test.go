package memcache

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistoryRing(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(5)
	require.Nil(t, c.History())
	for _, o := range []HistoryOptions{{Entries: -1}, {Entries: maxHistory + 1}, {Entries: 1, Stacks: 9}} {
		require.ErrorIs(t, c.RecordHistory(o), ErrInvalid)
	}
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 4}))
	require.Empty(t, c.History())
	a := mustAlloc(t, c, 100, s)
	b := mustAlloc(t, c, 200, s)
	require.NoError(t, a.Free())
	var got []HistoryEntry
	for _, e := range c.History() {
		require.False(t, e.Time.IsZero())
		require.Nil(t, e.Stack)
		e.Time = got0
		got = append(got, e)
	}
	require.Equal(t, []HistoryEntry{
		{Action: ActionAlloc, Address: a.Ptr(), Size: 100, Stream: 5, Serial: a.Serial(), Block: 512, Grew: true},
		{Action: ActionAlloc, Address: b.Ptr(), Size: 200, Stream: 5, Serial: b.Serial(), Block: 512},
		{Action: ActionFreeRequested, Address: a.Ptr(), Size: 100, Stream: 5, Serial: a.Serial(), Block: 512, AtOnce: true},
		{Action: ActionFreeCompleted, Address: a.Ptr(), Size: 100, Stream: 5, Serial: a.Serial(), Block: 512},
	}, got, "the oldest is forgotten")
	require.NoError(t, c.RecordHistory(HistoryOptions{}))
	require.Nil(t, c.History())
}

var got0 time.Time

func functions(stack []uintptr) string {
	var names []string
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		names = append(names, f.Function)
		if !more {
			return strings.Join(names, " ")
		}
	}
}

func TestHistoryStacks(t *testing.T) {
	for _, level := range []Stacks{StacksNone, StacksState, StacksAlloc, StacksAll} {
		c, dev := newCache(t, Config{})
		s := dev.stream(1)
		require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 10, Stacks: level}))
		b := mustAlloc(t, c, 100, s)
		for _, block := range c.Snapshot().Segments[0].Blocks[:1] {
			require.Equal(t, level >= StacksState, strings.Contains(functions(block.Stack), "mustAlloc"))
		}
		require.NoError(t, b.Free())
		require.Nil(t, c.Snapshot().Segments[0].Blocks[0].Stack, "a free block has none")
		h := c.Snapshot().History
		require.Equal(t, []Action{ActionSegmentAlloc, ActionAlloc, ActionSnapshot, ActionFreeRequested, ActionFreeCompleted, ActionSnapshot},
			[]Action{h[0].Action, h[1].Action, h[2].Action, h[3].Action, h[4].Action, h[5].Action})
		require.EqualValues(t, 512, h[2].Size)
		require.Equal(t, level >= StacksAlloc, strings.Contains(functions(h[1].Stack), "TestHistoryStacks"))
		require.Equal(t, level >= StacksAll, strings.Contains(functions(h[3].Stack), "TestHistoryStacks"))
		user := dev.stream(2)
		user.busy = true
		b = mustAlloc(t, c, 100, s)
		require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
		require.Nil(t, c.Snapshot().Segments[0].Blocks[0].Stack, "nor has a pending one")
	}
}

func TestHistoryOfFailures(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.5})
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 10}))
	_, err := c.Alloc(context.Background(), 600<<20+1, dev.stream(1))
	require.ErrorIs(t, err, ErrOutOfMemory)
	h := c.History()
	require.Len(t, h, 1)
	require.Equal(t, ActionOOM, h[0].Action)
	require.EqualValues(t, 600<<20+512, h[0].Size)
	require.EqualValues(t, 1<<30, h[0].Free)
}

func TestHistoryConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{})
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 1000, Stacks: StacksAll}))
	together(4, func(g int) {
		for range 200 {
			b := mustAlloc(t, c, 1000, dev.stream(uint64(g)))
			require.NoError(t, b.Free())
			c.History()
		}
	})
	last := map[uint64]uint64{}
	for _, e := range c.History() {
		if e.Action == ActionAlloc {
			require.Greater(t, e.Serial, last[e.Stream], "a stream's entries are in order")
			last[e.Stream] = e.Serial
		}
	}
	require.NoError(t, c.RecordHistory(HistoryOptions{}))
}

// TestSetHistoryStacks: from one event to the next, of the ring and of a stream.
func TestSetHistoryStacks(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	require.ErrorIs(t, c.SetHistoryStacks(StacksAll), ErrInvalid, "nothing is recorded")
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 100}))
	require.ErrorIs(t, c.SetHistoryStacks(StacksAll+1), ErrInvalid)
	for _, level := range []Stacks{StacksNone, StacksAlloc, StacksAll, StacksNone} {
		require.NoError(t, c.SetHistoryStacks(level))
		require.NoError(t, mustAlloc(t, c, 100, s).Free())
	}
	stream.Close()
	events, err := stream.Next(0)
	require.NoError(t, err)
	for _, list := range [][]HistoryEntry{c.History(), events} {
		var allocs, frees []bool
		for _, e := range list {
			switch e.Action {
			case ActionAlloc:
				allocs = append(allocs, len(e.Stack) > 0)
			case ActionFreeRequested:
				frees = append(frees, len(e.Stack) > 0)
			}
		}
		require.Equal(t, []bool{false, true, true, false}, allocs)
		require.Equal(t, []bool{false, false, true, false}, frees)
	}
}

// TestSnapshotCopiesTheHistoryUnlocked: other goroutines continue meanwhile, and the snapshot
// contains no entries that they add or overwrite.
func TestSnapshotCopiesTheHistoryUnlocked(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	const entries = 4 * copyPiece
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: entries}))
	for range entries { // three events each
		require.NoError(t, mustAlloc(t, c, 512, s).Free())
	}
	last := mustAlloc(t, c, 512, s)
	ring, pieces := c.shards.history.ring(), 0
	ring.between = func() {
		pieces++
		require.True(t, c.shards.mu.TryLock(), "no lock is held")
		c.shards.mu.Unlock()
		if pieces == 2 {
			for range copyPiece { // 3 * copyPiece events: more than was copied
				require.NoError(t, mustAlloc(t, c, 512, s).Free())
			}
		}
	}
	h := c.Snapshot().History
	ring.between = nil
	require.Greater(t, pieces, 2)
	require.Len(t, h, entries-3*copyPiece, "as many as were not overwritten; the mark of the snapshot takes no place")
	require.Equal(t, last.Serial(), h[len(h)-1].Serial)
	for i, e := range h[1:] {
		require.LessOrEqual(t, e.Serial-h[i].Serial, uint64(1), "without a gap")
	}
	require.Len(t, c.History(), entries)
	require.NoError(t, last.Free())
}
