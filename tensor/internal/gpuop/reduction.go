package gpuop

import (
	"context"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

var sumColumns = named("sum_columns")

func reductions(t *entries) {
	t.run("sum_rows", sum, backend.Sum)
	t.run("amax", extreme, backend.Amax, backend.Max)
	t.run("amin", extreme, backend.Amin)
	t.run("vector_norm", statistic, backend.VectorNorm)
	t.run("vector_norm_grad", statisticGrad, backend.VectorNormGrad)
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
	t.run("argmax", extremePlace, backend.ArgMax)
	t.run("argmin", extremePlace, backend.ArgMin)
}

// sum adds rows or columns. The mean of no elements is NaN.
func sum(ctx context.Context, l *launcher, rows name) error {
	r, divisor := l.c.Plan.(*plan.Reduction), l.c.C[0]
	if l.arg(1).Bytes == 0 {
		return l.fill(0 / divisor)
	}
	outputs := l.arg(0).Count()
	count := l.arg(1).Count() / outputs
	if !r.InnerSummed {
		n := l.columns(outputs, count)
		return l.all().Word(count).Double(divisor).Word(outputs, n).meet(ctx, n > 1).reduction(r).run(sumColumns)
	}
	return l.cutGroups(ctx, outputs, count, divisor).run(rows)
}

// cutGroups sets one block per output of a reduction of count numbers each, or several if there are
// few outputs.
func (l *launcher) cutGroups(ctx context.Context, outputs, count int, c float64) *launcher {
	n := partsFor(outputs, count, 4096)
	l.Blocks(outputs*n, threads(count, 1024), 1).all().Word(outputs, count).Double(c)
	return l.meet(ctx, n > 1).Word(n).reduction(l.c.Plan.(*plan.Reduction))
}

// extreme computes the greatest or the smallest element of each group.
func extreme(ctx context.Context, l *launcher, k name) error {
	outputs := l.arg(0).Count()
	return l.cutGroups(ctx, outputs, l.arg(1).Count()/outputs, 0).run(k)
}

// columns sets the grid for sums of columns of count numbers each. It returns the number of parts
// into which the columns are cut.
func (l *launcher) columns(outputs, count int) int {
	units, rows := (outputs+31)/32, 16
	if count <= 64 {
		rows = 8
	}
	n := partsFor(units, count, 128)
	l.Blocks(units*n, 32, rows)
	return n
}

// statistic computes a statistic of each group. Of no elements it is NaN for a variance, 0 for a
// norm and -Inf for LogSumExp.
func statistic(_ context.Context, l *launcher, k name) error {
	if l.arg(1).Bytes > 0 {
		return l.groups(k, l.arg(0).Count(), l.arg(1).Count())
	}
	switch l.c.Op {
	case backend.Var:
		return l.fill(math.NaN())
	case backend.VectorNorm:
		return l.fill(0)
	}
	return l.fill(math.Inf(-1))
}

func statisticGrad(_ context.Context, l *launcher, k name) error {
	return l.groups(k, l.arg(1).Count(), l.arg(2).Count())
}

// groups launches a kernel with one block per output of a reduction of n elements.
func (l *launcher) groups(k name, outputs, n int) error {
	count := n / outputs
	l.Blocks(outputs, threads(count, 512), 1).all().Word(outputs, count).Double(l.c.C[0])
	return l.reduction(l.c.Plan.(*plan.Reduction)).run(k)
}

// reduction adds the kernels' struct of that name.
func (l *launcher) reduction(r *plan.Reduction) *launcher {
	for _, part := range [2][]plan.Dim{r.Kept, r.Summed} {
		var sizes, strides [launch.MaxDims]int
		if len(part) > launch.MaxDims {
			return l.tooMany("the reduction", len(part))
		}
		for i, d := range part {
			sizes[i], strides[i] = d.Size, d.Stride
		}
		l.Word(len(part)).Word(sizes[:]...).Word(strides[:]...)
	}
	return l
}

// rows sets one block of at least a warp for each of n rows.
func (l *launcher) rows(n int, r *plan.Rows) *launcher { return l.Blocks(n, threads(r.Cols, 512), 1) }

// softmax runs the row operations, whose last operand has the rows: softmax and its gradient.
func softmax(_ context.Context, l *launcher, k name) error {
	r := backend.ParamsOf[plan.Rows](l.c.Params())
	n := l.arg(1).Count() / r.Cols
	return l.rows(n, r).all().Word(n, r.Cols, r.Inner).run(k)
}

// extremePlace finds the index of the greatest or the smallest element of each row.
func extremePlace(ctx context.Context, l *launcher, k name) error {
	r := backend.ParamsOf[plan.Rows](l.c.Params())
	n := l.arg(1).Count() / r.Cols
	parts := partsFor(n, r.Cols, 1024)
	l.Blocks(n*parts, threads(r.Cols/parts, 512), 1).all()
	return l.meet(ctx, parts > 1).Word(parts, n, r.Cols, r.Inner).run(k)
}
