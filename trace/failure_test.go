package trace

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// failing is a device with a cache, a pool and a stream, and providers, all of whose calls may fail.
type failing struct {
	t        testing.TB
	faults   *failtest.Faults
	dev      device.Device
	cache    *memcache.Cache
	pool     *transfer.Pool
	stream   device.Stream
	spans    *tracetest.SpanRecorder
	reader   *sdkmetric.ManualReader
	provider *sdktrace.TracerProvider
	meters   failingMeters
}

func openFailing(t testing.TB, f *failtest.Faults) *failing {
	t.Helper()
	dev, err := failtest.NewHost(f, host.Config{Capacity: 16 * mib})
	require.NoError(t, err)
	leaktest.Device(t, dev)
	s := stacktest.New(t, stacktest.Config{Device: dev})
	m := &failing{t: t, faults: f, dev: dev, cache: s.Cache, pool: s.Pool, stream: s.Stream,
		spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	m.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(m.spans), sdktrace.WithSyncer(failingExporter{f}))
	m.meters = failingMeters{sdkmetric.NewMeterProvider(sdkmetric.WithReader(m.reader)), f}
	return m
}

// tracer is one that is closed with the test.
func (m *failing) tracer() *Tracer {
	m.t.Helper()
	tracer, err := New(m.config())
	require.NoError(m.t, err)
	m.t.Cleanup(func() { assert.NoError(m.t, tracer.Close()) })
	return tracer
}

func (m *failing) config() Config { return Config{TracerProvider: m.provider, MeterProvider: m.meters} }

// series returns the number of caches and pools that a reader finds.
func (m *failing) series() (n int) {
	var rm metricdata.ResourceMetrics
	require.NoError(m.t, m.reader.Collect(context.Background(), &rm))
	for _, scope := range rm.ScopeMetrics {
		for _, x := range scope.Metrics {
			if x.Name == "cistern.device.oom.retries" || x.Name == "cistern.transfer.pending" {
				n += len(x.Data.(metricdata.Sum[int64]).DataPoints)
			}
		}
	}
	return n
}

// failingMeters are meters whose calls may fail.
type failingMeters struct {
	metric.MeterProvider
	faults *failtest.Faults
}

func (p failingMeters) Meter(name string, o ...metric.MeterOption) metric.Meter {
	return failingMeter{p.MeterProvider.Meter(name, o...), p.faults}
}

type failingMeter struct {
	metric.Meter
	faults *failtest.Faults
}

func (m failingMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	if err := m.faults.Call("Float64Histogram"); err != nil {
		return nil, err
	}
	return m.Meter.Float64Histogram(name, o...)
}

func (m failingMeter) Int64ObservableUpDownCounter(name string, o ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	if err := m.faults.Call("Int64ObservableUpDownCounter"); err != nil {
		return nil, err
	}
	return m.Meter.Int64ObservableUpDownCounter(name, o...)
}

func (m failingMeter) RegisterCallback(f metric.Callback, o ...metric.Observable) (metric.Registration, error) {
	if err := m.faults.Call("RegisterCallback"); err != nil {
		return nil, err
	}
	r, err := m.Meter.RegisterCallback(f, o...)
	return failingRegistration{r, m.faults}, err
}

type failingRegistration struct {
	metric.Registration
	faults *failtest.Faults
}

func (r failingRegistration) Unregister() error {
	if err := r.faults.Call("Unregister"); err != nil {
		return err
	}
	return r.Registration.Unregister()
}

// failingExporter loses spans. Operations don't notice.
type failingExporter struct{ faults *failtest.Faults }

func (e failingExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return e.faults.Call("ExportSpans")
}

func (failingExporter) Shutdown(context.Context) error { return nil }

// watches is a trial of a watch.
func (m *failing) watches(watch func(tracer *Tracer) (func() error, error)) failtest.Trial {
	tracer := m.tracer()
	var stop func() error
	return failtest.Trial{
		Do: func(context.Context) error {
			s, err := watch(tracer)
			if err == nil {
				stop = s
			}
			return err
		},
		See:  func() any { return m.series() },
		Undo: func() error { return stop() },
	}
}

