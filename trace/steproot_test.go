package trace

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// TestStepIsATrace: a step is the root of a trace that has all of its spans. It links to the run's
// span, and that one to the step.
func TestStepIsATrace(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 1})
	p := f.traced(t)
	run, span := f.provider.Tracer("test").Start(t.Context(), "run")
	traces := map[oteltrace.TraceID]int64{}
	for n := int64(1); n <= 3; n++ {
		ctx, step := p.StartStep(run, n)
		require.NoError(t, f.alloc(t, ctx, 512).Free())
		ctx, own := f.provider.Tracer("test").Start(ctx, "own")
		_, inner := p.StartStep(ctx, 100)
		inner.End()
		own.End()
		step.End()
		traces[step.span.SpanContext().TraceID()] = n
	}
	require.NoError(t, p.Flush(t.Context()))
	span.End()
	require.Len(t, traces, 3)
	spans := map[int64][]string{}
	for _, s := range f.spans.Ended() {
		if s.Name() == "run" {
			continue
		}
		n := traces[s.SpanContext().TraceID()]
		require.NotZero(t, n, s.Name())
		spans[n] = append(spans[n], s.Name())
		if s.Name() == stepSpan && attributes(s)[KeyStep] == n {
			assert.False(t, s.Parent().IsValid())
			require.Len(t, s.Links(), 1)
			assert.Equal(t, span.SpanContext(), s.Links()[0].SpanContext)
		} else {
			assert.Equal(t, s.Parent().TraceID(), s.SpanContext().TraceID(), s.Name())
		}
	}
	for n := int64(1); n <= 3; n++ {
		assert.Subset(t, spans[n], []string{stepSpan, deviceSpan, "own", "cistern.memory.alloc", "cistern.memory.free"}, "step %d", n)
	}
	links := f.named("run")[0].Links()
	require.Len(t, links, 3)
	for i, link := range links {
		assert.EqualValues(t, i+1, traces[link.SpanContext.TraceID()])
	}
}

// TestRunKeepsItsLastLinks: the run's span does not grow with the steps.
func TestRunKeepsItsLastLinks(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	run, span := f.provider.Tracer("test").Start(t.Context(), "run")
	const steps = 300
	var last *Step
	for n := range int64(steps) {
		_, last = p.StartStep(run, n)
		last.End()
	}
	span.End()
	s := f.named("run")[0]
	require.Len(t, s.Links(), sdktrace.DefaultLinkCountLimit)
	assert.Equal(t, steps-sdktrace.DefaultLinkCountLimit, s.DroppedLinks())
	assert.Equal(t, last.span.SpanContext(), s.Links()[len(s.Links())-1].SpanContext)
}

// drawn are ids that are the same in each run of a test.
type drawn struct{ traces, spans atomic.Uint64 }

func (d *drawn) NewIDs(ctx context.Context) (id oteltrace.TraceID, _ oteltrace.SpanID) {
	binary.BigEndian.PutUint64(id[8:], d.traces.Add(1)*0x9e3779b97f4a7c15)
	return id, d.NewSpanID(ctx, id)
}

func (d *drawn) NewSpanID(context.Context, oteltrace.TraceID) (id oteltrace.SpanID) {
	binary.BigEndian.PutUint64(id[:], d.spans.Add(1))
	return id
}

const ratio = 0.1

// ratios are samplers that keep a tenth of the traces.
var ratios = map[string]sdktrace.Sampler{
	"ratio":                    sdktrace.TraceIDRatioBased(ratio),
	"ratio where no parent is": sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio)),
}

