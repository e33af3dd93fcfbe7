package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// Lifetime frees the memory that an engine has allocated since the lifetime began, on any
// goroutine. That includes temporaries inside the library. Lifetimes nest, and memory belongs to
// the innermost one.
type Lifetime struct {
	heap   *heap
	parent *Lifetime // nil for the engine's root
	refs   map[*ref]struct{}
	closed bool
}

// NewLifetime begins a lifetime.
func (h *heap) NewLifetime() *Lifetime {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &Lifetime{heap: h, parent: h.lifetime, refs: make(map[*ref]struct{}), closed: h.closed}
	if !h.closed {
		h.lifetime = s
	}
	return s
}

// Keep moves tensors, and views made by [Engine.View], to the enclosing lifetime, so that Close
// does not free them. Tensors of an enclosing lifetime stay there. If one of the tensors is not the
// engine's, Keep moves none and returns an error that wraps [ErrForeign].
func (s *Lifetime) Keep(tensors ...*gtensor.Dense) error {
	h := s.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.closed {
		return fmt.Errorf("gorgonia: Keep: the lifetime is closed: keep tensors before Close")
	}
	refs := make([]*ref, 0, len(tensors))
	for _, t := range tensors {
		r, err := h.reference(t)
		if err != nil {
			return fmt.Errorf("gorgonia: Keep: %w", err)
		}
		if r != nil && r.lifetime.inside(s) {
			refs = append(refs, r)
		}
	}
	for _, r := range refs {
		delete(r.lifetime.refs, r)
		r.lifetime = s.parent
		r.lifetime.refs[r] = struct{}{}
	}
	return nil
}

// inside reports whether s is outer or nested in it.
func (s *Lifetime) inside(outer *Lifetime) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// Close frees the lifetime's memory, and that of nested lifetimes that are still open, and closes
// them all. The tensors must not be used afterwards, because their memory is reused. Memory that a
// kept view holds is not freed. Close is idempotent.
func (s *Lifetime) Close() error {
	h := s.heap
	h.mu.Lock()
	if s.closed {
		h.mu.Unlock()
		return nil
	}
	left := h.closeLifetimes(s)
	h.mu.Unlock()
	if err := freeAll(left); err != nil {
		return fmt.Errorf("gorgonia: Close of a lifetime: %w", err)
	}
	return nil
}

// closeLifetimes closes s and the lifetimes nested in it. It returns the memory without references,
// which the caller frees. The caller holds h.mu.
func (h *heap) closeLifetimes(s *Lifetime) (left []*memory) {
	for c := h.lifetime; c != s.parent; c = c.parent {
		for r := range c.refs {
			if h.unlink(r) {
				left = append(left, r.mem)
			}
		}
		c.closed = true
	}
	if s.parent != nil {
		h.lifetime = s.parent
	} else {
		h.lifetime = s
	}
	return left
}

// String returns the number of tensors, such as "lifetime of 3 tensors".
func (l *Lifetime) String() string {
	l.heap.mu.Lock()
	defer l.heap.mu.Unlock()
	return fmt.Sprintf("lifetime of %d tensors", len(l.refs))
}
