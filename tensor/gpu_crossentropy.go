package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// manyRows is how many rows one block does by itself: so many losses in a loop of its warps, or so many labels to count in
// every block of the gradient. Of more, the losses or the count go by way of scratch memory, at the cost of a second launch.
const manyRows = 1024

func (g *gpuKernels) crossEntropy(ctx context.Context, e kernel.Entropy, loss, logits, labels, weights *Tensor, fault *storage) error {
	n := labels.count()
	if !e.Each && n <= manyRows {
		l := g.newLaunch("cross entropy", loss.dtype, 0)
		l.Grid[0], l.Block[0] = 1, 1024
		l.write(loss)
		l.classes(logits, labels, weights)
		l.fault(fault)
		l.entropy(n, e)
		return g.runAs(l, labelKey("cross entropy", l, labels))
	}
	var scratch memcache.Block
	if !e.Each {
		var err error
		var free func()
		if scratch, free, err = g.rt.scratch(ctx, "CrossEntropy", int64(n)*8); err != nil {
			return err
		}
		defer free()
	}
	if n > 0 {
		l, name := g.newLaunch("cross entropy", loss.dtype, n*32), "cross entropy each"
		if e.Each {
			l.write(loss)
		} else {
			name = "cross entropy part"
			l.writeScratch(scratch, n)
		}
		l.classes(logits, labels, weights)
		l.entropy(n, e)
		if err := g.runAs(l, labelKey(name, l, labels)); err != nil {
			return err
		}
	}
	l := g.newLaunch("cross entropy", loss.dtype, 0)
	l.Grid[0], l.Block[0] = 1, 1024
	if e.Each {
		l.word(0, 0, 0)
	} else {
		l.write(loss)
		l.word(0)
		l.readScratch(scratch, n)
	}
	l.read(labels)
	l.readIf(weights)
	l.fault(fault)
	l.entropy(n, e)
	return g.runAs(l, labelKey("cross entropy total", l, labels))
}

func (g *gpuKernels) crossEntropyGrad(ctx context.Context, e kernel.Entropy, dst, logits, labels, weights, dloss *Tensor) error {
	n := labels.count()
	var per memcache.Block
	if e.Mean && n > manyRows {
		var err error
		var free func()
		if per, free, err = g.rt.scratch(ctx, "CrossEntropyGrad", 8); err != nil {
			return err
		}
		defer free()
		l := g.newLaunch("cross entropy grad", dst.dtype, 0)
		l.Grid[0], l.Block[0] = 1, 1024
		l.word(0)
		l.writeScratch(per, 1)
		l.word(0)
		l.read(labels)
		l.readIf(weights)
		l.word(0)
		l.entropy(n, e)
		if err := g.runAs(l, labelKey("cross entropy total", l, labels)); err != nil {
			return err
		}
	}
	l := g.rowLaunch("cross entropy grad", dst.dtype, n, e.Rows)
	l.write(dst)
	l.classes(logits, labels, weights)
	l.read(dloss)
	if per.IsZero() {
		l.word(0)
	} else {
		l.readScratch(per, 1)
	}
	l.flag(e.Each)
	l.entropy(n, e)
	return g.runAs(l, labelKey("cross entropy grad", l, labels))
}

// labelKey is the kernel for the launch's dtype and that of the labels.
func labelKey(name string, l *gpuLaunch, labels *Tensor) kernelKey {
	if labels.dtype == Int64 {
		return kernelKey{name + " i64", l.suffix}
	}
	return kernelKey{name + " i32", l.suffix}
}

func (l *gpuLaunch) classes(logits, labels, weights *Tensor) {
	l.read(logits)
	l.read(labels)
	l.readIf(weights)
}

// writeScratch and readScratch are for n doubles.
func (l *gpuLaunch) writeScratch(b memcache.Block, n int) {
	l.writeRange(b.Range(0, int64(n)*8))
}

func (l *gpuLaunch) readScratch(b memcache.Block, n int) {
	l.readRange(b.Range(0, int64(n)*8))
}

// entropy is the kernels' struct of that name.
func (l *gpuLaunch) entropy(n int, e kernel.Entropy) {
	l.rows(n, e.Rows)
	l.word(int(e.Ignore))
	l.double(e.Smoothing)
	l.flag(e.Mean)
}
