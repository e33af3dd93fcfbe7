package transfer_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// stuckStream is a stream whose calls that queue a copy block until they are released.
type stuckStream struct {
	device.Stream
	called, may chan struct{}
}

func (s stuckStream) wait() {
	select {
	case s.called <- struct{}{}:
	case <-s.may:
	}
	<-s.may
}

func (s stuckStream) CopyH2D(dst device.Ptr, src []byte) error {
	s.wait()
	return s.Stream.CopyH2D(dst, src)
}

func (s stuckStream) CopyD2H(dst []byte, src device.Ptr) error {
	s.wait()
	return s.Stream.CopyD2H(dst, src)
}

func stuck(t *testing.T, s device.Stream) (stream stuckStream, open func()) {
	stream = stuckStream{s, make(chan struct{}), make(chan struct{})}
	open = sync.OnceFunc(func() { close(stream.may) })
	t.Cleanup(open)
	return stream, open
}

// While a goroutine queues a copy of a buffer, no other goroutine may write the buffer, read it if
// the copy writes, or release it, and the host can't access it.
func TestUseWhileACopyIsBeingQueued(t *testing.T) {
	for _, writes := range []bool{false, true} {
		r := newRig(t, transfer.Config{})
		r.host(t)
		block, other := r.alloc(t, 64, r.a), r.alloc(t, 64, r.b)
		b := r.get(t, 64)
		s, open := stuck(t, r.a)
		queued := make(chan error, 1)
		go func() {
			var err error
			if writes {
				_, err = r.pool.D2H(t.Context(), s, b, 0, block, 0, 64)
			} else {
				_, err = r.pool.H2D(t.Context(), s, block, 0, b, 0, 64)
			}
			queued <- err
		}()
		<-s.called
		_, write := r.pool.D2H(t.Context(), r.b, b, 0, other, 0, 64)
		for _, err := range []error{write, b.Release(), b.Check(), b.Wait(t.Context())} {
			require.ErrorIs(t, err, transfer.ErrInFlight)
		}
		require.Nil(t, b.Bytes())
		_, read := r.pool.H2D(t.Context(), r.b, other, 0, b, 0, 64)
		if writes {
			require.ErrorIs(t, read, transfer.ErrInFlight)
		} else {
			require.NoError(t, read)
			require.ErrorIs(t, b.Release(), transfer.ErrInFlight, "the first is still being queued")
		}
		require.EqualValues(t, 1, r.pool.Stats().ActiveRequests.Current)
		open()
		require.NoError(t, <-queued)
		_, read = r.pool.H2D(t.Context(), r.b, other, 0, b, 0, 64)
		require.NoError(t, read)
		require.NoError(t, b.Wait(t.Context()))
		require.NoError(t, b.Release())
		require.NoError(t, errors.Join(block.Free(), other.Free()))
	}
}

// After a copy that writes has been queued, two goroutines may queue copies that read.
func TestReadersQueueBesideEachOtherAfterAWrite(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	block, other := r.alloc(t, 64, r.a), r.alloc(t, 64, r.b)
	b := r.get(t, 64)
	s, open := stuck(t, r.a)
	_, err := r.pool.D2H(t.Context(), r.a, b, 0, block, 0, 64)
	require.NoError(t, err)
	queued := make(chan error, 1)
	go func() {
		_, err := r.pool.H2D(t.Context(), s, block, 0, b, 0, 64)
		queued <- err
	}()
	<-s.called
	_, err = r.pool.H2D(t.Context(), r.b, other, 0, b, 0, 64)
	require.NoError(t, err)
	open()
	require.NoError(t, <-queued)
	require.NoError(t, b.Release())
	require.NoError(t, errors.Join(block.Free(), other.Free()))
}

