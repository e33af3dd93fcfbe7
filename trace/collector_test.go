package trace

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// goneExporter is the exporter of a collector that does not answer until it is back, or that
// refuses everything.
type goneExporter struct {
	back     chan struct{} // nil: it refuses
	exported atomic.Int64  // spans of the tracer
}

var errGone = errors.New("the collector is gone")

func (x *goneExporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	if x.back == nil {
		return errGone
	}
	<-x.back
	for _, s := range spans {
		if s.InstrumentationScope().Name == ScopeName {
			x.exported.Add(1)
		}
	}
	return nil
}

func (*goneExporter) Shutdown(context.Context) error { return nil }

// TestCollectorThatIsGone: however many steps there are, tracer and profiler keep no more for a
// collector that blocks or fails, and the counts show the loss. 22,500 steps are 30 epochs of MNIST
// at a batch of 80.
func TestCollectorThatIsGone(t *testing.T) {
	handler := otel.GetErrorHandler()
	t.Cleanup(func() { otel.SetErrorHandler(handler) })
	var failures atomic.Int64
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if errors.Is(err, errGone) {
			failures.Add(1)
		}
	}))
	for name, exporter := range map[string]*goneExporter{"blocks": {back: make(chan struct{})}, "fails": {}} {
		t.Run(name, func(t *testing.T) {
			provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
			f := newFixture(t, Config{TracerProvider: provider, AllEvery: 100})
			p := f.traced(t)
			run, span := provider.Tracer("test").Start(t.Context(), "run")
			early, steps := 2000, 22500
			if testing.Short() {
				steps = 5000
			}
			var heap [2]uint64
			late := f.alloc(t, run, 512)
			for n := 1; n <= steps; n++ {
				ctx, step := p.StartStep(run, int64(n))
				require.NoError(t, f.alloc(t, ctx, 512).Free())
				next := f.alloc(t, ctx, 512)
				require.NoError(t, late.Free()) // of the step before
				late = next
				step.End()
				if n != early && n != steps {
					continue
				}
				require.NoError(t, p.Flush(t.Context()))
				assert.Zero(t, p.pending(), "steps that are kept")
				assert.LessOrEqual(t, f.tracer.blocks.kept.Load(), int64(1), "the last block")
				around := span.(sdktrace.ReadOnlySpan)
				assert.Len(t, around.Links(), sdktrace.DefaultLinkCountLimit)
				assert.Equal(t, n-sdktrace.DefaultLinkCountLimit, around.DroppedLinks())
				if exporter.back == nil {
					require.ErrorIs(t, provider.ForceFlush(t.Context()), errGone)
				}
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				heap[n/steps] = m.HeapAlloc
			}
			require.NoError(t, late.Free())
			assert.Less(t, heap[1], heap[0]+4*mib, "the processor's queue is full at both times, or empty if the collector fails")
			if exporter.back != nil {
				close(exporter.back)
			}
			span.End()
			require.NoError(t, provider.Shutdown(context.Background()))
			c := f.tracer.Counts()
			assert.Equal(t, c.Started, c.Ended)
			assert.GreaterOrEqual(t, c.Ended, int64(2*steps), "each step, and the device's part of it")
			if exporter.back == nil {
				assert.Zero(t, exporter.exported.Load())
				assert.Positive(t, failures.Load(), "the SDK's error handler hears of it")
				return
			}
			kept := exporter.exported.Load()
			assert.Positive(t, kept)
			assert.LessOrEqual(t, kept, int64(sdktrace.DefaultMaxQueueSize+sdktrace.DefaultMaxExportBatchSize))
		})
	}
}
