package trace

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// pairSpans returns the number of spans of an allocation and a free with ctx.
func (f *fixture) pairSpans(t *testing.T, ctx context.Context) int {
	t.Helper()
	before := len(f.named("cistern.memory.alloc")) + len(f.named("cistern.memory.free"))
	require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
	return len(f.named("cistern.memory.alloc")) + len(f.named("cistern.memory.free")) - before
}

// After the end of an inner step its context is inside of the outer one, whose detail then applies.
func TestNestedStepsFallBackToTheOuterDetail(t *testing.T) {
	t.Run("with device times", func(t *testing.T) {
		f := newFixture(t, Config{AllEvery: 3})
		nestedSteps(t, f, f.traced(t))
	})
	t.Run("without", func(t *testing.T) { // spans end at once
		f := newFixture(t, Config{AllEvery: 3})
		nestedSteps(t, f, f.profiler(t, ProfilerConfig{Tracer: f.tracer}))
	})
}

func nestedSteps(t *testing.T, f *fixture, p *Profiler) {
	all, outer := p.StartStep(t.Context(), 0)
	mid, middle := p.StartStep(all, 1)
	in, inner := p.StartStep(mid, 2)
	require.Equal(t, []Detail{All, Slow, Slow}, []Detail{outer.detail, middle.detail, inner.detail})
	assert.Equal(t, 0, f.pairSpans(t, in))
	assert.Equal(t, 0, f.pairSpans(t, mid))
	assert.Equal(t, 2, f.pairSpans(t, all))
	inner.End()
	assert.Equal(t, 0, f.pairSpans(t, in), "inside of the middle one")
	middle.End()
	assert.Equal(t, 2, f.pairSpans(t, in), "inside of the outer one")
	assert.Equal(t, 2, f.pairSpans(t, mid))
	outer.End()
	assert.Equal(t, 0, f.pairSpans(t, in))
	assert.Equal(t, 0, f.pairSpans(t, all))
}

// Steps may end in any order; the innermost open one applies.
func TestOuterStepEndsFirst(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 2})
	p := f.traced(t)
	_, sampled := p.StartStep(t.Context(), 0)
	sampled.End()
	slow, outer := p.StartStep(t.Context(), 1)
	all, inner := p.StartStep(slow, 2)
	outer.End()
	assert.Equal(t, 2, f.pairSpans(t, all))
	late, last := p.StartStep(all, 3) // around it is one that runs, and one that does not
	last.End()
	assert.Equal(t, 2, f.pairSpans(t, late))
	inner.End()
	assert.Equal(t, 0, f.pairSpans(t, late))
}

// Each tracer sees its own steps, wherever they are in the context.
func TestNestedStepsOfTwoTracers(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 1})
	other := newFixture(t, Config{TracerProvider: f.provider})
	all, outer := f.traced(t).StartStep(t.Context(), 0)
	foreign, inner := other.traced(t).StartStep(all, 1)
	assert.Equal(t, 2, f.pairSpans(t, foreign), "the cache's tracer is at All")
	inner.End()
	assert.Equal(t, 2, f.pairSpans(t, foreign))
	foreign, last := other.traced(t).StartStep(all, 2)
	outer.End()
	assert.Equal(t, 0, f.pairSpans(t, foreign), "only the other tracer's step runs")
	_, elsewhere := f.traced(t).StartStep(t.Context(), 3)
	assert.Equal(t, 0, f.pairSpans(t, foreign), "the step at All that runs is not around it")
	elsewhere.End()
	last.End()
}

// Steps that are over are not kept reachable by steps that are started with their contexts.
func TestFinishedStepsAreReleased(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	ctx := t.Context()
	for n := range int64(5) {
		next, step := p.StartStep(ctx, n)
		assert.Nil(t, step.outer)
		step.End()
		ctx = next
	}
}

// Operations with a step's context after its end are inside of the span around the step, whether
// the device has finished the step by then or not.
func TestSpansAfterAStepBelongToTheSpanAroundIt(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 2})
	p := f.traced(t)
	around, root := f.parent(t)
	ctx, step := p.StartStep(around, 0)
	b, c := f.alloc(t, ctx, 512), f.alloc(t, ctx, 512)
	unblock := cisterntest.Hold(t, f.stream)
	step.End()
	require.True(t, recording(ctx), "the device is not done")
	require.NoError(t, b.FreeContext(ctx))
	require.NoError(t, f.cache.EmptyCache(ctx))
	next, second := p.StartStep(ctx, 1)
	assert.Nil(t, second.outer)
	unblock()
	second.End()
	require.NoError(t, p.Flush(t.Context()))
	require.False(t, recording(next), "the device is done")
	require.NoError(t, c.FreeContext(next))
	require.NoError(t, f.cache.EmptyCache(next))

	inside := root.SpanContext().SpanID()
	for _, name := range []string{"cistern.memory.free", "cistern.memory.empty_cache"} {
		spans := f.named(name)
		require.Len(t, spans, 2, name)
		for _, s := range spans {
			assert.Equal(t, inside, s.Parent().SpanID(), name)
		}
	}
	steps := f.named("cistern.step")
	require.Len(t, steps, 2)
	for _, s := range steps {
		require.Len(t, s.Links(), 1)
		assert.Equal(t, inside, s.Links()[0].SpanContext.SpanID(), "the second step is in no step, and not linked to the first")
	}
	for _, s := range f.named("cistern.memory.free") {
		assert.Len(t, s.Links(), 1)
	}
}

// A span of the program's own inside of a step remains the parent, even after the step.
func TestOwnSpanOutlivesItsStep(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 0)
	ctx, own := f.provider.Tracer("test").Start(ctx, "own")
	step.End()
	require.NoError(t, p.Flush(t.Context()))
	require.NoError(t, f.cache.EmptyCache(ctx))
	own.End()
	require.NoError(t, f.cache.EmptyCache(ctx))
	spans := f.named("cistern.memory.empty_cache")
	require.Len(t, spans, 1, "the parent has ended before the second one")
	assert.Equal(t, own.SpanContext().SpanID(), spans[0].Parent().SpanID())
}

// At All the operations of a step that is over, with no span around it, are like those without a
// parent.
func TestAllAfterAStep(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	ctx, step := p.StartStep(t.Context(), 0)
	step.End()
	require.NoError(t, f.cache.EmptyCache(ctx))
	require.Len(t, f.named("cistern.memory.empty_cache"), 1)
	assert.False(t, f.named("cistern.memory.empty_cache")[0].Parent().IsValid())
}
