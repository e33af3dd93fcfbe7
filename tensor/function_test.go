package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The bounds themselves pass through Clamp, and not through Hardtanh.
func TestGradientsAtTheBounds(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, dy := put(r, []float32{-2, -1, 0, 2, 3}), put(r, []float32{1, 2, 3, 4, 5})
	d, err := r.ClampGrad(r.ctx, nil, dy, x, -1, 2)
	require.Equal(t, []float32{0, 2, 3, 4, 0}, get[float32](r, d, err))
	y := put(r, []float32{-1, -1, 0, 2, 2}) // Hardtanh's gradient is read from its result
	d, err = r.HardtanhGrad(r.ctx, nil, dy, y, -1, 2)
	require.Equal(t, []float32{0, 0, 3, 0, 0}, get[float32](r, d, err))
}
