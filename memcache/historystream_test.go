package memcache

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// actions reads a stream to its end.
func actions(t *testing.T, s *HistoryStream) (list []Action) {
	for {
		events, err := s.Next(time.Hour)
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			return list
		}
		for _, e := range events {
			require.False(t, e.Time.IsZero())
			list = append(list, e.Action)
		}
	}
}

func TestHistoryStream(t *testing.T) {
	c, dev := newCache(t, Config{Exact: true, MemoryLimit: 30 << 20})
	s, side := dev.stream(5), dev.stream(6)
	before := mustAlloc(t, c, 100, s)
	_, err := c.StreamHistory(HistoryOptions{Stacks: 9})
	require.ErrorIs(t, err, ErrInvalid)
	stream, err := c.StreamHistory(HistoryOptions{Stacks: StacksAlloc})
	require.NoError(t, err)
	_, err = c.StreamHistory(HistoryOptions{})
	require.ErrorIs(t, err, ErrInvalid, "one at a time")
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 100}))
	require.EqualValues(t, 512, stream.Start().Stats.AllocatedBytes.All.Current)
	require.EqualValues(t, 30<<20, stream.Start().Limit)
	require.Equal(t, before.Serial(), stream.Start().Segments[0].Blocks[0].Serial)

	a := mustAlloc(t, c, 200, s)
	require.NoError(t, a.Free())
	stream.Note(7)
	side.busy = true
	require.NoError(t, before.RecordStream(side))
	require.NoError(t, before.Free())
	side.busy = false
	b := mustAlloc(t, c, 20<<20, s)
	_, err = c.Alloc(t.Context(), 20<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	c.ResetPeakStats()
	c.ResetAccumulatedStats()
	require.NoError(t, c.SetMemoryFraction(1))
	require.NoError(t, c.EmptyCache(t.Context()))

	events, err := stream.Next(0)
	require.NoError(t, err)
	require.Equal(t, []HistoryEntry{
		{Action: ActionAlloc, Address: a.Ptr(), Size: 200, Stream: 5, Serial: a.Serial(), Block: 512, Time: events[0].Time, Stack: events[0].Stack},
		{Action: ActionFreeRequested, Address: a.Ptr(), Size: 200, Stream: 5, Serial: a.Serial(), Block: 512, AtOnce: true, Time: events[1].Time},
		{Action: ActionNote, Serial: 7, Time: events[2].Time},
	}, events[:3])
	require.Contains(t, functions(events[0].Stack), "TestHistoryStream")
	var names []string
	for _, e := range events[3:] {
		names = append(names, string(e.Action))
	}
	require.Equal(t, "free_requested miss segment_alloc alloc miss flush free_completed segment_free oom reset_peaks reset_totals set_limit flush empty_cache",
		strings.Join(names, " "))
	require.EqualValues(t, -1, events[len(events)-3].Size)
	none, err := stream.Next(0)
	require.NoError(t, err)
	require.Empty(t, none)

	// The cache's Close ends the stream, before it gives memory back.
	require.Error(t, c.Close(), "a block leaks")
	stream.Close()
	require.Empty(t, actions(t, stream))
	require.Equal(t, b.Serial(), stream.End().Segments[0].Blocks[0].Serial)
	_, err = c.StreamHistory(HistoryOptions{})
	require.ErrorIs(t, err, ErrClosed)
}

// TestHistoryStreamOfEmptyCache: the stream records whose memory was to be returned, and whether it
// was.
func TestHistoryStreamOfEmptyCache(t *testing.T) {
	c, dev := newCache(t, Config{})
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	pool, err := c.NewPool(PoolOptions{})
	require.NoError(t, err)
	require.NoError(t, pool.Release())
	require.NoError(t, c.EmptyCache(t.Context()))
	require.NoError(t, pool.EmptyCache(t.Context()))
	require.NoError(t, mustAlloc(t, c, 100, dev.stream(1)).Free())
	ctx, cancel := context.WithCancel(t.Context())
	side, late := dev.stream(2), mustAlloc(t, c, 100, dev.stream(1))
	side.busy = true
	require.NoError(t, late.RecordStream(side))
	require.NoError(t, late.Free())
	dev.gate = func(context.Context, string) error {
		cancel()
		return ctx.Err()
	}
	require.ErrorIs(t, c.EmptyCache(ctx), context.Canceled)
	dev.gate, side.busy = nil, false
	events, err := stream.Next(0)
	require.NoError(t, err)
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Action, " ", e.Pool[1]))
	}
	require.Equal(t, []string{"flush 0", "empty_cache 0", "flush 1", "empty_cache 1", "miss 0", "segment_alloc 0", "alloc 0", "free_requested 0", "alloc 0", "free_requested 0", "flush 0", "failed 0"}, got)
}

