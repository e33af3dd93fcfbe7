package tensor

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Tensor is a row-major array in device memory.
//
// Its owner calls Release. A tensor that is dropped instead is reclaimed when the garbage collector
// finds it, which may take two collections. Shape and dtype never change and need no memory access,
// so printing a tensor is always safe. Its methods may be called from any goroutine. Releasing a
// tensor while another goroutine queues work on it is safe: that call gets the memory, or
// [ErrReleased].
type Tensor struct {
	*handle
	offset       int64 // bytes into the block
	owner        atomic.Pointer[Lifetime]
	donated      atomic.Bool
	older, newer *Tensor // neighbours in the owner's list, under its lock
	missing      error   // why there is no handle
}

// Missing returns a tensor that could not be made, because of err. It is released; operations that
// read it fail with that error.
func Missing(err error) *Tensor { return &Tensor{missing: err} }

// none reports whether t is nil, or a Tensor that no runtime made.
func (t *Tensor) none() bool { return t == nil || t.handle == nil }

// absent returns the error of an operation on a tensor that is none.
func (t *Tensor) absent(op string) error {
	if t != nil && t.missing != nil {
		return fmt.Errorf("tensor: %s: %w: the tensor was not made: %w", op, ErrReleased, t.missing)
	}
	return fmt.Errorf("tensor: %s: %w: the tensor is nil", op, ErrInvalid)
}

// begin makes t the handle's tensor, which belongs to l. It takes over one reference to store, even
// if it fails.
func (t *Tensor) begin(ctx context.Context, l *Lifetime, op string, h *handle, store *storage, offset int64) (*Tensor, error) {
	rt := h.rt
	t.handle, t.offset = h, offset
	h.store = store
	if !store.borrowed {
		if rt.onLeak != nil {
			h.made = stack()
		}
		if err := rt.live.add(h, t); err != nil {
			rt.parked.add(store.release(ctx))
			return nil, fmt.Errorf("tensor: %s: %w", op, err)
		}
	}
	if l != nil {
		l.add(t)
	}
	return t, nil
}

// Shape returns a copy of the shape. A scalar has no dimensions.
func (t *Tensor) Shape() Shape {
	if t.none() {
		return nil
	}
	shape := make(Shape, len(t.shape))
	copy(shape, t.shape)
	return shape
}

// AppendShape appends t's shape to a list, such as one on the caller's stack, without the copy that
// [Tensor.Shape] makes.
func AppendShape(to Shape, t *Tensor) Shape {
	if t.none() {
		return to
	}
	return append(to, t.shape...)
}

// SameShape reports whether two tensors have one shape, without the copies that Shape makes.
func (t *Tensor) SameShape(o *Tensor) bool {
	return !t.none() && !o.none() && slices.Equal(t.shape, o.shape)
}

// Rank returns the number of dimensions, without the copy that Shape makes.
func (t *Tensor) Rank() int {
	if t.none() {
		return 0
	}
	return len(t.shape)
}

// Label returns the label of the tensor's memory, which is the same for all tensors that share the
// memory. It is zero after Release.
func (t *Tensor) Label() memcache.Label {
	if t.Released() {
		return memcache.Label{}
	}
	return t.store.label()
}

// SetLabel changes the label of the tensor's memory ([memcache.Block.SetLabel]), because the
// purpose may be unknown when a tensor is made. For a released tensor the error wraps
// [ErrReleased].
func (t *Tensor) SetLabel(l memcache.Label) error {
	if t.Released() {
		return fmt.Errorf("tensor: SetLabel: %w", ErrReleased)
	}
	if a := t.store.away.Load(); a != nil {
		a.label, a.renamed = l, true
		return nil
	}
	if err := t.store.block.SetLabel(l); err != nil {
		return fmt.Errorf("tensor: SetLabel: %w", err)
	}
	return nil
}

// Dtype returns the type of the elements.
func (t *Tensor) Dtype() Dtype {
	if t.none() {
		return 0
	}
	return t.dtype
}

// Elements returns the number of elements; 0 if a dimension is 0.
func (t *Tensor) Elements() int {
	if t.none() {
		return 0
	}
	return elements(t.shape)
}

