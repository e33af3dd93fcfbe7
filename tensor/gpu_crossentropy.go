package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// countedRows is the most rows of a cross entropy that each block of its gradient counts by itself; of more, and of bfloat16, a launch before it does.
const countedRows = 4096

// rowsInBlock is how many rows a block takes, each by a warp.
const rowsInBlock = 8

func (g *gpuKernels) crossEntropy(ctx context.Context, e kernel.Entropy, loss, logits, labels, weights *Tensor, fault *storage) error {
	return g.crossEntropyWithGrad(ctx, e, loss, nil, logits, labels, weights, fault)
}

// narrowColumns is the most classes of a row that is a warp's.
const narrowColumns = 256

// fusesEntropy tells whether the loss and its gradient are one launch: of rows that a warp does, and few enough to count in each block.
func (g *gpuKernels) fusesEntropy(e kernel.Entropy, logits *Tensor) bool {
	return logits.dtype != BFloat16 && logits.bytes > 0 && !e.Each && e.Cols <= narrowColumns && logits.count()/e.Cols <= countedRows
}

// crossEntropyWithGrad sets grad, too, if it is not nil, to the gradient of the logits of a loss whose own is 1.
func (g *gpuKernels) crossEntropyWithGrad(ctx context.Context, e kernel.Entropy, loss, grad, logits, labels, weights *Tensor, fault *storage) error {
	n := labels.count()
	grid := min(blocks(n, rowsInBlock), 2*enough)
	parts, err := g.takeParts(ctx, grid > 1)
	if err != nil {
		return fmt.Errorf("tensor: CrossEntropy: %w", err)
	}
	l := g.newLaunch("cross entropy", logits.dtype, 0)
	l.Grid[0] = grid
	l.write(loss)
	l.writeIf(grad)
	l.classes(logits, labels, weights)
	l.fault(fault)
	l.meet(parts)
	l.flag(e.Each)
	l.entropy(n, e)
	return g.runAs(l, labelKey("cross entropy i32", "cross entropy i64", l, labels))
}

func (g *gpuKernels) crossEntropyGrad(ctx context.Context, e kernel.Entropy, dst, logits, labels, weights, dloss *Tensor) error {
	n := labels.count()
	counted := e.Mean && (n > countedRows || dst.dtype == BFloat16)
	parts, err := g.takeParts(ctx, counted)
	if err != nil {
		return fmt.Errorf("tensor: CrossEntropyGrad: %w", err)
	}
	var per device.Range
	if counted {
		per = parts.Range(ticketBytes, 8)
		l := g.newLaunch("cross entropy grad", dloss.dtype, 0)
		l.Block[0] = 1024
		l.writeRange(per)
		l.read(labels)
		l.readIf(weights)
		l.entropy(n, e)
		if err := g.runAs(l, labelKey("label weights i32", "label weights i64", l, labels)); err != nil {
			return err
		}
	}
	l := g.rowLaunch("cross entropy grad", dst.dtype, n, e.Rows)
	narrow := e.Rows.Cols <= narrowColumns
	if narrow {
		l.Grid[0], l.Block[0] = blocks(n, rowsInBlock), 32*rowsInBlock
	}
	l.write(dst)
	l.classes(logits, labels, weights)
	l.read(dloss)
	l.readRange(per)
	l.flag(e.Each)
	l.flag(narrow)
	l.entropy(n, e)
	return g.runAs(l, labelKey("cross entropy grad i32", "cross entropy grad i64", l, labels))
}

// labelKey is the kernel for the launch's dtype and that of the labels, of one for int32 and one for int64.
func labelKey(i32, i64 string, l *gpuLaunch, labels *Tensor) kernelKey {
	if labels.dtype == Int64 {
		return kernelKey{i64, l.suffix}
	}
	return kernelKey{i32, l.suffix}
}

func (l *gpuLaunch) classes(logits, labels, weights *Tensor) {
	l.read(logits)
	l.read(labels)
	l.readIf(weights)
}

// entropy is the kernels' struct of that name.
func (l *gpuLaunch) entropy(n int, e kernel.Entropy) {
	l.rows(n, e.Rows)
	l.word(int(e.Ignore))
	l.double(e.Smoothing)
	l.flag(e.Mean)
}
