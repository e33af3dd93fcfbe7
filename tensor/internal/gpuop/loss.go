package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

// byLabel are the editions of a kernel for labels of 32 and of 64 bits.
type byLabel [2]name

func newByLabel(kernel string) byLabel {
	return byLabel{named(kernel + "_i32"), named(kernel + "_i64")}
}

// of is the edition for an operand of labels.
func (k byLabel) of(labels *backend.Ref) name { return k[labels.Dtype.Size()/8] }

var (
	entropy      = newByLabel("cross_entropy")
	entropyGrads = newByLabel("cross_entropy_grad")
	labelWeights = newByLabel("label_weights")
	lossEach     = named("loss_each")
)

func losses(t *entries) {
	t[backend.CrossEntropy] = entry{kernel: entropy[0], by: byDtype, run: crossEntropy}
	t[backend.CrossEntropyWithGrad] = entry{kernel: entropy[0], by: byDtype, run: crossEntropy, can: fusesEntropy}
	t[backend.CrossEntropyGrad] = entry{kernel: entropyGrads[0], by: byDtype, run: crossEntropyGrad}
	t.run("loss", loss, backend.Loss.All()...)
	t.run("loss_grad", lossGrad, backend.LossGrad.All()...)
}

const (
	// countedRows is the most rows of a cross entropy that each block of its gradient counts by itself; of more, and of narrow ones, a launch before it does.
	countedRows = 4096
	// rowsInBlock is how many rows a block takes, each by a warp.
	rowsInBlock = 8
	// narrowColumns is the most classes of a row that is a warp's.
	narrowColumns = 256
)

// fusesEntropy tells whether the loss and its gradient are one launch: of rows that a warp does, and few enough to count in each block.
func fusesEntropy(_ *Backend, c *backend.Call) bool {
	e, logits := backend.ParamsOf[kernel.Entropy](c.Params()), &c.Args[2]
	return !c.Narrow && entropy[0].has(c.Dtype) && logits.Bytes > 0 && !e.Each && e.Cols <= narrowColumns && logits.Count()/e.Cols <= countedRows
}

// crossEntropy sets the gradient, too, if the operation has one.
func crossEntropy(ctx context.Context, l *launch, _ name) error {
	logits := 1
	if l.c.Op == backend.CrossEntropyWithGrad {
		logits = 2
	}
	labels := l.arg(logits + 1)
	e, n := backend.ParamsOf[kernel.Entropy](l.c.Params()), labels.Count()
	l.Grid[0] = min(blocks(n, rowsInBlock), 2*enough)
	parts, err := l.b.takeParts(ctx, l.Grid[0] > 1)
	if err != nil {
		return err
	}
	l.operands(0)
	if logits == 2 {
		l.operands(1)
	} else {
		l.word(0)
	}
	l.operands(logits, logits+1, logits+2, logits+3)
	l.meet(parts)
	l.flag(e.Each)
	l.entropy(n, e)
	return l.run(entropy.of(labels))
}

func crossEntropyGrad(ctx context.Context, l *launch, _ name) error {
	labels, dloss := l.arg(2), l.arg(4)
	e, n, dtype := backend.ParamsOf[kernel.Entropy](l.c.Params()), labels.Count(), l.dtype
	counted := e.Mean && (n > countedRows || l.c.Narrow)
	parts, err := l.b.takeParts(ctx, counted)
	if err != nil {
		return err
	}
	var per device.Range
	if counted {
		per = parts.Range(ticketBytes, 8)
		l.Block[0], l.dtype = 1024, dloss.Dtype
		l.memory(per, backend.Write)
		l.operands(2, 3)
		l.entropy(n, e)
		if err := l.run(labelWeights.of(labels)); err != nil {
			return err
		}
		l.again(l.Name, 0)
		l.dtype = dtype
	}
	narrow := e.Rows.Cols <= narrowColumns
	if l.rows(n, &e.Rows); narrow {
		l.Grid[0], l.Block[0] = blocks(n, rowsInBlock), 32*rowsInBlock
	}
	l.all()
	l.memory(per, backend.Read)
	l.flag(e.Each, narrow)
	l.entropy(n, e)
	return l.run(entropyGrads.of(labels))
}

// entropy is the kernels' struct of that name.
func (l *launch) entropy(n int, e *kernel.Entropy) {
	l.rowWords(n, &e.Rows)
	l.word(int(e.Ignore))
	l.double(e.Smoothing)
	l.flag(e.Mean)
}

func loss(ctx context.Context, l *launch, k name) error {
	n := l.arg(1).Count()
	if backend.ParamsOf[plan.Loss](l.c.Params()).Each {
		l.each(n)
		l.operands(0)
		l.word(n)
		l.pairs(1)
		return l.run(lossEach)
	}
	l.Grid[0] = min(blocks(n, 1024), 2*enough)
	parts, err := l.b.takeParts(ctx, l.Grid[0] > 1)
	if err != nil {
		return err
	}
	l.operands(0)
	l.word(n)
	l.meet(parts)
	l.pairs(1)
	return l.run(k)
}

func lossGrad(_ context.Context, l *launch, k name) error {
	n, p := l.arg(0).Count(), backend.ParamsOf[plan.Loss](l.c.Params())
	l.each(n)
	l.operands(0, 1)
	l.word(n)
	l.flag(p.Each, p.OfTarget)
	l.pairs(2)
	return l.run(k)
}

// pairs is the kernels' struct of that name, of four operands.
func (l *launch) pairs(first int) {
	l.operands(first, first+1, first+2, first+3)
	l.word(l.c.Op.Code())
	l.double(l.c.C[0], l.c.C[1])
}
