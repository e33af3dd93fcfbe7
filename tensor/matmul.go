package tensor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// MatMulOption transposes a factor of MatMul. Options may be given one by one or joined by |.
type MatMulOption uint8

const (
	// TransA transposes the first factor: it is (k, m).
	TransA MatMulOption = 1 << iota
	// TransB transposes the second factor: it is (n, k).
	TransB
)

// MatMul returns the product a b after torch.matmul's rules: of the matrices (m, k) and (k, n) a
// matrix (m, n). Leading dimensions are batches of matrices, which broadcast after NumPy's rules. A
// vector (k) is a row as the first factor and a column as the second, and the result lacks that
// dimension. [TransA] and [TransB] transpose the matrices of a factor without a copy; a vector has
// no transpose.
//
// On the host, a product that is worth several processors uses scratch memory of the cache, at most
// 8 MiB, while it is queued; its bits do not depend on the number of processors. On a GPU the first
// product allocates a workspace for cuBLAS, which the runtime keeps until Close.
func (l Layers) MatMul(ctx context.Context, a, b *Tensor, options ...MatMulOption) (*Tensor, error) {
	rt := l.rt
	in, err := rt.acquireFloats("MatMul", a, b)
	if err != nil {
		return nil, err
	}
	defer in.release()
	var room [4]int
	p, shape, err := rt.planMatMul(a, b, options, room[:])
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, "MatMul", a.dtype, shape, func(out *Tensor) error { return rt.matmul(ctx, p, out, a, b) })
}

func (rt *Runtime) matmul(ctx context.Context, p product, out, a, b *Tensor) error {
	return rt.backend.Do(ctx, rt.productCall(backend.MatMul, p, out, a, b))
}

// product is a product of matrices, or a batch of them. batch places the factors' matrices (Dst: of
// the first factor, Src: of the second). The matrices of the result follow each other.
type product struct {
	plan.Product
	batch *plan.Placement // nil: one product
}

// joined returns the product with its batch as part of the rows, a single product, if one matrix of
// the second factor multiplies every matrix of the first.
func (p product) joined() product {
	switch b := p.batch; {
	case len(b.Dims) == 0:
		p.batch = nil
	case len(b.Dims) == 1 && !p.TransA && b.Src[0] == 0 && b.Dst[0] == p.M*p.K:
		p.M *= b.Dims[0]
		p.batch = nil
	}
	return p
}

// productCall begins a product with its operands. The operands after the factors depend on the
// operation.
func (rt *Runtime) productCall(op backend.Op, p product, ts ...*Tensor) *backend.Call {
	c := rt.call(op, ts...)
	backend.SetParams(c, p.Product)
	if p.batch != nil {
		c.Plan = p.batch
	}
	return c
}

