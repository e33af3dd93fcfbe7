package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
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

// A GPU does four rows of y at once. Rows after the last one must not multiply their zeros with an
// infinity of x, which would be NaN.
func TestConvWeightGradBesideInfinities(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for high := 3; high < 9; high++ {
		x, err := r.Full(r.ctx, math.Inf(1), Float32, 1, 16, high, 12)
		require.NoError(t, err)
		dy, err := r.Full(r.ctx, 1, Float32, 1, 16, high, 12)
		require.NoError(t, err)
		dw, err := r.ConvWeightGrad(r.ctx, dy, x, []int{16, 16, 3, 3}, ConvConfig{Padding: []int{1, 1}})
		require.Equal(t, slices.Repeat([]float32{float32(math.Inf(1))}, 16*16*9), get[float32](r, dw, err), "%d rows", high)
	}
}

// A large picture is done in parts, all of which count.
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

// TestConvolutionsByRuns is of those that a GPU does by runs, of several tiles of places and of channels in each direction, and of more
// channels than one part of a sum takes; among the weights' gradients are some of one tile a part and of several.
// The host has no runs: with -short it has fewer images, channels and places, still more than a
// panel of each.
func TestConvolutionsByRuns(t *testing.T) {
	r := newRig(t, 1<<30)
	for i, v := range []reference.Conv{
		{N: 8, Groups: 1, C: 5, K: 17, Window: [2]int{3, 3}, In: [2]int{9, 40}, Pad: [2]int{1, 1}},
		{N: 5, Groups: 1, C: 70, K: 40, Window: [2]int{3, 3}, In: [2]int{7, 37}, Pad: [2]int{1, 0}},
		{N: 6, Groups: 2, C: 9, K: 18, Window: [2]int{3, 3}, In: [2]int{10, 35}, Pad: [2]int{0, 2}},
		{N: 7, Groups: 1, C: 6, K: 10, Window: [2]int{5, 5}, In: [2]int{11, 34}, Pad: [2]int{2, 2}},
		{N: 20, Groups: 1, C: 4, K: 66, Window: [2]int{5, 5}, In: [2]int{6, 9}, Pad: [2]int{1, 3}},
	} {
		if brief() {
			v.N, v.K, v.In[1] = min(v.N, 2), min(v.K, 17), min(v.In[1], 14)
			if v.Groups > 1 {
				v.C = 16 // fill panels, for which rows are turned
			}
		}
		for d := range 2 {
			v.Stride[d], v.Dilation[d], v.Out[d] = 1, 1, v.In[d]+2*v.Pad[d]-v.Window[d]+1
		}
		one := convCase{Conv: v, c: ConvConfig{Stride: v.Stride[:], Padding: v.Pad[:], Dilation: v.Dilation[:], Groups: v.Groups}, dims: 2, bias: true, fits: true,
			x: []int{v.N, v.Groups * v.C, v.In[0], v.In[1]}, y: []int{v.N, v.Groups * v.K, v.Out[0], v.Out[1]}, w: []int{v.Groups * v.K, v.C, v.Window[0], v.Window[1]}}
		runTrial(t, r, rand.New(rand.NewPCG(uint64(i), 7)), operation[float32]{"Conv", func(c *trial[float32]) {
			c.kind = ordinary
			c.convolve(one)
		}})
	}
}

// TestConvTransposeOfOnePixelPadded: with output padding a window of one pixel leaves places that
// none of x's pixels reaches.
func TestConvTransposeOfOnePixelPadded(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, w, bias := put(r, []float32{1, 2, 3, 4}, 1, 2, 2), put(r, []float32{10}, 1, 1, 1, 1), put(r, []float32{0.5})
	y, err := r.ConvTranspose2d(r.ctx, x, w, bias, ConvConfig{Dilation: []int{1, 2}, OutputPadding: []int{0, 1}})
	require.Equal(t, []float32{10.5, 20.5, 0.5, 30.5, 40.5, 0.5}, get[float32](r, y, err))
	require.Equal(t, Shape{1, 2, 3}, y.Shape())
}