// TestHistoryStreamWaits: without a reader a program blocks before it takes a lock, soon after the
// limit of pieces is reached. No event is lost, and a context, the reader or the end of the stream
// unblocks it.
func TestHistoryStreamWaits(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	var made atomic.Int64
	run := func(n int) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range n {
				b := mustAlloc(t, c, 100, s)
				made.Add(1)
				require.NoError(t, b.Free())
				made.Add(1)
			}
		}()
		return done
	}
	done := run(3 * historyPiece * mostPieces / 4)
	for !stream.behind.Load() {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Alloc(ctx, 100, s)
	require.ErrorIs(t, err, context.Canceled)
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err = c.Alloc(ctx, 100, s)
	require.ErrorContains(t, err, "Alloc of 100 bytes: waiting for the reader of the history")
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	require.ErrorContains(t, c.EmptyCache(ctx), "memcache: EmptyCache: waiting for the reader of the history")
	require.EqualValues(t, 0, c.MemoryAllocated()%512, "statistics wait for nobody")
	require.LessOrEqual(t, made.Load(), int64(historyPiece*mostPieces))
	require.Positive(t, c.Snapshot().Segments[0].TotalSize)

	go func() {
		<-done
		stream.Close()
	}()
	var allocs, frees int
	for _, a := range actions(t, stream) {
		switch a {
		case ActionAlloc:
			allocs++
		case ActionFreeRequested:
			frees++
		}
	}
	require.EqualValues(t, made.Load(), allocs+frees)

	// The end of a stream without a reader.
	stream, err = c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)
	done = run(historyPiece * mostPieces)
	for !stream.behind.Load() {
		time.Sleep(time.Millisecond)
	}
	stream.Close()
	<-done
}

// TestHistoryStreamOrder: all goroutines have one order, in which each block is allocated before it
// is freed, and no address twice.
func TestHistoryStreamOrder(t *testing.T) {
	c, dev := newCache(t, Config{})
	stream, err := c.StreamHistory(HistoryOptions{Stacks: StacksAll})
	require.NoError(t, err)
	go func() {
		together(6, func(g int) {
			for range 500 {
				b := mustAlloc(t, c, 1000, dev.stream(uint64(g%3)))
				require.NoError(t, b.Free())
			}
		})
		stream.Close()
		stream.Close()
	}()
	live := map[uint64]HistoryEntry{}
	at := map[uint64]uint64{}
	overlaps := 0
	for {
		events, err := stream.Next(time.Hour)
		if err != nil {
			break
		}
		for _, e := range events {
			switch e.Action {
			case ActionAlloc:
				require.Zero(t, at[uint64(e.Address)])
				at[uint64(e.Address)] = e.Serial
				live[e.Serial] = e
			case ActionFreeRequested:
				require.Equal(t, live[e.Serial].Address, e.Address)
				delete(live, e.Serial)
				delete(at, uint64(e.Address))
				require.NotEmpty(t, e.Stack)
			case ActionOverlap:
				overlaps++
			}
		}
	}
	require.Empty(t, live)
	require.LessOrEqual(t, overlaps, 6, "one of each goroutine at most, as its call begins while the first is being noted")
}

// TestHistoryOverlapIsNotedFirst: no call that begins during another one proceeds before one of
// them has recorded the overlap.
func TestHistoryOverlapIsNotedFirst(t *testing.T) {
	const calls = 6
	c, _ := newCache(t, Config{})
	stream, err := c.StreamHistory(HistoryOptions{})
	require.NoError(t, err)

	stream.mu.Lock() // nothing can be noted
	stream.begin()   // the first notes nothing
	var ahead atomic.Int32
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			stream.begin()
			ahead.Add(1)
			e := event(ActionMiss)
			stream.add(&e)
		})
	}
	for stream.calls.Load() < 1+calls {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // for those that would go ahead
	early := ahead.Load()
	stream.mu.Unlock()
	all.Wait()
	require.Zero(t, early, "calls went ahead before it was noted that they overlap")

	for range 1 + calls {
		stream.leave()
	}
	stream.begin()
	stream.begin() // it is noted once
	stream.leave()
	stream.leave()
	stream.Close()
	made := actions(t, stream)
	overlaps := 0
	for _, a := range made {
		if a == ActionOverlap {
			overlaps++
		}
	}
	require.Equal(t, ActionOverlap, made[0])
	require.LessOrEqual(t, overlaps, calls, "each of those that began together notes it, and none later")
}

// TestHistoryStreamAllocatesNothing: a hit makes no Go allocation, not even for stacks.
func TestHistoryStreamAllocatesNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks after each call allocate")
	}
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	stream, err := c.StreamHistory(HistoryOptions{Stacks: StacksAll})
	require.NoError(t, err)
	ctx := WithModule(t.Context(), "m")
	for range 2 * historyPiece { // pieces to go round
		b, err := c.Alloc(ctx, 100, s)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		_, err = stream.Next(0)
		require.NoError(t, err)
	}
	require.Zero(t, testing.AllocsPerRun(historyPiece/4, func() {
		b, _ := c.Alloc(ctx, 100, s)
		_ = b.Free()
	}))
	stream.Close()
}
