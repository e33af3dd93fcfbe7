package tensor

import (
	"context"
	"fmt"
	"math"
)

// FromSlice returns a tensor with a copy of data, which has as many elements as the shape and may
// be reused as soon as FromSlice returns. Without a shape the tensor has one dimension. The copy is
// queued on the runtime's stream.
func FromSlice[T Element](ctx context.Context, rt *Runtime, data []T, shape ...int) (*Tensor, error) {
	if rt == nil {
		return nil, fmt.Errorf("tensor: FromSlice: %w: the runtime is nil", ErrInvalid)
	}
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	if _, err := byteSize("FromSlice", DtypeOf[T](), shape); err != nil {
		return nil, err
	}
	if n := elements(shape); n != len(data) {
		return nil, fmt.Errorf("tensor: FromSlice: %w: %d elements for %v, which has %d", ErrShape, len(data), Shape(shape), n)
	}
	if err := rt.refuseCaptured("FromSlice", hostWrites); err != nil {
		return nil, err
	}
	return rt.result(ctx, "FromSlice", DtypeOf[T](), shape, func(t *Tensor) error { return upload(ctx, t, "FromSlice", bytesOf(data)) })
}

// Labels is FromSlice for class labels in [0, classes), as int32. For a label out of range the
// error wraps [ErrLabel].
func Labels[T int | int32 | int64 | uint8](ctx context.Context, rt *Runtime, labels []T, classes int) (*Tensor, error) {
	if classes > math.MaxInt32 {
		return nil, fmt.Errorf("tensor: Labels: %w: %d classes: want at most %d", ErrInvalid, classes, math.MaxInt32)
	}
	narrow := make([]int32, len(labels))
	for i, l := range labels {
		if l < 0 || int64(l) >= int64(classes) {
			return nil, fmt.Errorf("tensor: Labels: label %d at %d: %w: want 0..%d", l, i, ErrLabel, classes-1)
		}
		narrow[i] = int32(l)
	}
	return FromSlice(ctx, rt, narrow)
}

// CopyFrom overwrites t with data, which has the same number and type of elements and may be reused
// as soon as CopyFrom returns. After an error of the device t may be overwritten.
func CopyFrom[T Element](ctx context.Context, t *Tensor, data []T) error {
	in, err := acquireElements[T]("CopyFrom", t)
	if err != nil {
		return err
	}
	defer in.release()
	if len(data) != t.Elements() {
		return fmt.Errorf("tensor: CopyFrom: %w: %d elements for %v, which has %d", ErrShape, len(data), t.shape, t.Elements())
	}
	if err := t.rt.refuseCaptured("CopyFrom", hostWrites); err != nil {
		return err
	}
	t.overwritten()
	return upload(ctx, t, "CopyFrom", bytesOf(data))
}

func upload(ctx context.Context, t *Tensor, op string, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if _, err := t.rt.pool.Upload(ctx, t.rt.stream, t.store.block, t.offset, data); err != nil {
		return fmt.Errorf("tensor: %s of %v %v: %w", op, t.dtype, t.shape, err)
	}
	return nil
}

// ToSlice waits for t and returns its elements, row-major, in dst if its capacity is large enough,
// and in a new slice otherwise. After an error dst's elements are unchanged, unless they are more
// than 32 MiB: then a part may have been written. It also returns faults that kernels found in
// their data since the last read ([ErrLabel]).
func ToSlice[T Element](ctx context.Context, t *Tensor, dst []T) ([]T, error) {
	in, err := acquireElements[T]("ToSlice", t)
	if err != nil {
		return dst, err
	}
	defer in.release()
	if err := t.rt.refuseCaptured("ToSlice", hostReads); err != nil {
		return dst, err
	}
	if err := t.rt.checkFaults(ctx, "ToSlice"); err != nil {
		return dst, err
	}
	n := t.Elements()
	out := dst
	if cap(dst) < n {
		out = make([]T, n)
	}
	out = out[:n]
	if n == 0 {
		return out, nil
	}
	t.rt.readsZeros()
	if err := t.rt.pool.Download(ctx, t.rt.stream, bytesOf(out), t.store.block, t.offset); err != nil {
		return dst, fmt.Errorf("tensor: ToSlice of %v %v: %w", t.dtype, t.shape, err)
	}
	return out, nil
}

// Item waits for t, which has one element, and returns it (torch.Tensor.item).
func Item[T Element](ctx context.Context, t *Tensor) (T, error) {
	var v [1]T
	if t != nil && t.Elements() != 1 {
		return v[0], fmt.Errorf("tensor: Item: %w: %v has %d elements: want 1", ErrShape, t.shape, t.Elements())
	}
	_, err := ToSlice(ctx, t, v[:0])
	return v[0], err
}

// acquireElements is acquire for a tensor whose elements must have type T.
func acquireElements[T Element](op string, t *Tensor) (operands, error) {
	if t.none() {
		return operands{}, t.absent(op)
	}
	if t.dtype != DtypeOf[T]() {
		return operands{}, fmt.Errorf("tensor: %s: %w: the tensor is %v and the slice %v", op, ErrDtype, t.dtype, DtypeOf[T]())
	}
	return t.rt.acquire(op, t)
}

// Copy returns a copy of t in new memory (torch.clone).
func (rt *Runtime) Copy(ctx context.Context, t *Tensor) (*Tensor, error) {
	in, err := rt.acquire("Copy", t)
	if err != nil {
		return nil, err
	}
	defer in.release()
	out, err := rt.alloc(ctx, "Copy", t.dtype, t.shape)
	if err != nil || t.bytes == 0 {
		return out, err
	}
	if err := rt.stream.CopyD2D(out.ptr(), t.ptr(), t.bytes); err != nil {
		return out.orRelease(fmt.Errorf("tensor: Copy of %v %v: %w", t.dtype, t.shape, err))
	}
	return out, nil
}

// CopyInPlace overwrites a with b, which has the same shape and dtype (Tensor.copy_), for example
// the input of a graph with a batch. They may not overlap.
func (rt *Runtime) CopyInPlace(_ context.Context, a, b *Tensor) error {
	const op = "copy in place"
	in, err := rt.acquire(op, a, b)
	if err != nil {
		return err
	}
	defer in.release()
	switch {
	case a.dtype != b.dtype:
		return fmt.Errorf("tensor: %s: %w: from %v to %v", op, ErrDtype, b.dtype, a.dtype)
	case a.shares(b):
		return overlapError(op)
	}
	if err := sameShape(op, a, b); err != nil || a.bytes == 0 {
		return err
	}
	a.overwritten()
	if err := rt.stream.CopyD2D(a.ptr(), b.ptr(), a.bytes); err != nil {
		return fmt.Errorf("tensor: %s of %v %v: %w", op, a.dtype, a.shape, err)
	}
	return nil
}
