package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// SumKeepDim is Sum with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) SumKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Sum, x, axes)
}

// MeanKeepDim is Mean with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) MeanKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Mean, x, axes)
}

// Amax returns the greatest element of x over the given axes, which disappear from the shape; over all of them if none is
// given (torch.amax). Equal ones share the gradient.
func (t *Tape) Amax(x *Variable, axes ...int) *Variable {
	axes = slices.Clone(axes) // the caller may write its list before Backward
	return t.Func("Amax", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return c.savingBoth(t.rt.Amax(t.ctx, c.Input(0), axes...))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.AmaxGrad(t.ctx, g, c.Input(0), c.Saved()[1], axes...))
	})
}

// AmaxKeepDim is Amax with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) AmaxKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.Amax, x, axes)
}

// Max returns the greatest element of all, a scalar (torch.max without a dimension). Equal ones share the gradient.
func (t *Tape) Max(x *Variable) *Variable {
	return t.Func("Max", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return c.savingBoth(t.rt.Max(t.ctx, c.Input(0)))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.MaxGrad(t.ctx, g, c.Input(0), c.Saved()[1]))
	})
}

// LogSumExp returns the logarithm of the sum of exponentials over the given axes, which disappear from the shape; over all of
// them if none is given (torch.logsumexp).
func (t *Tape) LogSumExp(x *Variable, axes ...int) *Variable {
	axes = slices.Clone(axes) // the caller may write its list before Backward
	return t.Func("LogSumExp", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return c.savingBoth(t.rt.LogSumExp(t.ctx, c.Input(0), axes...))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.LogSumExpGrad(t.ctx, g, c.Input(0), c.Saved()[1], axes...))
	})
}

// LogSumExpKeepDim is LogSumExp with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) LogSumExpKeepDim(x *Variable, axes ...int) *Variable {
	return t.keepDim(t.LogSumExp, x, axes)
}

// Var returns the variance over the given axes, which disappear from the shape; over all of them if none is given: the sum of
// squared distances from the mean over the number of elements less the correction (torch.var, whose correction is 1).
func (t *Tape) Var(x *Variable, correction float64, axes ...int) *Variable {
	axes = slices.Clone(axes) // the caller may write its list before Backward
	return t.Func("Var", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		c.Save(c.Input(0))
		return t.rt.Var(t.ctx, c.Input(0), correction, axes...)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.VarGrad(t.ctx, g, c.Input(0), correction, axes...))
	})
}

// VarKeepDim is Var with the axes kept as dimensions of 1 (keepdim=True).
func (t *Tape) VarKeepDim(x *Variable, correction float64, axes ...int) *Variable {
	return t.keepDim(func(x *Variable, axes ...int) *Variable { return t.Var(x, correction, axes...) }, x, axes)
}

// savingBoth saves the input and the result of forward, which it returns.
func (c *Call) savingBoth(y *tensor.Tensor, err error) (*tensor.Tensor, error) {
	if err == nil {
		c.Save(c.Input(0), y)
	}
	return y, err
}

// keepDim is a reduction whose result is reshaped, in the same memory.
func (t *Tape) keepDim(reduce func(x *Variable, axes ...int) *Variable, x *Variable, axes []int) *Variable {
	return t.Frame(func() *Variable {
		kept := x.Shape()
		y := reduce(x, axes...)
		if y.value == nil {
			return y
		}
		for i := range kept {
			if len(axes) == 0 {
				kept[i] = 1
			}
		}
		for _, a := range axes {
			kept[(a+len(kept))%len(kept)] = 1
		}
		return t.Reshape(y, kept...)
	})
}
