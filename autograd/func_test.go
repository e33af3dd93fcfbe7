package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// swish is x·sigmoid(βx), for β of a shape that broadcasts to x's, as an operation of a program.
func swish(t *autograd.Tape, x, beta *autograd.Variable) *autograd.Variable {
	return t.Func("swish", []*autograd.Variable{x, beta}, func(c *autograd.Call) (*tensor.Tensor, error) {
		rt, ctx := c.Runtime(), c.Context()
		bx, err := rt.Mul(ctx, c.Input(0), c.Input(1))
		if err != nil {
			return nil, err
		}
		s, err := rt.Sigmoid(ctx, bx)
		if err = errors.Join(err, bx.Release()); err != nil {
			return nil, err
		}
		if c.NeedsGrads() {
			c.Save(c.Input(0), c.Input(1), s)
		} else {
			defer s.Release()
		}
		return rt.Mul(ctx, c.Input(0), s)
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		rt, ctx, saved := c.Runtime(), c.Context(), c.Saved()
		x, beta, s := saved[0], saved[1], saved[2]
		gx, err := rt.Mul(ctx, g, x)
		if err != nil {
			return nil, err
		}
		slope, err := rt.ApplyGrad(ctx, fn.Sigmoid, gx, gx, s) // g·x·s(1-s)
		if err != nil {
			return nil, err
		}
		dbeta, err := rt.Mul(ctx, slope, x)
		if err != nil {
			return nil, err
		}
		if err := rt.MulInPlace(ctx, slope, beta); err != nil {
			return nil, err
		}
		gs, err := rt.Mul(ctx, g, s)
		if err != nil {
			return nil, err
		}
		err = errors.Join(rt.AddInPlace(ctx, gs, slope), slope.Release())
		return []*tensor.Tensor{gs, dbeta}, err
	})
}

// A function of a program has the values and gradients of the equivalent composition, and leaves no
// more memory.
func TestFuncAgainstComposition(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	run := func(f func(t *autograd.Tape, x, beta *autograd.Variable) *autograd.Variable) (values, dx, dbeta []float64) {
		x, beta := tapetest.Upload(b, []float64{-2, -0.5, 0, 1, 2.5, 3}, 2, 3), tapetest.Upload(b, []float64{0.5, 1, -1}, 3)
		before, _ := b.RT.Live()
		tape := autograd.NewTape(b.Ctx, b.RT)
		vx, vb := tape.Leaf(x), tape.Leaf(beta)
		y := f(tape, vx, vb)
		require.NoError(t, tape.Err())
		values = tapetest.Read[float64](b, y.Value())
		_, err := tape.Backward(tape.Sum(tape.Square(y)))
		require.NoError(t, err)
		after, _ := b.RT.Live()
		assert.Equal(t, before+3, after, "the loss and two gradients")
		dx, dbeta = tapetest.Read[float64](b, vx.Grad()), tapetest.Read[float64](b, vb.Grad())
		require.NoError(t, tape.Close())
		require.NoError(t, errors.Join(x.Release(), beta.Release()))
		return values, dx, dbeta
	}
	values, dx, dbeta := run(swish)
	wantValues, wantDx, wantDbeta := run(func(t *autograd.Tape, x, beta *autograd.Variable) *autograd.Variable {
		return t.Mul(x, t.Sigmoid(t.Mul(x, beta)))
	})
	assert.InDeltaSlice(t, wantValues, values, 1e-14)
	assert.InDeltaSlice(t, wantDx, dx, 1e-13)
	assert.InDeltaSlice(t, wantDbeta, dbeta, 1e-13)
	require.Len(t, dbeta, 3, "summed over what was broadcast")
}

// On a tape of NoGrad nothing is saved, and the function frees the results of operations that it
// reads.
func TestFuncWithoutGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	for name, tape := range map[string]*autograd.Tape{"NoGrad": autograd.NoGrad(b.Ctx, b.RT), "constants": autograd.NewTape(b.Ctx, b.RT)} {
		before, _ := b.RT.Live()
		in := tape.Input(x)
		a := tape.AddScalar(in, 1)
		y := swish(tape, a, in)
		require.NoError(t, tape.Err())
		after, _ := b.RT.Live()
		assert.Equal(t, !autograd.Recording(tape), a.Value().Released(), name)
		assert.False(t, in.Value().Released(), name)
		want := before + 3 // the shared input, a and y
		if !autograd.Recording(tape) {
			want--
		}
		assert.Equal(t, want, after, "%s: nothing is saved", name)
		assert.False(t, y.RequiresGrad())
		require.NoError(t, tape.Close())
	}
	require.NoError(t, x.Release())
}

