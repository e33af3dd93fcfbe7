package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// A buffer that two streams use is in flight, and its memory is not reused, until both are done.
func TestBufferOfTwoStreamsWaitsForBoth(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	x, y := r.alloc(t, 64, r.a), r.alloc(t, 64, r.b)
	for _, released := range []bool{true, false} {
		b := r.get(t, 64)
		_, err := r.pool.H2D(t.Context(), r.a, x, 0, b, 0, 64)
		require.NoError(t, err)
		_, err = r.pool.H2D(t.Context(), r.b, y, 0, b, 0, 64)
		require.NoError(t, err)
		if released {
			require.NoError(t, b.Release())
			for _, s := range []device.Stream{r.a, r.b} {
				require.EqualValues(t, 1, r.pool.Stats().Pending)
				require.NoError(t, s.Synchronize(t.Context()))
			}
			require.Zero(t, r.pool.Stats().Pending)
			continue
		}
		require.NoError(t, r.b.Synchronize(t.Context()))
		require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
		require.NoError(t, b.Wait(t.Context()))
		require.NoError(t, b.Check())
		require.NoError(t, b.Release())
	}
	require.NoError(t, errors.Join(x.Free(), y.Free()))
}

// A slow stream delays the memory of its own copies, and no other's.
func TestSlowStreamHoldsUpNoOther(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	p := transfer.NewOfShards(dev, transfer.Config{}, 1)
	x, y := r.alloc(t, 64, r.a), r.alloc(t, 64, r.b)
	for i, s := range []device.Stream{r.a, r.b} {
		b, err := p.Get(t.Context(), 64)
		require.NoError(t, err)
		_, err = p.H2D(t.Context(), s, []memcache.Block{x, y}[i], 0, b, 0, 64)
		require.NoError(t, err)
		require.NoError(t, b.Release())
	}
	require.EqualValues(t, 2, p.Stats().Pending)
	require.NoError(t, r.b.Synchronize(t.Context()))
	require.EqualValues(t, 1, p.Stats().Pending)
	require.NoError(t, errors.Join(x.Free(), y.Free(), p.Close()))
}

// Copies of the last owner don't delay the next owner: its memory is idle at once after its
// Release.
func TestUsesOfTheLastOwnerAreGone(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{MaxCachedBuffers: 1})
	block, b, other := r.alloc(t, 64, r.a), r.get(t, 64), r.get(t, 64)
	_, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	require.NoError(t, r.a.Synchronize(t.Context()))
	require.Zero(t, r.pool.Stats().Pending)
	b = r.get(t, 64)
	require.NoError(t, other.Release())
	require.NoError(t, b.Release())
	require.EqualValues(t, 1, dev.freeCalls, "there is no place for it")
	require.NoError(t, block.Free())
}

// TestRangesAreInvalid: a size out of range is a wrong argument, as it is in every other package.
func TestRangesAreInvalid(t *testing.T) {
	_, err := newRig(t, transfer.Config{}).pool.Get(t.Context(), -1)
	require.ErrorIs(t, err, transfer.ErrRange)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NotErrorIs(t, device.ErrInvalid, transfer.ErrRange)
}

// TestString: fmt prints a pool as a short text.
func TestString(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 100)
	for _, verb := range []string{"%v", "%+v", "%s"} {
		require.Regexp(t, `^pinned pool of \S+: \d+ bytes in 1 buffers in use, 0 bytes cached$`, fmt.Sprintf(verb, r.pool))
	}
	require.NoError(t, b.Release())
	require.Equal(t, "transfer.Pool(nil)", (*transfer.Pool)(nil).String())
}

// A range of a buffer has the address of its bytes.
func TestRangeOfABuffer(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 100)
	whole, err := b.Range(0, 100)
	require.NoError(t, err)
	part, err := b.Range(37, 11)
	require.NoError(t, err)
	require.Equal(t, device.Range{Ptr: whole.Ptr + 37, Bytes: 11}, part)
	require.NoError(t, b.Release())
}

