package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// check returns an error if an operation of rt can't use the tensors.
func (rt *Runtime) check(op string, ts ...*Tensor) error {
	return rt.checkOwn(op, false, ts...)
}

// checkOwn returns an error unless the tensors are rt's and, unless anywhere is true, on the
// device.
func (rt *Runtime) checkOwn(op string, anywhere bool, ts ...*Tensor) error {
	if rt.closed.Load() {
		return fmt.Errorf("tensor: %s: %w", op, ErrClosed)
	}
	for _, t := range ts {
		switch {
		case t.none():
			return t.absent(op)
		case t.rt != rt:
			return fmt.Errorf("tensor: %s: %w: it is on stream %d of %s, and the operation on stream %d of %s: use the tensor's own runtime, or copy it",
				op, ErrRuntime, t.rt.stream.ID(), t.rt.stream.Device().Name(), rt.stream.ID(), rt.stream.Device().Name())
		case t.Released():
			return fmt.Errorf("tensor: %s: %w: %v", op, ErrReleased, t)
		case !anywhere && t.store.away.Load() != nil:
			return fmt.Errorf("tensor: %s: %w: %v: Fetch it first", op, ErrOffloaded, t)
		}
	}
	return nil
}

// operands holds the memory of an operation's operands until its work is queued, even if the
// tensors are released meanwhile. It needs no lock, because it belongs to the call and holds a
// reference to each storage.
type operands struct {
	rt     *Runtime
	stores [12]*storage
	n      int
}

// acquire checks the tensors and holds their memory until release.
func (rt *Runtime) acquire(op string, ts ...*Tensor) (in operands, err error) {
	if err = rt.check(op, ts...); err == nil {
		err = in.hold(rt, op, ts...)
	}
	return in, err
}

// acquireFloats is acquire for operands that must have one floating-point dtype.
func (rt *Runtime) acquireFloats(op string, ts ...*Tensor) (in operands, err error) {
	if err = rt.checkFloats(op, ts...); err == nil {
		err = in.hold(rt, op, ts...)
	}
	return in, err
}

// acquireAlike is acquireFloats for operands of one shape.
func (rt *Runtime) acquireAlike(op string, ts ...*Tensor) (in operands, err error) {
	if err = rt.checkAlike(op, ts...); err == nil {
		err = in.hold(rt, op, ts...)
	}
	return in, err
}

// hold adds checked tensors to the operands.
func (in *operands) hold(rt *Runtime, op string, ts ...*Tensor) error {
	in.rt = rt
	for _, t := range ts {
		if !t.store.retain() {
			in.release()
			return fmt.Errorf("tensor: %s: %w: %v", op, ErrReleased, t)
		}
		in.stores[in.n] = t.store
		in.n++
	}
	if c := rt.capturing.Load(); c != nil {
		c.keep(in.stores[:in.n])
	}
	return nil
}

// unless releases the operands if err is not nil.
func (in operands) unless(err error) (operands, error) {
	if err != nil {
		in.release()
		return operands{}, err
	}
	return in, nil
}

// present appends the optional operands that are not nil to ts.
func present(ts []*Tensor, optional ...*Tensor) []*Tensor {
	for _, t := range optional {
		if t != nil {
			ts = append(ts, t)
		}
	}
	return ts
}

// add moves the references of others to in.
func (in *operands) add(others *operands) {
	in.n += copy(in.stores[in.n:], others.stores[:others.n])
	others.n = 0
}

func (in *operands) release() {
	for _, s := range in.stores[:in.n] {
		in.rt.parked.add(s.release(context.Background()))
	}
	in.n = 0
}

// is reports whether the tensor's dtype is one of these.
func (t *Tensor) is(of ...Dtype) bool { return slices.Contains(of, t.dtype) }

// count is the number of elements.
func (t *Tensor) count() int { return int(t.bytes / int64(t.dtype.Size())) }

func (t *Tensor) ptr() device.Ptr { return t.store.block.Ptr() + device.Ptr(t.offset) }

// overlaps reports whether a and b share memory other than element for element.
func (t *Tensor) overlaps(b *Tensor) bool {
	return t.shares(b) && !(t.ptr() == b.ptr() && slices.Equal(t.shape, b.shape))
}

// shares reports whether a byte belongs to both tensors. Tensors of FromBlock may share one without
// sharing a storage.
func (t *Tensor) shares(b *Tensor) bool {
	return t.ptr() < b.ptr()+device.Ptr(b.bytes) && b.ptr() < t.ptr()+device.Ptr(t.bytes)
}

func overlapError(op string) error {
	return fmt.Errorf("tensor: %s: %w: the operands overlap in memory", op, ErrInvalid)
}

// checkFloats is check for tensors that must have one floating-point dtype.
func (rt *Runtime) checkFloats(op string, ts ...*Tensor) error {
	if err := rt.check(op, ts...); err != nil {
		return err
	}
	return wantFloats(op, ts...)
}

// checkAlike is checkFloats for tensors of one shape.
func (rt *Runtime) checkAlike(op string, ts ...*Tensor) error {
	if err := rt.checkFloats(op, ts...); err != nil {
		return err
	}
	for _, t := range ts[1:] {
		if err := sameShape(op, ts[0], t); err != nil {
			return err
		}
	}
	return nil
}

// wantFloats checks that the tensors have one floating-point dtype.
func wantFloats(op string, ts ...*Tensor) error {
	for _, t := range ts {
		if !t.dtype.Float() {
			return fmt.Errorf("tensor: %s: %w %v: want a floating-point dtype, such as float32", op, ErrDtype, t.dtype)
		}
		if t.dtype != ts[0].dtype {
			return fmt.Errorf("tensor: %s: %w: %v and %v: want one dtype for all, see Convert", op, ErrDtype, ts[0].dtype, t.dtype)
		}
	}
	return nil
}

// wantRank checks that t has the given number of dimensions.
func wantRank(op string, t *Tensor, rank int) error {
	if len(t.shape) != rank {
		return fmt.Errorf("tensor: %s: %w %v: want %d dimensions", op, ErrShape, t.shape, rank)
	}
	return nil
}

func sameShape(op string, a, b *Tensor) error {
	if !slices.Equal(a.shape, b.shape) {
		return fmt.Errorf("tensor: %s: %w: %v and %v: want equal shapes", op, ErrShape, a.shape, b.shape)
	}
	return nil
}
