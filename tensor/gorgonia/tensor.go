package gorgonia

import (
	"errors"
	"fmt"
	"runtime"

	gtensor "gorgonia.org/tensor"
)

// New is gtensor.New with this engine. What WithBacking, FromScalar and FromMemory hand in is copied into
// memory of the cache. Too little memory, options that contradict each other, and types with Go pointers are
// errors.
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

// recoverOptions turns a panic of the library, which rejects options with an error or a text, into *err.
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

// refusePointers is a construction option that comes last, before the memory is allocated.
func refusePointers(t gtensor.Tensor) {
	dt := t.Dtype()
	if dt.Type == nil {
		panic(errors.New("the type is missing: give Of or WithBacking"))
	}
	if !plainKind(dt.Kind()) {
		panic(fmt.Errorf("type %v may hold Go pointers, which the garbage collector can't see in device memory: "+
			"use a numeric type or bool", dt))
	}
}

// Adopt moves a tensor that is in Go memory, such as one that was decoded or converted, to memory of the
// cache: the data is copied, and t has this engine from then on. Tensors of the engine stay as they are.
// Views are an error: materialise them first.
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

// rehome copies a tensor's data to memory of the engine, in place: strides, order and mask stay.
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
