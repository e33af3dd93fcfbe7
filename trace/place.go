package trace

import (
	"sync/atomic"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// place gives the spans of frees without a context a parent: the span of the step that allocated
// the block while the step runs, and afterwards the span around it. Blocks outlive their steps, so
// a place holds no reference to its step.
type place struct {
	span, around oteltrace.SpanContext
	outer        *place // of the step around it; nil: there is none
	over         atomic.Bool
}

// placed returns the place of a step, nil for a nil step.
func (s *Step) placed() *place {
	if s == nil {
		return nil
	}
	if p := s.place.Load(); p != nil {
		return p
	}
	s.place.CompareAndSwap(nil, &place{span: s.span.SpanContext(), around: s.around.SpanContext(), outer: s.outer.placed()})
	p := s.place.Load()
	// The step may have ended before its place existed.
	if s.over.Load() {
		p.over.Store(true)
	}
	return p
}

// finish marks the place's step as ended.
func (p *place) finish() {
	if p != nil {
		p.over.Store(true)
	}
}

// parent returns the present parent of a free; invalid: there is none. It skips ended steps, as
// [inside] does.
func (p *place) parent() oteltrace.SpanContext {
	parent := p.span
	for ; p != nil && p.over.Load(); p = p.outer {
		if parent.SpanID() == p.span.SpanID() {
			parent = p.around
		}
	}
	return parent
}
