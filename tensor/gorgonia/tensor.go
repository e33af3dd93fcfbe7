package gorgonia

import (
	"errors"
	"fmt"
	"runtime"

	gtensor "gorgonia.org/tensor"
)

// New is gtensor.New with this engine. The data of WithBacking, FromScalar and FromMemory is copied
// into memory of the cache. It returns an error if there is not enough memory, if options
// contradict each other, or if the type has Go pointers.
func (e *Engine) New(opts ...gtensor.ConsOpt) (t *gtensor.Dense, err error) {
	defer recoverOptions(&t, &err)
	if err := e.ready(); err != nil {
		return nil, fmt.Errorf("gorgonia: New: %w", err)
	}
	all := append(opts[:len(opts):len(opts)], gtensor.WithEngine(e), refusePointers)
	t = gtensor.New(all...)
	if len(t.Raw) > 0 && e.find(t.Raw) == nil {
		if err := e.rehome(t); err != nil {
			return nil, fmt.Errorf("gorgonia: New: %w", err)
		}
	}
	return t, nil
}

// recoverOptions turns a panic of the library into *err. The library rejects options by panicking
// with an error or a string.
func recoverOptions(t **gtensor.Dense, err *error) {
	switch r := recover().(type) {
	case nil:
		return
	case runtime.Error:
		panic(r)
	case error:
		*err = fmt.Errorf("gorgonia: New: %w", r)
	case string:
		*err = errors.New("gorgonia: New: " + r)
	default:
		panic(r)
	}
	*t = nil
}

// refusePointers is the last construction option. It runs before the memory is allocated.
func refusePointers(t gtensor.Tensor) {
	dt := t.Dtype()
	if dt.Type == nil {
		panic(errors.New("the type is missing: use Of or WithBacking"))
	}
	if !plainKind(dt.Kind()) {
		panic(fmt.Errorf("type %v may hold Go pointers, which the garbage collector can't see in device memory: "+
			"use a numeric type or bool", dt))
	}
}

// Adopt moves a tensor from Go memory, such as one that was decoded or converted, to memory of the
// cache: it copies the data and sets t's engine. Tensors of the engine stay unchanged. Views are an
// error, so materialize them first.
func (e *Engine) Adopt(t *gtensor.Dense) error {
	switch {
	case t == nil || t.Dtype().Type == nil:
		return errors.New("gorgonia: Adopt: the tensor is nil or empty")
	case t.IsView():
		return errors.New("gorgonia: Adopt: the tensor is a view: Materialize it first")
	case !plainKind(t.Dtype().Kind()):
		return fmt.Errorf("gorgonia: Adopt: type %v may hold Go pointers: use a numeric type or bool", t.Dtype())
	}
	if err := e.ready(t); err != nil {
		return fmt.Errorf("gorgonia: Adopt: %w", err)
	}
	if e.find(t.Raw) != nil {
		return nil
	}
	return e.rehome(t)
}

// rehome copies a tensor's data to memory of the engine, in place. Strides, order and mask stay the
// same.
func (e *Engine) rehome(t *gtensor.Dense) error {
	m, err := e.alloc(int64(len(t.Raw)))
	if err != nil {
		return err
	}
	copy(m.data, t.Raw)
	gtensor.WithEngine(e)(t)
	gtensor.FromMemory(m.Uintptr(), m.MemSize())(t) // marks it as manually managed
	t.Raw = m.data
	return nil
}
