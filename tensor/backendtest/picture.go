package backendtest

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func pictureOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"Conv", convTrial[T]}, {"Conv", convTrial[T]}, {"ConvTranspose", convTransposeTrial[T]}, {"MaxPool2d", maxPoolTrial[T]},
		{"AvgPool2d", avgPoolTrial[T]}, {"AdaptiveAvgPool2d", adaptivePoolTrial[T]},
		{"Interpolate", interpolateTrial[T]}, {"Interpolate", interpolateTrial[T]}, {"EdgePad", edgePadTrial[T]}, {"PReLU", preluTrial[T]}}
}

// convCase is a random convolution. Some are of one image without a batch dimension, and some of
// one dimension.
type convCase struct {
	reference.Conv
	c         tensor.ConvConfig
	dims      int
	bias      bool
	x, w, y   []int
	fits      bool
	batchless bool
}

func (c *trial[T]) convolution(transposed bool) convCase {
	n := func(most int) int { return 1 + c.rand.IntN(most) }
	v := convCase{dims: 1 + min(c.rand.IntN(4), 1), bias: c.rand.IntN(2) == 0, fits: true}
	v.N, v.Groups, v.C, v.K = n(3), 1, n(4), n(6)
	side, runs := 9, 0
	// few returns most, or brief for brief tests: sizes that are chosen for GPUs.
	few := func(most, brief int) int { return most }
	if c.r.brief() {
		few = func(most, brief int) int { return brief }
	}
	switch c.rand.IntN(12) {
	case 0:
		v.N = 0
	case 1, 2:
		v.Groups = n(3)
	case 3: // depthwise
		v.Groups, v.C, v.K = n(5), 1, n(2)
	case 4: // more than a tile of a GPU in every direction
		v.C, v.K, v.N = n(few(12, 4)), few(60, 20)+n(20), 1
	case 5:
		v.C, v.K = 30+n(10), n(8)
	case 6: // many positions
		v.C, v.K, side = n(2), 4+n(3), few(60, 30)
	case 7, 8: // a GPU processes these by runs, if they are large enough
		runs = 3 + 2*c.rand.IntN(2)
		v.Groups, v.C, v.K, side = n(2), n(few(20, 8)), 4+n(few(20, 6)), few(40, 20)
	}
	spread := func(most int) [2]int {
		a := n(most) - 1
		if c.rand.IntN(2) == 0 {
			return [2]int{a, a}
		}
		return [2]int{a, n(most) - 1}
	}
	v.Window, v.Stride, v.Pad, v.Dilation = spread(4), spread(3), spread(3), spread(2)
	more, stride := [2]int{}, 1
	if runs == 3 {
		stride = n(2)
	}
	for d := range 2 {
		v.Window[d], v.Stride[d], v.Dilation[d] = v.Window[d]+1, v.Stride[d]+1, v.Dilation[d]+1
		v.In[d] = n(side)
		if runs > 0 {
			v.Window[d], v.Stride[d], v.Dilation[d], v.In[d] = runs, stride, 1, side/2+n(side/2)
		}
		if transposed {
			more[d] = c.rand.IntN(max(v.Stride[d], v.Dilation[d]))
		}
		if d == 0 && v.dims == 1 {
			v.In[d], v.Window[d], v.Stride[d], v.Pad[d], v.Dilation[d], more[d] = 1, 1, 1, 0, 1, 0
		}
		span := v.Dilation[d]*(v.Window[d]-1) + 1
		if transposed {
			v.Out[d] = v.In[d]
			v.In[d] = (v.Out[d]-1)*v.Stride[d] - 2*v.Pad[d] + span + more[d]
			v.fits = v.fits && v.In[d] > 0
			continue
		}
		v.fits = v.fits && v.In[d]+2*v.Pad[d] >= span
		v.Out[d] = (v.In[d]+2*v.Pad[d]-span)/v.Stride[d] + 1
	}
	v.c = tensor.ConvConfig{Stride: v.Stride[2-v.dims:], Padding: v.Pad[2-v.dims:], Dilation: v.Dilation[2-v.dims:], Groups: v.Groups}
	if transposed {
		v.c.OutputPadding = more[2-v.dims:]
	}
	v.batchless = v.N == 1 && c.rand.IntN(3) == 0
	v.x, v.y = []int{v.N, v.Groups * v.C}, []int{v.N, v.Groups * v.K}
	if v.batchless {
		v.x, v.y = v.x[1:], v.y[1:]
	}
	v.x, v.y = append(v.x, v.In[2-v.dims:]...), append(v.y, v.Out[2-v.dims:]...)
	v.w = append([]int{v.Groups * v.K, v.C}, v.Window[2-v.dims:]...)
	return v
}

