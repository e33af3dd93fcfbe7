package tensor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// EmbeddingGrad returns the gradient (rows, n) of the weight of [Layers.Embedding]: dy, of the
// index's shape followed by n, added up by row. It is the same in every run.
func (d Gradients) EmbeddingGrad(ctx context.Context, dy, index *Tensor, rows int, cfg EmbeddingConfig) (*Tensor, error) {
	rt := d.rt
	const op = "EmbeddingGrad"
	shape, skip, err := rt.embeddingGrad(op, dy, index, rows, cfg)
	if err != nil {
		return nil, err
	}
	return rt.takeGrad(ctx, op, dy, 0, index, shape[:], skip, cfg.ScaleGradByFreq)
}

// AddEmbeddingGrad adds [Gradients.EmbeddingGrad] to dst (rows, n), of dy's dtype, in place. The
// result is that of adding the two tensors. With few indices, a GPU does so in one launch that
// allocates no memory. dst shares no memory with dy and index. After an error of the launch dst is
// undefined.
func (d Gradients) AddEmbeddingGrad(ctx context.Context, dst, dy, index *Tensor, cfg EmbeddingConfig) error {
	rt := d.rt
	const op = "AddEmbeddingGrad"
	if err := rt.check(op, dst); err != nil {
		return err
	}
	if err := wantRank(op, dst, 2); err != nil {
		return err
	}
	shape, skip, err := rt.embeddingGrad(op, dy, index, dst.shape[0], cfg)
	switch {
	case err != nil:
		return err
	case dst.dtype != dy.dtype:
		return fmt.Errorf("tensor: %s: %w: the gradient is %v, and dst %v", op, ErrDtype, dy.dtype, dst.dtype)
	case dst.shape[1] != shape[1]:
		return fmt.Errorf("tensor: %s: %w: the gradient has rows of %d, and dst is %v", op, ErrShape, shape[1], dst.shape)
	}
	in, t, err := rt.acquireTaken(op, dy, 0, index, shape[:])
	if err != nil {
		return err
	}
	defer in.release()
	held, err := rt.acquire(op, dst)
	if err != nil {
		return err
	}
	defer held.release()
	if dst.shares(dy) || dst.shares(index) {
		return overlapError(op)
	}
	if dst.bytes == 0 || dy.bytes == 0 {
		return nil
	}
	if added, err := rt.fused(ctx, rt.takeGradCall(backend.ScanGradOnto, dst, dy, index, t, skip, cfg.ScaleGradByFreq)); added {
		dst.overwritten()
		return err
	}
	dx, err := rt.takeGrad(ctx, op, dy, 0, index, shape[:], skip, cfg.ScaleGradByFreq)
	if err != nil {
		return err
	}
	defer func() { rt.parked.add(dx.ReleaseContext(ctx)) }()
	dst.overwritten()
	return rt.zipTo(ctx, backend.Add, dst, dst, dx)
}

// embeddingGrad checks the operands, and returns the gradient's shape and the padding's row.
func (rt *Runtime) embeddingGrad(op string, dy, index *Tensor, rows int, cfg EmbeddingConfig) (shape [2]int, skip int, err error) {
	if err := rt.check(op, dy, index); err != nil {
		return shape, 0, err
	}
	last := len(dy.shape) - 1
	if last < 0 || !slices.Equal(dy.shape[:last], index.shape) || rows < 0 {
		return shape, 0, fmt.Errorf("tensor: %s: %w: dy is %v and the index %v: they do not fit a weight of %d rows", op, ErrShape, dy.shape, index.shape, rows)
	}
	skip, err = cfg.padding(op, rows)
	return [2]int{rows, dy.shape[last]}, skip, err
}

// acquireTaken checks and holds the operands of a gradient of the given shape, and returns how the
// index takes from it.
func (rt *Runtime) acquireTaken(op string, dy *Tensor, axis int, index *Tensor, shape Shape) (operands, plan.Take, error) {
	_, err := byteSize(op, dy.dtype, shape)
	if err = cmp.Or(wantIndex(op, index), wantFloats(op, dy), err); err != nil {
		return operands{}, plan.Take{}, err
	}
	t := taking(shape, axis, index)
	if uint64(t.Rows) >= math.MaxUint32 || uint64(t.Count) >= math.MaxUint32 {
		return operands{}, plan.Take{}, fmt.Errorf("tensor: %s: %w: %d indices of %d rows: want fewer than 2^32-1 of each", op, ErrUnsupported, t.Count, t.Rows)
	}
	in, err := rt.acquire(op, dy, index)
	return in, t, err
}

// takeGrad sums dy by row. If there are many indices, it sorts them in scratch memory first. The
// row skip gets nothing.
func (rt *Runtime) takeGrad(ctx context.Context, op string, dy *Tensor, axis int, index *Tensor, shape Shape, skip int, mean bool) (*Tensor, error) {
	in, t, err := rt.acquireTaken(op, dy, axis, index, shape)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.result(ctx, op, dy.dtype, shape, func(out *Tensor) error {
		if dy.bytes == 0 || out.bytes == 0 {
			return rt.memset(op, out)
		}
		if set, err := rt.fused(ctx, rt.takeGradCall(backend.ScanGrad, out, dy, index, t, skip, mean)); set {
			return err
		}
		if err := rt.memset(op, out); err != nil {
			return err
		}
		order, err := rt.allocScratch(ctx, op, Int64, Shape{t.Count})
		if err != nil {
			return err
		}
		defer func() { rt.parked.add(order.ReleaseContext(ctx)) }()
		spare, err := rt.allocScratch(ctx, op, Int64, Shape{t.Count})
		if err != nil {
			return err
		}
		c := rt.call(backend.SortIndex, order, spare, index)
		backend.SetParams(c, plan.Sort{Rows: t.Rows, Skip: skip})
		err = rt.backend.Do(ctx, c)
		rt.parked.add(spare.ReleaseContext(ctx))
		if err != nil {
			return err
		}
		return rt.backend.Do(ctx, rt.takeGradCall(backend.TakeGrad, out, dy, order, t, skip, mean))
	})
}

// takeGradCall begins a gradient of taken rows, from the index or the sorted one.
func (rt *Runtime) takeGradCall(op backend.Op, dst, dy, index *Tensor, t plan.Take, skip int, mean bool) *backend.Call {
	c := rt.call(op, dst, dy, index)
	backend.SetParams(c, plan.TakeGrad{Take: t, Skip: skip, Mean: mean})
	return c
}
