package host

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// TestSynchronizeMeetsTheEnd: Synchronize neither returns too early nor hangs, however it overlaps
// the end of the last operation.
func TestSynchronizeMeetsTheEnd(t *testing.T) {
	d := deviceOf(t)
	s := streamOf(t, d)
	ran := 0
	launch := &device.Launch{Func: func() { ran++ }}
	const rounds = 3000
	for i := range rounds {
		for range i % 3 {
			require.NoError(t, s.Launch(launch))
		}
		for range i % 7 * 10 { // delays that are too short for a clock
			_, err := s.Query()
			require.NoError(t, err)
		}
		require.NoError(t, s.Launch(launch))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, s.Synchronize(ctx), "in round %d", i)
		cancel()
	}
	require.Equal(t, 2*rounds, ran)
	q := &s.(*stream).queue
	require.Nil(t, q.waiters)
	require.Zero(t, q.waiting.Load())
}

// TestNotedWaiters: the worker completes a waiter if it can have seen it; otherwise the waiter
// returns at once.
func TestNotedWaiters(t *testing.T) {
	var q queue
	q.done.Store(3)
	first, done := q.note(4)
	require.False(t, done)
	second, done := q.note(4)
	require.False(t, done)
	require.Same(t, first, second)

	q.done.Store(4) // written by the worker, which now needs the lock for the waiters
	third, done := q.note(4)
	require.True(t, done || third == first)
	taken := q.takeWaiters(4)
	require.Same(t, first, taken, "who notes a waiter later takes it from those who wait")
	require.Nil(t, taken.next)
	require.Zero(t, q.waiting.Load())

	_, done = q.note(4) // the worker has not seen it and would not complete it
	require.True(t, done)
	require.Nil(t, q.waiters)
	require.Zero(t, q.waiting.Load())
}

// TestManySynchronizeAtOnce: all calls return, even if the last operation ends at the same time.
func TestManySynchronizeAtOnce(t *testing.T) {
	d := deviceOf(t)
	s := streamOf(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 500 {
		require.NoError(t, s.Launch(&device.Launch{Func: func() {}}))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { assert.NoError(t, s.Synchronize(ctx)) })
		}
		all.Wait()
	}
}

// TestTakeWaiters removes the complete records, and no others.
func TestTakeWaiters(t *testing.T) {
	for n := range int64(6) {
		var q queue
		for _, after := range []int64{1, 3, 5} {
			q.waiters = &record{after: after, next: q.waiters}
			q.waiting.Add(1)
		}
		var taken, left []int64
		for r := q.takeWaiters(n); r != nil; r = r.next {
			taken = append(taken, r.after)
		}
		for r := q.waiters; r != nil; r = r.next {
			left = append(left, r.after)
		}
		for _, after := range taken {
			require.LessOrEqual(t, after, n)
		}
		for _, after := range left {
			require.Greater(t, after, n)
		}
		require.Len(t, append(taken, left...), 3)
		require.Equal(t, int64(len(left)), q.waiting.Load())
	}
}

// TestOperationsAreUsedAgain: reused operations hold nothing of their earlier use.
func TestOperationsAreUsedAgain(t *testing.T) {
	if race.Enabled {
		t.Skip("each is new: a reused address would have edges")
	}
	d := deviceOf(t)
	s := streamOf(t, d)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	named := make([]device.Range, 9)
	for i := range named {
		named[i] = device.Range{Ptr: p + device.Ptr(i), Bytes: 8}
	}
	var held []weak.Pointer[[64]byte]
	for i := range 3 * depth {
		big := new([64]byte)
		held = append(held, weak.Make(big))
		require.NoError(t, s.Launch(&device.Launch{Name: "a name", Func: func() { big[0]++ }, Reads: named[:i%10], Writes: named[:i%3]}))
		if i%5 == 0 {
			require.NoError(t, s.Memset(p, byte(i), 64))
		}
	}
	require.NoError(t, s.Synchronize(t.Context()))
	d.mem.lock()
	require.Zero(t, d.mem.find(inProcess(p), allocated).uses())
	d.mem.unlock()
	runtime.GC()
	for _, w := range held {
		require.Nil(t, w.Value())
	}
	q := &s.(*stream).queue
	seen := map[*op]bool{}
	for o := q.newOp(opLaunch); o.name == "" && len(seen) <= depth+1 && !seen[o]; o = q.newOp(opLaunch) {
		require.Zero(t, o.uses.n)
		require.Nil(t, o.uses.last)
		require.Equal(t, rest{}, o.rest)
		require.Nil(t, o.kernel)
		require.NotSame(t, q.taken, o, "it is in the queue still")
		seen[o] = true
	}
	launch := &device.Launch{Func: func() {}, Reads: named[:8]}
	allocations := testing.AllocsPerRun(100, func() {
		for range 8 {
			require.NoError(t, s.Memset(p, 1, 64))
			require.NoError(t, s.Launch(launch))
		}
		_ = s.Synchronize(t.Context())
	})
	require.Less(t, allocations, 8.0, "a record, and how it is waited for")
	require.NoError(t, d.Free(p))
}

// TestSleepingWorkersAreWoken: an operation or Close wakes a sleeping worker. A worker that has
// just been busy does not sleep yet.
func TestSleepingWorkersAreWoken(t *testing.T) {
	d := deviceOf(t)
	s := streamOf(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 {
		require.NoError(t, s.Launch(&device.Launch{Func: func() {}}))
		require.NoError(t, s.Synchronize(ctx))
		asleep(s)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-ctx.Done():
		require.Fail(t, "Close waits for a worker that sleeps")
	}
}

// TestTailMeetsTheEnd: another goroutine ends the operation at every moment between tail's two
// reads of done.
func TestTailMeetsTheEnd(t *testing.T) {
	q := &streamOf(t, deviceOf(t)).(*stream).queue
	rounds := int64(30000)
	if testing.Short() {
		rounds = 2 * 64 * 64 // each pair of delays twice
	}
	var begun atomic.Int64
	var ended sync.WaitGroup
	ended.Go(func() {
		for i := range rounds {
			for begun.Load() <= i {
				runtime.Gosched()
			}
			for range i % 64 {
				pause()
			}
			q.finish()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range rounds {
		q.mu.Lock()
		q.queued++
		q.mu.Unlock()
		begun.Store(i + 1)
		for range i / 64 % 64 {
			pause()
		}
		r, done := q.tail(true)
		if !done && !r.wait(ctx.Done()) {
			t.Fatalf("the end was missed in round %d", i)
		}
		for q.done.Load() <= i {
			runtime.Gosched()
		}
	}
	ended.Wait()
}