// terms is the tolerance of sums of so many products in T.
func terms[T kernel.Float](n int) tolerance {
	return tolerance{terms: float64(n+4) * unit[T](), inside: 1}
}

// biasOf returns a bias of n channels, and its elements, or none.
func (c *trial[T]) biasOf(n int, some bool) (*operand[T], reference.Array) {
	if !some {
		return nil, reference.Array{}
	}
	b := c.operand(n)
	return b, b.array()
}

func convTrial[T kernel.Float](c *trial[T]) { c.convolve(c.convolution(false)) }

func (c *trial[T]) convolve(v convCase) {
	x, w := c.operand(v.x...), c.operand(v.w...)
	bias, b := c.biasOf(v.Groups*v.K, v.bias)
	f := c.r.Conv2d
	if v.dims == 1 {
		f = c.r.Conv1d
	}
	c.dirty()
	y, err := f(c.ctx, x.Tensor, w.Tensor, bias.tensor(), v.c)
	if !v.fits {
		c.refused("Conv", y, err, tensor.ErrShape)
		return
	}
	inner := v.C * v.Window[0] * v.Window[1]
	c.gave("Conv", y, err, v.Forward(x.array(), w.array(), b, v.y), terms[T](inner))
	dy := c.operand(v.y...)
	c.dirty()
	dw, err := c.r.ConvWeightGrad(c.ctx, dy.Tensor, x.Tensor, v.w, v.c)
	c.gave("ConvWeightGrad", dw, err, v.WeightGrad(dy.array(), x.array(), v.w), terms[T](v.N*v.Out[0]*v.Out[1]))
	finite := c.finiteOperand(v.w)
	c.dirty()
	dx, err := c.r.ConvInputGrad(c.ctx, dy.Tensor, finite.Tensor, v.x, v.c)
	c.gave("ConvInputGrad", dx, err, v.InputGrad(dy.array(), finite.array(), reference.Array{}, v.x), terms[T](v.K*v.Window[0]*v.Window[1]))
	for _, o := range []*operand[T]{x, w, dy, finite} {
		o.unchanged("Conv")
	}
}

// finiteOperand returns an operand without infinities and NaN. A gradient of x, like PyTorch's, may
// or may not include their products with positions outside.
func (c *trial[T]) finiteOperand(shape []int) *operand[T] {
	kind := c.kind
	defer func() { c.kind = kind }()
	if c.kind == special || c.kind == limits {
		c.kind = ordinary
	}
	return c.operand(shape...)
}

func convTransposeTrial[T kernel.Float](c *trial[T]) { c.convolveTransposed(c.convolution(true)) }

func (c *trial[T]) convolveTransposed(v convCase) {
	x, w := c.operand(v.y...), c.finiteOperand(v.w)
	bias, b := c.biasOf(v.Groups*v.C, v.bias)
	f := c.r.ConvTranspose2d
	if v.dims == 1 {
		f = c.r.ConvTranspose1d
	}
	c.dirty()
	y, err := f(c.ctx, x.Tensor, w.Tensor, bias.tensor(), v.c)
	if !v.fits {
		c.refused("ConvTranspose", y, err, tensor.ErrShape)
		return
	}
	c.gave("ConvTranspose", y, err, v.InputGrad(x.array(), w.array(), b, v.x), terms[T](v.K*v.Window[0]*v.Window[1]+1))
	dy := c.operand(v.x...)
	c.dirty()
	dw, err := c.r.ConvTransposeWeightGrad(c.ctx, dy.Tensor, x.Tensor, v.w, v.c)
	c.gave("ConvTransposeWeightGrad", dw, err, v.WeightGrad(x.array(), dy.array(), v.w), terms[T](v.N*v.Out[0]*v.Out[1]))
	dx, err := c.r.ConvTransposeInputGrad(c.ctx, dy.Tensor, w.Tensor, v.y, v.c)
	c.gave("ConvTransposeInputGrad", dx, err, v.Forward(dy.array(), w.array(), reference.Array{}, v.y), terms[T](v.C*v.Window[0]*v.Window[1]))
	x.unchanged("ConvTranspose")
	w.unchanged("ConvTranspose")
}

