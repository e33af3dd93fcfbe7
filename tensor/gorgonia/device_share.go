package gorgonia

import (
	"context"
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// FromTensor returns a tensor of the engine that shares t's memory. No copy is made, and each of
// them sees the other's writes, which are ordered by their common stream. t must belong to the
// engine's runtime. The memory is freed when both are released, in any order. The memory of a
// tensor of Runtime.FromBlock stays with the block's owner.
func (e *DeviceEngine) FromTensor(t *tensor.Tensor) (*gtensor.Dense, error) {
	return one(e, "FromTensor", func(c *call) (*gtensor.Dense, error) {
		switch {
		case t == nil:
			return nil, fmt.Errorf("%w: the tensor is nil", ErrInvalid)
		case t.Runtime() != e.rt:
			return nil, fmt.Errorf("%w: the tensor belongs to another runtime", tensor.ErrRuntime)
		case t.Elements() == 0:
			return nil, fmt.Errorf("%w: a tensor of shape %v has no elements: every dimension must be 1 or more", ErrShape, t.Shape())
		}
		hold, err := e.rt.Share(context.Background(), t)
		if err != nil {
			return nil, err
		}
		d := e.tensorAt(uintptr(start(t)), gorgoniaDtype(t.Dtype()), gtensor.Shape(t.Shape()))
		if !e.share(hold, d) {
			e.park(hold.Release())
		}
		if e.isClosed() {
			return nil, ErrClosed
		}
		return d, nil
	})
}

// share makes d refer to memory of the engine or of hold. It reports whether the engine has taken
// ownership of hold.
func (e *DeviceEngine) share(hold *tensor.Tensor, d *gtensor.Dense) (took bool) {
	block := hold.Block()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	m := e.table.find(address(d.Raw))
	switch {
	case m == nil:
		m = &memory{addr: uintptr(block.Ptr()), size: block.Size(), tensor: hold, site: callSite()}
		e.table.insert(m)
		took = true
	case m.covering(start(hold), hold.Bytes()) == nil:
		m.shares = append(m.shares, hold)
		took = true
	}
	e.link(&ref{mem: m, view: d})
	return took
}

// ToTensor returns a tensor of the engine's runtime that shares d's memory. No copy is made, and
// each of them sees the other's writes. d must be dense and row-major. Bool becomes uint8, and Int
// becomes int64. The memory is freed when both are released, in any order.
func (e *DeviceEngine) ToTensor(ctx context.Context, d *gtensor.Dense) (*tensor.Tensor, error) {
	return one(e, "ToTensor", func(c *call) (*tensor.Tensor, error) {
		x, err := c.operand(d)
		if err != nil {
			return nil, err
		}
		if !x.IsDense() {
			return nil, fmt.Errorf("%w: a tensor of shape %v and strides %v is not dense: Materialize it", ErrUnsupported, d.Shape(), d.Strides())
		}
		dt := ownDtype(x.dtype())
		if dt == 0 {
			return nil, fmt.Errorf("%w %v: package tensor has no such type", ErrDtype, x.dtype())
		}
		hold := c.holding(x.Array)
		if hold == nil {
			return nil, ErrForeign
		}
		return e.rt.ViewAs(ctx, hold, int64(x.Ptr-start(hold)), dt, slices.Clone(d.Shape())...)
	})
}

// covering returns the tensor that holds the bytes from p on, or nil. The caller holds the heap's
// lock.
func (m *memory) covering(p device.Ptr, bytes int64) *tensor.Tensor {
	for _, t := range append([]*tensor.Tensor{m.tensor}, m.shares...) {
		if s := start(t); s <= p && p+device.Ptr(bytes) <= s+device.Ptr(t.Bytes()) {
			return t
		}
	}
	return nil
}

// holding returns the tensor of the runtime that holds an array's memory, which is a temporary or
// belongs to the engine. It returns nil if there is none.
func (c *call) holding(a strided.Array) *tensor.Tensor {
	r := a.Span()
	for _, t := range c.temps {
		if s := start(t); s <= r.Ptr && r.Ptr+device.Ptr(r.Bytes) <= s+device.Ptr(t.Bytes()) {
			return t
		}
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	m := c.e.table.find(uintptr(r.Ptr))
	if m == nil {
		return nil
	}
	return m.covering(r.Ptr, r.Bytes)
}
