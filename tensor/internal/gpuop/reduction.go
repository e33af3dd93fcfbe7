package gpuop

import (
	"context"
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

var sumColumns = named("sum_columns")

func reductions(t *entries) {
	t.run("sum_rows", sum, backend.Sum)
	t.run("amax", statistic, backend.Amax, backend.Max)
	t.run("logsumexp", statistic, backend.LogSumExp)
	t.run("var", statistic, backend.Var)
	t.run("amax_grad", statisticGrad, backend.AmaxGrad)
	t.run("max_grad", statisticGrad, backend.MaxGrad)
	t.run("logsumexp_grad", statisticGrad, backend.LogSumExpGrad)
	t.run("var_grad", statisticGrad, backend.VarGrad)
	t.run("softmax", softmax, backend.Softmax)
	t.run("log_softmax", softmax, backend.LogSoftmax)
	t.run("softmax_grad", softmax, backend.SoftmaxGrad)
	t.run("log_softmax_grad", softmax, backend.LogSoftmaxGrad)
	t.run("argmax", argMax, backend.ArgMax)
}

// sum adds up rows or columns; the mean of nothing is NaN.
func sum(ctx context.Context, l *launch, rows name) error {
	r, divisor := l.c.Plan.(*kernel.Reduction), l.c.C[0]
	if l.arg(1).Bytes == 0 {
		return l.fill(0, 0/divisor)
	}
	if len(r.Kept) > maxDims || len(r.Summed) > maxDims {
		return tooMany("the sum", max(len(r.Kept), len(r.Summed)))
	}
	outputs := l.arg(0).Count()
	count := l.arg(1).Count() / outputs
	if !r.InnerSummed {
		return l.columns(ctx, sumColumns, outputs, count, func(count int) {
			l.all()
			l.word(count)
			l.double(divisor)
		}, func() { l.reduction(r) })
	}
	n := 1
	if outputs <= partTickets {
		n = partsFor(outputs, count, 4096)
	}
	parts, err := l.b.takeParts(ctx, n > 1)
	if err != nil {
		return err
	}
	l.Grid[0], l.Block[0] = blocks(outputs*n, 1), threads(count, 1024)
	l.all()
	l.word(outputs, count)
	l.double(divisor)
	l.meet(parts)
	l.word(n)
	l.reduction(r)
	return l.run(rows)
}

// columns launches a kernel that adds up columns of count numbers each, with its arguments before and after those of how they are cut.
func (l *launch) columns(ctx context.Context, k name, outputs, count int, before func(count int), after func()) error {
	units, n := (outputs+31)/32, 1
	if units <= partTickets {
		n = partsFor(units, count, 128)
	}
	parts, err := l.b.takeParts(ctx, n > 1)
	if err != nil {
		return err
	}
	l.Grid[0], l.Block = blocks(units*n, 1), [3]uint32{32, 32, 1}
	if count <= 64 {
		l.Block[1] = 8
	}
	before(count)
	l.word(outputs, n)
	l.meet(parts)
	after()
	return l.run(k)
}

// statistic is of no elements NaN for the variance, and -Inf for the others.
func statistic(_ context.Context, l *launch, k name) error {
	if l.arg(1).Bytes > 0 {
		return l.groups(k, l.arg(0).Count(), l.arg(1).Count())
	}
	if l.c.Op == backend.Var {
		return l.fill(0, math.NaN())
	}
	return l.fill(0, math.Inf(-1))
}

func statisticGrad(_ context.Context, l *launch, k name) error {
	return l.groups(k, l.arg(1).Count(), l.arg(2).Count())
}

// groups launches a kernel with a block for each of so many outputs of a reduction of n elements.
func (l *launch) groups(k name, outputs, n int) error {
	r := l.c.Plan.(*kernel.Reduction)
	if len(r.Kept) > maxDims || len(r.Summed) > maxDims {
		return tooMany("the reduction", max(len(r.Kept), len(r.Summed)))
	}
	count := n / outputs
	l.Grid[0], l.Block[0] = blocks(outputs, 1), threads(count, 512)
	l.all()
	l.word(outputs, count)
	l.double(l.c.C[0])
	l.reduction(r)
	return l.run(k)
}

// reduction is the kernels' struct of that name.
func (l *launch) reduction(r *kernel.Reduction) {
	for _, part := range [2][]kernel.Dim{r.Kept, r.Summed} {
		l.word(len(part))
		for _, d := range part {
			l.word(d.Size)
		}
		l.pad(maxDims - len(part))
		for _, d := range part {
			l.word(d.Stride)
		}
		l.pad(maxDims - len(part))
	}
}

// rows makes it a launch with a block for each of n rows, of one warp at least.
func (l *launch) rows(n int, r *kernel.Rows) {
	l.Grid[0], l.Block[0] = blocks(n, 1), threads(r.Cols, 512)
}

// rowWords is the kernels' struct of rows.
func (l *launch) rowWords(n int, r *kernel.Rows) { l.word(n, r.Cols, r.Inner) }

// softmax is forward and backward, of which the last operand has the rows.
func softmax(_ context.Context, l *launch, k name) error {
	r := backend.ParamsOf[kernel.Rows](l.c.Params())
	n := l.arg(1).Count() / r.Cols
	l.rows(n, r)
	l.all()
	l.rowWords(n, r)
	return l.run(k)
}

func argMax(_ context.Context, l *launch, k name) error {
	r, n := backend.ParamsOf[kernel.Rows](l.c.Params()), l.arg(0).Count()
	l.rows(n, r)
	l.Block[0] = 32
	l.all()
	l.rowWords(n, r)
	return l.run(k)
}
