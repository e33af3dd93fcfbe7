package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// MatMulOption says how MatMul reads a factor. Options may be given one by one or joined by |.
type MatMulOption uint8

const (
	// TransA transposes the first factor: it is (k, m).
	TransA MatMulOption = 1 << iota
	// TransB transposes the second factor: it is (n, k).
	TransB
)

// MatMul returns the matrix product a b, of (m, k) and (k, n): a matrix (m, n). [TransA] and [TransB] transpose a
// factor on its way in, without a copy of it. Scratch memory of at most the size of a and b is taken from the cache
// while the product is queued; on a GPU the first product takes a workspace for cuBLAS, which the runtime keeps until
// Close.
func (rt *Runtime) MatMul(ctx context.Context, a, b *Tensor, options ...MatMulOption) (*Tensor, error) {
	in, err := rt.acquireFloats("MatMul", a, b)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, err := planMatMul(a, b, options)
	if err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, "MatMul", a.dtype, []int{p.M, p.N})
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.matmul(ctx, p, out, a, b))
}

func (rt *Runtime) matmul(ctx context.Context, p kernel.MatMul, out, a, b *Tensor) error {
	if out.bytes == 0 {
		return nil
	}
	return rt.kernels.matmul(ctx, p, out, a, b)
}

func planMatMul(a, b *Tensor, options []MatMulOption) (kernel.MatMul, error) {
	var all MatMulOption
	for _, o := range options {
		all |= o
	}
	if all&^(TransA|TransB) != 0 {
		return kernel.MatMul{}, fmt.Errorf("tensor: MatMul: %w: option %#x: want TransA, TransB or both", ErrInvalid, uint8(all))
	}
	for _, t := range []*Tensor{a, b} {
		if err := wantRank("MatMul", t, 2); err != nil {
			return kernel.MatMul{}, err
		}
	}
	p := kernel.MatMul{M: a.shape[0], K: a.shape[1], N: b.shape[1], TransA: all&TransA != 0, TransB: all&TransB != 0}
	inner := b.shape[0]
	if p.TransA {
		p.M, p.K = p.K, p.M
	}
	if p.TransB {
		p.N, inner = inner, p.N
	}
	if p.K != inner {
		return p, fmt.Errorf("tensor: MatMul: %w: %v%s times %v%s has inner dimensions %d and %d: want them equal",
			ErrShape, a.shape, transposed(p.TransA), b.shape, transposed(p.TransB), p.K, inner)
	}
	return p, nil
}

// transposed is what an error says after a factor's shape.
func transposed(yes bool) string {
	if yes {
		return " transposed"
	}
	return ""
}

// Transpose returns the transpose of the matrix x, in memory of its own.
func (rt *Runtime) Transpose(ctx context.Context, x *Tensor) (*Tensor, error) {
	in, err := rt.acquireFloats("Transpose", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := wantRank("Transpose", x, 2); err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, "Transpose", x.dtype, []int{x.shape[1], x.shape[0]})
	if err != nil {
		return nil, err
	}
	return out.orRelease(rt.kernels.transpose(out, x))
}
