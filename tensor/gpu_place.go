package tensor

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (g *gpuKernels) place(dst, src part, p *kernel.Placement, n int) error {
	if len(p.Dims) > maxDims {
		return fmt.Errorf("tensor: place: %w: a copy has %d different dimensions; kernels take %d", ErrUnsupported, len(p.Dims), maxDims)
	}
	l := g.newLaunch("place", dst.dtype, n)
	size := dst.dtype.Size()
	l.Args = append(l.Args, uint64(dst.ptr()+device.Ptr(dst.offset*int(size))), uint64(src.ptr()+device.Ptr(src.offset*int(size))))
	l.Writes, l.Reads = append(l.Writes, dst.memory()), append(l.Reads, src.memory())
	l.word(n, len(p.Dims))
	l.lists(p.Dims, p.Dst, p.Src)
	return g.runAs(l, kernelKey{"place", fillSuffix[size]})
}

func (g *gpuKernels) pad(dst, src *Tensor, value float64, row, start, length int) (bool, error) {
	l := g.newLaunch("pad", dst.dtype, dst.count())
	l.write(dst)
	l.read(src)
	l.element(dst.dtype, value)
	l.word(dst.count(), row, start, length)
	return true, g.runAs(l, kernelKey{"pad", fillSuffix[dst.dtype.Size()]})
}
