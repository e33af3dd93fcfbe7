package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestSortedOnEveryTape: both results of a sort can be read, on a tape that records, in a
// checkpoint, which runs twice, and on one that does not record, where the sort is the last reader
// of its operand.
func TestSortedOnEveryTape(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	data := tapetest.Upload(b, []float64{3, 1, 2, 4, 6, 5}, 2, 3)
	twice := func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		values, index := t.TopK(x, 2, 1, true)
		return t.Mul(values, t.Gather(x, 1, index))
	}
	for name, f := range map[string]func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable{
		"recorded": twice,
		"recomputed": func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { return twice(t, x) })
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(data)
		y := f(tape, x).Keep()
		_, err := tape.Backward(tape.Sum(y))
		require.NoError(t, err, name)
		assert.Equal(t, []float64{9, 4, 36, 25}, tapetest.Read[float64](b, y.Value()), name)
		assert.Equal(t, []float64{6, 0, 4, 0, 12, 10}, tapetest.Read[float64](b, x.Grad()), name)
		require.NoError(t, tape.Close())
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	values, index := tape.Sort(tape.Neg(tape.Input(data)).Once(), 1, false)
	assert.Equal(t, []float64{-3, -2, -1, -6, -5, -4}, tapetest.Read[float64](b, values.Value()))
	assert.Equal(t, []int32{0, 2, 1, 1, 2, 0}, tapetest.Read[int32](b, index.Value()))
	require.False(t, index.RequiresGrad())
	require.NoError(t, tape.Close())

	tape = autograd.NewTape(b.Ctx, b.RT)
	values, index = tape.TopK(tape.Leaf(data), 4, 1, true)
	assert.Nil(t, values.Value())
	assert.Nil(t, index.Value())
	require.ErrorContains(t, tape.Close(), "TopK")
}
