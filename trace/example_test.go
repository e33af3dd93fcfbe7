package trace_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// open opens the parts that every example needs, without handling errors.
func open(observer memcache.Observer) (cache *memcache.Cache, stream device.Stream, close func()) {
	dev, _ := device.Open("host?capacity=64MiB")
	stream, _ = dev.NewStream(device.StreamOptions{})
	cache, _ = memcache.New(dev, memcache.Config{Observer: observer})
	return cache, stream, func() {
		cache.Close()
		stream.Close()
		dev.Close()
	}
}

// Profiles need no OpenTelemetry at all.
func ExampleProfiler() {
	ctx := context.Background()
	cache, stream, close := open(nil)
	defer close()
	weights, _ := cache.Alloc(ctx, 1<<20, stream)

	profiler, _ := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Stream: stream, Synchronize: true})
	defer profiler.Close()
	for n := range int64(3) {
		ctx, step := profiler.StartStep(ctx, n)
		activations, _ := cache.Alloc(ctx, 4<<20, stream)
		activations.Free()
		p := step.End()
		fmt.Printf("step %d: %d MiB, at most %d MiB, %.0f%% from the cache\n",
			p.Step, p.AllocatedStart>>20, p.AllocatedPeak>>20, 100*p.HitRate())
	}
	s := profiler.Summary()
	fmt.Printf("%d steps: %.0f%% from the cache\n", s.Steps, 100*s.HitRate)
	weights.Free()
	// Output:
	// step 0: 1 MiB, at most 5 MiB, 0% from the cache
	// step 1: 1 MiB, at most 5 MiB, 100% from the cache
	// step 2: 1 MiB, at most 5 MiB, 100% from the cache
	// 3 steps: 67% from the cache
}

// Every allocation of one step in two gets a span.
func ExampleConfig() {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	tracer, _ := trace.New(trace.Config{TracerProvider: provider, AllEvery: 2})
	defer tracer.Close()
	cache, stream, close := open(tracer.Memory())
	defer close()

	profiler, _ := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Tracer: tracer})
	for n := range int64(2) {
		ctx, step := profiler.StartStep(context.Background(), n)
		block, _ := cache.Alloc(ctx, 1<<20, stream)
		block.FreeContext(ctx)
		step.End()
	}
	for _, span := range recorder.Ended() {
		fmt.Println(span.Name())
	}
	// Output:
	// cistern.memory.driver_alloc
	// cistern.memory.alloc
	// cistern.memory.free
	// cistern.step
	// cistern.step
}

// Exponential histograms of the peaks of steps need fewer buckets than the view that trace names.
func ExampleProfiler_StartStep() {
	reader := metric.NewManualReader()
	view := metric.NewView(metric.Instrument{Name: "cistern.step.memory.peak"},
		metric.Stream{Aggregation: metric.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 20}})
	provider := metric.NewMeterProvider(metric.WithReader(reader), metric.WithView(view))
	tracer, _ := trace.New(trace.Config{MeterProvider: provider})
	defer tracer.Close()
	cache, stream, close := open(tracer.Memory())
	defer close()

	profiler, _ := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Tracer: tracer})
	ctx, step := profiler.StartStep(context.Background(), 1)
	block, _ := cache.Alloc(ctx, 1<<20, stream)
	block.FreeContext(ctx)
	step.End()

	var all metricdata.ResourceMetrics
	fmt.Println(reader.Collect(context.Background(), &all))
	for _, m := range all.ScopeMetrics[0].Metrics {
		if h, ok := m.Data.(metricdata.ExponentialHistogram[int64]); ok {
			fmt.Println(m.Name, h.DataPoints[0].Count)
		}
	}
	// Output:
	// <nil>
	// cistern.step.memory.peak 1
}

// countingExporter counts the spans of this module that reach the program's exporter.
type countingExporter struct {
	sdktrace.SpanExporter
	exported *atomic.Int64
}

func (e countingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	for _, s := range spans {
		if err == nil && s.InstrumentationScope().Name == trace.ScopeName {
			e.exported.Add(1)
		}
	}
	return err
}

// A batch processor with a full queue drops spans silently. An exporter that counts shows how many.
func ExampleTracer_Counts() {
	var exported atomic.Int64
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(countingExporter{tracetest.NewNoopExporter(), &exported}))
	tracer, _ := trace.New(trace.Config{TracerProvider: provider})
	defer tracer.Close()
	cache, stream, close := open(tracer.Memory())
	defer close()

	profiler, _ := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Tracer: tracer})
	ctx, step := profiler.StartStep(context.Background(), 1)
	block, _ := cache.Alloc(ctx, 1<<20, stream)
	block.FreeContext(ctx)
	step.End()

	provider.Shutdown(context.Background())
	counts := tracer.Counts()
	fmt.Println("spans:", counts.Ended, "lost:", counts.Ended-exported.Load(), "left out:", counts.Skipped)
	// Output: spans: 2 lost: 0 left out: 2
}

// The statistics of a cache are metrics, read when the program's reader collects.
func ExampleTracer_Watch() {
	ctx := context.Background()
	reader := metric.NewManualReader()
	tracer, _ := trace.New(trace.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	defer tracer.Close()
	cache, stream, close := open(tracer.Memory())
	defer close()
	unwatch, _ := tracer.Watch(cache)
	defer unwatch()

	block, _ := cache.Alloc(ctx, 3<<20, stream)
	defer block.Free()
	var collected metricdata.ResourceMetrics
	reader.Collect(ctx, &collected)
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if reserved, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "cistern.device.memory.reserved" {
			for _, p := range reserved.DataPoints {
				pool, _ := p.Attributes.Value(trace.KeyPool)
				fmt.Println(pool.AsString(), p.Value, m.Unit)
			}
		}
	}
	// Unordered output:
	// large 20971520 By
	// small 0 By
}