// planMatMul plans the product of a and b, and returns its shape, in room if that is large enough.
func (rt *Runtime) planMatMul(a, b *Tensor, options []MatMulOption, room []int) (p product, shape Shape, err error) {
	var all MatMulOption
	for _, o := range options {
		all |= o
	}
	if all&^(TransA|TransB) != 0 {
		return p, nil, fmt.Errorf("tensor: MatMul: %w: option %#x: want TransA, TransB or both", ErrInvalid, uint8(all))
	}
	p.TransA, p.TransB = all&TransA != 0, all&TransB != 0
	for _, f := range []struct {
		*Tensor
		trans bool
	}{{a, p.TransA}, {b, p.TransB}} {
		if len(f.shape) == 0 || (len(f.shape) == 1 && f.trans) {
			return p, nil, fmt.Errorf("tensor: MatMul: %w %v%s: want a matrix, a batch of matrices or, without a transpose, a vector",
				ErrShape, f.shape, transposed(f.trans))
		}
	}
	left, right := a.shape, b.shape
	if len(left) == 1 {
		left = Shape{1, left[0]}
	}
	if len(right) == 1 {
		right = Shape{right[0], 1}
	}
	batchA, batchB := left[:len(left)-2], right[:len(right)-2]
	left, right = left[len(left)-2:], right[len(right)-2:]
	p.M, p.K, p.N = left[0], left[1], right[1]
	inner := right[0]
	if p.TransA {
		p.M, p.K = p.K, p.M
	}
	if p.TransB {
		p.N, inner = inner, p.N
	}
	if p.K != inner {
		return p, nil, fmt.Errorf("tensor: MatMul: %w: %v%s times %v%s has inner dimensions %d and %d: want them equal",
			ErrShape, a.shape, transposed(p.TransA), b.shape, transposed(p.TransB), p.K, inner)
	}
	batch, err := broadcastShape("MatMul: batches", batchA, batchB)
	if err != nil {
		return p, nil, err
	}
	shape = append(room[:0], batch...)
	if len(a.shape) > 1 {
		shape = append(shape, p.M)
	}
	if len(b.shape) > 1 {
		shape = append(shape, p.N)
	}
	if len(batch) == 0 {
		return p, shape, nil
	}
	k := planKey{kind: planProduct}
	k.lists(batchA, batchB)
	k.add(p.M, p.K, p.N)
	p.batch, _ = remembered(rt, &k, func() (*plan.Placement, error) {
		return plan.NewPlacement(batch, batchStrides(batchA, len(batch), p.M*p.K), batchStrides(batchB, len(batch), p.K*p.N)), nil
	})
	return p.joined(), shape, nil
}

// batchStrides returns the strides of a factor's batch along the rank dimensions that it broadcasts
// to. Each matrix has so many elements.
func batchStrides(batch Shape, rank, matrix int) []int {
	strides := make([]int, rank)
	for i, n := range slices.Backward(batch) {
		if n != 1 {
			strides[rank-len(batch)+i] = matrix
		}
		matrix *= n
	}
	return strides
}

// transposed returns the text that follows a factor's shape in an error.
func transposed(yes bool) string {
	if yes {
		return " transposed"
	}
	return ""
}

// Transpose returns a copy of x with two dimensions exchanged (torch.transpose, contiguous).
// Negative dimensions count from the end, and x may have any dtype. Without dims it is the
// transpose of the matrix x, which must be of floating point.
func (rt *Runtime) Transpose(ctx context.Context, x *Tensor, dims ...int) (*Tensor, error) {
	switch len(dims) {
	case 0:
		return rt.transpose(ctx, x)
	case 2:
	default:
		return nil, fmt.Errorf("tensor: Transpose: %w: %d dimensions are given: want two, or none for a matrix", ErrInvalid, len(dims))
	}
	if err := rt.check("Transpose", x); err != nil {
		return nil, err
	}
	all := make([]int, len(x.shape))
	for i := range all {
		all[i] = i
	}
	d0, err := axisOf("Transpose", x.shape, dims[0])
	d1, second := axisOf("Transpose", x.shape, dims[1])
	if err = cmp.Or(err, second); err != nil {
		return nil, err
	}
	if len(x.shape) == 2 && d0 != d1 && x.dtype.Float() {
		return rt.transpose(ctx, x)
	}
	all[d0], all[d1] = d1, d0
	return rt.Permute(ctx, x, all...)
}

// transpose transposes a matrix.
func (rt *Runtime) transpose(ctx context.Context, x *Tensor) (*Tensor, error) {
	in, err := rt.acquireFloats("Transpose", x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := wantRank("Transpose", x, 2); err != nil {
		return nil, err
	}
	return rt.result(ctx, "Transpose", x.dtype, []int{x.shape[1], x.shape[0]}, func(out *Tensor) error {
		c := rt.call(backend.Transpose, out, x)
		backend.SetParams(c, plan.Matrix{Rows: x.shape[0], Cols: x.shape[1]})
		return rt.backend.Do(ctx, c)
	})
}
