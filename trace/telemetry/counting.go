package telemetry

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/trace"
)

// serial lets the exporters of three signals write to one writer.
type serial struct {
	mu sync.Mutex
	w  io.Writer
}

// Write writes p while no other write runs.
func (s *serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// counting counts the spans of package trace that an exporter accepts, not those of other tracers.
type counting struct {
	sdktrace.SpanExporter
	n *atomic.Int64
}

// ExportSpans exports the spans.
func (c *counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	for _, s := range spans {
		if err == nil && s.InstrumentationScope().Name == trace.ScopeName {
			c.n.Add(1)
		}
	}
	return err
}

// countingLogs counts the log records that an exporter accepts.
type countingLogs struct {
	sdklog.Exporter
	n *atomic.Int64
}

// Export exports the records.
func (c *countingLogs) Export(ctx context.Context, records []sdklog.Record) error {
	err := c.Exporter.Export(ctx, records)
	if err == nil {
		c.n.Add(int64(len(records)))
	}
	return err
}

// made counts the log records that are made.
type made struct {
	sdklog.Processor
	n *atomic.Int64
}

// OnEmit counts a record and passes it on.
func (m made) OnEmit(ctx context.Context, r *sdklog.Record) error {
	m.n.Add(1)
	return m.Processor.OnEmit(ctx, r)
}
