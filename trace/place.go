package trace

import (
	"sync/atomic"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// place is where the spans of frees are that come without a context: inside of the step that has
// allocated the block while it runs, and inside of what is around it afterwards. Blocks outlive
// their steps, and a place does not hold its step.
type place struct {
	span, around oteltrace.SpanContext
	outer        *place // of the step around it; nil: there is none
	over         atomic.Bool
}

// placed returns the place of a step; of no step it is nil.
func (s *Step) placed() *place {
	if s == nil {
		return nil
	}
	if p := s.place.Load(); p != nil {
		return p
	}
	s.place.CompareAndSwap(nil, &place{span: s.span.SpanContext(), around: s.around.SpanContext(), outer: s.outer.placed()})
	p := s.place.Load()
	if s.over.Load() { // perhaps before there was a place to tell
		p.over.Store(true)
	}
	return p
}

// finish is for the end of the place's step.
func (p *place) finish() {
	if p != nil {
		p.over.Store(true)
	}
}

// parent is the span that a free is inside of now; invalid: none. It goes the way of [inside].
func (p *place) parent() oteltrace.SpanContext {
	parent := p.span
	for ; p != nil && p.over.Load(); p = p.outer {
		if parent.SpanID() == p.span.SpanID() {
			parent = p.around
		}
	}
	return parent
}
