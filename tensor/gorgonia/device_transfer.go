package gorgonia

import (
	"context"
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
	"github.com/cistern-ml/cistern/transfer"
)

// FromHost returns a row-major tensor of the engine with the elements of h, a tensor in Go memory.
// h may be reused as soon as FromHost returns. The copy goes through pinned memory and is queued on
// the engine's stream.
func (e *DeviceEngine) FromHost(ctx context.Context, h *gtensor.Dense) (*gtensor.Dense, error) {
	return one(e, "FromHost", func(c *call) (*gtensor.Dense, error) {
		if err := onHost(h); err != nil {
			return nil, err
		}
		r, err := c.result(h.Dtype(), h.Shape().Clone())
		if err != nil {
			return nil, err
		}
		return r.d, c.copyFromHost(ctx, r, h)
	})
}

// onHost returns an error if the tensor is not in Go memory.
func onHost(h *gtensor.Dense) error {
	if err := usable(h); err != nil {
		return err
	}
	m, _ := engines.find(nil, address(h.Raw))
	switch {
	case m != nil || !h.IsNativelyAccessible():
		return fmt.Errorf("%w: the tensor is not in Go memory", ErrForeign)
	case len(h.Mask()) > 0:
		return fmt.Errorf("%w: the tensor has a mask", ErrUnsupported)
	case !plainKind(h.Dtype().Kind()):
		return fmt.Errorf("%w: %v may hold Go pointers: use a numeric type or bool", ErrDtype, h.Dtype())
	}
	return nil
}

// rehome copies a tensor in Go memory to memory of the engine, in place. Strides and order stay the
// same.
func (e *DeviceEngine) rehome(ctx context.Context, t *gtensor.Dense) error {
	m, err := e.alloc(int64(len(t.Raw)))
	if err != nil {
		return err
	}
	if _, err := e.rt.Pool().Upload(ctx, e.Stream(), m.holder(), m.offset(m.addr), t.Raw); err != nil {
		e.park(e.releaseOwner("FromHost", m.addr))
		return err
	}
	gtensor.WithEngine(e)(t)
	gtensor.FromMemory(m.addr, m.MemSize())(t) // marks it as manually managed
	gtensor.WithEngine(e)(t)                   // marks it as inaccessible
	return nil
}

// ToHost returns a row-major tensor in Go memory with the elements of d. It waits for them until
// ctx is done.
func (e *DeviceEngine) ToHost(ctx context.Context, d *gtensor.Dense) (*gtensor.Dense, error) {
	return one(e, "ToHost", func(c *call) (*gtensor.Dense, error) {
		x, err := c.operand(d)
		if err != nil {
			return nil, err
		}
		h := gtensor.New(gtensor.Of(x.dtype()), gtensor.WithShape(d.Shape().Clone()...))
		return h, c.download(ctx, h.Raw, x.Array)
	})
}

// download fills b with the elements of x in row-major order.
func (c *call) download(ctx context.Context, b []byte, x strided.Array) error {
	x, err := c.dense(x)
	if err != nil {
		return err
	}
	hold := c.holding(x)
	if hold == nil {
		return ErrForeign
	}
	return c.e.rt.Pool().Download(ctx, c.e.Stream(), b, hold.Block(), int64(x.Ptr-hold.Block().Ptr()))
}

// Reading is a pending copy of a tensor's elements to the host; see [DeviceEngine.StartToHost].
type Reading struct {
	dt     gtensor.Dtype
	shape  gtensor.Shape
	buffer transfer.Buffer
	copied *transfer.Copy
}

// StartToHost queues a copy of a tensor's elements into pinned memory, and returns at once. Work
// that is queued later may change or release the tensor. Call [Reading.Wait] for the elements.
func (e *DeviceEngine) StartToHost(ctx context.Context, d *gtensor.Dense) (*Reading, error) {
	return one(e, "StartToHost", func(c *call) (*Reading, error) {
		x, err := c.operand(d)
		if err != nil {
			return nil, err
		}
		r := &Reading{dt: x.dtype(), shape: d.Shape().Clone()}
		dense, err := c.dense(x.Array)
		if err != nil {
			return nil, err
		}
		n := dense.Span().Bytes
		pool, hold := e.rt.Pool(), c.holding(dense)
		if hold == nil {
			return nil, ErrForeign
		}
		if r.buffer, err = pool.Get(ctx, n); err != nil {
			return nil, err
		}
		if r.copied, err = pool.D2H(ctx, e.Stream(), r.buffer, 0, hold.Block(), int64(dense.Ptr-hold.Block().Ptr()), n); err != nil {
			e.park(r.buffer.Release())
		}
		return r, err
	})
}

