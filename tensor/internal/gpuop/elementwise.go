package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// plainFunctions is the number of functions without a gradient of their own. They come first.
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
	t.run("prelu", prelu, backend.PReLU)
	t.run("prelu_grad", prelu, backend.PReLUGrad)
	t.run("prelu_weight_grad", preluWeightGrad, backend.PReLUWeightGrad)
	t.run("compare", compare, backend.Compare.All()...)
	t.run("pow", pow, backend.Pow)
	t.run("pow_grad", powGrad, backend.PowGrad.All()...)
}

func unary(_ context.Context, l *launcher, k name) error {
	return l.elements().packs().Word(l.c.Op.Code()).Number(l.c.C[0]).run(k)
}

func function(_ context.Context, l *launcher, k name) error {
	code := l.c.Op.Code()
	if l.c.Op.Family() == backend.Map {
		code -= plainFunctions
	}
	if l.elements(); l.c.Narrow {
		l.packs()
	}
	return l.Word(code).Number(l.c.C[:]...).run(k)
}

// packs sets the grid of a kernel over elements, of which a thread takes 16 bytes at a time.
func (l *launcher) packs() *launcher {
	l.Grid[0] = launch.GridSize(l.arg(0).Count(), 16/l.Dtype.Size()*256)
	return l
}

func binary(_ context.Context, l *launcher, k name) error {
	n := l.arg(0).Count()
	l.elements().Word(l.c.Op.Code())
	// For narrow elements, flat only has sums and products.
	if (!l.c.Narrow || l.c.Op <= backend.Mul) && l.arg(1).Count() == n && l.arg(2).Count() == n {
		return l.packs().run(flat)
	}
	return l.broadcast().run(k)
}

// broadcast adds the kernels' struct plan, or their struct meeting for two arrays.
func (l *launcher) broadcast() *launcher {
	p := l.c.Plan.(*plan.Broadcast)
	return l.dims("broadcasting", p.Dims, p.Dst, p.Src)
}

func addBias(_ context.Context, l *launcher, k name) error {
	return l.elements().Word(l.arg(2).Count()).Flag(l.c.Op == backend.AddBiasReLU).run(k)
}

func reluBiasGrad(ctx context.Context, l *launcher, k name) error {
	cols := l.arg(1).Count()
	rows := l.arg(0).Count() / cols
	n := l.columns(cols, rows)
	return l.all().Word(rows, cols, n).meet(ctx, n > 1).run(k)
}

func extremeGrad(_ context.Context, l *launcher, k name) error {
	return l.elements().Flag(l.c.Op == backend.MaximumGrad).meeting().run(k)
}

// meeting adds the kernels' struct of that name.
func (l *launcher) meeting() *launcher {
	p := l.c.Plan.(*plan.Meeting)
	return l.dims("the meeting of the shapes", p.Dims, p.Strides...)
}

// prelu runs PReLU and its gradient.
func prelu(_ context.Context, l *launcher, k name) error {
	c := backend.ParamsOf[plan.Channels](l.c.Params())
	return l.elements().Word(c.Channels, c.Inner).run(k)
}

func preluWeightGrad(ctx context.Context, l *launcher, k name) error {
	c, n := backend.ParamsOf[plan.Channels](l.c.Params()), l.arg(1).Count()
	parts := partsFor(c.Channels, n/c.Channels, 4096)
	l.Blocks(c.Channels*parts, 256, 1).all().Word(n).meet(ctx, parts > 1)
	return l.Word(parts, c.Channels, c.Inner).run(k)
}

func compare(_ context.Context, l *launcher, k name) error {
	return l.elements().Word(l.c.Op.Code()).broadcast().run(k)
}

func pow(_ context.Context, l *launcher, k name) error { return l.elements().broadcast().run(k) }

func powGrad(_ context.Context, l *launcher, k name) error {
	return l.elements().Flag(l.c.Op == backend.PowExponentGrad).meeting().run(k)
}
