package tensor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// stuck reports that a stream waits for an event that the test holds.
func stuck(t *testing.T, s device.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Synchronize(ctx), context.DeadlineExceeded, "it waits for nothing")
}

func idle(t *testing.T, s device.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, s.Synchronize(ctx))
}

// TestOffloadCopiesAfterTheKernelThatWrites: the copy to the host waits for the runtime's stream.
func TestOffloadCopiesAfterTheKernelThatWrites(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	release := cisterntest.Hold(t, r.stream)
	require.NoError(t, r.MulScalarInPlace(r.ctx, x, 2))
	r.offload(x)
	stuck(t, r.out)
	release()
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, float32(8190), get[float32](r.rig, x, nil)[4095])
	require.NoError(t, x.Release())
}

// unrecorded is a stream that fails to record an event after each copy to the host.
type unrecorded struct {
	device.Stream
	copied bool
}

func (s *unrecorded) CopyD2H(dst []byte, src device.Ptr) error {
	s.copied = true
	return s.Stream.CopyD2H(dst, src)
}

func (s *unrecorded) Record(e device.Event) error {
	if s.copied {
		s.copied = false
		return errUnrecorded
	}
	return s.Stream.Record(e)
}

var errUnrecorded = errors.New("the event was not recorded")

// TestOffloadThatFailsAfterItsCopy: the tensor stays on the device, and its next writer waits for
// the copy in flight. Offload itself may free the pinned buffer, and so wait.
func TestOffloadThatFailsAfterItsCopy(t *testing.T) {
	r := newRig(t, 64<<20)
	out := &unrecorded{Stream: cisterntest.Stream(t, r.dev)}
	o, err := NewOffloader(r.Runtime, OffloadConfig{MinBytes: 1, Out: out, In: cisterntest.Stream(t, r.dev)})
	require.NoError(t, err)
	x := put(r, ramp(0))
	release := cisterntest.Hold(t, out)
	buffer, err := o.take(r.ctx, x.store.bytes)
	require.NoError(t, err)
	_, err = o.copyOut(r.ctx, x.store, buffer)
	require.ErrorIs(t, err, errUnrecorded)
	require.NoError(t, r.MulScalarInPlace(r.ctx, x, 2))
	stuck(t, r.stream)
	release()
	require.NoError(t, o.drop(buffer))
	require.Equal(t, float32(8190), get[float32](r, x, nil)[4095])
	require.NoError(t, errors.Join(x.Release(), o.Close()))
}

// TestOffloadedMemoryIsFreeAfterTheCopy: not before, and without a wait of the host.
func TestOffloadedMemoryIsFreeAfterTheCopy(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	at := x.Block().Ptr()
	release := cisterntest.Hold(t, r.out)
	r.offload(x)
	y := put(r.rig, ramp(5000)) // would overwrite it
	require.NotEqual(t, at, y.Block().Ptr(), "memory that is being copied")
	idle(t, r.stream)
	release()
	idle(t, r.out)
	z := put(r.rig, ramp(7000))
	require.Equal(t, at, z.Block().Ptr(), "the memory is free")
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	for _, t := range []*Tensor{x, y, z} {
		require.NoError(r.t, t.Release())
	}
}

// TestOffloadFetchesAfterTheMemorysLastUse: a block with a pending read of the runtime's stream is
// not overwritten.
func TestOffloadFetchesAfterTheMemorysLastUse(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x, z := put(r.rig, ramp(0)), put(r.rig, ramp(5000))
	r.offload(x)
	idle(t, r.out)
	w := put(r.rig, ramp(1)) // in the memory that x had
	at := z.Block().Ptr()
	release := cisterntest.Hold(t, r.stream)
	y, err := r.MulScalar(r.ctx, z, 1)
	require.NoError(t, err)
	require.NoError(t, z.Release())
	require.NoError(t, r.o.Prefetch(r.ctx, x))
	stuck(t, r.in)
	release()
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, at, x.Block().Ptr(), "the memory that z had")
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	require.Equal(t, ramp(5000), get[float32](r.rig, y, nil))
	for _, t := range []*Tensor{x, y, w} {
		require.NoError(r.t, t.Release())
	}
}

// TestOffloadUsesAfterTheCopyBack: work on fetched memory waits for the copy, on the device.
func TestOffloadUsesAfterTheCopyBack(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	r.offload(x)
	release := cisterntest.Hold(t, r.in)
	require.NoError(t, r.o.Fetch(r.ctx, x))
	y, err := r.MulScalar(r.ctx, x, 3)
	require.NoError(t, err)
	stuck(t, r.stream)
	release()
	require.Equal(t, float32(3*4095), get[float32](r.rig, y, nil)[4095])
	require.NoError(t, x.Release())
	require.NoError(t, y.Release())
}

