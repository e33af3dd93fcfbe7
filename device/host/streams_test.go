package host

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestStreamsCloseInAnyOrder: the device's list holds the open streams, and no others.
func TestStreamsCloseInAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	open := map[*stream]bool{}
	for range 300 {
		if len(open) < 6 && random.IntN(2) == 0 {
			s, err := d.NewStream(device.StreamOptions{})
			require.NoError(t, err)
			open[s.(*stream)] = true
		}
		for s := range open {
			if random.IntN(3) == 0 {
				require.NoError(t, s.Close())
				delete(open, s)
			}
		}
		list := d.streams.list(false)
		require.Len(t, list, len(open))
		for _, s := range list {
			require.True(t, open[s])
		}
	}
	d.streams.list(true)
	_, err = d.NewStream(device.StreamOptions{})
	require.ErrorIs(t, err, device.ErrClosed, "the device closes")
	require.NoError(t, d.Close())
}

// TestCallsOvertakenByTheStreamsClose: an operation that finds the queue closed releases its
// memory.
func TestCallsOvertakenByTheStreamsClose(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	o := s.(*stream).queue.newOp(opMemset)
	require.NoError(t, d.name("Memset", &o.uses, inProcess(p), 64, true, false))
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.(*stream).push("Memset", o), device.ErrClosed)
	require.Zero(t, d.mem.find(inProcess(p), allocated).uses(), "or Free would wait for ever")
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}

// TestRefusedCallsNameNothing: memory that a refused call has named may be freed.
func TestRefusedCallsNameNothing(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	b, err := d.AllocPinned(64)
	require.NoError(t, err)
	good, wrong := device.Range{Ptr: p, Bytes: 64}, device.Range{Ptr: p, Bytes: 65}
	for _, err := range []error{
		s.CopyH2D(p+1, b), s.CopyD2H(make([]byte, 64), p), s.CopyD2D(p, p+32, 33), s.Memset(p, 1, 65),
		s.(device.BatchCopier).CopyH2DBatch([]device.Ptr{p, p}, [][]byte{b[:8], make([]byte, 8)}),
		s.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p + 60, DstPitch: 8, SrcHost: b, SrcPitch: 8}),
		s.Launch(&device.Launch{Func: func() {}, Reads: []device.Range{good, wrong}}),
		s.Launch(&device.Launch{Func: func() {}, Reads: []device.Range{good}, Writes: []device.Range{wrong}}),
		s.Launch(&device.Launch{Reads: []device.Range{good}}),
	} {
		require.Error(t, err)
	}
	require.NoError(t, s.Memset(p, 1, 0))
	_, err = d.Bytes(p, 64)
	require.NoError(t, err)
	_, err = d.MappedPtr(b)
	require.NoError(t, err)
	require.Zero(t, d.mem.find(inProcess(p), allocated).uses())
	require.Zero(t, d.mem.find(address(b), pinned).uses())
	require.NoError(t, d.FreePinned(b))
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}

// TestRecordCompletesWhileItIsWaitedFor: no wake-up is lost, however the wait and the completion
// overlap.
func TestRecordCompletesWhileItIsWaitedFor(t *testing.T) {
	for range 30_000 {
		r := new(record)
		var ready atomic.Int32
		meet := func() {
			ready.Add(1)
			for ready.Load() < 2 {
				runtime.Gosched()
			}
		}
		go func() {
			meet()
			r.complete(7)
		}()
		meet()
		require.True(t, r.wait(nil))
		require.True(t, r.query())
		require.Equal(t, time.Duration(7), r.at)
	}
}

// TestRecordCompletesForWhoWaits: a waiter that waits already is woken.
func TestRecordCompletesForWhoWaits(t *testing.T) {
	r, done := new(record), make(chan bool)
	go func() { done <- r.wait(nil) }()
	for noted := false; !noted; runtime.Gosched() {
		r.mu.Lock()
		noted = r.wake != nil
		r.mu.Unlock()
	}
	r.complete(7)
	select {
	case ok := <-done:
		require.True(t, ok)
	case <-time.After(10 * time.Second):
		require.Fail(t, "nobody wakes it")
	}
}

// TestRecordCompletesBeforeTheWaiterIsNoted: the record completes after a waiter's query and before
// it has registered.
func TestRecordCompletesBeforeTheWaiterIsNoted(t *testing.T) {
	for range 5 {
		r, done := new(record), make(chan bool)
		r.mu.Lock()
		go func() { done <- r.wait(nil) }()
		time.Sleep(5 * time.Millisecond)
		r.done.Store(true)
		r.mu.Unlock()
		select {
		case ok := <-done:
			require.True(t, ok)
		case <-time.After(10 * time.Second):
			require.Fail(t, "it waits for what is done")
		}
	}
}

// TestWaitersOnAFullQueue: each completed operation admits one waiter, and Close releases all.
func TestWaitersOnAFullQueue(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	for _, closes := range []bool{false, true} {
		gate := make(chan struct{})
		ran := 0
		require.NoError(t, s.Launch(&device.Launch{Func: func() { <-gate }}))
		for range depth - 1 {
			require.NoError(t, s.Launch(&device.Launch{Func: func() { ran++ }}))
		}
		var all sync.WaitGroup
		var refused atomic.Int32
		for range 20 {
			all.Go(func() {
				if s.Launch(&device.Launch{Func: func() { ran++ }}) != nil {
					refused.Add(1)
				}
			})
		}
		waiting := func(n int64) {
			for q := &s.(*stream).queue; ; time.Sleep(time.Millisecond) {
				if q.waiting.Load() == n {
					return
				}
			}
		}
		waiting(20)
		done, err := s.Query()
		require.NoError(t, err)
		require.False(t, done)
		if closes {
			all.Go(func() { require.NoError(t, s.Close()) })
			waiting(1) // Close itself
			require.Eventually(t, func() bool { return refused.Load() == 20 }, time.Minute, time.Millisecond, "the others go at once")
		}
		close(gate)
		all.Wait()
		if !closes {
			require.NoError(t, s.Synchronize(t.Context()))
			require.Equal(t, depth-1+20, ran)
		}
	}
	require.NoError(t, d.Close())
}
