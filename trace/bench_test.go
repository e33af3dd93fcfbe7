package trace

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// One allocation and free of 4 KiB from the cache, unobserved and in each situation of an observer.
func BenchmarkAllocObserved(b *testing.B) {
	recorded := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	b.Cleanup(func() { require.NoError(b, recorded.Shutdown(context.Background())) })
	parent, span := recorded.Tracer("bench").Start(b.Context(), "parent")
	defer span.End()

	run := func(name string, config Config, ctx context.Context, observed, inStep bool) {
		b.Run(name, func(b *testing.B) {
			f := newFixture(b, config)
			cache := f.cache
			if !observed {
				var err error
				cache, err = memcache.New(f.dev, memcache.Config{})
				require.NoError(b, err)
				defer cache.Close()
			}
			if inStep {
				var step *Step
				ctx, step = f.profiler(b, ProfilerConfig{Cache: cache, Tracer: f.tracer}).StartStep(ctx, 1)
				defer step.End()
			}
			if f.tracer.config.AllEvery > 1 { // a block lives whose allocation has a span
				in, step := f.profiler(b, ProfilerConfig{Tracer: f.tracer}).StartStep(ctx, 1)
				traced := f.alloc(b, in, 512)
				step.End()
				defer traced.Free()
			}
			b.ReportAllocs()
			for b.Loop() {
				block, err := cache.Alloc(ctx, 4096, f.stream)
				if err != nil {
					b.Fatal(err)
				}
				if err := block.FreeContext(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("none", Config{}, b.Context(), false, false)
	situations := unobserved(b)
	for _, name := range []string{"global", "noop", "no parent", "unsampled", "other steps"} {
		run(name, situations[name].config, situations[name].ctx, true, false)
	}
	silent := situations["noop"].config
	run("step/none", silent, b.Context(), false, true) // a step costs, without an observer too
	run("step/noop", silent, b.Context(), true, true)
	run("step/global", situations["global"].config, b.Context(), true, true)
	run("step/unsampled", situations["unsampled"].config, b.Context(), true, true)
	run("beside a traced block", Config{TracerProvider: recorded, AllEvery: 1 << 30}, b.Context(), true, false)
	all := situations["unsampled"].config
	all.Detail = All
	run("unsampled/all", all, situations["unsampled"].ctx, true, false)
	run("recording/steps", Config{TracerProvider: recorded, Detail: Steps}, parent, true, false)
	run("recording/slow", Config{TracerProvider: recorded}, parent, true, false)
	run("recording/all", Config{TracerProvider: recorded, Detail: All}, parent, true, false)
}

// The guard alone.
func BenchmarkGuard(b *testing.B) {
	situations := unobserved(b)
	for _, name := range []string{"noop", "global", "no parent", "unsampled"} {
		b.Run(name, func(b *testing.B) {
			config := situations[name].config
			if name == "unsampled" {
				config.Detail = All
			}
			f := newFixture(b, config)
			o, ctx := f.tracer.Memory(), situations[name].ctx
			b.ReportAllocs()
			for b.Loop() {
				o.Start(ctx, memcache.OpAlloc)
			}
		})
	}
}

// One empty step: its cost for the caller.
func BenchmarkStep(b *testing.B) {
	recorded := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	b.Cleanup(func() { require.NoError(b, recorded.Shutdown(context.Background())) })
	for _, tt := range []struct {
		name        string
		spans, time bool
		blocks      int
	}{{"profile", false, false, 0}, {"profile+device", false, true, 0}, {"span", true, false, 0}, {"span+device", true, true, 0},
		{"span in a run", true, false, 0}, {"holders of 30 blocks", false, false, 30}} {
		b.Run(tt.name, func(b *testing.B) {
			f := newFixture(b, Config{TracerProvider: recorded})
			config := ProfilerConfig{Cache: f.cache, Pool: f.pool, Holders: tt.blocks > 0}
			for range tt.blocks {
				block := f.alloc(b, b.Context(), 1000)
				b.Cleanup(func() { require.NoError(b, block.Free()) })
			}
			if tt.spans {
				config.Tracer = f.tracer
			}
			if tt.time {
				config.Stream = f.stream
			}
			p := f.profiler(b, config)
			ctx := b.Context()
			if tt.name == "span in a run" {
				var run oteltrace.Span
				ctx, run = recorded.Tracer("bench").Start(ctx, "run")
				defer run.End()
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				_, step := p.StartStep(ctx, 1)
				step.End()
				if n%1000 == 999 { // what the profiler's goroutine has left to do is not the caller's
					b.StopTimer()
					require.NoError(b, p.Flush(b.Context()))
					b.StartTimer()
				}
			}
			require.NoError(b, p.Flush(b.Context()))
		})
	}
}

// One collection of all metrics of a cache and a pool.
func BenchmarkCollect(b *testing.B) {
	f := newFixture(b, Config{})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(b, err)
	_, err = f.tracer.WatchPool(f.pool)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		f.collect(b)
	}
}
