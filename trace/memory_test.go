package trace

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestAllocationSpans(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	ctx, parent := f.parent(t)
	b := f.alloc(t, ctx, 1000)
	require.NoError(t, b.FreeContext(ctx))
	again := f.alloc(t, ctx, 1000)
	require.NoError(t, again.FreeContext(ctx))

	allocs := f.named("cistern.memory.alloc")
	require.Len(t, allocs, 2)
	common := map[attribute.Key]any{
		KeyDevice: "host", KeyStream: int64(f.stream.ID()), KeyPool: "small", KeyRequested: int64(1000), KeyBytes: int64(1024),
	}
	for i, want := range []struct {
		serial uint64
		hit    bool
	}{{b.Serial(), false}, {again.Serial(), true}} {
		common[KeySerial], common[KeyHit] = int64(want.serial), want.hit
		assert.Equal(t, common, attributes(allocs[i]))
		assert.Equal(t, parent.SpanContext().SpanID(), allocs[i].Parent().SpanID())
		assert.Equal(t, ScopeName, allocs[i].InstrumentationScope().Name)
		assert.NotEmpty(t, allocs[i].InstrumentationScope().SchemaURL)
	}
	driver := f.named("cistern.memory.driver_alloc")
	require.Len(t, driver, 1)
	assert.Equal(t, allocs[0].SpanContext().SpanID(), driver[0].Parent().SpanID(), "the driver call is inside the allocation")
	assert.Equal(t, int64(2*mib), attributes(driver[0])[KeyBytes])

	frees := f.named("cistern.memory.free")
	require.Len(t, frees, 2)
	assert.Equal(t, int64(b.Serial()), attributes(frees[0])[KeySerial])
	assert.Equal(t, parent.SpanContext().SpanID(), frees[0].Parent().SpanID())
}

// The spans at All agree with the statistics, whatever a program does.
func TestSpansConformToStats(t *testing.T) {
	for seed := range uint64(5) {
		f := newFixture(t, Config{Detail: All})
		ctx, _ := f.parent(t)
		rng := rand.New(rand.NewPCG(seed, 1))
		var live []memcache.Block
		for range 300 {
			if n := len(live); n > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(n)
				require.NoError(t, live[i].FreeContext(ctx))
				live[i] = live[n-1]
				live = live[:n-1]
				continue
			}
			b, err := f.cache.Alloc(ctx, 1+rng.Int64N(8*mib), f.stream)
			if errors.Is(err, memcache.ErrOutOfMemory) {
				continue
			}
			require.NoError(t, err)
			live = append(live, b)
			if rng.IntN(40) == 0 {
				require.NoError(t, f.cache.EmptyCache(ctx))
			}
		}
		for _, b := range live {
			require.NoError(t, b.FreeContext(ctx))
		}

		var hits, misses, ooms, bytes int64
		for _, s := range f.named("cistern.memory.alloc") {
			a := attributes(s)
			switch hit, served := a[KeyHit]; {
			case !served:
				ooms++
				continue
			case hit.(bool):
				hits++
			default:
				misses++
			}
			bytes += a[KeyBytes].(int64)
		}
		stats := f.cache.Stats()
		assert.Equal(t, stats.Hits, hits)
		assert.Equal(t, stats.Misses, misses+ooms)
		assert.Equal(t, stats.NumOOMs, ooms)
		assert.Equal(t, stats.AllocatedBytes.All.Allocated, bytes)
		assert.Len(t, f.named("cistern.memory.free"), int(stats.Allocation.All.Freed))
		assert.Len(t, f.named("cistern.memory.driver_free"), int(stats.NumDeviceFree))
		assert.Len(t, f.named("cistern.memory.synchronize"), int(stats.NumSyncAllStreams))
		var segments int
		for _, s := range f.named("cistern.memory.driver_alloc") {
			if s.Status().Code != codes.Error {
				segments++
			}
		}
		assert.Equal(t, int(stats.NumDeviceAlloc), segments)
		counts := f.tracer.Counts()
		assert.Equal(t, int64(len(f.spans.Ended())), counts.Ended)
		assert.Equal(t, counts.Started, counts.Ended)
	}
}

func TestDetailLevels(t *testing.T) {
	for _, tt := range []struct {
		detail Detail
		want   []string
	}{
		{Steps, nil},
		{Slow, []string{"cistern.memory.driver_alloc", "cistern.memory.synchronize", "cistern.memory.driver_free", "cistern.memory.empty_cache"}},
		{All, []string{"cistern.memory.driver_alloc", "cistern.memory.alloc", "cistern.memory.free", "cistern.memory.synchronize",
			"cistern.memory.driver_free", "cistern.memory.empty_cache"}},
	} {
		t.Run(tt.detail.String(), func(t *testing.T) {
			f := newFixture(t, Config{Detail: tt.detail})
			ctx, _ := f.parent(t)
			require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
			require.NoError(t, f.cache.EmptyCache(ctx))
			var names []string
			for _, s := range f.spans.Ended() {
				names = append(names, s.Name())
			}
			assert.Equal(t, tt.want, names)
		})
	}
}

