package tensor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/memcache"
)

// copied accepts the result of a failure to record the end of a copy: the copy is queued
// nevertheless.
var copied = map[string]string{"Record": "the copy is queued, and nothing says when it ends"}

// reads is a trial of an operation that returns elements to the caller.
func (m *trialRig) reads(do func(ctx context.Context) (any, error)) failtest.Trial {
	var got any
	trial := m.does(func(ctx context.Context) error {
		v, err := do(ctx)
		if err == nil {
			got = v
		}
		return err
	})
	trial.See = func() any { return []any{got, m.see()} }
	return trial
}

// pieces returns a tensor that is read and written in three pieces.
func (m *trialRig) pieces() *Tensor {
	m.t.Helper()
	x, err := m.Zeros(m.ctx, Uint8, 2<<20+4)
	require.NoError(m.t, err)
	return x
}

// releases is the Make of an operation that releases tensors.
func releases(prepare func(m *trialRig) func(ctx context.Context) error) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial { return m.does(prepare(m)) }
}

// memoryRows are programs of tensors and of their elements.
var memoryRows = []trialRow{
	{Of: "Runtime.New", Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.New(ctx, m.dtype, 2, 3)) }
	})},
	{Of: "Runtime.Zeros", Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Zeros(ctx, m.dtype, 2, 3)) }
	})},
	{Of: "Runtime.Full", Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Full(ctx, 3, m.dtype, 2, 3)) }
	})},
	{Of: "Runtime.Zero", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		x := m.in(2, 3)
		return func(ctx context.Context) error { return m.Zero(ctx, x) }
	})},
	{Of: "Runtime.Convert", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Convert(ctx, x, Float16) })},
	{Of: "Runtime.Copy", Make: unary((*Runtime).Copy)},
	{Of: "Runtime.CopyInPlace", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		a, b := m.in(2, 3), m.in(2, 3)
		return func(ctx context.Context) error { return m.CopyInPlace(ctx, a, b) }
	})},
	{Of: "Runtime.BroadcastTo", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) {
		return rt.BroadcastTo(ctx, x, 4, 2, 3)
	})},
	{Of: "Runtime.Flip", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Flip(ctx, x, 1) })},
	{Of: "Runtime.Roll", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) {
		return rt.Roll(ctx, x, []int{1}, []int{1})
	})},
	{Of: "Runtime.Permute", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Permute(ctx, x, 1, 0) })},
	{Of: "Runtime.Transpose", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Transpose(ctx, x) })},
	{Of: "Runtime.Narrow", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Narrow(ctx, x, 1, 1, 2) })},
	{Of: "Runtime.Pad", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) {
		return rt.Pad(ctx, x, 1, []int{1, 0}, []int{0, 2})
	})},
	{Of: "Runtime.Cat", Make: binary(func(rt *Runtime, ctx context.Context, a, b *Tensor) (*Tensor, error) { return rt.Cat(ctx, 0, a, a) })},
	{Of: "Runtime.Reshape", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Reshape(ctx, x, 3, 2) })},
	{Of: "Runtime.Rows", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Rows(ctx, x, 1, 2) })},
	{Of: "Runtime.Share", Make: unary((*Runtime).Share)},
	{Of: "Runtime.ViewAs", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) {
		return rt.ViewAs(ctx, x, 4, Uint8, 8)
	})},
	{Of: "Runtime.FromBlock", Make: func(t testing.TB, m *trialRig) failtest.Trial {
		s, err := m.dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		block, err := m.cache.Alloc(m.ctx, 64, s)
		require.NoError(t, err)
		trial := m.yields(func(context.Context) ([]*Tensor, error) { return pack(m.FromBlock(block, m.dtype, 2, 3)) })
		release := trial.Undo
		trial.Undo = func() error { return errors.Join(release(), block.Free(), s.Close()) }
		return trial
	}},

	{Of: "FromSlice", Ends: copied, Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(FromSlice(ctx, m.Runtime, []float32{1, 2, 3}))
		}
	})},
	{Of: "Labels", Ends: copied, Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) { return pack(Labels(ctx, m.Runtime, []int{1, 2, 0}, 3)) }
	})},
	{Of: "CopyFrom", Ends: copied, Make: releases(func(m *trialRig) func(ctx context.Context) error {
		x := m.inOf(Float32, 3)
		return func(ctx context.Context) error { return CopyFrom(ctx, x, []float32{1, 2, 3}) }
	})},
	{Of: "Runtime.CopyInto", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		x, y := m.in(2, 3), m.in(2, 1)
		return func(ctx context.Context) error { return m.CopyInto(ctx, x, 1, 2, y) }
	})},
	{Of: "ToSlice", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x := m.inOf(Float32, 2, 3)
		return m.reads(func(ctx context.Context) (any, error) { return ToSlice[float32](ctx, x, nil) })
	}},
	{Of: "Item", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x := m.inOf(Float32, 1)
		return m.reads(func(ctx context.Context) (any, error) { return Item[float32](ctx, x) })
	}},
	{Of: "ToSlice after a wrong label", Make: func(t testing.TB, m *trialRig) failtest.Trial {
		x, labels := m.in(2, 3), put(m.rig, []int32{1, 7})
		loss, err := m.CrossEntropy(m.ctx, x, labels)
		require.NoError(t, err)
		return m.reads(func(ctx context.Context) (any, error) {
			_, err := ToSlice[int32](ctx, labels, nil)
			if errors.Is(err, ErrLabel) {
				return "label 7", nil
			}
			return loss.Shape(), err
		})
	}},
	{Of: "ReadBytes", Ends: copied, Partly: map[failtest.Kind]string{failtest.Failed: "a piece that was read", failtest.OutOfMemory: "a piece that was read", failtest.Ended: "a piece that was read"},
		Make: func(_ testing.TB, m *trialRig) failtest.Trial {
			x, data := m.pieces(), bytes.Repeat([]byte{1, 2, 3}, 1<<20)
			return m.undefining([]*Tensor{x}, m.does(func(ctx context.Context) error { return ReadBytes(ctx, x, bytes.NewReader(data)) }))
		}},
	{Of: "WriteBytes", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x := m.pieces()
		return m.reads(func(ctx context.Context) (any, error) {
			var b bytes.Buffer
			err := WriteBytes(ctx, x, failtest.Writer(m.faults, &b))
			return b.Len(), err
		})
	}},
	{Of: "Runtime.Synchronize", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		x := m.in(2, 3)
		_, err := m.CrossEntropy(m.ctx, x, m.index(3, 2))
		require.NoError(m.t, err)
		return m.Synchronize
	})},

	{Of: "Tensor.Release Tensor.ReleaseContext", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		x, y := m.in(2, 3), m.in(2, 3)
		return func(ctx context.Context) error { return errors.Join(x.ReleaseContext(ctx), y.Release()) }
	})},
	{Of: "Tensor.RecordStream", Ends: map[string]string{"Stream.Synchronize": "a free without a cache waits for the stream, and is over"}, Make: func(t testing.TB, m *trialRig) failtest.Trial {
		s, err := m.dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		x := m.in(2, 3)
		trial := m.does(func(ctx context.Context) error { return errors.Join(x.RecordStream(s), x.ReleaseContext(ctx)) })
		release := trial.Undo
		trial.Undo = func() error { return errors.Join(release(), m.cache.PollFrees(), s.Close()) }
		return trial
	}},
	{Of: "Tensor.SetLabel", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		x := m.in(2, 3)
		return func(context.Context) error { return x.SetLabel(memcache.Label{Module: "m"}) }
	})},
	{Of: "Recurrence.Release", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		return Recurrence{Y: m.in(2, 3), C: m.in(2, 3), Gates: m.in(2, 3)}.Release
	})},
	{Of: "Lifetime.Close", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		ctx, life := WithLifetime(m.ctx)
		_, err := m.Zeros(ctx, m.dtype, 3)
		require.NoError(m.t, err)
		return func(context.Context) error { return life.Close() }
	})},
	{Of: "Lifetime.CloseContext Lifetime.Reset", Make: releases(func(m *trialRig) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			inside, life := WithLifetime(ctx)
			life.Group(20)
			for _, end := range []func(ctx context.Context) error{life.Reset, life.Reset, life.CloseContext} {
				_, err := m.Zeros(inside, m.dtype, 3)
				if err != nil {
					return errors.Join(err, life.Close())
				}
				if err := end(ctx); err != nil {
					return err
				}
			}
			return nil
		}
	})},
}