// NeedsGrad reports for each input whether its gradient is needed.
func TestFuncNeedsGrad(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	before, _ := b.RT.Live()
	tape := autograd.NewTape(b.Ctx, b.RT)
	leaf, constant := tape.Leaf(x), tape.Input(x)
	asked := 0
	y := tape.Func("second", []*autograd.Variable{constant, leaf}, func(c *autograd.Call) (*tensor.Tensor, error) {
		asked++
		assert.False(t, c.NeedsGrad(0))
		assert.True(t, c.NeedsGrad(1))
		assert.True(t, c.NeedsGrads())
		return b.RT.Copy(c.Context(), c.Input(1))
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		asked++
		extra, err := b.RT.Copy(c.Context(), g)
		return []*tensor.Tensor{extra, g}, err // of a constant: taken and freed
	})
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	assert.Equal(t, 2, asked)
	after, _ := b.RT.Live()
	assert.Equal(t, before+2, after, "the loss and one gradient")
	assert.Equal(t, []float64{1, 1}, tapetest.Read[float64](b, leaf.Grad()))
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}

// A gradient may be returned for several inputs. A write to one does not change the others.
func TestFuncGivesOneGradientTwice(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, z := tapetest.Upload(b, []float64{1, 2}), tapetest.Upload(b, []float64{5, 6})
	tape := autograd.NewTape(b.Ctx, b.RT)
	vx, vz := tape.Leaf(x), tape.Leaf(z)
	y := tape.Func("plus", []*autograd.Variable{vx, vz}, func(c *autograd.Call) (*tensor.Tensor, error) {
		return b.RT.Add(c.Context(), c.Input(0), c.Input(1))
	}, func(_ *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return []*tensor.Tensor{g, g}, nil })
	_, err := tape.Backward(tape.Sum(tape.Add(y, tape.MulScalar(vz, 10)))) // z's gradient is added to
	require.NoError(t, err)
	assert.Equal(t, []float64{1, 1}, tapetest.Read[float64](b, vx.Grad()))
	assert.Equal(t, []float64{11, 11}, tapetest.Read[float64](b, vz.Grad()))
	require.NoError(t, tape.Close())
	require.NoError(t, errors.Join(x.Release(), z.Release()))
}

// An overwrite of a saved input or result before the backward pass is an error.
func TestFuncNoticesOverwrites(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, save := range map[string]func(c *autograd.Call, y *tensor.Tensor) *tensor.Tensor{
		"input":  func(c *autograd.Call, _ *tensor.Tensor) *tensor.Tensor { return c.Input(0) },
		"result": func(_ *autograd.Call, y *tensor.Tensor) *tensor.Tensor { return y },
	} {
		x := tapetest.Upload(b, []float64{1, 2})
		tape := autograd.NewTape(b.Ctx, b.RT)
		var kept *tensor.Tensor
		y := tape.Func("f", []*autograd.Variable{tape.Leaf(x)}, func(c *autograd.Call) (*tensor.Tensor, error) {
			y, err := b.RT.Exp(c.Context(), c.Input(0))
			kept = save(c, y)
			c.Save(kept)
			return y, err
		}, func(_ *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return []*tensor.Tensor{g}, nil })
		loss := tape.Sum(y)
		y.Release()
		require.False(t, kept.Released(), "%s: it is saved", name)
		require.NoError(t, b.RT.AddInPlace(b.Ctx, kept, kept))
		_, err := tape.Backward(loss)
		require.ErrorIs(t, err, autograd.ErrStale, name)
		require.ErrorContains(t, err, "f backward", name)
		require.Error(t, tape.Close())
		require.NoError(t, x.Release())
	}
}

// Mistakes and failures stick to the tape, with the operation's name, and leak nothing.
func TestFuncErrors(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	cause := errors.New("the cause")
	copied := func(c *autograd.Call) (*tensor.Tensor, error) { return b.RT.Copy(c.Context(), c.Input(0)) }
	passed := func(_ *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return []*tensor.Tensor{g}, nil }
	type forward = func(*autograd.Call) (*tensor.Tensor, error)
	type backward = func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error)
	for name, f := range map[string]struct {
		forward  forward
		backward backward
		class    error
		text     string
	}{
		"forward fails":       {func(*autograd.Call) (*tensor.Tensor, error) { return nil, cause }, passed, cause, "autograd: mine: the cause"},
		"forward fails late":  {func(c *autograd.Call) (*tensor.Tensor, error) { y, _ := copied(c); return y, cause }, passed, cause, "mine: the cause"},
		"no forward function": {nil, passed, autograd.ErrInvalid, "the forward function is nil"},
		"no result":           {func(*autograd.Call) (*tensor.Tensor, error) { return nil, nil }, passed, autograd.ErrInvalid, "returned no tensor"},
		"the input":           {func(c *autograd.Call) (*tensor.Tensor, error) { return c.Input(0), nil }, passed, autograd.ErrInvalid, "returned an input"},
		"backward fails": {copied, func(c *autograd.Call, _ *tensor.Tensor) ([]*tensor.Tensor, error) { return c.Grads(nil, cause) },
			cause, "mine backward: the cause"},
		"too many gradients": {copied, func(_ *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{g, nil}, nil
		},
			autograd.ErrInvalid, "2 gradients for 1 input"},
		"another shape": {copied, func(c *autograd.Call, _ *tensor.Tensor) ([]*tensor.Tensor, error) {
			return c.Grads(b.RT.Zeros(c.Context(), tensor.Float64, 3))
		}, tensor.ErrShape, "mine backward"},
		"another dtype": {copied, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return c.Grads(b.RT.Convert(c.Context(), g, tensor.Float32))
		}, tensor.ErrDtype, "input 1"},
		"no backward function": {copied, nil, autograd.ErrNoGrad, "no parameter or leaf"},
	} {
		x := tapetest.Upload(b, []float64{1, 2})
		before, _ := b.RT.Live()
		tape := autograd.NewTape(b.Ctx, b.RT)
		y := tape.Func("mine", []*autograd.Variable{tape.Leaf(x)}, f.forward, f.backward)
		_, err := tape.Backward(tape.Sum(y))
		require.ErrorIs(t, err, f.class, name)
		require.ErrorContains(t, err, f.text, name)
		require.Error(t, tape.Close(), name)
		after, _ := b.RT.Live()
		assert.Equal(t, before, after, name)
		assert.False(t, x.Released(), name)
		require.NoError(t, x.Release())
	}
}

