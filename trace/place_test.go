package trace

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// TestFreesWithoutAContext: they are in the innermost open step around their allocation, or else in
// the span around these steps, and link to the allocation each time.
func TestFreesWithoutAContext(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	p := f.traced(t)
	id := func(s oteltrace.Span) oteltrace.SpanID { return s.SpanContext().SpanID() }
	run, span := f.parent(t)
	out, outer := p.StartStep(run, 1)
	between, own := f.provider.Tracer("test").Start(out, "own")
	in, inner := p.StartStep(between, 2)
	direct, middle := p.StartStep(out, 3)
	var blocks, others []memcache.Block
	for range 4 {
		blocks, others = append(blocks, f.alloc(t, in, 512)), append(others, f.alloc(t, direct, 512))
	}
	allocs := f.serials(t, "cistern.memory.alloc")
	free := func(b memcache.Block, parent oteltrace.SpanID, text string) {
		t.Helper()
		require.NoError(t, b.Free())
		s := f.serials(t, "cistern.memory.free")[int64(b.Serial())]
		assert.Equal(t, parent, s.Parent().SpanID(), text)
		require.Len(t, s.Links(), 1)
		assert.Equal(t, allocs[int64(b.Serial())].SpanContext(), s.Links()[0].SpanContext)
	}
	free(blocks[0], id(inner.span), "it runs")
	free(others[0], id(middle.span), "it runs")
	inner.End()
	middle.End()
	free(blocks[1], id(own), "the program's own span is around it")
	free(others[1], id(outer.span), "the step around it runs")
	own.End()
	outer.End()
	free(others[2], id(span), "of the run")
	require.NoError(t, p.Flush(t.Context()))
	free(others[3], id(span), "also when the spans of the steps have ended")
	for _, b := range blocks[2:] {
		free(b, id(own), "whose end the step does not see")
	}
}

// TestPlaceOfAStepThatEnds: whether the step ends before or after its place is made, the place is
// marked as over.
func TestPlaceOfAStepThatEnds(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	for range 100 {
		_, step := p.StartStep(t.Context(), 1)
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() { step.placed() })
		}
		group.Go(func() { step.End() })
		group.Wait()
		assert.True(t, step.placed().over.Load())
		assert.Same(t, step.placed(), step.placed())
	}
	_, late := p.StartStep(t.Context(), 1)
	late.End()
	assert.True(t, late.placed().over.Load())
}

// TestFreesOutsideOfSteps: they are under the parent of their allocation while that is open.
func TestFreesOutsideOfSteps(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	ctx, span := f.provider.Tracer("test").Start(t.Context(), "request")
	early, late := f.alloc(t, ctx, 512), f.alloc(t, ctx, 512)
	require.NoError(t, early.Free())
	span.End()
	require.NoError(t, late.Free())
	allocs, frees := f.serials(t, "cistern.memory.alloc"), f.serials(t, "cistern.memory.free")
	for _, b := range []memcache.Block{early, late} {
		s := frees[int64(b.Serial())]
		require.Len(t, s.Links(), 1)
		assert.Equal(t, allocs[int64(b.Serial())].SpanContext(), s.Links()[0].SpanContext)
	}
	assert.Equal(t, span.SpanContext().SpanID(), frees[int64(early.Serial())].Parent().SpanID())
	assert.False(t, frees[int64(late.Serial())].Parent().IsValid(), "the request has ended")
}
