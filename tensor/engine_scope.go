package tensor

import (
	"fmt"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/memcache"
)

// EngineScope frees what an engine allocated since the scope began, on any goroutine, including temporaries
// inside the library that nobody has a handle of. Scopes nest: what is allocated belongs to the innermost.
type EngineScope struct {
	engine *Engine
	parent *EngineScope // nil: the engine's own
	refs   map[*engineRef]struct{}
	closed bool
}

// Scope begins a scope.
func (e *Engine) Scope() *EngineScope {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &EngineScope{engine: e, parent: e.scope, refs: make(map[*engineRef]struct{}), closed: e.closed}
	if !e.closed {
		e.scope = s
	}
	return s
}

// Keep hands tensors, and views made by [Engine.View], to the enclosing scope, so that Close does not free
// them. Tensors of an enclosing scope are there already. Others are an error that wraps [ErrForeign], and
// then none is kept.
func (s *EngineScope) Keep(tensors ...*gtensor.Dense) error {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.closed {
		return fmt.Errorf("tensor: Keep: the scope is closed: keep tensors before Close")
	}
	refs := make([]*engineRef, 0, len(tensors))
	for _, t := range tensors {
		r, err := e.reference(t)
		if err != nil {
			return fmt.Errorf("tensor: Keep: %w", err)
		}
		if r != nil && r.scope.inside(s) {
			refs = append(refs, r)
		}
	}
	for _, r := range refs {
		delete(r.scope.refs, r)
		r.scope = s.parent
		r.scope.refs[r] = struct{}{}
	}
	return nil
}

// inside reports whether s is in or equal to outer.
func (s *EngineScope) inside(outer *EngineScope) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// Close frees the scope's memory, after that of the scopes in it that are still open, and ends them. The
// tensors must not be used again: their memory belongs to somebody else. Memory that a kept view holds stays.
// Close is idempotent.
func (s *EngineScope) Close() error {
	e := s.engine
	e.mu.Lock()
	if s.closed {
		e.mu.Unlock()
		return nil
	}
	blocks, _ := e.closeScopes(s)
	e.mu.Unlock()
	if err := freeBlocks(blocks); err != nil {
		return fmt.Errorf("tensor: Close of a scope: %w", err)
	}
	return nil
}

// closeScopes ends s and the scopes in it. It returns the blocks to free, and the memory that had references
// in them. e.mu is held.
func (e *Engine) closeScopes(s *EngineScope) (blocks []memcache.Block, left []*engineMemory) {
	for c := e.scope; c != s.parent; c = c.parent {
		for r := range c.refs {
			if e.unlink(r) {
				blocks = append(blocks, r.mem.block)
				left = append(left, r.mem)
			}
		}
		c.closed = true
	}
	if s.parent != nil {
		e.scope = s.parent
	} else {
		e.scope = s
	}
	return blocks, left
}