func TestNoSpanWithoutRecordingParent(t *testing.T) {
	f := newFixture(t, Config{})
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	require.NoError(t, f.cache.EmptyCache(t.Context()))
	assert.Empty(t, f.spans.Started())
	assert.Zero(t, f.tracer.Counts())
	f = newFixture(t, Config{Detail: All})
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, span := never.Tracer("test").Start(t.Context(), "unsampled")
	defer span.End()
	require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
	require.NoError(t, f.cache.EmptyCache(ctx))
	assert.Empty(t, f.spans.Started())
	assert.Zero(t, f.tracer.Counts())
}

func TestOutOfMemoryIsRecorded(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		f := newFixture(t, Config{Detail: All})
		ctx, _ := f.parent(t)
		_, err := f.cache.Alloc(ctx, 100*mib, f.stream)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		spans := f.named("cistern.memory.alloc")
		require.Len(t, spans, 1)
		assert.Equal(t, codes.Error, spans[0].Status().Code)
		assert.Equal(t, err.Error(), spans[0].Status().Description)
		a := attributes(spans[0])
		assert.Equal(t, "out_of_memory", a["error.type"])
		assert.Equal(t, int64(100*mib), a[KeyRequested])
		assert.NotContains(t, a, KeyHit)
		for _, s := range f.named("cistern.memory.driver_alloc") {
			assert.Equal(t, codes.Error, s.Status().Code)
			assert.Equal(t, "out_of_memory", attributes(s)["error.type"])
		}
	})
	t.Run("slow", func(t *testing.T) {
		f := newFixture(t, Config{})
		require.NoError(t, f.cache.SetMemoryFraction(0.1)) // the driver is not even asked
		ctx, parent := f.parent(t)
		f.alloc(t, ctx, 512).Free()
		_, err := f.cache.Alloc(ctx, 10*mib, f.stream)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		assert.Empty(t, f.named("cistern.memory.alloc"))
		parent.End()
		events := f.named("parent")[0].Events()
		require.Len(t, events, 1)
		assert.Equal(t, "cistern.memory.alloc.failed", events[0].Name)
		a := mapped(events[0].Attributes)
		assert.Equal(t, int64(f.stream.ID()), a[KeyStream])
		assert.Equal(t, "out_of_memory", a["error.type"])
		assert.Equal(t, err.Error(), a["exception.message"])
		assert.Equal(t, int64(10*mib), a[KeyRequested])
		assert.Equal(t, "large", a[KeyPool])
	})
	t.Run("other failures", func(t *testing.T) {
		f := newFixture(t, Config{})
		ctx, parent := f.parent(t)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err := f.cache.Alloc(cancelled, 512, f.stream)
		require.ErrorIs(t, err, context.Canceled)
		_, err = f.cache.Alloc(t.Context(), 100*mib, f.stream)
		require.Error(t, err, "outside of any span")
		parent.End()
		events := f.named("parent")[0].Events()
		require.Len(t, events, 1)
		assert.Equal(t, "canceled", mapped(events[0].Attributes)["error.type"])
	})
	t.Run("a step at all", func(t *testing.T) {
		f := newFixture(t, Config{AllEvery: 1})
		profiler := f.traced(t)
		ctx, step := profiler.StartStep(t.Context(), 1)
		_, err := f.cache.Alloc(ctx, 100*mib, f.stream)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		step.End()
		require.NoError(t, profiler.Flush(t.Context()))
		require.Len(t, f.named("cistern.memory.alloc"), 1)
		require.Len(t, f.named("cistern.step"), 1)
		assert.Empty(t, f.named("cistern.step")[0].Events(), "it has a span of its own")
		for _, e := range f.named("cistern.memory.alloc")[0].Events() {
			assert.NotEqual(t, "cistern.memory.alloc.failed", e.Name, "which is the span's error")
		}
	})
}

// At Steps neither failures nor copies are recorded on the span around them.
func TestStepsDetailRecordsNoFailures(t *testing.T) {
	f := newFixture(t, Config{Detail: Steps})
	ctx, parent := f.parent(t)
	_, err := f.cache.Alloc(ctx, 100*mib, f.stream) // the driver is asked, and timed
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	b := f.alloc(t, ctx, 512)
	c, err := f.pool.Upload(ctx, f.stream, b, 0, make([]byte, 512))
	require.NoError(t, err)
	require.NoError(t, c.Wait(ctx))
	require.NoError(t, b.FreeContext(ctx))
	require.NoError(t, f.pool.Close())
	parent.End()
	assert.Len(t, f.spans.Ended(), 1)
	assert.Empty(t, f.named("parent")[0].Events())
}