// When forward fails, the tensors that it made are freed at once.
func TestFuncThatFailsLate(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	var made *tensor.Tensor
	tape.Func("mine", nil, func(c *autograd.Call) (*tensor.Tensor, error) {
		made, _ = b.RT.Zeros(c.Context(), tensor.Float32, 5)
		return made, errors.New("too late")
	}, nil)
	assert.True(t, made.Released())
	require.ErrorContains(t, tape.Close(), "mine: too late")
}

// A tensor that only the function saved is freed by the backward pass, or by Close if there is
// none.
func TestFuncFreesSavedTensors(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	var saved *tensor.Tensor
	half := func(tape *autograd.Tape) *autograd.Variable {
		return tape.Func("half", []*autograd.Variable{tape.Leaf(x)}, func(c *autograd.Call) (*tensor.Tensor, error) {
			var err error
			if saved, err = b.RT.Full(c.Context(), 0.5, tensor.Float64); err != nil {
				return nil, err
			}
			c.Save(saved)
			return b.RT.Mul(c.Context(), c.Input(0), saved)
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			assert.False(t, c.Saved()[0].Released())
			return c.Grads(b.RT.Mul(c.Context(), g, c.Saved()[0]))
		})
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(half(tape)))
	require.NoError(t, err)
	assert.True(t, saved.Released(), "after its step")
	require.NoError(t, tape.Close())
	tape = autograd.NewTape(b.Ctx, b.RT)
	half(tape)
	assert.False(t, saved.Released())
	require.NoError(t, tape.Close())
	assert.True(t, saved.Released(), "by Close")
	tape = autograd.NoGrad(b.Ctx, b.RT)
	half(tape)
	assert.True(t, saved.Released(), "at once: no step will come")
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}

// TestFuncFreesBeforeItsGradientsAreSummed: the saved tensors of a function are freed before a
// gradient is summed over a broadcast shape, so that the sum adds nothing to the peak if it is not
// larger.
func TestFuncFreesBeforeItsGradientsAreSummed(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, make([]float64, 1024), 1024)
	var peaks []int64
	for _, saves := range []bool{false, false, true} { // the first makes the runtime's own memory
		require.NoError(t, b.RT.Synchronize(b.Ctx))
		before := b.Cache.MemoryAllocated()
		tape := autograd.NewTape(b.Ctx, b.RT)
		y := tape.Func("rows", []*autograd.Variable{tape.Leaf(x)}, func(c *autograd.Call) (*tensor.Tensor, error) {
			if saves {
				s, err := b.RT.Zeros(c.Context(), tensor.Float64, 512)
				if err != nil {
					return nil, err
				}
				c.Save(s)
			}
			return b.RT.Zeros(c.Context(), tensor.Float64, 2, 1024)
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return c.Grads(b.RT.Square(c.Context(), g))
		})
		loss := tape.Sum(y)
		b.Cache.ResetPeakStats()
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		peaks = append(peaks, b.Cache.MaxMemoryAllocated()-before)
	}
	assert.Equal(t, peaks[1], peaks[2])
	require.NoError(t, x.Release())
}

// TestNilInCalls: the functions of an operation may save and return nil.
func TestNilInCalls(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, forward := range map[string]func(*autograd.Call) (*tensor.Tensor, error){
		"no result": func(*autograd.Call) (*tensor.Tensor, error) { return nil, nil },
		"no gradients": func(c *autograd.Call) (*tensor.Tensor, error) {
			c.Save(nil, c.Input(0))
			c.Save()
			return b.RT.Share(c.Context(), c.Input(0))
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(tapetest.Upload(b, []float64{1}))
		_, err := tape.Backward(tape.Func(name, []*autograd.Variable{x}, forward, func(c *autograd.Call, _ *tensor.Tensor) ([]*tensor.Tensor, error) { return c.Grads(nil, nil) }))
		require.Equal(t, name == "no result", errors.Is(err, autograd.ErrInvalid), "%v", err)
		require.Nil(t, x.Grad())
		_ = tape.Close()
	}
}
