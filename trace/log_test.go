package trace

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	nooplog "go.opentelemetry.io/otel/log/noop"
	sdklog "go.opentelemetry.io/otel/sdk/log"

	"github.com/cistern-ml/cistern/memcache"
)

// keptRecords is an exporter that keeps log records.
type keptRecords struct {
	mu   sync.Mutex
	kept []sdklog.Record
}

func (e *keptRecords) Export(_ context.Context, records []sdklog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range records {
		e.kept = append(e.kept, r.Clone())
	}
	return nil
}

func (e *keptRecords) Shutdown(context.Context) error   { return nil }
func (e *keptRecords) ForceFlush(context.Context) error { return nil }

// A request that finally fails is one log record, with and without a span.
func TestOutOfMemoryIsLogged(t *testing.T) {
	var kept keptRecords
	provider := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewSimpleProcessor(&kept)))
	f := newFixture(t, Config{LoggerProvider: provider, Detail: Steps})
	b := f.alloc(t, t.Context(), 4*mib)
	_, err := f.cache.Alloc(memcache.WithCategory(memcache.WithModule(t.Context(), "head"), memcache.CategoryGradient), 100*mib, f.stream)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	var oom *memcache.OutOfMemoryError
	require.ErrorAs(t, err, &oom)

	ctx, step := f.traced(t).StartStep(t.Context(), 1)
	_, failed := f.cache.Alloc(ctx, 100*mib, f.stream)
	require.Error(t, failed)
	step.End()
	_, failed = f.cache.Alloc(ctx, 100*mib, f.stream)
	require.Error(t, failed)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, failed = f.cache.Alloc(cancelled, 100*mib, f.stream)
	require.Error(t, failed, "of something else")
	require.NoError(t, b.Free())

	require.Len(t, kept.kept, 3)
	r := kept.kept[0]
	assert.Equal(t, EventOutOfMemory, r.EventName())
	assert.Equal(t, log.SeverityError, r.Severity())
	assert.Equal(t, err.Error(), r.Body().AsString())
	assert.False(t, r.Timestamp().IsZero())
	assert.False(t, r.TraceID().IsValid())
	a := make(map[attribute.Key]any)
	r.WalkAttributes(func(kv attribute.KeyValue) bool {
		a[kv.Key] = kv.Value.AsInterface()
		return true
	})
	assert.Equal(t, map[attribute.Key]any{
		KeyDevice: "host", KeyStream: int64(f.stream.ID()), KeyPool: "large", KeyRequested: int64(100 * mib), "error.type": "out_of_memory",
		KeyModule: "head", KeyCategory: "gradient",
		KeyMemoryAllocated: int64(4 * mib), KeyMemoryReserved: oom.Reserved, KeyMemoryFree: oom.Free, KeyMemoryTotal: int64(64 * mib),
	}, a)
	scope := r.InstrumentationScope()
	assert.Equal(t, []string{ScopeName, version()}, []string{scope.Name, scope.Version})
	assert.Contains(t, scope.SchemaURL, "opentelemetry.io/schemas/")
	assert.Equal(t, step.span.SpanContext().SpanID(), kept.kept[1].SpanID(), "of the step that it happened in")
	assert.Equal(t, step.around.SpanContext().SpanID(), kept.kept[2].SpanID(), "the step is over")
}

func TestLimitIsLogged(t *testing.T) {
	var kept keptRecords
	f := newFixture(t, Config{LoggerProvider: sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewSimpleProcessor(&kept)))})
	require.NoError(t, f.cache.SetMemoryFraction(0.25))
	_, err := f.cache.Alloc(t.Context(), 20*mib, f.stream)
	require.Error(t, err)
	require.Len(t, kept.kept, 1)
	found := false
	kept.kept[0].WalkAttributes(func(kv attribute.KeyValue) bool {
		found = found || kv == KeyMemoryLimit.Int64(16*mib)
		return true
	})
	assert.True(t, found)
}

// Without an SDK for logs nothing is made.
func TestLogWithoutAReader(t *testing.T) {
	for _, provider := range []log.LoggerProvider{nil, nooplog.NewLoggerProvider()} {
		f := newFixture(t, Config{LoggerProvider: provider, Detail: Steps})
		_, run := f.tracer.Memory().Start(t.Context(), memcache.OpAllocFailed)
		assert.Nil(t, run)
	}
	tracer, err := New(Config{})
	require.NoError(t, err)
	assert.Equal(t, otel.GetLoggerProvider(), tracer.config.LoggerProvider)
}
