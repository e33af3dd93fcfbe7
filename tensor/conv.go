package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// A convolution is cross-correlation, as in PyTorch: nothing is flipped. Its result, the gradient
// of x and the gradient of the weights are three kernels with one plan. A transposed convolution is
// the gradient of x of a convolution, with x and the result exchanged. No kernel stores the whole
// matrix of windows that it multiplies by: the host makes one tile of it at a time, and a GPU
// stores none of it. Scratch memory is allocated from the cache while the kernel is queued.

// Conv2d returns the convolution of x by w, plus bias (torch.nn.functional.conv2d). x is (n,
// channels, height, width) or (channels, height, width), w is (outputs, channels/groups, height,
// width), and bias is (outputs) or nil.
func (l Layers) Conv2d(ctx context.Context, x, w, bias *Tensor, c ConvConfig) (*Tensor, error) {
	return l.rt.conv(ctx, "Conv2d", x, w, bias, c, 2, backend.Conv)
}

// Conv1d is [Layers.Conv2d] for x (n, channels, length) and w (outputs, channels/groups, length)
// (torch.nn.functional.conv1d).
func (l Layers) Conv1d(ctx context.Context, x, w, bias *Tensor, c ConvConfig) (*Tensor, error) {
	return l.rt.conv(ctx, "Conv1d", x, w, bias, c, 1, backend.Conv)
}

// ConvTranspose2d returns the transposed convolution of x by w, plus bias
// (torch.nn.functional.conv_transpose2d). x is (n, channels, height, width) or (channels, height,
// width), w is (channels, outputs/groups, height, width), and bias is (outputs) or nil.
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

// ConvInputGrad returns the gradient of x, of the given shape, in [Layers.Conv1d] or
// [Layers.Conv2d]. dy is the gradient of the result.
func (d Gradients) ConvInputGrad(ctx context.Context, dy, w *Tensor, shape []int, c ConvConfig) (*Tensor, error) {
	return d.rt.convInputGrad(ctx, "ConvInputGrad", dy, w, shape, c, backend.ConvInputGrad)
}

// ConvTransposeInputGrad returns the gradient of x, of the given shape, in a transposed
// convolution. dy is the gradient of the result.
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

// ConvWeightGrad returns the gradient of the weights, of the given shape, in [Layers.Conv1d] or
// [Layers.Conv2d]. dy is the gradient of the result. The gradient of the bias is dy's sum over all
// dimensions except the channels.
func (d Gradients) ConvWeightGrad(ctx context.Context, dy, x *Tensor, shape []int, c ConvConfig) (*Tensor, error) {
	return d.rt.convWeightGrad(ctx, "ConvWeightGrad", dy, x, shape, c, false)
}

// ConvTransposeWeightGrad returns the gradient of the weights, of the given shape, in a transposed
// convolution. dy is the gradient of the result.
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

// planConvGrad plans the gradients of a convolution of these shapes. dy is the gradient of the
// result.
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