// Close waits for a copy that is being queued, which then completes.
func TestCloseWaitsForWhatIsBeingQueued(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	p, err := transfer.New(r.dev, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 64, r.a)
	s, open := stuck(t, r.a)
	b, err := p.Get(t.Context(), 64)
	require.NoError(t, err)
	fill(b.Bytes(), 7)
	queued, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := p.H2D(t.Context(), s, block, 0, b, 0, 64)
		queued <- err
	}()
	<-s.called
	go func() { closed <- p.Close() }()
	select {
	case <-closed:
		t.Fatal("it did not wait")
	case <-time.After(5 * time.Millisecond):
	}
	open()
	require.NoError(t, <-queued)
	require.ErrorContains(t, <-closed, "1 buffers of 64 B out")
	require.Equal(t, fill(make([]byte, 64), 7), r.read(t, r.a, block)[:64])
	require.NoError(t, block.Free())
}

// Copies that read a buffer on several streams don't wait for each other; one that writes it waits for all of them.
func TestWriteWaitsForAllReaders(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	s := [4]device.Stream{r.a, r.b, r.stream(t), r.stream(t)}
	b := r.get(t, 64)
	fill(b.Bytes(), 5)
	var blocks [4]memcache.Block
	for i := range s {
		blocks[i] = r.alloc(t, 64, s[i])
	}
	_, err := r.pool.Fill(t.Context(), s[3], blocks[3], 0, 64, 9)
	require.NoError(t, err)
	var copies []*transfer.Copy
	for i := range 3 {
		c, err := r.pool.H2D(t.Context(), s[i], blocks[i], 0, b, 0, 64)
		require.NoError(t, err)
		copies = append(copies, c)
	}
	require.NoError(t, copies[1].Wait(t.Context()))
	require.False(t, copies[0].Done(), "readers wait for each other")
	require.False(t, copies[2].Done(), "readers wait for each other")
	c, err := r.pool.D2H(t.Context(), s[3], b, 0, blocks[3], 0, 64)
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	for i := range 3 {
		require.True(t, copies[i].Done(), "reader %d", i)
		require.Equal(t, fill(make([]byte, 64), 5), r.read(t, s[i], blocks[i])[:64])
	}
	require.NoError(t, b.Release())
	for i := range s {
		require.NoError(t, blocks[i].Free())
	}
	require.NoError(t, s[2].Close())
	require.NoError(t, s[3].Close())
}

// brokenRecord is a stream whose next Record fails.
type brokenRecord struct {
	device.Stream
	breaks *atomic.Bool
}

func (s brokenRecord) Record(e device.Event) error {
	if s.breaks.CompareAndSwap(true, false) {
		return cisterntest.ErrRefused
	}
	return s.Stream.Record(e)
}

// A tainted buffer stays tainted, even if another goroutine's copy of it fails later in a usual
// way.
func TestTaintStays(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	block, b := r.alloc(t, 64, r.a), r.get(t, 64)
	breaks := new(atomic.Bool)
	s, open := stuck(t, refusing{r.b})
	queued := make(chan error, 1)
	go func() {
		_, err := r.pool.H2D(t.Context(), s, block, 0, b, 0, 64)
		queued <- err
	}()
	<-s.called
	breaks.Store(true)
	_, err := r.pool.H2D(t.Context(), brokenRecord{r.a, breaks}, block, 0, b, 0, 64)
	require.ErrorIs(t, err, cisterntest.ErrRefused)
	open()
	require.ErrorIs(t, <-queued, cisterntest.ErrRefused)
	require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
	require.NoError(t, b.Release())
	require.EqualValues(t, 1, r.pool.Stats().HostFrees)
	require.NoError(t, block.Free())
}

// refusing is a stream that queues no copies.
type refusing struct{ device.Stream }

func (refusing) CopyH2D(device.Ptr, []byte) error { return cisterntest.ErrRefused }
func (refusing) CopyD2H([]byte, device.Ptr) error { return cisterntest.ErrRefused }

