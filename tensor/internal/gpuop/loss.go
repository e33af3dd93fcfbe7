package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// The kernels with an edition for each dtype of labels.
var (
	entropy           = namedBy("cross_entropy", backend.Int32, backend.Int64)
	entropyBlock      = namedBy("cross_entropy_block", backend.Int32, backend.Int64)
	entropyGrads      = namedBy("cross_entropy_grad", backend.Int32, backend.Int64)
	entropyBlockGrads = namedBy("cross_entropy_grad_block", backend.Int32, backend.Int64)
	labelWeights      = namedBy("label_weights", backend.Int32, backend.Int64)
	likelihoods       = namedBy("nll_loss", backend.Int32, backend.Int64)
	likelyGrads       = namedBy("nll_loss_grad", backend.Int32, backend.Int64)
	lossEach          = named("loss_each")
)

func losses(t *entries) {
	t[backend.CrossEntropy] = entry{kernel: entropy[backend.Int32], run: crossEntropy}
	t[backend.CrossEntropyWithGrad] = entry{kernel: entropy[backend.Int32], run: crossEntropy, can: fusesEntropy}
	t[backend.CrossEntropyWithSums] = entry{kernel: entropy[backend.Int32], run: crossEntropy}
	t[backend.CrossEntropyGrad] = entry{kernel: entropyGrads[backend.Int32], run: crossEntropyGrad}
	t[backend.NLLLoss] = entry{kernel: likelihoods[backend.Int32], run: crossEntropy}
	t[backend.NLLLossGrad] = entry{kernel: likelyGrads[backend.Int32], run: nllLossGrad}
	t.run("loss", loss, backend.Loss.All()...)
	t.run("loss_grad", lossGrad, backend.LossGrad.All()...)
}

const (
	// countedRows is the largest number of rows for which each block of a cross entropy's gradient
	// counts the labels itself. Otherwise, and for narrow elements, a launch before it counts them.
	countedRows = 4096
	// rowsInBlock is the number of rows of a block with one warp per row.
	rowsInBlock = 8
	// narrowColumns is the largest number of classes for which a warp always computes a row.
	narrowColumns = 256
	// From manyRows on, a warp also computes a row of manyColumns, or of any number of narrow
	// elements.
	manyRows, manyColumns = 2048, 8192
)

// fusesEntropy reports whether one launch computes both the loss and its gradient. It needs at most
// narrowColumns columns and at most countedRows rows.
func fusesEntropy(_ *Backend, c *backend.Call) bool {
	e, logits := backend.ParamsOf[plan.Entropy](c.Params()), &c.Args[2]
	return !c.Narrow && entropy[backend.Int32].has(c.Dtype) && logits.Bytes > 0 && !e.Each && e.Cols <= narrowColumns && logits.Count()/e.Cols <= countedRows
}

// crossEntropy also computes the gradient or the rows' sums, if the operation has them. A negative
// log likelihood has another kernel with the same operands.
func crossEntropy(ctx context.Context, l *launcher, _ name) error {
	logits, kernels := 1, &entropy
	switch l.c.Op {
	case backend.CrossEntropyWithGrad, backend.CrossEntropyWithSums:
		logits = 2
	case backend.NLLLoss:
		kernels = &likelihoods
	}
	labels := l.arg(logits + 1)
	e, n := backend.ParamsOf[plan.Entropy](l.c.Params()), labels.Count()
	l.Grid[0] = min(launch.GridSize(n, rowsInBlock), 2*enough)
	if kernels == &entropy && !l.warpPerRow(n, e) {
		kernels = &entropyBlock
		l.Blocks(n, threads(e.Cols, 256), 1)
	}
	l.operands(0).optional(l.c.Op == backend.CrossEntropyWithGrad, 1).optional(l.c.Op == backend.CrossEntropyWithSums, 1).operands(logits, logits+1, logits+2, logits+3).meet(ctx, l.Grid[0] > 1)
	return l.Flag(e.Each).entropy(n, e).run(kernels[labels.Dtype])
}

