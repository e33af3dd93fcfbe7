package tensor

import "github.com/cistern-ml/cistern/device"

// rowLaunch begins the launch of a kernel with a block for each row of t, of one warp at least.
func (g *gpuKernels) rowLaunch(name string, t *Tensor) (l *gpuLaunch, rows, cols int) {
	cols = t.shape[len(t.shape)-1]
	rows = t.count() / cols
	l = g.newLaunch(name, t.dtype, 0)
	threads := uint32(32)
	for threads < 512 && int(threads)*4 < cols {
		threads *= 2
	}
	l.Grid[0], l.Block[0] = blocks(rows, 1), threads
	return l, rows, cols
}

func (g *gpuKernels) softmax(dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l, rows, cols := g.rowLaunch("softmax", x)
	l.write(dst)
	l.read(x)
	l.word(rows, cols)
	return g.run(l)
}

func (g *gpuKernels) softmaxGrad(dst, dy, y *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l, rows, cols := g.rowLaunch("softmax grad", y)
	l.write(dst)
	l.read(dy)
	l.read(y)
	l.word(rows, cols)
	return g.run(l)
}

func (g *gpuKernels) argMax(dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l, rows, cols := g.rowLaunch("argmax", x)
	l.Block[0] = 32
	l.write(dst)
	l.read(x)
	l.word(rows, cols)
	return g.run(l)
}

func (g *gpuKernels) crossEntropy(loss, logits, labels *Tensor, fault *storage) error {
	l := g.newLaunch("cross entropy", loss.dtype, 0)
	l.Grid[0], l.Block[0] = 1, 1024
	l.write(loss)
	l.read(logits)
	l.read(labels)
	l.word(logits.shape[0], logits.shape[1])
	r := device.Range{Ptr: fault.block.Ptr(), Bytes: faultBytes}
	l.Args = append(l.Args, uint64(r.Ptr))
	l.Reads, l.Writes = append(l.Reads, r), append(l.Writes, r)
	return g.run(l)
}

func (g *gpuKernels) crossEntropyGrad(dst, logits, labels, dloss *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l, rows, cols := g.rowLaunch("cross entropy grad", logits)
	l.write(dst)
	l.read(logits)
	l.read(labels)
	l.read(dloss)
	l.word(rows, cols)
	return g.run(l)
}