// TestRatioSamplesSteps, and not runs: some of 100 steps are kept, whole, whether the run's span is
// kept or not.
func TestRatioSamplesSteps(t *testing.T) {
	for name, sampler := range ratios {
		for _, seed := range []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9} {
			t.Run(name, func(t *testing.T) {
				spans, ids := tracetest.NewSpanRecorder(), &drawn{}
				ids.traces.Store(seed * 1000)
				provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sampler), sdktrace.WithIDGenerator(ids))
				f := newFixture(t, Config{Detail: All, TracerProvider: provider})
				p := f.traced(t)
				run, span := provider.Tracer("test").Start(t.Context(), "run")
				var last memcache.Block
				for n := int64(1); n <= 100; n++ {
					ctx, step := p.StartStep(run, n)
					require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
					require.NoError(t, f.alloc(t, ctx, 512).Free())
					if n > 1 {
						require.NoError(t, last.Free())
					}
					last = f.alloc(t, ctx, 512)
					step.End()
				}
				require.NoError(t, last.Free())
				require.NoError(t, p.Flush(t.Context()))
				span.End()

				ended := map[oteltrace.SpanID]bool{}
				in := map[oteltrace.TraceID]map[string]int{}
				for _, s := range spans.Ended() {
					ended[s.SpanContext().SpanID()] = true
					id := s.SpanContext().TraceID()
					if in[id] == nil {
						in[id] = map[string]int{}
					}
					in[id][s.Name()]++
				}
				for _, s := range spans.Ended() {
					if root := s.Name() == stepSpan || s.Name() == "run"; root {
						assert.False(t, s.Parent().IsValid(), s.Name())
					} else {
						assert.True(t, ended[s.Parent().SpanID()], "the parent of %s", s.Name())
					}
				}
				delete(in, span.SpanContext().TraceID())
				assert.True(t, len(in) >= 4 && len(in) <= 20, "%d traces", len(in))
				for _, names := range in {
					assert.Equal(t, 1, names[stepSpan])
					assert.Equal(t, 1, names[deviceSpan])
					assert.Equal(t, 3, names["cistern.memory.alloc"])
					assert.Equal(t, 2, names["cistern.memory.free"], "the third is the run's")
				}
			})
		}
	}
}

// TestParallelRatioKeepsTheSameSteps: on all ranks, because the sampler decides by the trace that
// the ranks share.
func TestParallelRatioKeepsTheSameSteps(t *testing.T) {
	for name, sampler := range ratios {
		t.Run(name, func(t *testing.T) {
			ranks := journey(t, 2, time.Minute)
			want := map[int64]bool{}
			for n := int64(1); n <= 100; n++ {
				id := ranks[0].comm.traceID(n)
				if sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: t.Context(), TraceID: id}).Decision == sdktrace.RecordAndSample {
					want[n] = true
				}
			}
			for i, r := range ranks {
				spans := tracetest.NewSpanRecorder()
				provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sampler), sdktrace.WithIDGenerator(IDGenerator{}))
				tracer, err := New(Config{TracerProvider: provider})
				require.NoError(t, err)
				p := r.profiler(t, ProfilerConfig{Communicator: r.comm, Tracer: tracer})
				run, span := provider.Tracer("test").Start(t.Context(), "run")
				for n := int64(1); n <= 100; n++ {
					_, step := p.StartStep(run, n)
					step.End()
				}
				span.End()
				got := map[int64]bool{}
				for _, s := range spans.Ended() {
					if s.Name() == stepSpan {
						n := attributes(s)[KeyStep].(int64)
						assert.Equal(t, r.comm.traceID(n), s.SpanContext().TraceID())
						assert.False(t, s.Parent().IsValid())
						got[n] = true
					}
				}
				assert.Equal(t, want, got, "rank %d", i)
			}
		})
	}
}

// TestParallelRootsInAStepAreOfOtherTraces: the id of a step's trace is for its own root.
func TestParallelRootsInAStepAreOfOtherTraces(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Communicator: f.communicator(t), Tracer: f.tracer})
	ctx, step := p.StartStep(t.Context(), 1)
	_, own := f.provider.Tracer("test").Start(ctx, "own", oteltrace.WithNewRoot())
	assert.NotEqual(t, step.span.SpanContext().TraceID(), own.SpanContext().TraceID())
	own.End()
	step.End()
}

// TestRunIsRecordedAfterUnsampledSteps: operations with the context of a step that is over are in
// the run, although the sampler left the step out.
func TestRunIsRecordedAfterUnsampledSteps(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(unlessStep{}))
	f := newFixture(t, Config{TracerProvider: provider})
	run, span := provider.Tracer("test").Start(t.Context(), "run")
	ctx, step := f.traced(t).StartStep(run, 1)
	require.NoError(t, f.cache.EmptyCache(ctx))
	step.End()
	assert.Empty(t, spans.Ended())
	require.NoError(t, f.cache.EmptyCache(ctx))
	span.End()
	names := map[string]bool{}
	for _, s := range spans.Ended() {
		names[s.Name()] = true
		assert.Equal(t, span.SpanContext().TraceID(), s.SpanContext().TraceID(), s.Name())
		assert.Empty(t, s.Links(), "to a step that is not kept")
	}
	assert.Contains(t, names, "cistern.memory.empty_cache")
	assert.NotContains(t, names, stepSpan)
}

// unlessStep is a sampler that leaves out steps and their operations.
type unlessStep struct{}

func (unlessStep) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := oteltrace.SpanContextFromContext(p.ParentContext)
	if p.Name == stepSpan || parent.IsValid() && !parent.IsSampled() {
		return sdktrace.SamplingResult{Decision: sdktrace.Drop}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
}

func (unlessStep) Description() string { return "unless a step" }