// Wait waits until the elements have arrived, or until ctx is done. It returns a row-major tensor
// in Go memory. Unless it returns an error of ctx, it releases the pinned memory, and later calls
// return an error that wraps [ErrReleased].
func (r *Reading) Wait(ctx context.Context) (*gtensor.Dense, error) {
	if r == nil || r.buffer.IsZero() {
		return nil, fmt.Errorf("gorgonia: Wait: %w: the elements were already returned, or the copy failed", ErrReleased)
	}
	if err := r.copied.Wait(ctx); err != nil {
		if ctx != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("gorgonia: Wait: %w", err)
		}
		return nil, fmt.Errorf("gorgonia: Wait: %w", r.end(err))
	}
	h := gtensor.New(gtensor.Of(r.dt), gtensor.WithShape(r.shape...))
	if _, err := r.buffer.ReadAt(h.Raw, 0); err != nil {
		return nil, fmt.Errorf("gorgonia: Wait: %w", r.end(err))
	}
	if err := r.end(nil); err != nil {
		return nil, fmt.Errorf("gorgonia: Wait: %w", err)
	}
	return h, nil
}

// end releases the pinned memory.
func (r *Reading) end(err error) error {
	b := r.buffer
	r.buffer = transfer.Buffer{}
	if freeing := b.Release(); err == nil {
		err = freeing
	}
	return err
}

// Copy copies src's elements to dst, which must have the same shape and type. It copies within the
// engine, from Go memory, or to Go memory, for which it waits. Both may be views. (gtensor.Copy
// from Go memory would crash the program.)
func (e *DeviceEngine) Copy(ctx context.Context, dst, src *gtensor.Dense) error {
	return e.do("Copy", func(c *call) error {
		switch {
		case dst == nil || src == nil:
			return fmt.Errorf("%w: a tensor is nil", ErrInvalid)
		case dst.Dtype() != src.Dtype():
			return fmt.Errorf("%w: %v to %v: want one type", ErrDtype, src.Dtype(), dst.Dtype())
		case !dst.Shape().Eq(src.Shape()):
			return fmt.Errorf("%w: %v to %v: want equal shapes", ErrShape, src.Shape(), dst.Shape())
		}
		if dst.Engine() != gtensor.Engine(e) {
			return c.copyToHost(ctx, dst, src)
		}
		to, err := c.operand(dst)
		if err != nil {
			return err
		}
		if src.Engine() != gtensor.Engine(e) {
			return c.copyFromHost(ctx, to, src)
		}
		from, err := c.operand(src)
		if err != nil {
			return err
		}
		x, err := from.like(to)
		if err != nil || x.Matches(to.Array) {
			return err
		}
		if x.Overlaps(to.Array) {
			if x, err = c.copied(x); err != nil {
				return err
			}
		}
		return c.e.kernels.Copy(to.Array, x)
	})
}

func (c *call) copyFromHost(ctx context.Context, to operand, src *gtensor.Dense) error {
	if err := onHost(src); err != nil {
		return err
	}
	raw := src.Raw
	if !simple(src) {
		raw = rowMajor(src).Raw
	}
	x := to.Array
	if !x.IsDense() {
		var err error
		if x, err = c.temp(x.Size, x.Dims...); err != nil {
			return err
		}
	}
	hold := c.holding(x)
	if hold == nil {
		return ErrForeign
	}
	if _, err := c.e.rt.Pool().Upload(ctx, c.e.Stream(), hold.Block(), int64(x.Ptr-hold.Block().Ptr()), raw[:x.Span().Bytes]); err != nil {
		return err
	}
	if x.Matches(to.Array) {
		return nil
	}
	return c.e.kernels.Copy(to.Array, x)
}

func (c *call) copyToHost(ctx context.Context, dst, src *gtensor.Dense) error {
	if err := onHost(dst); err != nil {
		return err
	}
	x, err := c.operand(src)
	if err != nil {
		return err
	}
	if simple(dst) {
		return c.download(ctx, dst.Raw[:int64(x.Len())*int64(x.Size)], x.Array)
	}
	h := gtensor.New(gtensor.Of(src.Dtype()), gtensor.WithShape(dst.Shape().Clone()...))
	if err := c.download(ctx, h.Raw, x.Array); err != nil {
		return err
	}
	return gtensor.Copy(dst, h)
}

// rowMajor returns a contiguous copy in Go memory.
func rowMajor(h *gtensor.Dense) *gtensor.Dense {
	c := gtensor.New(gtensor.Of(h.Dtype()), gtensor.WithShape(h.Shape().Clone()...))
	size := int(h.Dtype().Size())
	it := h.Iterator()
	n := 0
	for i, err := it.Start(); err == nil; i, err = it.Next() {
		copy(c.Raw[n*size:(n+1)*size], h.Raw[i*size:(i+1)*size])
		n++
	}
	return c
}
