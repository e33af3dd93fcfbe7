package autograd

import "github.com/cistern-ml/cistern/tensor"

// SumKeepDim is Sum with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) SumKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Sum, x, axes)
}

// MeanKeepDim is Mean with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) MeanKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Mean, x, axes)
}

// Amax returns the greatest element of x over the given axes, which disappear from the shape; over
// all of them if none is given (torch.amax). Equal elements share the gradient.
func (t *Tape) Amax(x *Variable, axes ...int) *Variable {
	return opStatistic.applyAs("Amax", t, &statistic{kind: overAxes, axes: newDimensions(axes)}, x)
}

// Amin returns the smallest element of x as Amax does the greatest (torch.amin).
func (t *Tape) Amin(x *Variable, axes ...int) *Variable {
	return opStatistic.applyAs("Amin", t, &statistic{kind: least, axes: newDimensions(axes)}, x)
}

// AminKeepDim is Amin with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) AminKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Amin, x, axes)
}

// AmaxKeepDim is Amax with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) AmaxKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Amax, x, axes)
}

// Max returns the greatest element of all, a scalar (torch.max without a dimension). Equal elements
// share the gradient.
//
//go:noinline // as Add
func (t *Tape) Max(x *Variable) *Variable {
	return opStatistic.applyAs("Max", t, &statistic{kind: overAll}, x)
}

// Min returns the smallest element of all as Max does the greatest (torch.min without a dimension).
//
//go:noinline // as Add
func (t *Tape) Min(x *Variable) *Variable {
	return opStatistic.applyAs("Min", t, &statistic{kind: leastOfAll}, x)
}

// LogSumExp returns the logarithm of the sum of exponentials over the given axes, which disappear
// from the shape; over all of them if none is given (torch.logsumexp).
func (t *Tape) LogSumExp(x *Variable, axes ...int) *Variable {
	return opStatistic.applyAs("LogSumExp", t, &statistic{kind: logSum, axes: newDimensions(axes)}, x)
}

// LogSumExpKeepDim is LogSumExp with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) LogSumExpKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.LogSumExp, x, axes)
}

// Var returns the variance over the given axes, which disappear from the shape; over all of them if
// none is given. It is the sum of squared distances from the mean, divided by the number of
// elements less the correction (torch.var, whose correction is 1).
func (t *Tape) Var(x *Variable, correction float64, axes ...int) *Variable {
	return opVar.Apply(t, variation{correction, newDimensions(axes)}, x)
}

// VarKeepDim is Var with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) VarKeepDim(x *Variable, correction float64, axes ...int) *Variable {
	return t.keepDim(func(x *Variable, axes ...int) *Variable { return t.Var(x, correction, axes...) }, x, axes)
}

// VectorNorm returns the norm of the vectors over the given axes, for a p of 1, 2 or +Inf
// (torch.linalg.vector_norm); see [tensor.Reductions.VectorNorm]. The gradient at the zero vector
// is 0.
func (t *Tape) VectorNorm(x *Variable, p float64, axes ...int) *Variable {
	return opStatistic.applyAs("VectorNorm", t, &statistic{kind: norm, p: p, axes: newDimensions(axes)}, x)
}

// VectorNormKeepDim is VectorNorm with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) VectorNormKeepDim(x *Variable, p float64, axes ...int) *Variable {
	return t.keepDim(func(x *Variable, axes ...int) *Variable { return t.VectorNorm(x, p, axes...) }, x, axes)
}

// statistic is a reduction whose gradient needs x and the result.
type statistic struct {
	kind uint8
	p    float64 // of a norm
	axes dimensions
}

const (
	overAxes = iota
	overAll
	least
	leastOfAll
	logSum
	norm
)

var opStatistic = newOp[statistic]("Amax")

func (s *statistic) Forward(c *Call) (y *tensor.Tensor, err error) {
	rt, ctx, x := c.Runtime(), c.Context(), c.Input(0)
	switch s.kind {
	case overAxes:
		y, err = rt.Amax(ctx, x, s.axes.list()...)
	case overAll:
		y, err = rt.Max(ctx, x)
	case least:
		y, err = rt.Amin(ctx, x, s.axes.list()...)
	case leastOfAll:
		y, err = rt.Min(ctx, x)
	case norm:
		y, err = rt.VectorNorm(ctx, x, s.p, s.axes.list()...)
	default:
		y, err = rt.LogSumExp(ctx, x, s.axes.list()...)
	}
	return c.saving(y, err, x, y)
}

func (s *statistic) Backward(c *Call, g *tensor.Tensor) (err error) {
	var d *tensor.Tensor
	rt, ctx, x, y := c.Runtime(), c.Context(), c.Input(0), c.Result()
	switch s.kind {
	case overAxes, least:
		d, err = rt.AmaxGrad(ctx, g, x, y, s.axes.list()...)
	case overAll, leastOfAll:
		d, err = rt.MaxGrad(ctx, g, x, y)
	case norm:
		d, err = rt.VectorNormGrad(ctx, g, x, y, s.p, s.axes.list()...)
	default:
		d, err = rt.LogSumExpGrad(ctx, g, x, y, s.axes.list()...)
	}
	return c.GiveReplacing(0, g, d, err)
}

// variation is one use of Var.
type variation struct {
	correction float64
	axes       dimensions
}

var opVar = newOp[variation]("Var")

func (v *variation) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(0))
	return c.Runtime().Var(c.Context(), c.Input(0), v.correction, v.axes.list()...)
}

func (v *variation) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().VarGrad(c.Context(), g, c.Input(0), v.correction, v.axes.list()...)
	return c.GiveReplacing(0, g, d, err)
}

// keepDim returns the result of reduce with its axes as dimensions of 1, in the same memory.
func (t *Tape) keepDim(reduce func(x *Variable, axes ...int) *Variable, x *Variable, axes []int) *Variable {
	return t.Frame(func() *Variable {
		shape := x.Shape()
		y := reduce(x, axes...)
		if y.value == nil {
			return y
		}
		return t.Reshape(y, keptDims(shape, axes)...)
	})
}