// EmptyCache waits only for copies that released buffers wait for.
func TestEmptyCacheWaitsForNoDeviceCopy(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	block := r.alloc(t, 64, r.a)
	c, err := r.pool.Fill(t.Context(), r.a, block, 0, 64, 1)
	require.NoError(t, err)
	require.NoError(t, r.get(t, 64).Release())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	require.False(t, c.Done())
	require.NoError(t, block.Free())
}

// Appending to a buffer's bytes does not write to the rest of its allocation.
func TestBufferEndsWhereItEnds(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 100)
	require.Equal(t, [2]int{100, 100}, [2]int{len(b.Bytes()), cap(b.Bytes())})
	require.NoError(t, b.Release())
}

// Copies that are known to be done delay nothing: the memory is idle at once.
func TestUsesAreDroppedWhenTheyAreDone(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{MaxCachedBytes: -1})
	block, b := r.alloc(t, 64, r.a), r.get(t, 64)
	_, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
	require.NoError(t, err)
	require.NoError(t, b.Wait(t.Context()))
	require.NoError(t, b.Release())
	require.EqualValues(t, 1, r.pool.Stats().HostFrees)
	require.NoError(t, block.Free())
}

// A Wait on a stale handle does not wait.
func TestWaitOfAStaleHandle(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	block, stale := r.alloc(t, 64, r.a), r.get(t, 64)
	memory := address(stale)
	require.NoError(t, stale.Release())
	b := r.get(t, 64)
	require.Equal(t, memory, address(b))
	c, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
	require.NoError(t, err)
	require.ErrorIs(t, stale.Wait(t.Context()), transfer.ErrReleased)
	require.False(t, c.Done(), "it waited for another's copy")
	require.NoError(t, errors.Join(b.Release(), block.Free()))
}

// The host neither reads nor writes a buffer in flight.
func TestAccessInFlight(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	block, b := r.alloc(t, 64, r.a), r.get(t, 64)
	_, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
	require.NoError(t, err)
	_, read := b.ReadAt(make([]byte, 9), 0)
	_, write := b.WriteAt(make([]byte, 9), 0)
	for _, err := range []error{read, write, b.Zero(0, 9), transfer.PutWords(b, 0, []uint16{1}), transfer.GetWords(b, 0, []uint16{1})} {
		require.ErrorIs(t, err, transfer.ErrInFlight)
	}
	require.NoError(t, errors.Join(b.Release(), block.Free()))
}

// A slice that the device refuses to register is not left pinned for the garbage collector.
func TestRegisterThatFails(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	dev.begin()
	dev.left[failRegister] = 1
	_, err := r.pool.Register(t.Context(), make([]byte, 64))
	dev.end()
	require.ErrorIs(t, err, errSim)
	require.Zero(t, r.pool.Stats().Registered)
	for range 3 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

// If the device fails to unregister a slice, Release returns the error, and the slice is the
// caller's.
func TestUnregisterThatFails(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	b, err := r.pool.Register(t.Context(), make([]byte, 100, 200))
	require.NoError(t, err)
	require.Equal(t, 100, b.Len())
	require.EqualValues(t, 100, r.pool.Stats().Registered.Current)
	require.EqualValues(t, 100, dev.registered)
	dev.begin()
	dev.left[failUnregister] = 1
	err = b.Release()
	dev.end()
	require.ErrorIs(t, err, errSim)
	require.ErrorContains(t, err, "unregistering 100 bytes")
	require.ErrorIs(t, b.Release(), transfer.ErrReleased)
	require.Zero(t, r.pool.Stats().Registered.Current)
	for range 3 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

// A launch may list only the empty buffer twice, and no buffer of another pool.
func TestLaunchListsEachBufferOnce(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	other, err := transfer.New(r.dev, transfer.Config{})
	require.NoError(t, err)
	foreign, err := other.Get(t.Context(), 64)
	require.NoError(t, err)
	b, l := r.get(t, 64), &device.Launch{Name: "nothing", Func: func() {}}
	for _, uses := range [][]transfer.BufferUse{{{Buffer: b}, {}, {Buffer: b}}, {{Buffer: b}, {Buffer: foreign}}} {
		_, err = r.pool.Launch(t.Context(), r.a, l, uses...)
		require.ErrorIs(t, err, transfer.ErrInvalid)
	}
	c, err := r.pool.Launch(t.Context(), r.a, l, transfer.BufferUse{}, transfer.BufferUse{Buffer: b}, transfer.BufferUse{})
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, errors.Join(b.Release(), foreign.Release(), other.Close()))
}

// The handle of a staged upload is done with its last byte, not earlier.
func TestUploadIsDoneWithItsLastByte(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	block := r.alloc(t, 3<<20, r.a)
	c, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 3<<20))
	require.NoError(t, err)
	require.False(t, c.Done())
	require.NoError(t, c.Wait(t.Context()))
	require.Empty(t, raw(r.a).queue)
	require.NoError(t, block.Free())
}

