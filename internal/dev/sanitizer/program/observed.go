package main

import (
	"errors"
	"runtime"

	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// observed turns on every observer, statistic and counter. Between the accesses it copies on both
// streams and polls the counters until the copies have ended. That is not synchronisation, and must
// not hide the mistake.
func (b *bench) observed(f *form) error {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	meters := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
	tracer, err := trace.New(trace.Config{TracerProvider: provider, MeterProvider: meters, Detail: trace.All})
	if err != nil {
		return err
	}
	if b.cache, err = memcache.New(b.dev, memcache.Config{Observer: tracer.Memory()}); err != nil {
		return err
	}
	pool, err := transfer.New(b.dev, transfer.Config{Observer: tracer.Transfer()})
	if err != nil {
		return err
	}
	if _, err := tracer.Watch(b.cache); err != nil {
		return err
	}
	if _, err := tracer.WatchPool(pool); err != nil {
		return err
	}
	var profiler *trace.Profiler
	var step *trace.Step
	buffers := make(map[device.Stream]transfer.Buffer)
	f.begin = func() (err error) {
		profiler, err = trace.NewProfiler(trace.ProfilerConfig{Cache: b.cache, Pool: pool, Stream: b.consumer, Tracer: tracer})
		if err != nil {
			return err
		}
		b.ctx, step = profiler.StartStep(b.ctx, 1)
		// Each copy has a buffer of its own, because reusing the buffer of a completed copy orders
		// later work.
		for s := range b.scratch {
			if buffers[s], err = pool.Get(b.ctx, bytes); err != nil {
				return err
			}
		}
		return nil
	}
	uploads := func() (n int) {
		for _, span := range spans.Ended() {
			if span.Name() == "cistern.transfer.h2d" {
				n++
			}
		}
		return n
	}
	f.between = func() error {
		before := uploads()
		for s, x := range b.scratch {
			if _, err := pool.H2D(b.ctx, s, x, 0, buffers[s], 0, bytes); err != nil {
				return err
			}
		}
		for uploads() < before+len(b.scratch) {
			pool.Stats()
			b.cache.Stats()
			runtime.Gosched()
		}
		return nil
	}
	f.end = func() error {
		step.End()
		var errs []error
		for _, buffer := range buffers {
			errs = append(errs, buffer.Release())
		}
		return errors.Join(errors.Join(errs...), profiler.Close(), pool.Close(), tracer.Close(), provider.Shutdown(b.ctx), meters.Shutdown(b.ctx))
	}
	return nil
}
