package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// multiplier returns the device's library of matrix products, or nil.
func multiplier(dev any) device.MatrixMultiplier {
	if m, ok := dev.(device.MatrixMultiplier); ok {
		if _, err := m.MatMulWorkspace(); err == nil {
			return m
		}
	}
	return nil
}

// byLibrary computes a product with the library, which adds the bias unless it is nil. It never
// applies ReLU, because cuBLASLt's ReLU turns NaN into 0.
func (l *launcher) byLibrary(ctx context.Context, p product, bias *backend.Ref) error {
	workspace, err := l.b.takeWorkspace(ctx)
	if err != nil {
		return err
	}
	g := &l.gemm
	*g = libraries[p.dtype].gemm
	g.TF32, g.TransA, g.TransB, g.Alpha, g.Workspace = l.b.env.TF32(), p.TransA, p.TransB, 1, workspace
	g.M, g.N, g.K, g.LDA, g.LDB, g.LDC = p.M, p.N, p.K, p.K, p.N, p.N
	g.A, g.B, g.C = l.arg(1).Ptr, l.arg(2).Ptr, l.arg(0).Ptr
	if bias != nil {
		g.Bias = bias.Ptr
	}
	if p.TransA {
		g.LDA = p.M
	}
	if p.TransB {
		g.LDB = p.K
	}
	if p.batch {
		return l.b.gemms(l.c.Plan.(*plan.Placement), g, p.dtype.Size())
	}
	return l.b.blas.MatMul(l.b.stream, g)
}

// gemms computes the products of a batch. One call of the library covers the largest dimension, so
// there is a call for each step of the other dimensions. one is the product of the first matrices;
// size is the bytes of an element.
func (b *Backend) gemms(batch *plan.Placement, one *device.Gemm, size int) error {
	along := 0
	for i, d := range batch.Dims {
		if d > batch.Dims[along] {
			along = i
		}
	}
	stride := 1 // in products
	for _, d := range batch.Dims[along+1:] {
		stride *= d
	}
	matrix := one.M * one.N
	one.Batch, one.StrideA, one.StrideB, one.StrideC = batch.Dims[along], batch.Dst[along], batch.Src[along], stride*matrix
	first := *one
	for outer := 0; outer < batch.Count(); outer += stride * one.Batch {
		for i := outer; i < outer+stride; i++ {
			oa, ob := batch.At(i)
			one.A = first.A + device.Ptr(oa*size)
			one.B = first.B + device.Ptr(ob*size)
			one.C = first.C + device.Ptr(i*matrix*size)
			if err := b.blas.MatMul(b.stream, one); err != nil {
				return err
			}
		}
	}
	return nil
}