// tables is a trial of the table of a step.
func (m *failing) tables(table func(p *Profiler, w *bytes.Buffer) error) failtest.Trial {
	p, err := NewProfiler(ProfilerConfig{Cache: m.cache})
	require.NoError(m.t, err)
	m.t.Cleanup(func() { assert.NoError(m.t, p.Close()) })
	for n := range int64(2) {
		ctx, step := p.StartStep(memcache.WithModule(context.Background(), "m"), n+1)
		b, err := m.cache.Alloc(ctx, 1000, m.stream)
		require.NoError(m.t, err)
		if n == 1 {
			step.Fail(errBad)
		}
		step.End()
		require.NoError(m.t, b.Free())
	}
	var want bytes.Buffer
	require.NoError(m.t, p.Table(&want))
	require.Contains(m.t, want.String(), "largest modules")
	whole := false
	return failtest.Trial{
		Do: func(context.Context) error {
			var got bytes.Buffer
			err := table(p, &got)
			whole = err == nil && got.String() == want.String()
			assert.True(m.t, bytes.HasPrefix(want.Bytes(), got.Bytes()), "%q", got.String())
			return err
		},
		See: func() any { return whole },
	}
}

// tracerRows are programs of a tracer, and of tables.
var tracerRows = []failtest.Row[*failing]{
	{Of: "New", Make: func(_ testing.TB, m *failing) failtest.Trial {
		var tracer *Tracer
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				tracer, err = New(m.config())
				return err
			},
			See:  func() any { return tracer != nil },
			Undo: func() error { return tracer.Close() },
		}
	}},
	{Of: "Tracer.Watch", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.watches(func(tracer *Tracer) (func() error, error) { return tracer.Watch(m.cache) })
	}},
	{Of: "Tracer.WatchPool", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.watches(func(tracer *Tracer) (func() error, error) { return tracer.WatchPool(m.pool) })
	}},
	{Of: "Tracer.WatchOffload", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.watches(func(tracer *Tracer) (func() error, error) {
			return tracer.WatchOffload(m.cache.Device(), func() transfer.OffloadStats { return transfer.OffloadStats{} })
		})
	}},
	{Of: "the end of a Tracer.Watch", Make: func(t testing.TB, m *failing) failtest.Trial {
		tracer := m.tracer()
		stop, err := tracer.Watch(m.cache)
		require.NoError(t, err)
		return failtest.Trial{
			Do:  func(context.Context) error { return stop() },
			See: func() any { return []int{m.series(), len(tracer.watched)} },
		}
	}},
	{Of: "Tracer.Close", Partly: map[failtest.Kind]string{failtest.Failed: "what the meter keeps is for the next Close"}, Make: func(t testing.TB, m *failing) failtest.Trial {
		tracer, err := New(m.config())
		require.NoError(t, err)
		_, err1 := tracer.Watch(m.cache)
		_, err2 := tracer.WatchPool(m.pool)
		require.NoError(t, errors.Join(err1, err2))
		return failtest.Trial{
			Do:  func(context.Context) error { return tracer.Close() },
			See: func() any { return m.series() },
			Left: func(any, error) error {
				assert.Equal(t, 1, m.series(), "the others are ended")
				err := tracer.Close()
				assert.Zero(t, m.series())
				return err
			},
		}
	}},
	{Of: "Profiler.Table", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.tables(func(p *Profiler, w *bytes.Buffer) error { return p.Table(failtest.Writer(m.faults, w)) })
	}},
	{Of: "Summary.Table", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.tables(func(p *Profiler, w *bytes.Buffer) error { return p.Summary().Table(failtest.Writer(m.faults, w)) })
	}},
}

// TestEveryFailure: whichever driver call, call of OpenTelemetry, write or check of a context fails,
// an operation has done all or nothing, or what its documentation states, and succeeds afterwards.
func TestEveryFailure(t *testing.T) {
	handler := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) // of exporters
	t.Cleanup(func() { otel.SetErrorHandler(handler) })
	for name, rows := range map[string][]failtest.Row[*failing]{"tracer": tracerRows, "profiler": profilerRows, "communicator": communicatorRows} {
		t.Run(name, func(t *testing.T) {
			failtest.Suite[*failing]{Open: openFailing, Live: func(m *failing) any { return m.cache.MemoryAllocated() }, Rows: rows}.Run(t)
		})
	}
}