// Bytes returns the size of the elements in bytes. The block that holds them may be larger.
func (t *Tensor) Bytes() int64 {
	if t.none() {
		return 0
	}
	return t.bytes
}

// Runtime returns the runtime that the tensor belongs to.
func (t *Tensor) Runtime() *Runtime {
	if t.none() {
		return nil
	}
	return t.rt
}

// Block returns the block that holds the elements, which start [Tensor.Offset] bytes into it. The
// tensor still owns it: it must not be freed, and not be used after Release, nor when the garbage
// collector may have found the tensor (see runtime.KeepAlive). A tensor that has no elements, or is
// offloaded ([Offloader]), has the zero Block.
func (t *Tensor) Block() memcache.Block {
	if t.none() {
		return memcache.Block{}
	}
	return t.store.block
}

// Offset returns the offset of the elements in the block, in bytes. It is 0 except for views.
func (t *Tensor) Offset() int64 {
	if t.none() {
		return 0
	}
	return t.offset
}

// Released reports whether Release was called. It is true for nil.
func (t *Tensor) Released() bool { return t.none() || t.released.Load() }

// Offloaded reports whether an [Offloader] has moved the tensor's memory to the host, and Fetch has
// not brought it back.
func (t *Tensor) Offloaded() bool { return !t.none() && t.store.away.Load() != nil }

// Exclusive reports whether no other tensor shares the memory, so that a write in place affects no
// other tensor. It is false for a tensor of [Runtime.FromBlock].
func (t *Tensor) Exclusive() bool { return !t.none() && !t.store.borrowed && t.store.tensors() == 1 }

// Version returns the number of writes in place to the tensor's memory, through any of the tensors
// that share it (Tensor._version). Failed writes count, because they may have done a part. Package
// autograd uses the version to find tensors that were overwritten before a gradient needed them.
// The program's own kernels report writes with [IncrementVersion].
func (t *Tensor) Version() uint64 {
	if t.none() {
		return 0
	}
	return t.store.writes()
}

// IncrementVersion counts a write in place that was not queued by an operation of this package,
// such as a collective operation of package device (torch.autograd.graph.increment_version).
func IncrementVersion(t *Tensor) {
	if !t.none() {
		t.overwritten()
	}
}

// overwritten counts a write in place.
func (t *Tensor) overwritten() { t.store.version.Add(1) }

// RecordStream reports to the cache that work queued on s uses the tensor's memory: after Release
// it is not reused before that work has run. If s is captured with the runtime's stream
// ([Runtime.Capture]), the graph keeps the memory. The caller orders the work with events: s waits
// for an event recorded on the runtime's stream before it reads results of the runtime.
func (t *Tensor) RecordStream(s device.Stream) error {
	if t.Released() {
		return fmt.Errorf("tensor: RecordStream: %w", ErrReleased)
	}
	if t.Offloaded() {
		return fmt.Errorf("tensor: RecordStream: %w", ErrOffloaded)
	}
	if t.store.block.IsZero() {
		return nil
	}
	if err := t.store.block.RecordStream(s); err != nil {
		return fmt.Errorf("tensor: RecordStream: %w", err)
	}
	if c := t.rt.capturing.Load(); c != nil {
		if g, ok := s.(device.GraphCapturer); ok && g.Capturing() {
			c.keep([]*storage{t.store})
		}
	}
	return nil
}

// Release returns the memory to the cache, as soon as no other tensor shares it. Work that is
// already queued can still use it, because only work queued later on the same stream reuses it.
// Releasing again, or nil, does nothing. t is released even after an error.
func (t *Tensor) Release() error { return t.ReleaseContext(context.Background()) }

// ReleaseContext is Release; the observer's span of the free has its parent in ctx. Memory is freed
// even if ctx has ended; nil is context.Background().
func (t *Tensor) ReleaseContext(ctx context.Context) error {
	if t.none() {
		return nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	freed, err := t.release(ctx)
	if !freed {
		return nil
	}
	if l := t.owner.Load(); l != nil {
		l.remove(t)
	}
	if err != nil {
		err = fmt.Errorf("tensor: Release of %v %v: %w", t.dtype, t.shape, err)
	}
	if t.own.again {
		t.left.Store(true)
	}
	return err
}
