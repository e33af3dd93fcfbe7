package remat_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestCheckpointThatDoesSomethingElse: if the second run differs from the first, the error names the
// difference.
func TestCheckpointThatDoesSomethingElse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, c := range map[string]struct {
		f    func(t *autograd.Tape, x, other *autograd.Variable, again bool) *autograd.Variable
		want string
	}{
		"more operations": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				x = t.Tanh(x)
			}
			return t.Tanh(x)
		}, "float64 (2, 2) of 2 operations with 0 random ones, and float64 (2, 2) of 1 operations"},
		"another shape": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return t.Sum(x)
			}
			return t.Tanh(x)
		}, "float64 () of 1"},
		"random numbers": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return t.Dropout(x, 0.5)
			}
			return t.Tanh(x)
		}, "1 random ones"},
		"another variable": {func(t *autograd.Tape, x, other *autograd.Variable, again bool) *autograd.Variable {
			if again {
				x = other
			}
			return t.Tanh(x)
		}, "must not be assigned to later"},
		"nothing": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return nil
			}
			return t.Tanh(x)
		}, "its result has no gradient"},
		"what it was given": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return x
			}
			return t.Tanh(x)
		}, "its result has no gradient"},
		"no gradient": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return t.Detach(x)
			}
			return t.Tanh(x)
		}, "its result has no gradient"},
		"other shapes on the way": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return t.Reshape(t.Reshape(x, 4), 2, 2)
			}
			return t.Reshape(t.Reshape(x, 1, 4), 2, 2)
		}, "; an operation in between, or its shapes, differ"},
		"another operation": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			if again {
				return t.Sub(x, x)
			}
			return t.Add(x, x)
		}, "; an operation in between, or its shapes, differ"},
		"an operation that reads what is not computed again": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			y := t.Add(x, x)
			if again {
				return t.Softmax(y)
			}
			return t.Add(y, x)
		}, "Softmax: invalid argument: the checkpoint's function ran differently the second time: it had no Softmax before"},
		"it closes the tape": {func(t *autograd.Tape, x, _ *autograd.Variable, again bool) *autograd.Variable {
			y := t.Tanh(x)
			if again {
				_ = t.Close()
			}
			return y
		}, "the function ended the tape"},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		v, other := tape.Leaf(x), tape.Leaf(x)
		again := false
		y := remat.Checkpoint(tape, func() *autograd.Variable {
			defer func() { again = true }()
			return c.f(tape, v, other, again)
		})
		_, err := tape.Backward(tape.Sum(tape.Add(y, other)))
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, tape.Close(), "autograd: ", name)
		require.Equal(t, int64(1), b.Live(), name)
	}
}

// TestCheckpointRefuses: invalid uses are refused.
func TestCheckpointRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, c := range map[string]struct {
		f    func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
		kind error
		want string
	}{
		"no function": {func(t *autograd.Tape, _ *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, nil)
		}, autograd.ErrInvalid, "Checkpoint: invalid argument: the function is nil"},
		"nil": {func(t *autograd.Tape, _ *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { return nil })
		}, autograd.ErrInvalid, "Checkpoint: invalid argument: the function returned nil"},
		"a leaf": {func(t *autograd.Tape, _ *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { return t.Leaf(x) })
		}, autograd.ErrInvalid, "make leaves outside"},
		"no layer": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return remat.Layer(nil).Forward(t, x)
		}, autograd.ErrInvalid, "remat: Layer: invalid argument: the layer is nil"},
		"an error": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { return t.MatMul(t.Tanh(x), t.Sum(x)) })
		}, tensor.ErrShape, "MatMul"},
		"the end of the tape": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { y := t.Tanh(x); _ = t.Close(); return y })
		}, autograd.ErrSpent, "it was closed"},
		"a backward pass": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { y := t.Sum(x); _, _ = t.Backward(y); return y })
		}, autograd.ErrSpent, "it was run backward"},
	} {
		for _, record := range []bool{true, false} {
			if name == "a leaf" && !record || name == "a backward pass" && !record {
				continue
			}
			want := c.want
			if !record { // a checkpoint is a frame
				want = strings.Replace(want, "Checkpoint: invalid argument: the function returned", "Frame: invalid argument: the function returned", 1)
			}
			tape := tapetest.NewTape(b.Ctx, b.RT, record)
			y := tape.Sum(c.f(tape, tape.Leaf(x)))
			require.Nil(t, y.Value(), name)
			require.ErrorIs(t, tape.Err(), c.kind, name)
			require.ErrorContains(t, tape.Close(), want, name)
			require.Equal(t, int64(1), b.Live(), name)
		}
	}
	require.Empty(t, remat.Layer(nil).Parameters())
	require.Empty(t, remat.Layer(nil).(nn.Buffered).Buffers())
}

