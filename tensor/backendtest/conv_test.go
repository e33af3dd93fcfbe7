package backendtest

import (
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestConvolutionsByRuns has convolutions that a GPU computes by runs: of several tiles of
// positions and channels in each direction, and of more channels than one part of a sum takes.
// The weights' gradients have every edition of their kernels, some with one unit per slot and some
// with several. The host has no runs: with -short it has fewer images, channels and positions, but
// still more than a panel of each.
func TestConvolutionsByRuns(t *testing.T) {
	r := newRig(t, 1<<30)
	for i, v := range []reference.Conv{
		{N: 8, Groups: 1, C: 5, K: 17, Window: [2]int{3, 3}, In: [2]int{9, 40}, Pad: [2]int{1, 1}},
		{N: 5, Groups: 1, C: 70, K: 40, Window: [2]int{3, 3}, In: [2]int{7, 37}, Pad: [2]int{1, 0}},
		{N: 6, Groups: 2, C: 9, K: 18, Window: [2]int{3, 3}, In: [2]int{10, 35}, Pad: [2]int{0, 2}},
		{N: 40, Groups: 1, C: 18, K: 35, Window: [2]int{3, 3}, In: [2]int{9, 13}, Pad: [2]int{1, 1}},
		{N: 9, Groups: 2, C: 21, K: 11, Window: [2]int{3, 3}, In: [2]int{13, 22}, Pad: [2]int{1, 2}, Stride: [2]int{2, 2}},
		{N: 16, Groups: 1, C: 9, K: 70, Window: [2]int{3, 3}, In: [2]int{12, 17}, Pad: [2]int{0, 1}, Stride: [2]int{2, 2}},
		{N: 12, Groups: 30, C: 9, K: 5, Window: [2]int{3, 3}, In: [2]int{6, 20}, Pad: [2]int{1, 0}},
		{N: 50, Groups: 12, C: 9, K: 17, Window: [2]int{3, 3}, In: [2]int{5, 6}, Pad: [2]int{1, 1}},
		{N: 50, Groups: 10, C: 9, K: 17, Window: [2]int{3, 3}, In: [2]int{9, 11}, Pad: [2]int{1, 0}, Stride: [2]int{2, 2}},
		{N: 40, Groups: 16, C: 2, K: 5, Window: [2]int{3, 2}, In: [2]int{17, 33}, Pad: [2]int{1, 1}, Stride: [2]int{2, 3}},
		{N: 7, Groups: 1, C: 6, K: 10, Window: [2]int{5, 5}, In: [2]int{11, 34}, Pad: [2]int{2, 2}},
		{N: 20, Groups: 1, C: 4, K: 66, Window: [2]int{5, 5}, In: [2]int{6, 9}, Pad: [2]int{1, 3}},
	} {
		if r.brief() {
			v.N, v.K, v.In[1] = min(v.N, 2), min(v.K, 17), min(v.In[1], 14)
			if v.Groups > 1 {
				v.C = 16 // fill panels, for which rows are turned
			}
		}
		for d := range 2 {
			v.Stride[d], v.Dilation[d] = max(1, v.Stride[d]), 1
			v.Out[d] = (v.In[d]+2*v.Pad[d]-v.Window[d])/v.Stride[d] + 1
		}
		one := convCase{Conv: v, c: tensor.ConvConfig{Stride: v.Stride[:], Padding: v.Pad[:], Dilation: v.Dilation[:], Groups: v.Groups}, dims: 2, bias: true, fits: true,
			x: []int{v.N, v.Groups * v.C, v.In[0], v.In[1]}, y: []int{v.N, v.Groups * v.K, v.Out[0], v.Out[1]}, w: []int{v.Groups * v.K, v.C, v.Window[0], v.Window[1]}}
		runTrial(t, r, rand.New(rand.NewPCG(uint64(i), 7)), operation[float32]{"Conv", func(c *trial[float32]) {
			c.kind = ordinary
			c.convolve(one)
			for d := range 2 {
				one.c.OutputPadding = append(one.c.OutputPadding, v.In[d]+2*v.Pad[d]-v.Window[d]-(v.Out[d]-1)*v.Stride[d])
			}
			c.convolveTransposed(one)
		}})
	}
}
