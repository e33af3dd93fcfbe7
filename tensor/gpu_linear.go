package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// multiplier is the device's library of matrix products, or nil.
func multiplier(dev any) device.MatrixMultiplier {
	m, ok := dev.(device.MatrixMultiplier)
	if !ok {
		return nil
	}
	if _, err := m.MatMulWorkspace(); err != nil {
		return nil
	}
	return m
}

func (g *gpuKernels) matmul(ctx context.Context, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	if t := g.own(p, dst, then); t != nil {
		return g.ownProduct(ctx, t, p, dst, a, b, then)
	}
	if then.sums != nil {
		if err := g.sum(ctx, then.sums, keptColumns(a), a, 1); err != nil {
			return err
		}
	}
	switch {
	case then.bias == nil:
		return g.product(ctx, p, dst, a, b, nil)
	case g.blas == nil && p.K > 0 && dst.bytes > 0:
		return g.multiply(p, dst, a, b, then)
	case g.fused && (!then.relu || dst.dtype == BFloat16) && dst.dtype != Float64 && p.Batch == nil && p.K > 0:
		if err := g.product(ctx, p, dst, a, b, then.bias); err != nil || !then.relu {
			return err
		}
		return g.unary(kernel.ReLU, dst, dst, 0) // beside a rounding of the product to bfloat16, one of the product and its bias
	}
	if err := g.product(ctx, p, dst, a, b, nil); err != nil {
		return err
	}
	return g.addBias(dst, dst, then.bias, then.relu)
}

// product takes a bias where the library does: not with ReLU, because cuBLASLt's makes 0 of NaN.
func (g *gpuKernels) product(ctx context.Context, p kernel.MatMul, dst, a, b, bias *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	if p.K == 0 {
		return g.fill(dst, 0)
	}
	if g.blas == nil {
		return g.multiply(p, dst, a, b, epilogue{})
	}
	workspace, err := g.takeWorkspace(ctx)
	if err != nil {
		return err
	}
	l := g.newLaunch("matmul", dst.dtype, 0)
	defer g.launches.Put(l)
	gemm := &l.gemm
	*gemm = device.Gemm{Float64: dst.dtype == Float64, BFloat16: dst.dtype == BFloat16, TF32: g.tf32, TransA: p.TransA, TransB: p.TransB,
		M: p.M, N: p.N, K: p.K, LDA: p.K, LDB: p.N, LDC: p.N,
		A: a.ptr(), B: b.ptr(), C: dst.ptr(), Alpha: 1, Workspace: workspace}
	if bias != nil {
		gemm.Bias = bias.ptr()
	}
	if p.TransA {
		gemm.LDA = p.M
	}
	if p.TransB {
		gemm.LDB = p.K
	}
	if p.Batch != nil {
		return g.gemms(p.Batch, gemm, int(dst.dtype.Size()))
	}
	return g.gemm(gemm)
}

func (g *gpuKernels) gemm(gemm *device.Gemm) error {
	if err := g.blas.MatMul(g.stream, gemm); err != nil {
		return fmt.Errorf("tensor: MatMul: %w", err)
	}
	return nil
}

