package trace

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// stuckExporter exports nothing until it is released, and counts.
type stuckExporter struct {
	release  chan struct{}
	exported atomic.Int64
}

func (e *stuckExporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	<-e.release
	for _, s := range spans {
		if s.InstrumentationScope().Name == ScopeName {
			e.exported.Add(1)
		}
	}
	return nil
}

func (e *stuckExporter) Shutdown(context.Context) error { return nil }

// The number of spans that a full queue drops is the difference between the spans ended and those
// exported.
func TestDroppedSpansCanBeCounted(t *testing.T) {
	exporter := &stuckExporter{release: make(chan struct{})}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter,
		sdktrace.WithMaxQueueSize(4), sdktrace.WithMaxExportBatchSize(1)))
	f := newFixture(t, Config{TracerProvider: provider, Detail: All})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	ctx, step := p.StartStep(t.Context(), 1)
	for range 50 {
		require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
	}
	step.End()
	close(exporter.release)
	require.NoError(t, provider.Shutdown(context.Background()))
	counts := f.tracer.Counts()
	assert.Equal(t, int64(102), counts.Ended) // and a driver call
	assert.Less(t, exporter.exported.Load(), int64(10))
	assert.Positive(t, exporter.exported.Load())
}
