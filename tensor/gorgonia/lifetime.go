package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/memcache"
)

// Lifetime frees what an engine allocated since the lifetime began, on any goroutine, including temporaries
// inside the library that nobody has a handle of. Lifetimes nest: what is allocated belongs to the innermost.
type Lifetime struct {
	engine *Engine
	parent *Lifetime // nil: the engine's own
	refs   map[*ref]struct{}
	closed bool
}

// NewLifetime begins a lifetime.
func (e *Engine) NewLifetime() *Lifetime {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &Lifetime{engine: e, parent: e.lifetime, refs: make(map[*ref]struct{}), closed: e.closed}
	if !e.closed {
		e.lifetime = s
	}
	return s
}

// Keep hands tensors, and views made by [Engine.View], to the enclosing lifetime, so that Close does not free
// them. Tensors of an enclosing lifetime are there already. Others are an error that wraps [ErrForeign], and
// then none is kept.
func (s *Lifetime) Keep(tensors ...*gtensor.Dense) error {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.closed {
		return fmt.Errorf("gorgonia: Keep: the lifetime is closed: keep tensors before Close")
	}
	refs := make([]*ref, 0, len(tensors))
	for _, t := range tensors {
		r, err := e.reference(t)
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

// inside reports whether s is in or equal to outer.
func (s *Lifetime) inside(outer *Lifetime) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// Close frees the lifetime's memory, after that of the lifetimes in it that are still open, and ends them. The
// tensors must not be used again: their memory belongs to somebody else. Memory that a kept view holds stays.
// Close is idempotent.
func (s *Lifetime) Close() error {
	e := s.engine
	e.mu.Lock()
	if s.closed {
		e.mu.Unlock()
		return nil
	}
	blocks, _ := e.closeLifetimes(s)
	e.mu.Unlock()
	if err := freeBlocks(blocks); err != nil {
		return fmt.Errorf("gorgonia: Close of a lifetime: %w", err)
	}
	return nil
}

// closeLifetimes ends s and the lifetimes in it. It returns the blocks to free, and the memory that had references
// in them. e.mu is held.
func (e *Engine) closeLifetimes(s *Lifetime) (blocks []memcache.Block, left []*memory) {
	for c := e.lifetime; c != s.parent; c = c.parent {
		for r := range c.refs {
			if e.unlink(r) {
				blocks = append(blocks, r.mem.block)
				left = append(left, r.mem)
			}
		}
		c.closed = true
	}
	if s.parent != nil {
		e.lifetime = s.parent
	} else {
		e.lifetime = s
	}
	return blocks, left
}
