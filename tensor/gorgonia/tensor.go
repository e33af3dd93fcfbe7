package gorgonia

import (
	"errors"
	"fmt"
	"runtime"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/memcache"
)

// New is gtensor.New with this engine. What WithBacking, FromScalar and FromMemory hand in is copied into
// memory of the cache. Too little memory, options that contradict each other, and types with Go pointers are
// errors.
func (e *Engine) New(opts ...gtensor.ConsOpt) (t *gtensor.Dense, err error) {
	defer func() {
		// The library rejects options by panicking with an error or a text.
		switch r := recover().(type) {
		case nil:
			return
		case runtime.Error:
			panic(r)
		case error:
			err = fmt.Errorf("gorgonia: New: %w", r)
		case string:
			err = errors.New("gorgonia: New: " + r)
		default:
			panic(r)
		}
		t = nil
	}()
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

// View is t.Slice(slices...), as a view that keeps the memory (and its parent) until it is released itself
// or its lifetime closes, also after t was released.
func (e *Engine) View(t *gtensor.Dense, slices ...gtensor.Slice) (*gtensor.Dense, error) {
	if t == nil || t.Engine() != gtensor.Engine(e) {
		return nil, fmt.Errorf("gorgonia: View: %w: the tensor has another engine", ErrForeign)
	}
	if err := usable(t); err != nil {
		return nil, fmt.Errorf("gorgonia: View: %w", err)
	}
	v, err := t.Slice(slices...)
	if err != nil {
		return nil, fmt.Errorf("gorgonia: View: %w", err)
	}
	view := v.(*gtensor.Dense)
	if err := e.retain(view, t); err != nil {
		return nil, fmt.Errorf("gorgonia: View: %w", err)
	}
	return view, nil
}

// retain makes a view hold the memory that it shows.
func (e *Engine) retain(view, parent *gtensor.Dense) error {
	if len(view.Raw) == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.table.find(address(view.Raw))
	if m == nil {
		return ErrForeign
	}
	e.link(&ref{mem: m, view: view, parent: parent})
	return nil
}

// Release gives a tensor's memory back to the cache, or ends the hold of a view made by [Engine.View]; the
// block goes back when the tensor and all such views are released. t is left without memory: reading it
// panics, and releasing it again does nothing.
//
// A tensor of another engine or in Go memory, and a view made by Slice (which holds nothing) are errors that
// wrap [ErrForeign]. Other handles of the memory (Slice, ShallowClone) must not be used any more.
func (e *Engine) Release(t *gtensor.Dense) error {
	if t == nil {
		return nil
	}
	e.mu.Lock()
	r, err := e.reference(t)
	if err != nil || r == nil {
		e.mu.Unlock()
		if err != nil {
			err = fmt.Errorf("gorgonia: Release: %w", err)
		}
		return err
	}
	last := e.unlink(r)
	e.mu.Unlock()
	t.Raw = nil
	if last {
		return freeBlocks([]memcache.Block{r.mem.block})
	}
	return nil
}

// reference finds what t holds: nil if it has no memory. e.mu is held.
func (e *Engine) reference(t *gtensor.Dense) (*ref, error) {
	if t == nil || t.Engine() != gtensor.Engine(e) {
		return nil, fmt.Errorf("%w: the tensor has another engine", ErrForeign)
	}
	if len(t.Raw) == 0 {
		return nil, nil
	}
	addr := address(t.Raw)
	m := e.table.find(addr)
	if m == nil {
		return nil, fmt.Errorf("%w: it was freed, or the tensor was made from Go memory (use Engine.New)", ErrForeign)
	}
	if r := e.views[t]; r != nil && r.mem == m {
		return r, nil
	}
	switch {
	case t.IsView():
		return nil, fmt.Errorf("%w: a view made by Slice holds none (use Engine.View)", ErrForeign)
	case m.Uintptr() != addr:
		return nil, fmt.Errorf("%w: the tensor starts inside the memory of another", ErrForeign)
	case m.owner.lifetime == nil:
		return nil, fmt.Errorf("%w: the tensor was released and only views hold its memory", ErrForeign)
	}
	return &m.owner, nil
}

// releaseOwner drops the tensor's own reference to the memory at addr.
func (e *Engine) releaseOwner(op string, addr uintptr) error {
	e.mu.Lock()
	m := e.table.find(addr)
	if m == nil || m.Uintptr() != addr || m.owner.lifetime == nil {
		e.mu.Unlock()
		return fmt.Errorf("gorgonia: %s: %w: it is not live, or not the start of an allocation", op, ErrForeign)
	}
	last := e.unlink(&m.owner)
	e.mu.Unlock()
	if last {
		return freeBlocks([]memcache.Block{m.block})
	}
	return nil
}

// Block is the block that a tensor, or a view, lies in, for transfers and kernels on the engine's stream; the
// tensor starts offset bytes into it. It is valid until the tensor is released.
func (e *Engine) Block(t *gtensor.Dense) (block memcache.Block, offset int64, err error) {
	if t == nil || t.Engine() != gtensor.Engine(e) {
		return memcache.Block{}, 0, fmt.Errorf("gorgonia: Block: %w", ErrForeign)
	}
	if len(t.Raw) == 0 {
		return memcache.Block{}, 0, nil
	}
	m := e.find(t.Raw)
	if m == nil {
		return memcache.Block{}, 0, fmt.Errorf("gorgonia: Block: %w", ErrForeign)
	}
	return m.block, int64(address(t.Raw) - m.Uintptr()), nil
}