// TestCheckpointOfWhatWasOverwritten: an input or a parameter that was overwritten between the
// passes is an error.
func TestCheckpointOfWhatWasOverwritten(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	w := b.Parameter(2, 2)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, overwrite := range map[string]*tensor.Tensor{"an input": x, "a parameter": w.Value()} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		v := tape.Leaf(x)
		// The addition saves neither.
		y := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Add(v, tape.Param(w)) })
		require.NoError(t, b.RT.Zero(b.Ctx, overwrite))
		_, err := tape.Backward(tape.Sum(y))
		require.ErrorIs(t, err, autograd.ErrStale, name)
		_ = tape.Close()
		require.NoError(t, w.ZeroGrad(b.Ctx))
	}

	// The function itself overwrites it after reading it.
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	y := remat.Checkpoint(tape, func() *autograd.Variable {
		y := tape.MulScalar(v, 2)
		require.NoError(t, b.RT.Zero(b.Ctx, x))
		return y
	})
	_, err := tape.Backward(tape.Sum(y))
	require.ErrorIs(t, err, autograd.ErrStale)
	_ = tape.Close()
}

// TestCheckpointThatPanics: after a panic in the first or the second run the tape can be closed.
func TestCheckpointThatPanics(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	for at := range 2 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		v := tape.Leaf(x)
		runs := 0
		var y *autograd.Variable
		call := func() {
			y = remat.Checkpoint(tape, func() *autograd.Variable {
				defer func() { runs++ }()
				y := tape.Tanh(v)
				if runs == at {
					panic("on purpose")
				}
				return y
			})
		}
		if at == 0 {
			require.PanicsWithValue(t, "on purpose", call)
			require.Zero(t, tape.Run())
			_, err := tape.Backward(tape.Sum(tape.Tanh(v))) // goes on
			require.NoError(t, err)
		} else {
			call()
			loss := tape.Sum(y)
			require.PanicsWithValue(t, "on purpose", func() { _, _ = tape.Backward(loss) })
			_, err := tape.Backward(loss)
			require.ErrorIs(t, err, autograd.ErrSpent)
		}
		_ = tape.Close()
		require.Equal(t, int64(1), b.Live())
	}
}

// TestCheckpointOutOfMemory: without memory in the second run Backward returns the error,
// parameters have no incomplete gradient, and nothing leaks.
func TestCheckpointOutOfMemory(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	w := b.Parameter(8, 8)
	failed := 0
	for free := range 12 { // blocks, each for one value
		tape := autograd.NewTape(b.Ctx, b.RT)
		runs := 0
		y := remat.Checkpoint(tape, func() *autograd.Variable {
			runs++
			x := tape.Param(w)
			for range 6 {
				x = tape.Tanh(x)
			}
			return x
		})
		loss := tape.Sum(y)
		filler := b.Fill(free)
		_, err := tape.Backward(loss)
		if err != nil {
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
			require.Nil(t, w.Grad())
			failed += runs - 1
		}
		for _, f := range filler {
			require.NoError(t, f.Free())
		}
		require.Equal(t, err != nil, tape.Close() != nil)
		require.NoError(t, w.ZeroGrad(b.Ctx))
		require.Equal(t, int64(1), b.Live())
	}
	require.Greater(t, failed, 3, "in the second run")
	require.Less(t, failed, 12)
}