// lateReturn is a stream whose first Record returns long after it has recorded.
type lateReturn struct {
	device.Stream
	later       *atomic.Bool
	called, may chan struct{}
}

func (s lateReturn) Record(e device.Event) error {
	err := s.Stream.Record(e)
	if s.later.CompareAndSwap(false, true) {
		close(s.called)
		<-s.may
	}
	return err
}

// Two goroutines queue copies of a buffer on one stream, and the first one commits after the
// second: the buffer still waits for the second.
func TestLaterMarkOfABufferStays(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	block, b := r.alloc(t, 512, r.a), r.get(t, 64)
	s := lateReturn{r.a, new(atomic.Bool), make(chan struct{}), make(chan struct{})}
	queued := make(chan error, 1)
	go func() {
		_, err := r.pool.H2D(t.Context(), s, block, 0, b, 0, 64)
		queued <- err
	}()
	<-s.called
	require.NoError(t, r.a.Synchronize(t.Context()))
	open := cisterntest.Hold(t, r.a)
	c, err := r.pool.H2D(t.Context(), r.a, block, 64, b, 0, 64)
	close(s.may)
	require.NoError(t, err)
	require.NoError(t, <-queued)
	require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
	require.NoError(t, b.Release())
	require.EqualValues(t, 1, r.pool.Stats().Pending)
	open()
	require.NoError(t, c.Wait(t.Context()))
	require.Zero(t, r.pool.Stats().Pending)
	require.NoError(t, block.Free())
}

// A stream that can't wait for another's copy of the buffer gets no copy.
func TestCopyWhoseStreamCannotWait(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	block, b := r.alloc(t, 64, r.a), r.get(t, 64)
	_, err := r.pool.D2H(t.Context(), r.a, b, 0, block, 0, 64)
	require.NoError(t, err)
	dev.begin()
	dev.left[failWait] = 1
	_, err = r.pool.H2D(t.Context(), r.b, block, 0, b, 0, 64)
	parts, _ := dev.end()
	require.ErrorIs(t, err, errSim)
	require.Zero(t, parts)
	require.Zero(t, r.pool.Stats().H2DCopies)
	require.NoError(t, errors.Join(b.Release(), block.Free()))
}

// A launch is refused as a whole if one of its buffers is: the others are unchanged.
func TestLaunchThatFailsAtItsSecondBuffer(t *testing.T) {
	r := newRig(t, transfer.Config{})
	first, stale, last := r.get(t, 64), r.get(t, 64), r.get(t, 64)
	require.NoError(t, stale.Release())
	nothing := &device.Launch{Name: "nothing", Func: func() {}}
	for _, uses := range [][]transfer.BufferUse{
		{{Buffer: first, Writes: true}, {Buffer: stale}, {Buffer: last, Writes: true}},
		{{}, {Buffer: first, Writes: true}, {Buffer: stale}},
	} {
		_, err := r.pool.Launch(t.Context(), r.a, nothing, uses...)
		require.ErrorIs(t, err, transfer.ErrReleased)
		require.NoError(t, first.Check(), "it is taken for one that is being queued")
		require.NoError(t, last.Check())
	}
	_, err := r.pool.Launch(t.Context(), refusingLaunch{r.a}, nothing, transfer.BufferUse{}, transfer.BufferUse{Buffer: first, Writes: true})
	require.ErrorIs(t, err, cisterntest.ErrRefused)
	require.NoError(t, first.Check())
	block, queued := r.alloc(t, 64, r.a), make(chan error, 1)
	s, open := stuck(t, r.a)
	go func() {
		_, err := r.pool.H2D(t.Context(), s, block, 0, last, 0, 64)
		queued <- err
	}()
	<-s.called
	require.ErrorIs(t, last.Release(), transfer.ErrInFlight, "it is taken for one that was queued")
	open()
	require.NoError(t, <-queued)
	require.NoError(t, errors.Join(first.Release(), last.Release(), block.Free()))
}

type refusingLaunch struct{ device.Stream }