// pooling returns a random pooling, with the shapes of x and of the result.
func (c *trial[T]) pooling(dilated bool) (p reference.Pool, cfg tensor.PoolingConfig, x, y []int) {
	n := func(most int) int { return 1 + c.rand.IntN(most) }
	cfg.Ceil = c.rand.IntN(2) == 0
	for d := range 2 {
		p.Window[d], p.Stride[d], p.Dilation[d] = n(4), n(4), 1
		if dilated {
			p.Dilation[d] = n(2)
		}
		span := p.Dilation[d]*(p.Window[d]-1) + 1
		p.Pad[d] = c.rand.IntN(span/2 + 1)
		p.In[d] = span + c.rand.IntN(9)
		room := p.In[d] + 2*p.Pad[d] - span
		p.Out[d] = room/p.Stride[d] + 1
		if cfg.Ceil && room%p.Stride[d] > 0 && p.Out[d]*p.Stride[d] < p.In[d]+p.Pad[d] {
			p.Out[d]++
		}
	}
	cfg.Kernel, cfg.Stride, cfg.Padding = p.Window[:], p.Stride[:], p.Pad[:]
	if dilated {
		cfg.Dilation = p.Dilation[:]
	}
	lead := []int{c.rand.IntN(4), n(3)}[c.rand.IntN(2):]
	return p, cfg, append(slices.Clone(lead), p.In[:]...), append(slices.Clone(lead), p.Out[:]...)
}

func maxPoolTrial[T kernel.Float](c *trial[T]) {
	p, cfg, xs, ys := c.pooling(true)
	x := c.operand(xs...)
	c.dirty()
	y, indices, err := c.r.MaxPool2d(c.ctx, x.Tensor, cfg)
	want, at := p.Max(x.array(), ys)
	c.gave("MaxPool2d", y, err, want, exact)
	got, err := tensor.ToSlice[int32](c.ctx, indices, nil)
	require.NoError(c.t, err)
	require.Equal(c.t, at, append([]int32{}, got...))
	dy := c.operand(ys...)
	c.dirty()
	dx, err := c.r.MaxPool2dGrad(c.ctx, dy.Tensor, indices, xs, cfg)
	c.gave("MaxPool2dGrad", dx, err, p.MaxGrad(dy.array(), at, xs), terms[T](p.Window[0]*p.Window[1]))
	x.unchanged("MaxPool2d")
	dy.unchanged("MaxPool2dGrad")
}

// averages is the tolerance of sums in float64, which may overflow.
func averages[T kernel.Float](n int) tolerance {
	tol := rowSum[T](n)
	tol.inside = 1
	return tol
}

func avgPoolTrial[T kernel.Float](c *trial[T]) {
	p, cfg, xs, ys := c.pooling(false)
	cfg.ExcludePadding = c.rand.IntN(2) == 0
	if c.rand.IntN(4) == 0 {
		cfg.Divisor = c.rand.IntN(9) - 3
	}
	p.ExcludePadding, p.Divisor = cfg.ExcludePadding, float64(cfg.Divisor)
	x, dy := c.operand(xs...), c.operand(ys...)
	c.dirty()
	y, err := c.r.AvgPool2d(c.ctx, x.Tensor, cfg)
	c.gave("AvgPool2d", y, err, p.Average(x.array(), ys), averages[T](p.Window[0]*p.Window[1]))
	c.dirty()
	dx, err := c.r.AvgPool2dGrad(c.ctx, dy.Tensor, xs, cfg)
	c.gave("AvgPool2dGrad", dx, err, p.AverageGrad(dy.array(), xs), terms[T](p.Window[0]*p.Window[1]))
	x.unchanged("AvgPool2d")
	dy.unchanged("AvgPool2dGrad")
}

func adaptivePoolTrial[T kernel.Float](c *trial[T]) {
	p := reference.Pool{Adaptive: true}
	size := []int{c.rand.IntN(7), c.rand.IntN(7)}
	for d := range 2 {
		p.In[d], p.Out[d] = 1+c.rand.IntN(12), size[d]
		if size[d] == 0 && c.rand.IntN(2) == 0 {
			size[d], p.Out[d] = -1, p.In[d]
		}
	}
	if c.rand.IntN(4) == 0 {
		p.Out, size = [2]int{1, 1}, []int{1}
	}
	lead := []int{c.rand.IntN(4), 1 + c.rand.IntN(3)}[c.rand.IntN(2):]
	xs, ys := append(slices.Clone(lead), p.In[:]...), append(slices.Clone(lead), p.Out[:]...)
	x, dy := c.operand(xs...), c.operand(ys...)
	c.dirty()
	y, err := c.r.AdaptiveAvgPool2d(c.ctx, x.Tensor, size...)
	c.gave("AdaptiveAvgPool2d", y, err, p.Average(x.array(), ys), averages[T](p.In[0]*p.In[1]))
	c.dirty()
	dx, err := c.r.AdaptiveAvgPool2dGrad(c.ctx, dy.Tensor, xs, size...)
	c.gave("AdaptiveAvgPool2dGrad", dx, err, p.AverageGrad(dy.array(), xs), terms[T](p.Out[0]*p.Out[1]))
}
