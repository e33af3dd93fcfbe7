package tensor

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Weights of 0 do not hide infinities: 0·Inf is NaN, in a convolution and in its gradients.
func TestConvolutionOfInfinities(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1, float32(math.Inf(1)), 3, 4}, 1, 1, 2, 2)
	w := put(r, []float32{0}, 1, 1, 1, 1)
	want := []bool{false, true, false, false}
	nans := func(y *Tensor, err error) (is []bool) {
		for _, v := range get[float32](r, y, err) {
			is = append(is, v != v)
		}
		return is
	}
	require.Equal(t, want, nans(r.Conv2d(r.ctx, x, w, nil, ConvConfig{})))
	require.Equal(t, want, nans(r.ConvInputGrad(r.ctx, x, w, []int{1, 1, 2, 2}, ConvConfig{})))
}

// A GPU computes up to four rows of y at once. Rows after the last one must not multiply their
// zeros with an infinity of x, which would give NaN.
func TestConvWeightGradBesideInfinities(t *testing.T) {
	const filters = 20
	r := newRig(t, 64<<20).scoped()
	for _, channels := range []int{4, 16} {
		for high := 3; high < 9; high++ {
			for _, wide := range []int{7, 12, 34} {
				for stride := 1; stride < 3; stride++ {
					x, err := r.Full(r.ctx, math.Inf(1), Float32, 1, channels, high, wide)
					require.NoError(t, err)
					dy, err := r.Full(r.ctx, 1, Float32, 1, filters, (high-1)/stride+1, (wide-1)/stride+1)
					require.NoError(t, err)
					dw, err := r.ConvWeightGrad(r.ctx, dy, x, []int{filters, channels, 3, 3}, ConvConfig{Stride: []int{stride, stride}, Padding: []int{1, 1}})
					want := slices.Repeat([]float32{float32(math.Inf(1))}, filters*channels*9)
					require.Equal(t, want, get[float32](r, dw, err), "%d channels, %d by %d with a stride of %d", channels, high, wide, stride)
				}
			}
		}
	}
}

// TestConvWeightGradOfManyPositionsAndGroups: more than 128 parts are added, and more tiles than
// blocks of a launch are computed.
func TestConvWeightGradOfManyPositionsAndGroups(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, c := range []struct{ groups, side int }{{1, 200}, {4100, 3}} {
		const filters = 5
		x, dy := spread[float32](c.groups*c.side*c.side, -1, 1), spread[float32](c.groups*filters*c.side*c.side, -1, 1)
		dw, err := r.ConvWeightGrad(r.ctx, put(r, dy, 1, c.groups*filters, c.side, c.side), put(r, x, 1, c.groups, c.side, c.side),
			[]int{c.groups * filters, 1, 3, 3}, ConvConfig{Padding: []int{1, 1}, Groups: c.groups})
		got := get[float32](r, dw, err)
		for k := range c.groups * filters {
			for i := range 9 {
				want, size := 0.0, 0.0
				for p := max(0, 1-i/3); p < min(c.side, c.side+1-i/3); p++ {
					for q := max(0, 1-i%3); q < min(c.side, c.side+1-i%3); q++ {
						v := float64(dy[(k*c.side+p)*c.side+q]) * float64(x[(k/filters*c.side+p+i/3-1)*c.side+q+i%3-1])
						want, size = want+v, size+math.Abs(v)
					}
				}
				require.InDelta(t, want, got[k*9+i], 1e-6*size, "weight %d of filter %d of %+v", i, k, c)
			}
		}
	}
}

// A large picture is processed in parts, all of which contribute.
func TestConvolutionOfALargePicture(t *testing.T) {
	const side = 100
	r := newRig(t, 64<<20).scoped()
	x, err := r.Full(r.ctx, 1, Float32, 1, 1, side, side)
	require.NoError(t, err)
	w, err := r.Full(r.ctx, 2, Float32, 1, 1, 1, 1)
	require.NoError(t, err)
	y, err := r.Conv2d(r.ctx, x, w, nil, ConvConfig{})
	require.Equal(t, slices.Repeat([]float32{2}, side*side), get[float32](r, y, err))
	dw, err := r.ConvWeightGrad(r.ctx, y, x, []int{1, 1, 1, 1}, ConvConfig{})
	require.Equal(t, []float32{2 * side * side}, get[float32](r, dw, err))
	dx, err := r.ConvInputGrad(r.ctx, y, w, []int{1, 1, side, side}, ConvConfig{})
	require.Equal(t, slices.Repeat([]float32{4}, side*side), get[float32](r, dx, err))
}

// TestConvTransposeOfOnePixelPadded: with output padding, a window of one pixel leaves positions
// that none of x's pixels reaches.
func TestConvTransposeOfOnePixelPadded(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, w, bias := put(r, []float32{1, 2, 3, 4}, 1, 2, 2), put(r, []float32{10}, 1, 1, 1, 1), put(r, []float32{0.5})
	y, err := r.ConvTranspose2d(r.ctx, x, w, bias, ConvConfig{Dilation: []int{1, 2}, OutputPadding: []int{0, 1}})
	require.Equal(t, []float32{10.5, 20.5, 0.5, 30.5, 40.5, 0.5}, get[float32](r, y, err))
	require.Equal(t, Shape{1, 2, 3}, y.Shape())
}

// The average of whole planes is their mean.
func TestAverageOfPlanes(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, spread[float64](2*3*5*7, -1, 1), 2, 3, 5, 7)
	y, err := r.AdaptiveAvgPool2d(r.ctx, x, 1)
	require.NoError(t, err)
	require.Equal(t, Shape{2, 3, 1, 1}, y.Shape())
	want, err := r.Mean(r.ctx, x, 2, 3)
	require.InDeltaSlice(t, get[float64](r, want, err), get[float64](r, y, nil), 1e-15)
}
