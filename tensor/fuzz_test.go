package tensor

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzShapes makes two tensors of any shapes and applies operations that depend on shapes: each
// either refuses or agrees with the rule, and nothing leaks.
func FuzzShapes(f *testing.F) {
	f.Add([]byte{2, 3}, []byte{3}, []byte{3, 2})
	f.Add([]byte{4, 1, 2}, []byte{0, 2}, []byte{8})
	f.Add([]byte{}, []byte{255}, []byte{255, 1})
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		shape := func(bs []byte) []int {
			s := []int{}
			for _, b := range bs[:min(len(bs), 4)] {
				s = append(s, int(b%7)-1)
			}
			return s
		}
		r := newRig(t, 64<<20).scoped() // enough for a library's workspace
		a, errA := r.Full(r.ctx, 1, Float64, shape(first)...)
		require.Equal(t, slices.Contains(shape(first), -1), errA != nil)
		b, errB := r.Full(r.ctx, 2, Float64, shape(second)...)
		if errA != nil || errB != nil {
			return
		}
		if y, err := r.Add(r.ctx, a, b); err == nil {
			for _, v := range get[float64](r, y, nil) {
				require.Equal(t, 3.0, v)
			}
			back, err := r.SumTo(r.ctx, y, a.Shape()...)
			require.NoError(t, err)
			if n := a.Elements(); n > 0 {
				require.Equal(t, 3*float64(y.Elements())/float64(n), get[float64](r, back, nil)[0])
			}
		} else {
			require.ErrorIs(t, err, ErrShape)
		}
		if y, err := r.Reshape(r.ctx, a, shape(third)...); err == nil {
			require.Equal(t, a.Elements(), y.Elements())
		} else {
			require.ErrorIs(t, err, ErrShape)
		}
		if y, err := r.MatMul(r.ctx, a, b, transposing(len(third)&1 != 0, len(third)&2 != 0)...); err == nil {
			inner := a.shape[len(a.shape)-1]
			if len(third)&1 != 0 && len(a.shape) > 1 {
				inner = a.shape[len(a.shape)-2]
			}
			for _, v := range get[float64](r, y, nil) {
				require.Equal(t, float64(2*inner), v)
			}
		} else {
			require.ErrorIs(t, err, ErrShape)
		}
	})
}