// TestOffloadCopiesBesideKernels: both copies finish while a kernel runs that was queued before
// them.
func TestOffloadCopiesBesideKernels(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x := put(r.rig, ramp(0))
	r.offload(x)
	release := cisterntest.Hold(t, r.stream)
	idle(t, r.out)
	release()
	require.NoError(t, r.o.Prefetch(r.ctx, x))
	release = cisterntest.Hold(t, r.stream)
	idle(t, r.in)
	stuck(t, r.stream)
	release()
	require.NoError(t, r.o.Fetch(r.ctx, x))
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	require.NoError(t, x.Release())
}

// TestOffloadReusesPinnedMemoryThatIsInFlight: the copy that writes the buffer waits for the copy
// that reads it, on the device.
func TestOffloadReusesPinnedMemoryThatIsInFlight(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	x, y := put(r.rig, ramp(0)), put(r.rig, ramp(5000))
	r.offload(x)
	release := cisterntest.Hold(t, r.in)
	require.NoError(t, r.o.Fetch(r.ctx, x))
	idleBefore := r.pool.Stats().HostAllocs
	r.offload(y)
	require.Equal(t, idleBefore, r.pool.Stats().HostAllocs, "no more pinned memory")
	stuck(t, r.out)
	release()
	require.NoError(t, r.o.Fetch(r.ctx, y))
	require.Equal(t, ramp(0), get[float32](r.rig, x, nil))
	require.Equal(t, ramp(5000), get[float32](r.rig, y, nil))
	require.NoError(t, x.Release())
	require.NoError(t, y.Release())
}

// TestOffloadedMemoryIsFreeInTheStreamsOrder: the host is ahead of a runtime's stream that is
// blocked. Nevertheless memory that was offloaded and fetched is free for work that is queued
// later. All rounds use the memory of one, and nothing is overwritten.
func TestOffloadedMemoryIsFreeInTheStreamsOrder(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	a, b := put(r.rig, ramp(0)), put(r.rig, ramp(5000))
	ones := make([]float32, len(ramp(0)))
	for i := range ones {
		ones[i] = 1
	}
	one := put(r.rig, ones)
	round := func() {
		r.offload(a)
		r.offload(b)
		require.NoError(t, r.o.Prefetch(r.ctx, b))
		require.NoError(t, r.o.Prefetch(r.ctx, a))
		require.NoError(t, r.o.Fetch(r.ctx, b))
		require.NoError(t, r.AddInPlace(r.ctx, b, one))
		require.NoError(t, r.o.Fetch(r.ctx, a))
		require.NoError(t, r.AddInPlace(r.ctx, a, one))
	}
	release := cisterntest.Hold(t, r.stream)
	var used int64
	for i := range 20 {
		round()
		active := r.cache.Stats().ActiveBytes.All.Current
		if i == 0 {
			used = active
		}
		require.Equal(t, used, active, "round %d: what waits for copies is not free", i)
	}
	stuck(t, r.stream)
	release()
	wantA, wantB := ramp(20), ramp(5020)
	require.Equal(t, wantA, get[float32](r.rig, a, nil))
	require.Equal(t, wantB, get[float32](r.rig, b, nil))
	for _, x := range []*Tensor{a, b, one} {
		require.NoError(t, x.Release())
	}
}

// TestFetchWaitsForNoLaterCopyOut: work that is queued after a Fetch runs while another tensor is
// still copied to the host.
func TestFetchWaitsForNoLaterCopyOut(t *testing.T) {
	r := newOffloadRig(t, OffloadConfig{})
	a, b := put(r.rig, ramp(0)), put(r.rig, ramp(5000))
	r.offload(a)
	idle(t, r.out)
	release := cisterntest.Hold(t, r.out)
	r.offload(b)
	require.NoError(t, r.o.Fetch(r.ctx, a))
	idle(t, r.stream)
	require.NoError(t, r.o.Fetch(r.ctx, b))
	stuck(t, r.stream)
	release()
	require.Equal(t, ramp(0), get[float32](r.rig, a, nil))
	require.Equal(t, ramp(5000), get[float32](r.rig, b, nil))
	require.NoError(t, a.Release())
	require.NoError(t, b.Release())
}
