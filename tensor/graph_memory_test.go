package tensor

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// TestOffloadOfAGraphsMemory: memory that replays read or write stays on the device until the graph
// is closed.
func TestOffloadOfAGraphsMemory(t *testing.T) {
	r := newRig(t, 64<<20)
	o, err := NewOffloader(r.Runtime, OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	x := put(r, []float32{1, 2})
	var out *Tensor
	g := r.capture(r.ctx, func(ctx context.Context) (err error) { out, err = r.MulScalar(ctx, x, 2); return err })
	for _, t2 := range []*Tensor{x, out} {
		away, err := o.Offload(r.ctx, t2)
		require.NoError(t, err)
		require.False(t, away)
	}
	require.NoError(t, errors.Join(CopyFrom(r.ctx, x, []float32{10, 20}), g.Replay(r.ctx)))
	require.Equal(t, []float32{20, 40}, get[float32](r, out, nil))
	require.NoError(t, g.Close())
	for _, t2 := range []*Tensor{x, out} {
		away, err := o.Offload(r.ctx, t2)
		require.NoError(t, err)
		require.True(t, away)
		require.NoError(t, o.Fetch(r.ctx, t2))
	}
	require.Equal(t, []float32{20, 40}, get[float32](r, out, nil))
	require.NoError(t, errors.Join(o.Close(), x.Release(), out.Release()))
}

// TestReplaysCountAsWrites to all memory that a graph writes: memory that it made, and older
// memory.
func TestReplaysCountAsWrites(t *testing.T) {
	r := newRig(t, 64<<20)
	x, y := put(r, []float32{1, 2}), put(r, []float32{0, 0})
	var out *Tensor
	g := r.capture(r.ctx, func(ctx context.Context) (err error) {
		out, err = r.MulScalar(ctx, x, 2)
		return errors.Join(err, r.CopyInPlace(ctx, y, out))
	})
	before := []uint64{x.Version(), y.Version(), out.Version()}
	for i := range uint64(3) {
		require.Equal(t, []uint64{before[0], before[1] + i, before[2] + i}, []uint64{x.Version(), y.Version(), out.Version()})
		require.NoError(t, g.Replay(r.ctx))
	}
	require.NoError(t, errors.Join(g.Close(), x.Release(), y.Release(), out.Release()))
}

// TestAGraphKeepsRecordedMemory: the graph keeps memory that the program's own work in a capture
// uses, if it was recorded, on any stream.
func TestAGraphKeepsRecordedMemory(t *testing.T) {
	for _, aside := range []bool{false, true} {
		r := newRig(t, 64<<20)
		x := put(r, []float32{1, 2})
		at := x.ptr()
		side, err := r.dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		e, err := r.dev.NewEvent(device.EventOptions{})
		require.NoError(t, err)
		g := r.capture(r.ctx, func(context.Context) error {
			if !aside {
				return errors.Join(x.RecordStream(r.Stream()), r.Stream().Memset(at, 0xff, 8))
			}
			return errors.Join(r.Stream().Record(e), side.Wait(e), x.RecordStream(side), side.Memset(at, 0xff, 8), side.Record(e), r.Stream().Wait(e))
		})
		require.NoError(t, x.Release())
		var others []*Tensor
		for range 64 {
			others = append(others, put(r, []float32{7, 7}))
		}
		require.NoError(t, g.Replay(r.ctx))
		for _, o := range others {
			require.Equal(t, []float32{7, 7}, get[float32](r, o, nil), "aside: %v", aside)
			require.NoError(t, o.Release())
		}
		require.NoError(t, errors.Join(g.Close(), e.Close(), side.Close()))
	}
}

// TestRecordStreamBesideACapture: recording a stream that is not captured keeps nothing for the
// graph.
func TestRecordStreamBesideACapture(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2})
	side, err := r.dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	g := r.capture(r.ctx, func(context.Context) error { return x.RecordStream(side) })
	require.Empty(t, g.kept)
	require.NoError(t, errors.Join(x.Release(), g.Close(), side.Close()))
}

// TestCaptureInAPoolThatLends is refused: other requests would get memory that replays write.
func TestCaptureInAPoolThatLends(t *testing.T) {
	r := newRig(t, 64<<20)
	pool, err := r.cache.NewPool(memcache.PoolOptions{UseOnOOM: true})
	require.NoError(t, err)
	_, err = r.Capture(pool.Context(r.ctx), func(context.Context) error { panic("it was called") })
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "UseOnOOM")
	require.NoError(t, pool.Release())
}

// TestCaptureOfAStreamThatIsCaptured: a capture of a stream that the program captures is an error,
// and so is a Replay on it. Neither adds to the program's graph.
func TestCaptureOfAStreamThatIsCaptured(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float64{1})
	steps := 0.
	g := r.capture(r.ctx, func(ctx context.Context) error {
		s, err := Scalars(ctx, r.Capturing(), 1, func(to []float64) error { steps++; to[0] = steps; return nil })
		return errors.Join(err, r.CopyInPlace(ctx, x, s))
	})
	version := x.Version()
	s := r.Stream().(device.GraphCapturer)
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, g.Replay(r.ctx), ErrCapturing)
	_, err := r.Capture(r.ctx, func(context.Context) error { panic("it was called") })
	require.ErrorIs(t, err, ErrCapturing)
	own, err := s.EndCapture()
	require.NoError(t, err)
	assert.Zero(t, own.Nodes())
	assert.Zero(t, steps)
	assert.Equal(t, version, x.Version())
	require.NoError(t, errors.Join(own.Close(), g.Replay(r.ctx)))
	assert.Equal(t, []float64{1}, get[float64](r, x, nil))
	require.NoError(t, errors.Join(g.Close(), x.Release()))
}

// TestAReplayThatHasBegun completes even if its context ends, because its step is counted. A second
// Replay is refused meanwhile.
func TestAReplayThatHasBegun(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float64{0})
	var during func()
	steps := 0.
	g := r.capture(r.ctx, func(ctx context.Context) error {
		s, err := Scalars(ctx, r.Capturing(), 1, func(to []float64) error { steps++; to[0] = steps; during(); return nil })
		return errors.Join(err, r.AddInPlace(ctx, x, s))
	})
	ctx, cancel := context.WithCancel(r.ctx)
	during = cancel
	require.NoError(t, g.Replay(ctx))
	require.ErrorIs(t, g.Replay(ctx), context.Canceled)
	during = func() {
		require.ErrorIs(t, g.Replay(r.ctx), ErrInvalid)
		require.ErrorIs(t, g.Close(), ErrInvalid)
	}
	require.NoError(t, g.Replay(r.ctx))
	during = func() { panic("on purpose") }
	require.Panics(t, func() { _ = g.Replay(r.ctx) })
	during = func() {}
	require.NoError(t, g.Replay(r.ctx))
	require.Equal(t, []float64{1 + 2 + 4}, get[float64](r, x, nil))
	require.NoError(t, errors.Join(g.Close(), x.Release()))
}
