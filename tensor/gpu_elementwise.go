package tensor

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (g *gpuKernels) fill(t *Tensor, v float64) error {
	if t.bytes == 0 {
		return nil
	}
	l := g.newLaunch("fill", t.dtype, t.count())
	l.write(t)
	l.word(t.count())
	l.element(t.dtype, v)
	return g.runAs(l, kernelKey{"fill", fillSuffix[t.dtype.Size()]})
}

// element is a value of a dtype that has it.
func (l *gpuLaunch) element(dtype Dtype, v float64) {
	switch dtype {
	case Float32, Float64:
		l.number(v)
	case Int32:
		l.word(int(uint32(int32(v))))
	case Int64:
		l.word(int(int64(v)))
	case BFloat16:
		l.word(int(ToBF16(float32(v))))
	default:
		l.word(int(uint8(v)))
	}
}

var fillSuffix = [...]string{1: "_1", 2: "_2", 4: "_4", 8: "_8"}

func (g *gpuKernels) unary(u kernel.Unary, dst, x *Tensor, c float64) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch(u.Name(), dst.dtype, dst.count())
	l.write(dst)
	l.read(x)
	l.word(dst.count(), int(u))
	l.number(c)
	return g.runAs(l, kernelKey{"unary", l.suffix})
}

func (g *gpuKernels) binary(op kernel.Binary, dst, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	dims, sa, sb := g.rt.broadcast(dst.shape, a.shape, b.shape).Strides()
	if len(dims) > maxDims {
		return fmt.Errorf("tensor: %s: %w: broadcasting %v and %v has %d different dimensions; kernels take %d",
			op.Name(), ErrUnsupported, a.shape, b.shape, len(dims), maxDims)
	}
	l := g.newLaunch(op.Name(), dst.dtype, dst.count())
	l.write(dst)
	l.read(a)
	l.read(b)
	l.word(dst.count(), int(op))
	if dst.dtype == BFloat16 && op <= kernel.Mul && a.count() == dst.count() && b.count() == dst.count() {
		l.eight(dst.count())
		return g.runAs(l, kernelKey{"flat", l.suffix})
	}
	l.word(len(dims))
	l.lists(dims, sa, sb)
	return g.runAs(l, kernelKey{"binary", l.suffix})
}

func (g *gpuKernels) repeat(dst, x *Tensor) error { return g.binary(kernel.First, dst, x, x) }

func (g *gpuKernels) addBias(dst, x, bias *Tensor, relu bool) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch("add bias", dst.dtype, dst.count())
	l.write(dst)
	l.read(x)
	l.read(bias)
	l.word(dst.count(), bias.count())
	l.flag(relu)
	return g.run(l)
}

var convertName = map[Dtype]string{Float32: "convert_f32", Float64: "convert_f64", BFloat16: "convert_bf16",
	Int32: "convert_i32", Int64: "convert_i64", Uint8: "convert_u8"}

func (g *gpuKernels) convert(dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch("convert", dst.dtype, dst.count())
	l.write(dst)
	l.read(x)
	l.word(dst.count())
	return g.runAs(l, kernelKey{convertName[x.dtype], l.suffix})
}
