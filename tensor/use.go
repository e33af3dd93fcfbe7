package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// check tells whether the tensors can be used by an operation of rt.
func (rt *Runtime) check(op string, ts ...*Tensor) error {
	if rt.closed.Load() {
		return fmt.Errorf("tensor: %s: %w", op, ErrClosed)
	}
	for _, t := range ts {
		switch {
		case t == nil:
			return fmt.Errorf("tensor: %s: %w: an operand is nil", op, ErrInvalid)
		case t.rt != rt:
			return fmt.Errorf("tensor: %s: %w: it is on stream %d of %s, and the operation on stream %d of %s: use the tensor's own runtime, or copy it",
				op, ErrRuntime, t.rt.stream.ID(), t.rt.stream.Device().Name(), rt.stream.ID(), rt.stream.Device().Name())
		case t.Released():
			return fmt.Errorf("tensor: %s: %w: %v", op, ErrReleased, t)
		}
	}
	return nil
}

// held keeps the memory of an operation's operands until its work is queued, whoever releases them
// meanwhile.
type held struct {
	rt     *Runtime
	stores [5]*storage
	n      int
}

// use checks the operands and holds them until end.
func (rt *Runtime) use(op string, ts ...*Tensor) (held, error) {
	h := held{rt: rt}
	if err := rt.check(op, ts...); err != nil {
		return h, err
	}
	for _, t := range ts {
		if !t.store.retain() {
			h.end()
			return held{}, fmt.Errorf("tensor: %s: %w: %v", op, ErrReleased, t)
		}
		h.stores[h.n] = t.store
		h.n++
	}
	return h, nil
}

// useFloats is use for operands that must have one floating-point dtype.
func (rt *Runtime) useFloats(op string, ts ...*Tensor) (held, error) {
	h, err := rt.use(op, ts...)
	if err != nil {
		return h, err
	}
	if err := wantFloats(op, ts...); err != nil {
		h.end()
		return held{}, err
	}
	return h, nil
}

func (h *held) end() {
	for _, s := range h.stores[:h.n] {
		h.rt.parked.add(s.release(context.Background()))
	}
	h.n = 0
}

func (t *Tensor) ptr() device.Ptr { return t.store.block.Ptr() + device.Ptr(t.offset) }
