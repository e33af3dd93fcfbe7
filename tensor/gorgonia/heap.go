package gorgonia

import (
	"errors"
	"fmt"
	"sync"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// heap tracks the memory of an engine's tensors, and the references to it. The library keeps only
// the address that an engine's Alloc returned, so memory is found by address. The library never
// frees, so memory lives until its tensor and all views of it are released, or until their
// lifetimes close.
type heap struct {
	engine gtensor.Engine // the tensors' engine

	// mu guards the fields below. It is not held while memory is allocated or freed, or during a
	// wait.
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

// Close closes all lifetimes and frees the memory of every tensor of the engine. The tensors must
// not be in use. If tensors were not released, it returns an error that wraps [ErrLeaked]. Close is
// idempotent. Later allocations and operations return errors that wrap [ErrClosed].
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

// ready returns a parked error, if there is one, or ErrClosed if the engine is closed.
func (h *heap) ready() error {
	if err := h.unpark(); err != nil {
		return err
	}
	if h.isClosed() {
		return ErrClosed
	}
	return nil
}

// allocatable returns an error if memory of that size can't be allocated, no matter how much is
// free.
func (h *heap) allocatable(size int64) error {
	if size < 0 {
		return &MemoryError{"Alloc", size, errors.New("the size is negative or overflowed: dimensions must be 0 or more")}
	}
	if h.isClosed() {
		return &MemoryError{"Alloc", size, ErrClosed}
	}
	return nil
}

// Free frees memory from Alloc. Views made by [Engine.View] keep it until they are released. size
// is not used. If the memory is not live, it returns an error that wraps [ErrForeign].
func (h *heap) Free(mem gtensor.Memory, _ int64) error {
	if isNil(mem) || mem.MemSize() == 0 {
		return nil
	}
	return h.releaseOwner("Free", mem.Uintptr())
}

// Do runs f, in which the library may allocate from the engine, and returns f's error. If the
// library panics because the engine has no memory, Do returns that [*MemoryError]. It does not
// recover other panics.
//
//	err := engine.Do(func() error { c = t.Clone().(*gtensor.Dense); return nil })
func (h *heap) Do(f func() error) (err error) {
	defer recoverMemory("Do", &err)
	return f()
}

// View returns t.Slice(slices...) as a view that keeps the memory and its parent. It keeps them
// until the view is released or its lifetime closes, even if t is released before.
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

// retain makes a view keep its memory.
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

// Release ends a tensor's hold on its memory, or the hold of a view made by [Engine.View]. The
// block returns to the cache when the tensor and all such views are released. t is left without
// memory: reading it panics, and releasing it again does nothing.
//
// For a tensor of another engine or in Go memory, and for a view made by Slice, which holds no
// memory, it returns an error that wraps [ErrForeign]. Other handles of the memory (Slice,
// ShallowClone) must not be used afterwards.
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

// reference returns t's reference, or nil if it has no memory. The caller holds h.mu.
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

// Block returns the block of a tensor or a view, for transfers and kernels on the engine's stream.
// The tensor starts offset bytes into the block. The block is valid until the tensor is released.
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

// park keeps an error until a later call can return it. It keeps only the first.
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

// String returns the number of views, and whether the engine is closed.
func (h *heap) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("engine with %d views, closed: %t", len(h.views), h.closed)
}