// TestDetailOfOneStepIsNotTheOthers: while a step runs at All, operations outside of it have the
// tracer's detail.
func TestDetailOfOneStepIsNotTheOthers(t *testing.T) {
	f := newFixture(t, Config{Detail: Steps, AllEvery: 1})
	profiler := f.traced(t)
	inStep, step := profiler.StartStep(t.Context(), 1)
	ctx, _ := f.parent(t)
	for _, c := range []context.Context{ctx, inStep} {
		b := f.alloc(t, c, 512)
		require.NoError(t, f.cache.EmptyCache(c))
		copied, err := f.pool.Upload(c, f.stream, b, 0, make([]byte, 512))
		require.NoError(t, err)
		require.NoError(t, copied.Wait(c))
		require.NoError(t, b.FreeContext(c))
	}
	step.End()
	require.NoError(t, f.pool.Close()) // every End was called
	for _, name := range []string{"cistern.memory.alloc", "cistern.memory.empty_cache", "cistern.memory.free", "cistern.transfer.h2d"} {
		require.Len(t, f.named(name), 1, name)
		assert.Equal(t, oteltrace.SpanContextFromContext(inStep).TraceID(), f.named(name)[0].SpanContext().TraceID(), name)
	}
}

func TestErrorClasses(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	ctx, _ := f.parent(t)
	b := f.alloc(t, ctx, 512)
	require.NoError(t, b.FreeContext(ctx))
	require.ErrorIs(t, b.FreeContext(ctx), memcache.ErrFreed)
	frees := f.named("cistern.memory.free")
	assert.Equal(t, "freed", attributes(frees[1])["error.type"])

	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := f.cache.Alloc(canceled, 512, f.stream)
	require.ErrorIs(t, err, context.Canceled)
	allocs := f.named("cistern.memory.alloc")
	assert.Equal(t, "canceled", attributes(allocs[1])["error.type"])

	assert.Equal(t, "*errors.errorString", errorType(errors.New("?")).Value.AsString())
}

// A driver allocation that fails and succeeds after a flush leaves both calls in the trace.
func TestRetryIsVisible(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, _ := f.parent(t)
	f.dev.Fail(host.FaultAlloc, 1)
	require.NoError(t, f.alloc(t, ctx, 512).FreeContext(ctx))
	var statuses []codes.Code
	for _, s := range f.named("cistern.memory.driver_alloc") {
		statuses = append(statuses, s.Status().Code)
	}
	assert.Equal(t, []codes.Code{codes.Error, codes.Unset}, statuses)
	assert.Len(t, f.named("cistern.memory.synchronize"), 1)
}

func TestOneObserverForManyCachesConcurrentSafe(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	ctx, _ := f.parent(t)
	other := newFixture(t, Config{TracerProvider: f.provider})
	cache, err := memcache.New(other.dev, memcache.Config{Observer: f.tracer.Memory()})
	require.NoError(t, err)
	const goroutines, rounds = 4, 50
	done := make(chan error, 2*goroutines)
	for range goroutines {
		for _, g := range []func() (memcache.Block, error){
			func() (memcache.Block, error) { return f.cache.Alloc(ctx, 4096, f.stream) },
			func() (memcache.Block, error) { return cache.Alloc(ctx, 4096, other.stream) },
		} {
			go func() {
				for range rounds {
					b, err := g()
					if err == nil {
						err = b.FreeContext(ctx)
					}
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
	}
	for range 2 * goroutines {
		require.NoError(t, <-done)
	}
	assert.Len(t, f.named("cistern.memory.alloc"), 2*goroutines*rounds)
	assert.Len(t, f.named("cistern.memory.free"), 2*goroutines*rounds)
	require.NoError(t, cache.Close())
}

// Without a reader and without a recording parent even a driver call is not observed.
func TestSlowPathsUnobserved(t *testing.T) {
	for name, tt := range unobserved(t) {
		config := tt.config
		if _, read := config.MeterProvider.(*sdkmetric.MeterProvider); read {
			continue
		}
		tracer, err := New(config)
		require.NoError(t, err)
		for op := memcache.OpAlloc; op <= memcache.OpWait+1; op++ {
			ctx, run := tracer.Memory().Start(tt.ctx, op)
			assert.Nil(t, run, "%s: %s", name, op)
			assert.Equal(t, tt.ctx, ctx)
		}
		for op := transfer.OpH2D; op <= transfer.OpNext+1; op++ {
			ctx, run := tracer.Transfer().Start(tt.ctx, op)
			assert.Nil(t, run, "%s: %s", name, op)
			assert.Equal(t, tt.ctx, ctx)
		}
	}
}
