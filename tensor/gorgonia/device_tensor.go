package gorgonia

import (
	"context"
	"errors"
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// New is gtensor.New with this engine. The data of WithBacking and FromScalar is copied to the
// device. It returns an error if there is not enough memory, if options contradict each other, or
// if the type has Go pointers.
func (e *DeviceEngine) New(opts ...gtensor.ConsOpt) (t *gtensor.Dense, err error) {
	defer recoverOptions(&t, &err)
	if err := e.ready(); err != nil {
		return nil, fmt.Errorf("gorgonia: New: %w", err)
	}
	t = gtensor.New(append(opts[:len(opts):len(opts)], gtensor.WithEngine(e), refusePointers)...)
	if len(t.Raw) == 0 || e.find(t.Raw) != nil {
		return t, nil
	}
	if m, _ := engines.find(nil, address(t.Raw)); m != nil {
		return nil, fmt.Errorf("gorgonia: New: %w: the memory is another engine's", ErrForeign)
	}
	if len(t.Mask()) > 0 {
		return nil, fmt.Errorf("gorgonia: New: %w: the tensor has a mask", ErrUnsupported)
	}
	if err := e.rehome(context.Background(), t); err != nil {
		return nil, fmt.Errorf("gorgonia: New: %w", err)
	}
	return t, nil
}

// Adopt moves a tensor from Go memory to memory of the engine: it copies the data and sets t's
// engine. Tensors of the engine stay unchanged. Views are an error, so materialize them first.
func (e *DeviceEngine) Adopt(ctx context.Context, t *gtensor.Dense) error {
	return e.do("Adopt", func(c *call) error {
		switch {
		case t == nil || t.Dtype().Type == nil:
			return errors.New("the tensor is nil or empty")
		case e.find(t.Raw) != nil:
			return nil
		case t.IsView():
			return errors.New("the tensor is a view: Materialize it first")
		}
		// gtensor.New with WithBacking makes such a tensor.
		if t.Engine() == gtensor.Engine(e) {
			if err := usable(t); err != nil {
				return err
			}
			if m, _ := engines.find(nil, address(t.Raw)); m != nil {
				return ErrForeign
			}
		} else if err := onHost(t); err != nil {
			return err
		}
		return e.rehome(ctx, t)
	})
}