// warpPerRow reports whether a warp computes a row. Otherwise a block does.
func (l *launcher) warpPerRow(n int, e *plan.Entropy) bool {
	return e.Cols <= narrowColumns || n >= manyRows && (l.c.Narrow || e.Cols <= manyColumns)
}

func crossEntropyGrad(ctx context.Context, l *launcher, _ name) error {
	labels := l.arg(2)
	e, n := backend.ParamsOf[plan.Entropy](l.c.Params()), labels.Count()
	var per device.Range
	if e.Mean && (n > countedRows || l.c.Narrow) {
		var err error
		if per, err = l.countLabels(ctx, 2, n, e); err != nil {
			return err
		}
	}
	kernels, most := &entropyBlockGrads, 512
	if n >= fourEach && !l.c.Narrow {
		most = 256 // faster if the blocks fill the GPU
	}
	if l.Blocks(n, threads(e.Cols, most), 1); l.warpPerRow(n, e) {
		kernels = &entropyGrads
		l.Blocks((n+rowsInBlock-1)/rowsInBlock, 32*rowsInBlock, 1)
	}
	return l.all().Memory(per, backend.Read).Flag(e.Each).entropy(n, e).run(kernels[labels.Dtype])
}

// nllLossGrad counts the labels in a separate launch.
func nllLossGrad(ctx context.Context, l *launcher, _ name) error {
	labels := l.arg(1)
	e, n := backend.ParamsOf[plan.Entropy](l.c.Params()), labels.Count()
	var per device.Range
	if e.Mean {
		var err error
		if per, err = l.countLabels(ctx, 1, n, e); err != nil {
			return err
		}
	}
	return l.Each(l.arg(0).Count()).all().Memory(per, backend.Read).Flag(e.Each).entropy(n, e).run(likelyGrads[labels.Dtype])
}

// countLabels launches the sum of the labels' weights; the weights are operand labels+1, and dloss
// is the one after them.
func (l *launcher) countLabels(ctx context.Context, labels, n int, e *plan.Entropy) (per device.Range, err error) {
	parts, err := l.b.takeParts(ctx)
	if err != nil {
		return per, err
	}
	per = parts.Range(ticketBytes, 8)
	dtype := l.Dtype
	l.Block[0], l.Dtype = 1024, l.arg(labels+2).Dtype
	err = l.Memory(per, backend.Write).operands(labels, labels+1).entropy(n, e).run(labelWeights[l.arg(labels).Dtype])
	l.again(l.Name)
	l.Dtype = dtype
	return per, err
}

// entropy adds the kernels' struct of that name.
func (l *launcher) entropy(n int, e *plan.Entropy) *launcher {
	return l.Word(n, e.Cols, e.Inner, int(e.Ignore)).Double(e.Smoothing).Flag(e.Mean)
}

func loss(ctx context.Context, l *launcher, k name) error {
	n := l.arg(1).Count()
	if backend.ParamsOf[plan.Loss](l.c.Params()).Each {
		return l.Each(n).operands(0).Word(n).pairs(1).run(lossEach)
	}
	l.Grid[0] = min(launch.GridSize(n, 1024), 2*enough)
	return l.operands(0).Word(n).meet(ctx, l.Grid[0] > 1).pairs(1).run(k)
}

func lossGrad(_ context.Context, l *launcher, k name) error {
	n, p := l.arg(0).Count(), backend.ParamsOf[plan.Loss](l.c.Params())
	return l.Each(n).operands(0, 1).Word(n).Flag(p.Each, p.OfTarget).pairs(2).run(k)
}

// pairs adds the kernels' struct of that name, for four operands.
func (l *launcher) pairs(first int) *launcher {
	return l.operands(first, first+1, first+2, first+3).Word(l.c.Op.Code()).Double(l.c.C[:]...)
}
