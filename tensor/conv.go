package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// A convolution is cross-correlation, as in PyTorch: nothing is flipped. Its result, the gradient of x and that of the
// weights are three kernels with one plan; a transposed convolution is the gradient of x of a convolution whose x and result
// have changed places. None takes the memory of the matrix that it multiplies by: on the host it is made of a tile at a time,
// and on a GPU nowhere. Scratch memory is taken from the cache while the kernel is queued.

// Conv2d returns the convolution of x (n, channels, height, width), or (channels, height, width), by w (outputs,
// channels/groups, height, width), plus bias (outputs), which may be nil (torch.nn.functional.conv2d).
func (l Layers) Conv2d(ctx context.Context, x, w, bias *Tensor, c ConvConfig) (*Tensor, error) {
	return l.rt.conv(ctx, "Conv2d", x, w, bias, c, 2, backend.Conv)
}

// Conv1d is [Layers.Conv2d] for x (n, channels, length) and w (outputs, channels/groups, length)
// (torch.nn.functional.conv1d).
func (l Layers) Conv1d(ctx context.Context, x, w, bias *Tensor, c ConvConfig) (*Tensor, error) {
	return l.rt.conv(ctx, "Conv1d", x, w, bias, c, 1, backend.Conv)
}

// ConvTranspose2d returns the transposed convolution of x (n, channels, height, width), or (channels, height, width), by w
// (channels, outputs/groups, height, width), plus bias (outputs), which may be nil (torch.nn.functional.conv_transpose2d).
func (l Layers) ConvTranspose2d(ctx context.Context, x, w, bias *Tensor, c ConvConfig) (*Tensor, error) {
	return l.rt.conv(ctx, "ConvTranspose2d", x, w, bias, c, 2, backend.ConvInputGrad)
}

// ConvTranspose1d is [Layers.ConvTranspose2d] for x (n, channels, length) and w (channels,
// outputs/groups, length) (torch.nn.functional.conv_transpose1d).
func (l Layers) ConvTranspose1d(ctx context.Context, x, w, bias *Tensor, c ConvConfig) (*Tensor, error) {
	return l.rt.conv(ctx, "ConvTranspose1d", x, w, bias, c, 1, backend.ConvInputGrad)
}

func (rt *Runtime) conv(ctx context.Context, op string, x, w, bias *Tensor, c ConvConfig, dims int, of backend.Op) (*Tensor, error) {
	var room [3]*Tensor
	in, err := rt.acquireFloats(op, present(append(room[:0], x, w), bias)...)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, shape, err := rt.planConv(op, c, x.shape, w.shape, dims, of != backend.Conv)
	if err != nil {
		return nil, err
	}
	if outputs := shape[len(shape)-dims-1]; bias != nil && (len(bias.shape) != 1 || bias.shape[0] != outputs) {
		return nil, fmt.Errorf("tensor: %s: %w: the bias is %v: want (%d)", op, ErrShape, bias.shape, outputs)
	}
	return rt.result(ctx, op, x.dtype, shape, func(y *Tensor) error { return rt.planned(ctx, of, p, y, x, w, bias) })
}

// ConvInputGrad is the gradient of x, whose shape is given, of [Layers.Conv1d] or [Layers.Conv2d]:
// dy is that of the result.
func (d Gradients) ConvInputGrad(ctx context.Context, dy, w *Tensor, shape []int, c ConvConfig) (*Tensor, error) {
	return d.rt.convInputGrad(ctx, "ConvInputGrad", dy, w, shape, c, backend.ConvInputGrad)
}

// ConvTransposeInputGrad is the gradient of x, whose shape is given, of a transposed convolution.
func (d Gradients) ConvTransposeInputGrad(ctx context.Context, dy, w *Tensor, shape []int, c ConvConfig) (*Tensor, error) {
	return d.rt.convInputGrad(ctx, "ConvTransposeInputGrad", dy, w, shape, c, backend.Conv)
}

func (rt *Runtime) convInputGrad(ctx context.Context, op string, dy, w *Tensor, shape []int, c ConvConfig, of backend.Op) (*Tensor, error) {
	in, err := rt.acquireFloats(op, dy, w)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, err := rt.planConvGrad(op, c, dy, shape, w.shape, of == backend.Conv)
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, op, dy.dtype, shape, func(dx *Tensor) error { return rt.planned(ctx, of, p, dx, dy, w, nil) })
}

// ConvWeightGrad is the gradient of the weights, whose shape is given, of [Layers.Conv1d] or
// [Layers.Conv2d]: dy is that of the result. That of the bias is dy's sum over all dimensions but
// that of the channels.
func (d Gradients) ConvWeightGrad(ctx context.Context, dy, x *Tensor, shape []int, c ConvConfig) (*Tensor, error) {
	return d.rt.convWeightGrad(ctx, "ConvWeightGrad", dy, x, shape, c, false)
}

// ConvTransposeWeightGrad is the gradient of the weights, whose shape is given, of a transposed convolution.
func (d Gradients) ConvTransposeWeightGrad(ctx context.Context, dy, x *Tensor, shape []int, c ConvConfig) (*Tensor, error) {
	return d.rt.convWeightGrad(ctx, "ConvTransposeWeightGrad", dy, x, shape, c, true)
}

func (rt *Runtime) convWeightGrad(ctx context.Context, op string, dy, x *Tensor, shape []int, c ConvConfig, transposed bool) (*Tensor, error) {
	in, err := rt.acquireFloats(op, dy, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, err := rt.planConvGrad(op, c, dy, x.shape, shape, transposed)
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, op, dy.dtype, shape, func(dw *Tensor) error {
		switch {
		case dy.bytes == 0:
			return rt.memset(op, dw)
		case transposed:
			return rt.planned(ctx, backend.ConvWeightGrad, p, dw, x, dy)
		}
		return rt.planned(ctx, backend.ConvWeightGrad, p, dw, dy, x)
	})
}

// planConvGrad is the plan of the gradients of a convolution of these shapes; dy is that of its result.
func (rt *Runtime) planConvGrad(op string, c ConvConfig, dy *Tensor, x, w Shape, transposed bool) (*plan.Conv, error) {
	for _, shape := range [2]Shape{x, w} {
		if _, err := byteSize(op, dy.dtype, shape); err != nil {
			return nil, err
		}
	}
	if len(w) != 3 && len(w) != 4 {
		return nil, fmt.Errorf("tensor: %s: %w: the weights are %v: want 3 or 4 dimensions", op, ErrShape, w)
	}
	p, y, err := rt.planConv(op, c, x, w, len(w)-2, transposed)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(dy.shape, y) {
		return nil, fmt.Errorf("tensor: %s: %w: dy is %v: the result for x %v and weights %v is %v", op, ErrShape, dy.shape, x, w, y)
	}
	return p, nil
}