func (refusingLaunch) Launch(*device.Launch) error { return cisterntest.ErrRefused }

// The handle of a copy that failed on the device reports that it is done, and the error.
func TestHandleOfAFailedCopy(t *testing.T) {
	r := newRig(t, transfer.Config{})
	dev := r.host(t)
	r.Faulted = true
	block, b := r.alloc(t, 64, r.a), r.get(t, 64)
	dev.Fail(host.FaultCopy, 1)
	open := cisterntest.Hold(t, r.a)
	c, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
	require.NoError(t, err)
	require.False(t, c.Done())
	require.NoError(t, c.Err())
	open()
	require.ErrorIs(t, c.Wait(t.Context()), device.ErrSticky)
	require.True(t, c.Done())
	require.ErrorIs(t, c.Err(), device.ErrSticky)
	require.ErrorContains(t, c.Err(), "transfer: a copy of 64 bytes")
	require.ErrorContains(t, c.Wait(t.Context()), "transfer: waiting for a copy of 64 bytes")
}

// A batch that was queued in part and can't be recorded returns the error that stopped it.
func TestBatchQueuedInPartWithoutAnEnd(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 64)))
	require.NoError(t, b.Launch(&device.Launch{Name: "nothing to run"}, block))
	_, err := b.Submit(t.Context(), cisterntest.Unrecordable{Stream: r.a})
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NotErrorIs(t, err, cisterntest.ErrRefused)
	require.NoError(t, b.Close())
	require.EqualValues(t, 1, r.pool.Stats().HostFrees, "nothing says when the upload is done")
	require.NoError(t, block.Free())
}

// If a step is queued copy by copy and a copy is refused, the earlier ones run, and their memory is
// in flight.
func TestBatchStepQueuedInPart(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	one, two := r.alloc(t, 64, r.a), r.alloc(t, 64, r.a)
	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), one, 0, fill(make([]byte, 64), 1)))
	require.NoError(t, b.Upload(t.Context(), two, 0, fill(make([]byte, 64), 2)))
	dev.begin()
	dev.left[refuseCopy] = 2
	_, err := b.Submit(t.Context(), r.a)
	dev.end()
	require.ErrorIs(t, err, errSim)
	require.NoError(t, b.Close())
	require.EqualValues(t, 1, r.pool.Stats().Pending, "handed out under a copy")
	fill(r.get(t, 64<<10).Bytes(), 0xee)
	require.Equal(t, fill(make([]byte, 64), 1), r.read(t, r.a, one)[:64])
	require.NoError(t, errors.Join(one.Free(), two.Free()))
	require.ErrorContains(t, r.pool.Close(), "1 buffers")
	r.Faulted = true
}

// An observer of a copy inside the device gets the destination's serial.
func TestObserverSerialOfADeviceCopy(t *testing.T) {
	list := new(eventList)
	r := newRig(t, transfer.Config{Observer: list})
	src, dst := r.alloc(t, 64, r.a), r.alloc(t, 64, r.a)
	want := dst.Serial()
	_, err := r.pool.D2D(t.Context(), r.a, dst, 0, src, 0, 64)
	require.NoError(t, err)
	require.NoError(t, errors.Join(src.Free(), dst.Free(), r.pool.Close()))
	require.Len(t, list.events, 1)
	require.Equal(t, want, list.events[0].Serial)
}

// The events of copies that use no buffer are also closed.
func TestEventsOfDeviceCopiesAreClosed(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	block := r.alloc(t, 512, r.a)
	for range 1000 {
		c, err := r.pool.Fill(t.Context(), r.a, block, 0, 512, 1)
		require.NoError(t, err)
		require.NoError(t, r.a.Synchronize(context.Background()))
		_ = c
	}
	dev.mu.Lock()
	events := dev.events
	dev.mu.Unlock()
	require.Less(t, events, 200)
	require.NoError(t, block.Free())
}
