package gpuop

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

// plainFunctions are those without a gradient of their own, which come first.
var plainFunctions = len(backend.Map.All()) - len(backend.MapGrad.All())

var flat = named("flat")

func elementwise(t *entries) {
	t.run("unary", unary, backend.Map.All()[:plainFunctions]...)
	t.run("function", function, backend.Map.All()[plainFunctions:]...)
	t.run("function_grad", function, backend.MapGrad.All()...)
	t.run("binary", binary, backend.Zip.All()...)
	t.run("add_bias", addBias, backend.Bias.All()...)
	t.run("relu_bias_grad", reluBiasGrad, backend.ReLUBiasGrad)
	t.run("extreme_grad", extremeGrad, backend.ExtremeGrad.All()...)
	t.run("dropout", dropout, backend.Dropout)
}

func unary(_ context.Context, l *launch, k name) error {
	n := l.arg(0).Count()
	l.each(n)
	l.all()
	l.word(n, l.c.Op.Code())
	l.number(l.c.C[0])
	return l.run(k)
}

func function(_ context.Context, l *launch, k name) error {
	n, code := l.arg(0).Count(), l.c.Op.Code()
	if l.c.Op.Family() == backend.Map {
		code -= plainFunctions
	}
	l.each(n)
	l.eight(n)
	l.all()
	l.word(n, code)
	l.number(l.c.C[0], l.c.C[1])
	return l.run(k)
}

func binary(_ context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.Broadcast)
	dims, sa, sb := p.Dims, p.Dst, p.Src
	if len(dims) > maxDims {
		return tooMany("broadcasting", len(dims))
	}
	n := l.arg(0).Count()
	l.each(n)
	l.all()
	l.word(n, l.c.Op.Code())
	if flat.has(l.dtype) && l.c.Op <= backend.Mul && l.arg(1).Count() == n && l.arg(2).Count() == n {
		l.eight(n)
		return l.run(flat)
	}
	l.word(len(dims))
	l.lists(dims, sa, sb)
	return l.run(k)
}

func tooMany(what string, dims int) error {
	return fmt.Errorf("%w: %s has %d different dimensions; kernels take %d", backend.ErrUnsupported, what, dims, maxDims)
}

func addBias(_ context.Context, l *launch, k name) error {
	n := l.arg(0).Count()
	l.each(n)
	l.all()
	l.word(n, l.arg(2).Count())
	l.flag(l.c.Op == backend.AddBiasReLU)
	return l.run(k)
}

func reluBiasGrad(ctx context.Context, l *launch, k name) error {
	cols := l.arg(1).Count()
	return l.columns(ctx, k, cols, l.arg(0).Count()/cols, func(rows int) {
		l.all()
		l.word(rows)
	}, func() {})
}

func extremeGrad(_ context.Context, l *launch, k name) error {
	n := l.arg(0).Count()
	l.each(n)
	l.all()
	l.word(n)
	l.flag(l.c.Op == backend.MaximumGrad)
	if err := l.meeting(); err != nil {
		return err
	}
	return l.run(k)
}

// meeting is the kernels' struct of that name, which has room for three arrays.
func (l *launch) meeting() error {
	p := l.c.Plan.(*kernel.Meeting)
	if len(p.Dims) > maxDims {
		return tooMany("the meeting of the shapes", len(p.Dims))
	}
	l.word(len(p.Dims))
	l.lists(p.Dims)
	l.lists(p.Strides...)
	l.pad((3 - len(p.Strides)) * maxDims)
	return nil
}

func dropout(_ context.Context, l *launch, k name) error {
	n := l.arg(0).Count()
	d := backend.ParamsOf[plan.Drop](l.c.Params())
	l.each((n + 3) / 4)
	l.operands(0, 1)
	l.word(n)
	l.Args = append(l.Args, d.Seed, d.Stream, d.Below)
	l.number(d.Scale)
	l.operands(2)
	return l.run(k)
}
