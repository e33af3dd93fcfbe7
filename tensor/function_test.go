package tensor

import (
	"math"
	"testing"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/require"
)

// At the bounds, Clamp's gradient is dy, and Hardtanh's is 0.
func TestGradientsAtTheBounds(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, dy := put(r, []float32{-2, -1, 0, 2, 3}), put(r, []float32{1, 2, 3, 4, 5})
	d, err := r.ApplyGrad(r.ctx, fn.Clamp(-1, 2), nil, dy, x)
	require.Equal(t, []float32{0, 2, 3, 4, 0}, get[float32](r, d, err))
	y := put(r, []float32{-1, -1, 0, 2, 2}) // Hardtanh's gradient is read from its result
	d, err = r.ApplyGrad(r.ctx, fn.Hardtanh(-1, 2), nil, dy, y)
	require.Equal(t, []float32{0, 0, 3, 0, 0}, get[float32](r, d, err))
}

func TestApplyRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1})
	for text, f := range map[string]fn.Function{
		"the function is empty":                               {},
		"operation":                                           {Op: backend.MatMul, Grad: backend.MatMul},
		"not an elementwise function":                         {Op: backend.Ops, Grad: backend.Ops},
		"a parameter is NaN":                                  fn.ELU(math.NaN()),
		"the lower bound 2 is above the upper one, 1":         fn.Hardtanh(2, 1),
		"want one of package fn":                              {Op: math.MaxUint16, Grad: math.MaxUint16},
		"is not an elementwise function: want one of package": {Op: backend.Add, Grad: backend.Linear.Of(0)},
	} {
		_, err := r.Apply(r.ctx, f, x)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, text)
		_, err = r.ApplyGrad(r.ctx, f, nil, x, x)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, text)
	}
	_, err := r.ApplyGrad(r.ctx, fn.Neg, nil, x, x)
	require.ErrorContains(t, err, "the gradient of Neg is not an operation of its own")
}
