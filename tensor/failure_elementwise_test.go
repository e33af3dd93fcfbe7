package tensor

import (
	"context"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// unary is a trial of a function.
func unary(f func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		x := m.in(2, 3)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(f(m.Runtime, ctx, x)) })
	}
}

// with1 is unary for a function with a parameter.
func with1(f func(rt *Runtime, ctx context.Context, x *Tensor, c float64) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return f(rt, ctx, x, 0.5) })
}

// with2 is unary for a function with two parameters.
func with2(f func(rt *Runtime, ctx context.Context, x *Tensor, c, d float64) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return f(rt, ctx, x, 0.25, 0.5) })
}

// along is unary for an operation along axes.
func along(f func(rt *Runtime, ctx context.Context, x *Tensor, axes ...int) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return f(rt, ctx, x, 1) })
}

// binary is a trial of an operation of two operands, which broadcast.
func binary(f func(rt *Runtime, ctx context.Context, a, b *Tensor) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		a, b := m.in(2, 3), m.in(3)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(f(m.Runtime, ctx, a, b)) })
	}
}

// inplace is a trial of an operation that overwrites its first operand.
func inplace(f func(rt *Runtime, ctx context.Context, a, b *Tensor) error) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		a, b := m.in(2, 3), m.in(3)
		return m.does(func(ctx context.Context) error { return f(m.Runtime, ctx, a, b) })
	}
}

// gradInPlace is a trial of a gradient of operands of one shape, which is written to dy.
func gradInPlace(f func(rt *Runtime, ctx context.Context, dst, dy, a, b *Tensor) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		dy, a, b := m.in(2, 3), m.in(2, 3), m.in(3)
		return m.does(func(ctx context.Context) error {
			_, err := f(m.Runtime, ctx, dy, dy, a, b)
			return err
		})
	}
}

