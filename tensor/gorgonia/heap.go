package gorgonia

import (
	"errors"
	"fmt"
	"sync"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// heap knows the memory of an engine's tensors, and who holds it. The library forgets what an engine's Alloc
// returned and keeps the address, so memory is found by address; and it never frees, so that memory lives until
// its tensor and all views of it are released, or their lifetimes close.
type heap struct {
	engine gtensor.Engine // whose tensors they are

	// mu guards what follows. Nothing is allocated, freed or waited for with it held.
	mu       sync.Mutex
	table    table
	views    map[*gtensor.Dense]*ref
	root     *Lifetime
	lifetime *Lifetime // the innermost open one
	parked   error
	closed   bool
}

func (h *heap) init(engine gtensor.Engine) {
	h.engine = engine
	h.views = make(map[*gtensor.Dense]*ref)
	h.root = &Lifetime{heap: h, refs: make(map[*ref]struct{})}
	h.lifetime = h.root
}

// Close closes all lifetimes and frees the memory of every tensor of the engine, whose use must be over.
// Tensors that were not released are reported: an error that wraps [ErrLeaked]. Close is idempotent;
// later allocations and operations are errors that wrap [ErrClosed].
func (h *heap) Close() error {
	h.mu.Lock()
	h.closed = true
	left := h.closeLifetimes(h.root)
	err := h.parked
	h.parked = nil
	h.mu.Unlock()
	return errors.Join(notReleased(left), freeAll(left), err)
}

func (h *heap) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// ready returns a parked error, if there is one, or that the engine is closed.
func (h *heap) ready() error {
	if err := h.unpark(); err != nil {
		return err
	}
	if h.isClosed() {
		return ErrClosed
	}
	return nil
}

// allocatable returns why no memory of that size can be had, whatever is free.
func (h *heap) allocatable(size int64) error {
	if size < 0 {
		return &MemoryError{"Alloc", size, errors.New("the size is negative or overflowed: dimensions must be 0 or more")}
	}
	if h.isClosed() {
		return &MemoryError{"Alloc", size, ErrClosed}
	}
	return nil
}

// Free gives memory from Alloc back; views made by [Engine.View] keep it until they are released. size is
// not used. Memory that is not live is an error that wraps [ErrForeign].
func (h *heap) Free(mem gtensor.Memory, _ int64) error {
	if isNil(mem) || mem.MemSize() == 0 {
		return nil
	}
	return h.releaseOwner("Free", mem.Uintptr())
}

// Do runs f, in which the library may allocate from the engine, and returns f's error; if the engine has no
// memory, and the library panics for it, the error is that [*MemoryError]. Other panics pass.
//
//	err := engine.Do(func() error { c = t.Clone().(*gtensor.Dense); return nil })
func (h *heap) Do(f func() error) (err error) {
	defer recoverMemory("Do", &err)
	return f()
}

// View is t.Slice(slices...), as a view that keeps the memory (and its parent) until it is released itself
// or its lifetime closes, also after t was released.
func (h *heap) View(t *gtensor.Dense, slices ...gtensor.Slice) (*gtensor.Dense, error) {
	if t == nil || t.Engine() != h.engine {
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
	if err := h.retain(view, t); err != nil {
		return nil, fmt.Errorf("gorgonia: View: %w", err)
	}
	return view, nil
}

// retain makes a view hold the memory that it shows.
func (h *heap) retain(view, parent *gtensor.Dense) error {
	if len(view.Raw) == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.table.find(address(view.Raw))
	if m == nil {
		return ErrForeign
	}
	h.link(&ref{mem: m, view: view, parent: parent})
	return nil
}

// Release gives a tensor's memory back to the cache, or ends the hold of a view made by [Engine.View]; the
// block goes back when the tensor and all such views are released. t is left without memory: reading it
// panics, and releasing it again does nothing.
//
// A tensor of another engine or in Go memory, and a view made by Slice (which holds nothing) are errors that
// wrap [ErrForeign]. Other handles of the memory (Slice, ShallowClone) must not be used any more.
func (h *heap) Release(t *gtensor.Dense) error {
	if t == nil {
		return nil
	}
	h.mu.Lock()
	r, err := h.reference(t)
	if err != nil || r == nil {
		h.mu.Unlock()
		if err != nil {
			err = fmt.Errorf("gorgonia: Release: %w", err)
		}
		return err
	}
	last := h.unlink(r)
	h.mu.Unlock()
	t.Raw = nil
	if last {
		return r.mem.free()
	}
	return nil
}

// reference finds what t holds: nil if it has no memory. h.mu is held.
func (h *heap) reference(t *gtensor.Dense) (*ref, error) {
	if t == nil || t.Engine() != h.engine {
		return nil, fmt.Errorf("%w: the tensor has another engine", ErrForeign)
	}
	if len(t.Raw) == 0 {
		return nil, nil
	}
	addr := address(t.Raw)
	m := h.table.find(addr)
	if m == nil {
		return nil, fmt.Errorf("%w: it was freed, or the tensor was made from Go memory (use Engine.New)", ErrForeign)
	}
	if r := h.views[t]; r != nil && r.mem == m {
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
func (h *heap) releaseOwner(op string, addr uintptr) error {
	h.mu.Lock()
	m := h.table.find(addr)
	if m == nil || m.Uintptr() != addr || m.owner.lifetime == nil {
		h.mu.Unlock()
		return fmt.Errorf("gorgonia: %s: %w: it is not live, or not the start of an allocation", op, ErrForeign)
	}
	last := h.unlink(&m.owner)
	h.mu.Unlock()
	if last {
		return m.free()
	}
	return nil
}

// Block is the block that a tensor, or a view, lies in, for transfers and kernels on the engine's stream; the
// tensor starts offset bytes into it. It is valid until the tensor is released.
func (h *heap) Block(t *gtensor.Dense) (block memcache.Block, offset int64, err error) {
	if t == nil || t.Engine() != h.engine {
		return memcache.Block{}, 0, fmt.Errorf("gorgonia: Block: %w", ErrForeign)
	}
	if len(t.Raw) == 0 {
		return memcache.Block{}, 0, nil
	}
	m := h.find(t.Raw)
	if m == nil {
		return memcache.Block{}, 0, fmt.Errorf("gorgonia: Block: %w", ErrForeign)
	}
	return m.holder(), int64(device.Ptr(address(t.Raw)) - m.holder().Ptr()), nil
}

// park keeps an error that nobody can be given now.
func (h *heap) park(err error) {
	if err == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parked == nil {
		h.parked = err
	}
}

func (h *heap) unpark() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.parked
	h.parked = nil
	return err
}

// String has the memory of the engine's tensors.
func (h *heap) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("engine with %d views, closed: %t", len(h.views), h.closed)
}
