package trace

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

const mib = 1 << 20

// fixture is a device with everything on top, under a tracer whose spans and metrics are recorded.
type fixture struct {
	tracer   *Tracer
	spans    *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
	reader   *sdkmetric.ManualReader
	dev      *host.Device
	stream   device.Stream
	cache    *memcache.Cache
	pool     *transfer.Pool
}

// newFixture makes a device of 64 MiB. config's providers are replaced unless they are set.
func newFixture(t testing.TB, config Config) *fixture {
	t.Helper()
	f := &fixture{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	f.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(f.spans), sdktrace.WithIDGenerator(IDGenerator{}))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(f.reader))
	if config.TracerProvider == nil {
		config.TracerProvider = f.provider
	}
	if config.MeterProvider == nil {
		config.MeterProvider = meters
	}
	var err error
	f.tracer, err = New(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, meters.Shutdown(context.Background()))
		assert.NoError(t, f.provider.Shutdown(context.Background()))
	})
	f.dev = cisterntest.Host(t, 64*mib)
	s := stacktest.New(t, stacktest.Config{Device: f.dev, Cache: memcache.Config{Observer: f.tracer.Memory()},
		Pool: transfer.Config{Observer: f.tracer.Transfer()}})
	f.stream, f.cache, f.pool = s.Stream, s.Cache, s.Pool
	t.Cleanup(func() { assert.NoError(t, f.tracer.Close()) })
	return f
}

// parent starts a recording span of the caller's own.
func (f *fixture) parent(t testing.TB) (context.Context, oteltrace.Span) {
	ctx, span := f.provider.Tracer("test").Start(t.Context(), "parent")
	t.Cleanup(func() { span.End() })
	return ctx, span
}

func (f *fixture) alloc(t testing.TB, ctx context.Context, bytes int64) memcache.Block {
	t.Helper()
	b, err := f.cache.Alloc(ctx, bytes, f.stream)
	require.NoError(t, err)
	return b
}

// named returns the ended spans of that name.
func (f *fixture) named(name string) []sdktrace.ReadOnlySpan {
	var found []sdktrace.ReadOnlySpan
	for _, s := range f.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// attributes returns a map of a span's attributes.
func attributes(s sdktrace.ReadOnlySpan) map[attribute.Key]any { return mapped(s.Attributes()) }

func mapped(kvs []attribute.KeyValue) map[attribute.Key]any {
	m := make(map[attribute.Key]any)
	for _, kv := range kvs {
		m[kv.Key] = kv.Value.AsInterface()
	}
	return m
}

func (f *fixture) newStream(t testing.TB) device.Stream { return cisterntest.Stream(t, f.dev) }
