package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// kernels are the operations of one sort of device. Each is queued on the runtime's stream; the arguments are
// checked, and nothing is queued for results without elements.
type kernels interface {
	fill(t *Tensor, v float64) error
	unary(u kernel.Unary, dst, x *Tensor, c float64) error
	binary(op kernel.Binary, dst, a, b *Tensor) error
	// apply and applyGrad are an elementwise function of two parameters and its gradient; dst may be any operand.
	apply(f kernel.Function, dst, x *Tensor, c, d float64) error
	applyGrad(f kernel.Function, dst, dy, saved *Tensor, c, d float64) error
	// choose is a where cond is not 0, and b elsewhere; one of them may be nil, for zeros. All broadcast to dst's shape.
	choose(dst, cond, a, b *Tensor) error
	// extremeGrad is the gradient of a as an operand of the maximum, or the minimum, of a and b, which broadcast to dy's shape.
	extremeGrad(greatest bool, dst, dy, a, b *Tensor) error
	addBias(dst, x, bias *Tensor, relu bool) error
	convert(dst, x *Tensor) error
	matmul(ctx context.Context, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error
	transpose(dst, x *Tensor) error
	// sum sets dst to the sums of x over divisor; kept is dst's shape with the summed dimensions 1.
	sum(ctx context.Context, dst *Tensor, kept Shape, x *Tensor, divisor float64) error
	repeat(dst, x *Tensor) error
	// reduce and reduceGrad are a statistic of x and its gradient; kept is the statistic's shape with the dimensions that it is
	// of as 1. y may be nil where the gradient does not read it.
	reduce(s kernel.Statistic, dst *Tensor, kept Shape, x *Tensor, c float64) error
	reduceGrad(s kernel.Statistic, dst, dy, x, y *Tensor, kept Shape, c float64) error
	// place copies n elements between parts of tensors of one dtype, which do not overlap.
	place(dst, src part, p *kernel.Placement, n int) error
	softmax(dst, x *Tensor, r kernel.Rows, log bool) error
	softmaxGrad(dst, dy, y *Tensor, r kernel.Rows, log bool) error
	argMax(dst, x *Tensor, r kernel.Rows) error
	// crossEntropy and its gradient take weights of the classes, or nil.
	crossEntropy(ctx context.Context, e kernel.Entropy, loss, logits, labels, weights *Tensor, fault *storage) error
	crossEntropyGrad(ctx context.Context, e kernel.Entropy, dst, logits, labels, weights, dloss *Tensor) error
	// loss is a loss of every element, or their sum over the divisor; lossGrad the gradient of the elements or the targets.
	loss(ctx context.Context, dst *Tensor, p *lossOperands) error
	lossGrad(dst, dloss *Tensor, p *lossOperands, target bool) error
	sgd(all []sgdUpdate) error
	adam(all []adamUpdate) error
	rmsprop(all []rmspropUpdate) error
	adagrad(all []adagradUpdate) error
	// norm sets total, of float32 or float64, and the last number of parts to the norm of the norms of the tensors; before it
	// parts has room for a Float64 for each tensor and block of its launch.
	norm(total *Tensor, ts []*Tensor, n kernel.Norm, parts *Tensor) error
	// clip multiplies the tensors with most/(norm+1e-6), if that is less than 1; the norm is the last number of parts.
	clip(ts []*Tensor, parts *Tensor, most float64) error
	// bound keeps the elements of the tensors within -most and most.
	bound(ts []*Tensor, most float64) error

	// take and gather note an index that is not there in fault.
	take(dst, x, index *Tensor, t kernel.Take, fault *storage) error
	// sortIndex needs spare, of order's size.
	sortIndex(order, spare, index *Tensor, rows, skip int) error
	takeGrad(dst, dy, order *Tensor, t kernel.Take, mean bool) error
	gather(dst, x, index *Tensor, g *kernel.Gather, fault *storage) error
	gatherGrad(dst, dy, index *Tensor, g *kernel.Gather) error
	attention(p *kernel.Attention, on attending) error
	attentionGrad(ctx context.Context, p *kernel.Attention, on attending) error
	cell(c *cellStep) error
	cellGrad(c *cellGradStep) error

	close() error
}

// layerKernels are kernels' operations on channels of pictures, normalisations, and what layers do in one with their gradients.
type layerKernels interface {
	// conv, convInputGrad and convWeightGrad are the products of a plan; bias may be nil.
	conv(ctx context.Context, p *kernel.Conv, y, x, w, bias *Tensor) error
	convInputGrad(ctx context.Context, p *kernel.Conv, dx, dy, w, bias *Tensor) error
	convWeightGrad(ctx context.Context, p *kernel.Conv, dw, dy, x *Tensor) error
	// dropout multiplies an element by 0 if its random number is below, and by scale otherwise. live has the seed, or is nil.
	dropout(dst, x *Tensor, r kernel.Random, live *Tensor, below uint64, scale float64) error
	maxPool(p *kernel.Pool, y, indices, x *Tensor) error
	maxPoolGrad(p *kernel.Pool, dx, dy, indices *Tensor) error
	avgPool(p *kernel.Pool, y, x *Tensor) error
	avgPoolGrad(p *kernel.Pool, dx, dy *Tensor) error
	// normalize sets y and the statistics; w, b, and each gradient but that of x may be nil.
	normalize(p *kernel.RowNorm, y, stats, x, w, b *Tensor) error
	// addNormalize sets sum to x + other and does normalize of it, if it does both in one launch: it says whether. sum may be x or other.
	addNormalize(p *kernel.RowNorm, sum, y, stats, x, other, w, b *Tensor) (bool, error)
	// normalizeGrad sets dx, or adds to it where normalizeGradAdds, and what is not nil of the others; normalizeWeightGrad is for those without dx.
	normalizeGrad(ctx context.Context, p *kernel.RowNorm, dx, dw, db, dy, x, w, stats *Tensor, onto bool) error
	normalizeGradAdds(dt Dtype) bool
	normalizeWeightGrad(ctx context.Context, p *kernel.RowNorm, dw, db, dy, x, stats *Tensor) error
	// batchNorm updates mean, variance and batches, which may be nil, when it trains. Each gradient may be nil; dx may be dy.
	batchNorm(ctx context.Context, p *kernel.BatchNorm, y, stats, x, w, b, mean, variance, batches *Tensor) error
	// masks reports whether matmul does what an epilogue's keep says, for less than later: in a layer's backward step, dst being the gradient of what a layer of fanIn columns made.
	masks(p kernel.MatMul, dst *Tensor, fanIn int) bool
	// reluBiasGrad sets dx to the gradient of what went into ReLU, and db to the sums over its rows, of db's size.
	reluBiasGrad(ctx context.Context, dx, db, dy, y *Tensor) error
	batchNormGrad(ctx context.Context, p *kernel.BatchNorm, dx, dw, db, dy, x, w, stats *Tensor) error
	// pad makes rows of dst, of so many elements, out of those of src, which have length elements and lie from start on, with value around them: if it
	// does so in one launch; it says whether.
	pad(dst, src *Tensor, value float64, row, start, length int) (bool, error)
	// scanGrad sets dst to what takeGrad does with a sorted index, or adds that to it, if it does so by looking at all of the index: it says whether.
	scanGrad(dst, dy, index *Tensor, t kernel.Take, skip int, mean, onto bool) (bool, error)
}

// preparer is kernels that take the memory which operations share before a capture: it must not be the capture's.
type preparer interface {
	prepare(ctx context.Context) error
}

// newKernels finds the kernels for the runtime's device.
func newKernels(rt *Runtime, tf32 bool) (kernels, layerKernels, error) {
	switch dev := rt.stream.Device().(type) {
	case device.HostVisible:
		if err := simd.Chosen(); err != nil {
			return nil, nil, fmt.Errorf("tensor: NewRuntime: %w: %w", ErrInvalid, err)
		}
		rt.visible = dev
		h := &hostKernels{rt: rt, mem: dev, stream: rt.stream}
		w := newWideKernels(rt, h, h)
		return w, w, nil
	case device.ModuleLoader:
		g, err := newGPUKernels(rt, dev, tf32)
		if err != nil {
			return nil, nil, err
		}
		w := newWideKernels(rt, g, g)
		return w, w, nil
	}
	return nil, nil, fmt.Errorf("tensor: NewRuntime: device %s: %w: there are kernels for devices whose memory the host can touch, "+
		"and for those that load PTX", rt.stream.Device().Name(), ErrUnsupported)
}
