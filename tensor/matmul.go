package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// MatMul returns the matrix product op(a) op(b), where op transposes its operand if the flag says so: a is
// (m, k), or (k, m) if transA; b is (k, n), or (n, k) if transB; the result is (m, n). Scratch memory of at
// most the size of a and b is taken from the cache while the product is queued; on a GPU the first product takes a
// workspace for cuBLAS, which the runtime keeps until Close.
func (rt *Runtime) MatMul(ctx context.Context, a, b *Tensor, transA, transB bool) (*Tensor, error) {
	c, err := rt.useFloats("MatMul", a, b)
	if err != nil {
		return nil, err
	}
	defer c.end()
	p, err := planMatMul(a, b, transA, transB)
	if err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, "MatMul", a.dtype, []int{p.M, p.N})
	if err != nil {
		return nil, err
	}
	return out.or(rt.matmul(ctx, p, out, a, b))
}

func (rt *Runtime) matmul(ctx context.Context, p kernel.MatMul, out, a, b *Tensor) error {
	if out.bytes == 0 {
		return nil
	}
	return rt.kernels.matmul(ctx, p, out, a, b)
}

func planMatMul(a, b *Tensor, transA, transB bool) (kernel.MatMul, error) {
	var p kernel.MatMul
	for _, t := range []*Tensor{a, b} {
		if err := wantRank("MatMul", t, 2); err != nil {
			return p, err
		}
	}
	p = kernel.MatMul{M: a.shape[0], K: a.shape[1], N: b.shape[1], TransA: transA, TransB: transB}
	inner := b.shape[0]
	if transA {
		p.M, p.K = p.K, p.M
	}
	if transB {
		p.N, inner = inner, p.N
	}
	if p.K != inner {
		return p, fmt.Errorf("tensor: MatMul: %w: %v%s times %v%s has inner dimensions %d and %d: want them equal",
			ErrShape, a.shape, mark(transA), b.shape, mark(transB), p.K, inner)
	}
	return p, nil
}

func mark(trans bool) string {
	if trans {
		return " transposed"
	}
	return ""
}

// Transpose returns the transpose of the matrix x, in memory of its own.
func (rt *Runtime) Transpose(ctx context.Context, x *Tensor) (*Tensor, error) {
	c, err := rt.useFloats("Transpose", x)
	if err != nil {
		return nil, err
	}
	defer c.end()
	if err := wantRank("Transpose", x, 2); err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, "Transpose", x.dtype, []int{x.shape[1], x.shape[0]})
	if err != nil {
		return nil, err
	}
	return out.or(rt.kernels.transpose(out, x))
}