// stingy is a writer that once takes less than a whole write, without an error.
type stingy struct {
	writes int // writes before that
	less   int
}

func (w *stingy) Write(b []byte) (int, error) {
	if w.writes--; w.writes == 0 {
		return len(b) - w.less, nil
	}
	return len(b), nil
}

// TestWritersAndReadersFail: a writer that takes too little, and a reader that has too little, are
// errors.
func TestWritersAndReadersFail(t *testing.T) {
	m := openTrial(memcache.Config{}, Float32)(t, new(failtest.Faults))
	o, away := m.offloading()
	m.offload(o, away)
	live := m.live()
	for _, x := range []*Tensor{m.pieces(), away} {
		n := int((x.bytes + streamBytes - 1) / streamBytes)
		for k := 1; k <= n; k++ {
			require.ErrorIs(t, WriteBytes(m.ctx, x, &stingy{k, 1}), io.ErrShortWrite)
		}
		require.NoError(t, WriteBytes(m.ctx, x, &stingy{writes: n}))
		for k := range int64(n) {
			data := make([]byte, min(x.bytes-1, k*streamBytes))
			require.ErrorIs(t, ReadBytes(m.ctx, x, bytes.NewReader(data)), io.ErrUnexpectedEOF)
			fails := io.MultiReader(bytes.NewReader(data), iotest.ErrReader(failtest.ErrFailed))
			require.ErrorIs(t, ReadBytes(m.ctx, x, fails), failtest.ErrFailed)
		}
		if x != away {
			require.NoError(t, x.Release())
		}
	}
	require.Equal(t, live, m.live())
	require.NoError(t, errors.Join(m.life.Close(), o.Close()))
}