// elementwiseRows are programs of functions, arithmetic and reductions.
var elementwiseRows = []trialRow{
	{Of: "Elementwise.Abs", Make: unary((*Runtime).Abs)},
	{Of: "Elementwise.Cos", Make: unary((*Runtime).Cos)},
	{Of: "Elementwise.Erf", Make: unary((*Runtime).Erf)},
	{Of: "Elementwise.Exp", Make: unary((*Runtime).Exp)},
	{Of: "Elementwise.GELU", Make: unary((*Runtime).GELU)},
	{Of: "Elementwise.GELUTanh", Make: unary((*Runtime).GELUTanh)},
	{Of: "Elementwise.Log", Make: unary((*Runtime).Log)},
	{Of: "Elementwise.LogSigmoid", Make: unary((*Runtime).LogSigmoid)},
	{Of: "Elementwise.Neg", Make: unary((*Runtime).Neg)},
	{Of: "Elementwise.ReLU", Make: unary((*Runtime).ReLU)},
	{Of: "Elementwise.Rsqrt", Make: unary((*Runtime).Rsqrt)},
	{Of: "Elementwise.SiLU", Make: unary((*Runtime).SiLU)},
	{Of: "Elementwise.Sigmoid", Make: unary((*Runtime).Sigmoid)},
	{Of: "Elementwise.Sin", Make: unary((*Runtime).Sin)},
	{Of: "Elementwise.Sqrt", Make: unary((*Runtime).Sqrt)},
	{Of: "Elementwise.Square", Make: unary((*Runtime).Square)},
	{Of: "Elementwise.Tanh", Make: unary((*Runtime).Tanh)},
	{Of: "Elementwise.Sign", Make: unary((*Runtime).Sign)},
	{Of: "Elementwise.Floor", Make: unary((*Runtime).Floor)},
	{Of: "Elementwise.Ceil", Make: unary((*Runtime).Ceil)},
	{Of: "Elementwise.Round", Make: unary((*Runtime).Round)},
	{Of: "Elementwise.Log1p", Make: unary((*Runtime).Log1p)},
	{Of: "Elementwise.Expm1", Make: unary((*Runtime).Expm1)},
	{Of: "Elementwise.Tril", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Tril(ctx, x, 0) })},
	{Of: "Elementwise.Triu", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Triu(ctx, x, 0) })},
	{Of: "Elementwise.AddScalar", Make: with1((*Runtime).AddScalar)},
	{Of: "Elementwise.MulScalar", Make: with1((*Runtime).MulScalar)},
	{Of: "Elementwise.PowScalar", Make: with1((*Runtime).PowScalar)},
	{Of: "Elementwise.CELU", Make: with1((*Runtime).CELU)},
	{Of: "Elementwise.ELU", Make: with1((*Runtime).ELU)},
	{Of: "Elementwise.LeakyReLU", Make: with1((*Runtime).LeakyReLU)},
	{Of: "Elementwise.Clamp", Make: with2((*Runtime).Clamp)},
	{Of: "Elementwise.Hardtanh", Make: with2((*Runtime).Hardtanh)},
	{Of: "Elementwise.Softplus", Make: with2((*Runtime).Softplus)},
	{Of: "Elementwise.Apply", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Apply(ctx, fn.Tanh, x) })},
	{Of: "Elementwise.Dropout", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) {
		return rt.Dropout(ctx, nil, x, 0.5, Random{Seed: 7})
	})},
	{Of: "Elementwise.PReLU", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x, w := m.in(2, 3), m.in(3)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(m.PReLU(ctx, x, w)) })
	}},
	{Of: "Gradients.PReLUGrad", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		dy, x, w := m.in(2, 3), m.in(2, 3), m.in(3)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(m.PReLUGrad(ctx, nil, dy, x, w)) })
	}},
	{Of: "Gradients.PReLUWeightGrad", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		dy, x := m.in(2, 3), m.in(2, 3)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(m.PReLUWeightGrad(ctx, dy, x, 3)) })
	}},
	{Of: "Elementwise.Dropout in place", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x := m.in(2, 3)
		return m.does(func(ctx context.Context) error {
			_, err := m.Dropout(ctx, x, x, 0.5, Random{Seed: 7})
			return err
		})
	}},
	{Of: "Elementwise.Dropout of a live seed", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		x, seed := m.in(2, 3), put(m.rig, []int64{7}, 1)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.Dropout(ctx, nil, x, 0.5, Random{Live: seed}))
		})
	}},

	{Of: "Elementwise.Add", Make: binary((*Runtime).Add)},
	{Of: "Elementwise.Sub", Make: binary((*Runtime).Sub)},
	{Of: "Elementwise.Mul", Make: binary((*Runtime).Mul)},
	{Of: "Elementwise.Div", Make: binary((*Runtime).Div)},
	{Of: "Elementwise.Maximum", Make: binary((*Runtime).Maximum)},
	{Of: "Elementwise.Minimum", Make: binary((*Runtime).Minimum)},
	{Of: "Elementwise.Equal", Make: binary((*Runtime).Equal)},
	{Of: "Elementwise.NotEqual", Make: binary((*Runtime).NotEqual)},
	{Of: "Elementwise.Less", Make: binary((*Runtime).Less)},
	{Of: "Elementwise.LessEqual", Make: binary((*Runtime).LessEqual)},
	{Of: "Elementwise.Greater", Make: binary((*Runtime).Greater)},
	{Of: "Elementwise.GreaterEqual", Make: binary((*Runtime).GreaterEqual)},
	{Of: "Elementwise.Pow", Make: binary((*Runtime).Pow)},
	{Of: "Elementwise.AddBias", Make: binary((*Runtime).AddBias)},
	{Of: "Elementwise.Add of a donated operand", Make: binary(func(rt *Runtime, ctx context.Context, a, b *Tensor) (*Tensor, error) {
		Donate(a)
		return rt.Add(ctx, a, b)
	})},
	{Of: "Elementwise.Where", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		cond, a, b := m.index(2, 3), m.in(2, 3), m.in(2, 1)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(m.Where(ctx, cond, a, b)) })
	}},
	{Of: "Elementwise.MaskedFill", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		mask, x := m.index(2, 3), m.in(2, 1)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(m.MaskedFill(ctx, x, mask, 2)) })
	}},
	{Of: "Elementwise.AddInPlace", Make: inplace((*Runtime).AddInPlace)},
	{Of: "Elementwise.SubInPlace", Make: inplace((*Runtime).SubInPlace)},
	{Of: "Elementwise.MulInPlace", Make: inplace((*Runtime).MulInPlace)},
	{Of: "Elementwise.AddBiasInPlace", Make: inplace((*Runtime).AddBiasInPlace)},
	{Of: "Elementwise.AddBiasReLUInPlace", Make: inplace((*Runtime).AddBiasReLUInPlace)},
	{Of: "Elementwise.MulScalarInPlace", Make: inplace(func(rt *Runtime, ctx context.Context, a, _ *Tensor) error { return rt.MulScalarInPlace(ctx, a, 3) })},
	{Of: "Elementwise.AddInPlace on a view", Make: inplace(func(rt *Runtime, ctx context.Context, a, b *Tensor) error {
		row, err := rt.Rows(ctx, a, 1, 2)
		if err != nil {
			return err
		}
		defer row.Release()
		return rt.AddInPlace(ctx, row, b)
	})},

	{Of: "Reductions.Amax", Make: along((*Runtime).Amax)},
	{Of: "Reductions.Amin", Make: along((*Runtime).Amin)},
	{Of: "Reductions.ArgMax", Make: along((*Runtime).ArgMax)},
	{Of: "Reductions.ArgMin", Make: along((*Runtime).ArgMin)},
	{Of: "Reductions.CumSum", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.CumSum(ctx, x, 1) })},
	{Of: "Reductions.LogSoftmax", Make: along((*Runtime).LogSoftmax)},
	{Of: "Reductions.LogSumExp", Make: along((*Runtime).LogSumExp)},
	{Of: "Reductions.Mean", Make: along((*Runtime).Mean)},
	{Of: "Reductions.Softmax", Make: along((*Runtime).Softmax)},
	{Of: "Reductions.Sum", Make: along((*Runtime).Sum)},
	{Of: "Reductions.Max", Make: unary((*Runtime).Max)},
	{Of: "Reductions.Min", Make: unary((*Runtime).Min)},
	{Of: "Reductions.VectorNorm", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.VectorNorm(ctx, x, 2, 1) })},
	{Of: "Reductions.SumTo", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.SumTo(ctx, x, 2, 1) })},
	{Of: "Reductions.Var", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.Var(ctx, x, 1, 1) })},

	{Of: "Gradients.ApplyGrad", Make: binary(func(rt *Runtime, ctx context.Context, a, _ *Tensor) (*Tensor, error) {
		return rt.ApplyGrad(ctx, fn.Tanh, nil, a, a)
	})},
	{Of: "Gradients.ApplyGrad in place", Make: gradInPlace(func(rt *Runtime, ctx context.Context, dst, dy, a, _ *Tensor) (*Tensor, error) {
		return rt.ApplyGrad(ctx, fn.Tanh, dst, dy, a)
	})},
	{Of: "Gradients.MaximumGrad", Make: gradInPlace((*Runtime).MaximumGrad)},
	{Of: "Gradients.MinimumGrad", Make: gradInPlace((*Runtime).MinimumGrad)},
	{Of: "Gradients.PowBaseGrad", Make: gradInPlace((*Runtime).PowBaseGrad)},
	{Of: "Gradients.PowExponentGrad", Make: gradInPlace((*Runtime).PowExponentGrad)},
	{Of: "Gradients.AmaxGrad", Make: reductionGrad((*Runtime).AmaxGrad)},
	{Of: "Gradients.LogSumExpGrad", Make: reductionGrad((*Runtime).LogSumExpGrad)},
	{Of: "Gradients.MaxGrad", Make: func(_ testing.TB, m *trialRig) failtest.Trial {
		dy, x, y := m.in(1, 1), m.in(2, 3), m.in(1, 1)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(m.MaxGrad(ctx, dy, x, y)) })
	}},
	{Of: "Gradients.VarGrad", Make: reductionGrad(func(rt *Runtime, ctx context.Context, dy, x, _ *Tensor, axes ...int) (*Tensor, error) {
		return rt.VarGrad(ctx, dy, x, 1, axes...)
	})},
	{Of: "Gradients.VectorNormGrad", Make: reductionGrad(func(rt *Runtime, ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error) {
		return rt.VectorNormGrad(ctx, dy, x, y, 2, axes...)
	})},
	{Of: "Gradients.CumSumGrad", Make: unary(func(rt *Runtime, ctx context.Context, x *Tensor) (*Tensor, error) { return rt.CumSumGrad(ctx, x, 1) })},
	{Of: "Gradients.SoftmaxGrad", Make: reductionGrad(func(rt *Runtime, ctx context.Context, _, x, _ *Tensor, axes ...int) (*Tensor, error) {
		return rt.SoftmaxGrad(ctx, x, x, axes...)
	})},
	{Of: "Gradients.LogSoftmaxGrad", Make: reductionGrad(func(rt *Runtime, ctx context.Context, _, x, _ *Tensor, axes ...int) (*Tensor, error) {
		return rt.LogSoftmaxGrad(ctx, x, x, axes...)
	})},
}

// reductionGrad is a trial of the gradient of a reduction over the last axis.
func reductionGrad(f func(rt *Runtime, ctx context.Context, dy, x, y *Tensor, axes ...int) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial {
		dy, x, y := m.in(2), m.in(2, 3), m.in(2)
		return m.yields(func(ctx context.Context) ([]*Tensor, error) { return pack(f(m.Runtime, ctx, dy, x, y, 1)) })
	}
}