// An upload that fits one chunk uses one buffer of its size.
func TestUploadOfOneChunk(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	block := r.alloc(t, 3<<20, r.a)
	_, err := r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 2<<20))
	require.NoError(t, err)
	require.EqualValues(t, 1, r.pool.Stats().ActiveRequests.Allocated)
	_, err = r.pool.Upload(t.Context(), r.a, block, 0, make([]byte, 2<<20+1))
	require.NoError(t, err)
	require.Greater(t, r.pool.Stats().ActiveRequests.Allocated, int64(2))
	require.NoError(t, block.Free())
}

// lateDone is a stream with late callbacks.
type lateDone struct{ device.Stream }

func (s lateDone) OnDone(fn func(error)) error {
	return s.Stream.OnDone(func(err error) { time.AfterFunc(3*time.Millisecond, func() { fn(err) }) })
}

// noDone is a stream that refuses callbacks.
type noDone struct{ device.Stream }

func (noDone) OnDone(func(error)) error { return cisterntest.ErrRefused }

// Close ends every operation that an observer follows. It waits for those that end late; those that
// can't be followed have ended with an error.
func TestCloseEndsEveryOperation(t *testing.T) {
	rec := &stacktest.Recorder{}
	r := rigOn(t, openDevice(t), transfer.Config{Observer: rec})
	r.host(t)
	block := r.alloc(t, 64, r.a)
	for _, s := range []device.Stream{lateDone{r.a}, noDone{r.a}} {
		c, err := r.pool.Fill(t.Context(), s, block, 0, 64, 1)
		require.NoError(t, err)
		require.NoError(t, c.Wait(t.Context()))
	}
	require.NoError(t, block.Free())
	closed := make(chan error, 1)
	go func() { closed <- r.pool.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(5 * time.Second):
		t.Fatal("Close still waits")
	}
	require.Zero(t, rec.Open())
	fills := rec.Of(transfer.OpFill)
	require.Len(t, fills, 2)
	failed := 0
	for _, e := range fills {
		require.False(t, e.Done.IsZero())
		if e.Err != nil {
			require.ErrorIs(t, e.Err, cisterntest.ErrRefused)
			failed++
		}
	}
	require.Equal(t, 1, failed)
}

// slowObserver records the bytes of operations in the order of their ends, and blocks in the first.
type slowObserver struct {
	mu    sync.Mutex
	bytes []int64
	open  chan struct{}
}

func (o *slowObserver) Start(ctx context.Context, _ transfer.Op) (context.Context, transfer.Operation) {
	return ctx, o
}

func (o *slowObserver) End(e transfer.OpInfo) {
	<-o.open
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes = append(o.bytes, e.Bytes)
}

// A slow observer gets the ends of operations in the order of their completion.
func TestObserverIsToldInOrder(t *testing.T) {
	if race.Enabled {
		t.Skip("the detector does not see the locks of the simulated device")
	}
	dev, o := newSim(), &slowObserver{open: make(chan struct{})}
	r := rigOn(t, dev, transfer.Config{Observer: o})
	block := r.alloc(t, 64, r.a)
	for i := range int64(9) {
		c, err := r.pool.Fill(t.Context(), r.a, block, 0, i+1, 1)
		require.NoError(t, err)
		require.NoError(t, c.Wait(t.Context()))
	}
	require.NoError(t, r.a.Synchronize(t.Context()))
	close(o.open)
	require.NoError(t, block.Free())
	require.NoError(t, r.pool.Close())
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, o.bytes)
}
