package trace

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/memcache"
)

// At All every operation is recorded, even if the program has no span of its own.
func TestAllNeedsNoParent(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	b := f.alloc(t, t.Context(), 512)
	c, err := f.pool.Upload(t.Context(), f.stream, b, 0, make([]byte, 512))
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, b.Free())
	require.NoError(t, f.cache.EmptyCache(t.Context()))
	require.NoError(t, f.pool.Close()) // every End was called

	alloc, free := f.named("cistern.memory.alloc")[0], f.named("cistern.memory.free")[0]
	assert.False(t, alloc.Parent().IsValid())
	assert.Equal(t, alloc.SpanContext().SpanID(), f.named("cistern.memory.driver_alloc")[0].Parent().SpanID())
	assert.False(t, free.Parent().IsValid(), "the allocation has ended")
	require.Len(t, free.Links(), 1)
	assert.Equal(t, alloc.SpanContext(), free.Links()[0].SpanContext, "the free is known to be this block's")
	var zero memcache.Block
	require.NoError(t, zero.Free())
	require.ErrorIs(t, b.Free(), memcache.ErrFreed)
	require.Len(t, f.named("cistern.memory.free"), 2)
	assert.False(t, f.named("cistern.memory.free")[1].Parent().IsValid(), "of an allocation that is told already")
	assert.Equal(t, "freed", attributes(f.named("cistern.memory.free")[1])["error.type"])
	require.Len(t, f.named("cistern.transfer.h2d"), 1)
	assert.False(t, f.named("cistern.transfer.h2d")[0].Parent().IsValid())
	assert.Len(t, f.named("cistern.memory.empty_cache"), 1)
}

// The cache refuses an operation without a context, traced or not.
func TestAllWithoutAContext(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	var none context.Context
	_, err := f.cache.Alloc(none, 512, f.stream)
	assert.ErrorIs(t, err, memcache.ErrInvalid)
	require.NoError(t, f.alloc(t, t.Context(), 512).FreeContext(none))
	ctx, step := f.profiler(t, ProfilerConfig{Tracer: f.tracer}).StartStep(none, 1)
	assert.True(t, recording(ctx))
	step.End()
}

// A sampler that did not sample a parent is not called again, and a parent in another process is a
// parent.
func TestAllHeedsTheParent(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	sampledOut := oteltrace.SpanContextConfig{TraceID: [16]byte{1}, SpanID: [8]byte{2}}
	for _, tt := range []struct {
		name   string
		remote bool
		flags  oteltrace.TraceFlags
		spans  int
	}{
		{"local, sampled out", false, 0, 0},
		{"remote, sampled out", true, 0, 0},
		{"local, sampled, not recording", false, oteltrace.FlagsSampled, 0},
		{"remote, sampled", true, oteltrace.FlagsSampled, 1},
	} {
		c := sampledOut
		c.Remote, c.TraceFlags = tt.remote, tt.flags
		ctx := oteltrace.ContextWithSpanContext(t.Context(), oteltrace.NewSpanContext(c))
		before := f.tracer.Counts()
		require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
		require.Len(t, f.named("cistern.memory.alloc"), tt.spans, tt.name)
		require.Len(t, f.named("cistern.memory.free"), tt.spans, tt.name)
		if !tt.remote {
			assert.Equal(t, before, f.tracer.Counts(), "the sampler was not asked: %s", tt.name)
		}
	}
	assert.Equal(t, oteltrace.SpanID{2}, f.named("cistern.memory.alloc")[0].Parent().SpanID())
}

// Below All only a step starts a trace.
func TestSlowNeedsAParent(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 2})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 0) // at All, for its own context
	outside := f.alloc(t, t.Context(), 512)
	inside := f.alloc(t, ctx, 512)
	require.NoError(t, outside.Free())
	require.NoError(t, inside.FreeContext(ctx))
	step.End()
	assert.Len(t, f.named("cistern.memory.alloc"), 1)
	assert.Len(t, f.named("cistern.memory.free"), 1)
	assert.Empty(t, f.named("cistern.memory.driver_alloc"), "the one driver call had no parent")
}

// Inside of a step that is not recorded, the guard does not search the context.
func TestSilentTracersSearchNoContext(t *testing.T) {
	f := newFixture(t, Config{TracerProvider: nooptrace.NewTracerProvider()})
	assert.True(t, f.tracer.silent())
	_, detail := f.tracer.detail(counted{t.Context(), t}, Slow)
	assert.Equal(t, none, detail)

	f = newFixture(t, Config{TracerProvider: otel.GetTracerProvider(), Detail: All})
	p := f.traced(t)
	assert.False(t, f.tracer.silent(), "an SDK may be there")
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	assert.True(t, f.tracer.silent(), "there is none")
	_, detail = f.tracer.detail(counted{t.Context(), t}, Slow)
	assert.Equal(t, none, detail)
}

// counted is a context in which a lookup fails the test.
type counted struct {
	context.Context
	t *testing.T
}

func (c counted) Value(key any) any {
	assert.Fail(c.t, "the context was asked", "%v", key)
	return nil
}

// uncomparable is a provider of no-op spans that can't be compared.
type uncomparable struct {
	nooptrace.TracerProvider
	_ []int
}

func TestProviderThatCannotBeCompared(t *testing.T) {
	f := newFixture(t, Config{TracerProvider: uncomparable{}, Detail: All})
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	assert.False(t, f.tracer.silent())
	assert.False(t, f.tracer.idle.Load())
}

const lateSDK = "CISTERN_TRACE_LATE_SDK"

// A tracer made before the SDK is installed records from then on, even if it has detected that
// there was none.
func TestSDKInstalledLater(t *testing.T) {
	if os.Getenv(lateSDK) == "" { // in a process of its own: the global provider is
		out, err := child.Test("^TestSDKInstalledLater$", lateSDK+"=1")
		require.NoError(t, err, "%s", out)
		return
	}
	f := newFixture(t, Config{TracerProvider: otel.GetTracerProvider(), Detail: All})
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	require.True(t, f.tracer.silent())
	otel.SetTracerProvider(f.provider)
	assert.False(t, f.tracer.silent())
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	assert.Len(t, f.named("cistern.memory.alloc"), 1)
	ctx, run := f.tracer.Memory().Start(t.Context(), memcache.OpEmptyCache)
	assert.True(t, recording(ctx))
	run.End(memcache.OpInfo{Op: memcache.OpEmptyCache})
}
