package tensor

import (
	"context"
	"fmt"
)

// Linear returns x wᵀ + bias for every row of x (rows, …, in), of weights (out, in) and a bias (out) (torch.nn.functional.linear):
// the bits of [Runtime.MatMul] with [TransB] and [Runtime.AddBiasInPlace], on the host in one pass over the memory.
func (rt *Runtime) Linear(ctx context.Context, x, w, bias *Tensor) (*Tensor, error) {
	return rt.linear(ctx, "Linear", x, w, bias, false)
}

// LinearReLU is Linear and then ReLU.
func (rt *Runtime) LinearReLU(ctx context.Context, x, w, bias *Tensor) (*Tensor, error) {
	return rt.linear(ctx, "LinearReLU", x, w, bias, true)
}

// epilogue is what follows a product without a batch: a bias, if there is one, is added to every row, and then perhaps ReLU.
type epilogue struct {
	bias *Tensor
	relu bool
}

func (rt *Runtime) linear(ctx context.Context, op string, x, w, bias *Tensor, relu bool) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x, w, bias)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if len(w.shape) != 2 || len(bias.shape) != 1 || bias.shape[0] != w.shape[0] {
		return nil, fmt.Errorf("tensor: %s: %w: weights %v and bias %v: want (out, in) and (out)", op, ErrShape, w.shape, bias.shape)
	}
	var room [4]int
	p, shape, err := planMatMul(x, w, []MatMulOption{TransB}, room[:])
	if err != nil {
		return nil, err
	}
	out, err := rt.alloc(ctx, op, x.dtype, shape)
	if err != nil {
		return nil, err
	}
	if out.bytes == 0 {
		return out, nil
	}
	return out.orRelease(rt.kernels.matmul(ctx, p, out, x, w, epilogue{bias, relu}))
}
