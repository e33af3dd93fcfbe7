package tensor

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (g *gpuKernels) apply(f kernel.Function, dst, x *Tensor, c, d float64) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch(f.Name(), dst.dtype, dst.count())
	l.write(dst)
	l.read(x)
	l.word(dst.count(), int(f))
	l.number(c)
	l.number(d)
	l.eight(dst.count())
	return g.runAs(l, kernelKey{"function", l.suffix})
}

func (g *gpuKernels) applyGrad(f kernel.Function, dst, dy, saved *Tensor, c, d float64) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch(f.Name(), dst.dtype, dst.count())
	l.write(dst)
	l.read(dy)
	l.read(saved)
	l.word(dst.count(), int(f))
	l.number(c)
	l.number(d)
	l.eight(dst.count())
	return g.runAs(l, kernelKey{"function grad", l.suffix})
}

var chooseName = map[Dtype]string{Uint8: "choose_u8", Int32: "choose_i32", Int64: "choose_i64"}

func (g *gpuKernels) choose(dst, cond, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch("where", dst.dtype, dst.count())
	l.write(dst)
	l.read(cond)
	l.readIf(a)
	l.readIf(b)
	l.word(dst.count())
	if err := l.meeting(choicePlan(dst, cond, a, b)); err != nil {
		return err
	}
	return g.runAs(l, kernelKey{chooseName[cond.dtype], fillSuffix[dst.dtype.Size()]})
}

func (g *gpuKernels) extremeGrad(greatest bool, dst, dy, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch("extreme grad", dst.dtype, dst.count())
	l.write(dst)
	l.read(dy)
	l.read(a)
	l.read(b)
	l.word(dst.count())
	l.flag(greatest)
	if err := l.meeting(kernel.NewMeeting(dst.shape, a.shape, b.shape)); err != nil {
		return err
	}
	return g.run(l)
}

// meeting is the kernels' struct of that name, which has room for three arrays.
func (l *gpuLaunch) meeting(p *kernel.Meeting) error {
	if len(p.Dims) > maxDims {
		return fmt.Errorf("tensor: %s: %w: the shapes meet in %d different dimensions; kernels take %d", l.Name, ErrUnsupported, len(p.Dims), maxDims)
	}
	l.word(len(p.Dims))
	l.lists(p.Dims)
	l.lists(p.Strides...)
	l.pad((3 - len(p.Strides)) * maxDims)
	return nil
}
