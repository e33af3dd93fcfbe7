package tensor

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
)

// FromBlock returns a tensor of the first bytes of a block that the caller owns, such as a batch of
// a loader (torch.from_blob). The tensor must be released before the block is freed; releasing it
// frees nothing. If the block's stream is not the runtime's, FromBlock records the runtime's stream
// on the block, and the caller orders the two with events. A block of another device, or one that
// was freed, is an error.
func (rt *Runtime) FromBlock(block memcache.Block, dtype Dtype, shape ...int) (*Tensor, error) {
	if rt.closed.Load() {
		return nil, fmt.Errorf("tensor: FromBlock: %w", ErrClosed)
	}
	bytes, err := byteSize("FromBlock", dtype, shape)
	if err != nil {
		return nil, err
	}
	if bytes > block.Size() {
		return nil, fmt.Errorf("tensor: FromBlock: %w: %v %v takes %d bytes, and the block has %d", ErrShape, dtype, Shape(shape), bytes, block.Size())
	}
	if err := block.RecordStream(rt.stream); err != nil {
		return nil, fmt.Errorf("tensor: FromBlock: %w", err)
	}
	view, h := rt.newHandle(nil, dtype, shape)
	h.own.init(block, bytes, true)
	return view.begin(context.Background(), nil, "FromBlock", h, &h.own, 0)
}

// Share returns another tensor with the same elements and memory. Each of the two must be released;
// the memory is freed with the last.
func (rt *Runtime) Share(ctx context.Context, t *Tensor) (*Tensor, error) {
	if err := rt.check("Share", t); err != nil {
		return nil, err
	}
	return t.view(ctx, "Share", 0, t.shape)
}

// Reshape returns a tensor of the given shape that shares t's memory (Tensor.view). One dimension
// may be -1: it is computed from the number of elements.
func (rt *Runtime) Reshape(ctx context.Context, t *Tensor, shape ...int) (*Tensor, error) {
	if err := rt.check("Reshape", t); err != nil {
		return nil, err
	}
	var room [8]int
	to, free, known := append(room[:0], shape...), -1, 1
	for i, d := range to {
		switch {
		case d == -1 && free < 0:
			free = i
		case d < 0:
			return nil, fmt.Errorf("tensor: Reshape: %w %v: want dimensions of at least 0, and at most one -1", ErrShape, Shape(slices.Clone(shape)))
		case d > 0 && known > math.MaxInt/d:
			return nil, fmt.Errorf("tensor: Reshape: %w %v: its size overflows %d bits", ErrShape, Shape(slices.Clone(shape)), bits.UintSize-1)
		default:
			known *= d
		}
	}
	if free >= 0 && known > 0 && t.Elements()%known == 0 {
		to[free] = t.Elements() / known
		known = t.Elements()
	}
	if known != t.Elements() || (free >= 0 && to[free] < 0) {
		return nil, fmt.Errorf("tensor: Reshape: %w: %v has %d elements and can't become %v", ErrShape, t.shape, t.Elements(), Shape(slices.Clone(shape)))
	}
	return t.view(ctx, "Reshape", 0, to)
}

// Rows returns the rows [from, to) of t, along its first dimension, as a tensor that shares t's
// memory (Tensor.narrow).
func (rt *Runtime) Rows(ctx context.Context, t *Tensor, from, to int) (*Tensor, error) {
	if err := rt.check("Rows", t); err != nil {
		return nil, err
	}
	if len(t.shape) == 0 || from < 0 || to < from || to > t.shape[0] {
		return nil, fmt.Errorf("tensor: Rows: %w: %v has no rows %d to %d", ErrShape, t.shape, from, to)
	}
	shape := t.Shape()
	shape[0] = to - from
	row := int64(elements(shape[1:])) * int64(t.dtype.Size())
	return t.view(ctx, "Rows", int64(from)*row, shape)
}

// ViewAs returns a tensor of the given dtype and shape whose elements are t's bytes from offset on.
// It shares t's memory (Tensor.view with a dtype). The elements must lie inside t, and begin at a
// multiple of the dtype's size in the block.
func (rt *Runtime) ViewAs(ctx context.Context, t *Tensor, offset int64, dtype Dtype, shape ...int) (*Tensor, error) {
	if err := rt.check("ViewAs", t); err != nil {
		return nil, err
	}
	bytes, err := byteSize("ViewAs", dtype, shape)
	if err != nil {
		return nil, err
	}
	if offset < 0 || offset > t.bytes || bytes > t.bytes-offset {
		return nil, fmt.Errorf("tensor: ViewAs: %w: %v %v takes %d bytes from byte %d on, and %v %v has %d",
			ErrShape, dtype, Shape(shape), bytes, offset, t.dtype, t.shape, t.bytes)
	}
	if size := int64(dtype.Size()); (t.offset+offset)%size != 0 {
		return nil, fmt.Errorf("tensor: ViewAs: %w: byte %d of the block is not a multiple of %d, the size of %v", ErrInvalid, t.offset+offset, size, dtype)
	}
	return t.viewOf(ctx, "ViewAs", offset, dtype, shape)
}

func (t *Tensor) view(ctx context.Context, op string, offset int64, shape Shape) (*Tensor, error) {
	return t.viewOf(ctx, op, offset, t.dtype, shape)
}

func (t *Tensor) viewOf(ctx context.Context, op string, offset int64, dtype Dtype, shape Shape) (*Tensor, error) {
	if t.Released() || !t.store.retain() {
		return nil, fmt.Errorf("tensor: %s: %w", op, ErrReleased)
	}
	l := lifetimeOf(ctx)
	view, h := t.rt.newHandle(l, dtype, shape)
	return view.begin(ctx, l, op, h, t.store, t.offset+offset)
}
