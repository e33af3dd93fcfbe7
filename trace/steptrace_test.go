package trace

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/cistern-ml/cistern/device"
)

// TestParallelStepsShareATrace: the spans of one step of all ranks are one trace, and another step
// or communicator has another trace, without a message between the ranks.
func TestParallelStepsShareATrace(t *testing.T) {
	traces := map[string]int{} // of a run and step
	for run := range 2 {
		ranks := journey(t, 3, time.Minute)
		each(t, ranks, func(r *traveller) error {
			p := r.profiler(t, ProfilerConfig{Stream: r.stream, Communicator: r.comm, Tracer: r.tracer})
			for k := range int64(2) {
				ctx, step := p.StartStep(r.ctx, k+1)
				if err := r.comm.AllReduce(r.stream, r.mem.Ptr(), r.mem.Ptr(), 10, device.Float32, device.ReduceSum); err != nil {
					return err
				}
				_, inner := p.StartStep(ctx, 100)
				if in, own := inner.End().TraceID, step.End().TraceID; in != own || own != r.lastTrace(k+1) {
					return fmt.Errorf("the profiles name the traces %q and %q, and the step's is %q", in, own, r.lastTrace(k+1))
				}
			}
			return p.Flush(t.Context())
		})
		for k := range int64(2) {
			mine := map[string]int{}
			for _, r := range ranks {
				for _, s := range r.named(stepSpan) {
					if attributes(s)[KeyStep] != k+1 {
						continue
					}
					id := s.SpanContext().TraceID()
					mine[id.String()]++
					assert.False(t, s.Parent().IsValid(), "each rank exports a root")
					require.Len(t, s.Links(), 1)
					_, around := r.parentOf(t)
					assert.NotEqual(t, around, id.String(), "a trace of its own")
					assert.Equal(t, around, s.Links()[0].SpanContext.TraceID().String(), "and a link to what was around it")
					below := 0
					for _, c := range r.spans.Ended() {
						if c.Parent().SpanID() == s.SpanContext().SpanID() {
							assert.Equal(t, id, c.SpanContext().TraceID(), c.Name())
							below++
						}
					}
					assert.GreaterOrEqual(t, below, 3, "the operation, the device's part and the step inside")
				}
			}
			require.Len(t, mine, 1, "run %d, step %d", run, k+1)
			for id, spans := range mine {
				assert.Equal(t, 3, spans)
				traces[id]++
			}
		}
	}
	assert.Len(t, traces, 4)
}

// lastTrace is the trace of the span of the rank's last step of that number.
func (r *traveller) lastTrace(number int64) (id string) {
	for _, s := range r.spans.Started() {
		if s.Name() == stepSpan && attributes(s)[KeyStep] == number {
			id = s.SpanContext().TraceID().String()
		}
	}
	return id
}

// TestProfilesWithoutATrace: a step whose span is not sampled has no trace.
func TestProfilesWithoutATrace(t *testing.T) {
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	recorded := sdktrace.NewTracerProvider(sdktrace.WithSampler(recordOnly{}))
	for name, provider := range map[string]oteltrace.TracerProvider{"sampled out": never, "recorded only": recorded, "no SDK": nooptrace.NewTracerProvider()} {
		f := newFixture(t, Config{TracerProvider: provider})
		_, step := f.profiler(t, ProfilerConfig{Tracer: f.tracer}).StartStep(t.Context(), 1)
		assert.Empty(t, step.End().TraceID, name)
		_, step = f.profiler(t, ProfilerConfig{}).StartStep(t.Context(), 1)
		assert.Empty(t, step.End().TraceID)
	}
}

// parentOf returns the span in which the rank's steps are started.
func (r *traveller) parentOf(t *testing.T) (span, trace string) {
	t.Helper()
	for _, s := range r.spans.Started() {
		if s.Name() == "parent" {
			return s.SpanContext().SpanID().String(), s.SpanContext().TraceID().String()
		}
	}
	t.Fatal("there is none")
	return "", ""
}

// TestParallelStepsWithoutSDK: a step of a program without an SDK detects that.
func TestParallelStepsWithoutSDK(t *testing.T) {
	f := newFixture(t, Config{})
	tracer, err := New(Config{})
	require.NoError(t, err)
	p := f.profiler(t, ProfilerConfig{Communicator: f.communicator(t), Tracer: tracer})
	require.False(t, tracer.silent(), "nobody has asked yet")
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	require.True(t, tracer.silent())
}