// gemms are the products of a batch: one call of the library takes the largest dimension, and there is one call for each
// step of the others. one is the product, of matrices at the beginning of all, with elements of so many bytes.
func (g *gpuKernels) gemms(batch *kernel.Placement, one *device.Gemm, size int) error {
	along := 0
	for i, d := range batch.Dims {
		if d > batch.Dims[along] {
			along = i
		}
	}
	stride := elements(batch.Dims[along+1:]) // in products
	matrix := one.M * one.N
	one.Batch, one.StrideA, one.StrideB, one.StrideC = batch.Dims[along], batch.Dst[along], batch.Src[along], stride*matrix
	a, b, c := one.A, one.B, one.C
	for outer := 0; outer < batch.Count(); outer += stride * one.Batch {
		for i := outer; i < outer+stride; i++ {
			oa, ob := batch.At(i)
			one.A = a + device.Ptr(oa*size)
			one.B = b + device.Ptr(ob*size)
			one.C = c + device.Ptr(i*matrix*size)
			if err := g.gemm(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// multiply is the product without a library.
func (g *gpuKernels) multiply(p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	l := g.newLaunch("matmul", dst.dtype, 0)
	l.Grid[0] = blocks(tiles(p.M)*tiles(p.N), 1)
	l.Block = [3]uint32{tileSide, 8, 1}
	l.write(dst)
	l.read(a)
	l.read(b)
	l.word(p.M, p.N, p.K)
	if p.TransA {
		l.word(1, p.M)
	} else {
		l.word(p.K, 1)
	}
	if p.TransB {
		l.word(1, p.K)
	} else {
		l.word(p.N, 1)
	}
	batch := p.Batch
	if batch == nil {
		batch = &kernel.Placement{}
	}
	if len(batch.Dims) > maxDims {
		return fmt.Errorf("tensor: MatMul: %w: a batch has %d different dimensions; kernels take %d", ErrUnsupported, len(batch.Dims), maxDims)
	}
	n := batch.Count()
	l.Grid[1] = uint32(min(n, maxGridY))
	l.word(n)
	l.readIf(then.bias)
	l.flag(then.relu)
	l.word(len(batch.Dims))
	l.lists(batch.Dims, batch.Dst, batch.Src)
	return g.run(l)
}

// tileSide is the side of the square that a block of the matrix kernels works on.
const tileSide = 32

func tiles(n int) int { return (n + tileSide - 1) / tileSide }

func (g *gpuKernels) transpose(dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	l := g.newLaunch("transpose", dst.dtype, 0)
	l.Grid[0] = blocks(tiles(x.shape[0])*tiles(x.shape[1]), 1)
	l.Block = [3]uint32{tileSide, 8, 1}
	l.write(dst)
	l.read(x)
	l.word(x.shape[0], x.shape[1])
	return g.run(l)
}

func (g *gpuKernels) sum(ctx context.Context, dst *Tensor, kept Shape, x *Tensor, divisor float64) error {
	if dst.bytes == 0 {
		return nil
	}
	if x.bytes == 0 {
		return g.fill(dst, 0/divisor) // NaN for the mean of nothing
	}
	r := g.rt.reduction(x.shape, kept)
	if len(r.Kept) > maxDims || len(r.Summed) > maxDims {
		return fmt.Errorf("tensor: sum: %w: %v to %v has more than %d different dimensions", ErrUnsupported, x.shape, kept, maxDims)
	}
	outputs := dst.count()
	count := x.count() / outputs
	if !r.InnerSummed {
		return g.columns(ctx, "sum", "sum_columns", dst.dtype, outputs, count, func(l *gpuLaunch) {
			l.write(dst)
			l.read(x)
			l.word(count)
			l.double(divisor)
		}, func(l *gpuLaunch) { l.reduction(r) })
	}
	n := 1
	if outputs <= partTickets {
		n = partsFor(outputs, count, 4096)
	}
	parts, err := g.takeParts(ctx, n > 1)
	if err != nil {
		return fmt.Errorf("tensor: sum: %w", err)
	}
	l := g.newLaunch("sum", dst.dtype, 0)
	l.Grid[0], l.Block[0] = blocks(outputs*n, 1), threads(count, 1024)
	l.write(dst)
	l.read(x)
	l.word(outputs, count)
	l.double(divisor)
	l.meet(parts)
	l.word(n)
	l.reduction(r)
	return g.runAs(l, kernelKey{"sum_rows", l.suffix})
}

// columns launches a kernel that adds up columns of count numbers each, with its arguments before and behind those of how they are cut.
func (g *gpuKernels) columns(ctx context.Context, op, name string, dt Dtype, outputs, count int, before, behind func(l *gpuLaunch)) error {
	units, n := (outputs+31)/32, 1
	if units <= partTickets {
		n = partsFor(units, count, 128)
	}
	parts, err := g.takeParts(ctx, n > 1)
	if err != nil {
		return fmt.Errorf("tensor: %s: %w", op, err)
	}
	l := g.newLaunch(op, dt, 0)
	l.Grid[0], l.Block = blocks(units*n, 1), [3]uint32{32, 32, 1}
	if count <= 64 {
		l.Block[1] = 8
	}
	before(l)
	l.word(outputs, n)
	l.meet(parts)
	behind(l)
	return g.runAs(l, kernelKey{name, l.suffix})
}

func (g *gpuKernels) reluBiasGrad(ctx context.Context, dx, db, dy, y *Tensor) error {
	if dx.bytes == 0 {
		return g.fill(db, 0)
	}
	rows := dx.count() / db.count()
	return g.columns(ctx, "relu bias grad", "relu_bias_grad", dx.dtype, db.count(), rows, func(l *gpuLaunch) {
		l.write(dx)
		l.write(db)
		l.read(dy)
		l.read(y)
		l.word(rows)
	}, func(*gpuLaunch) {})
}
