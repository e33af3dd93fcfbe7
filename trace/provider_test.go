package trace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestDefaultProvidersAreTheGlobalOnes(t *testing.T) {
	tracer, err := New(Config{})
	require.NoError(t, err)
	assert.Equal(t, otel.GetTracerProvider(), tracer.config.TracerProvider)
	assert.Equal(t, otel.GetMeterProvider(), tracer.config.MeterProvider)
}

// Spans and metrics have the name and version of their scope.
func TestScopeOfSpansAndMetrics(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	scope := f.named("cistern.memory.alloc")[0].InstrumentationScope()
	assert.Equal(t, []string{ScopeName, version()}, []string{scope.Name, scope.Version})
	assert.Contains(t, scope.SchemaURL, "opentelemetry.io/schemas/")
	var rm metricdata.ResourceMetrics
	require.NoError(t, f.reader.Collect(t.Context(), &rm))
	require.Len(t, rm.ScopeMetrics, 1)
	assert.Equal(t, scope, rm.ScopeMetrics[0].Scope)
}

// Totals grow; amounts and numbers in use go up and down; peaks are gauges.
func TestKindsOfMetrics(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	_, err = f.tracer.WatchPool(f.pool)
	require.NoError(t, err)
	m := f.collect(t)
	for name, want := range map[string][2]string{
		"cistern.device.memory.usage":          {"up-down counter", "By"},
		"cistern.device.memory.limit":          {"up-down counter", "By"},
		"cistern.device.memory.reserved":       {"up-down counter", "By"},
		"cistern.device.memory.category.usage": {"up-down counter", "By"},
		"cistern.device.memory.utilization":    {"gauge", "1"},
		"cistern.device.memory.peak":           {"gauge", "By"},
		"cistern.device.segment.held":          {"up-down counter", "{segment}"},
		"cistern.device.allocated":             {"counter", "By"},
		"cistern.device.allocations":           {"counter", "{allocation}"},
		"cistern.device.oom.retries":           {"counter", "{retry}"},
		"cistern.device.memory.private":        {"up-down counter", "By"},
		"cistern.device.memory.largest_free":   {"gauge", "By"},
		"cistern.pinned.allocations":           {"counter", "{allocation}"},
		"cistern.pinned.memory.usage":          {"up-down counter", "By"},
		"cistern.pinned.memory.peak":           {"gauge", "By"},
		"cistern.transfer.io":                  {"counter", "By"},
		"cistern.transfer.copies":              {"counter", "{copy}"},
		"cistern.transfer.pending":             {"up-down counter", "{buffer}"},
	} {
		kind := "gauge"
		if sum, ok := m[name].Data.(metricdata.Sum[int64]); ok {
			kind = map[bool]string{true: "counter", false: "up-down counter"}[sum.IsMonotonic]
		}
		assert.Equal(t, want, [2]string{kind, m[name].Unit}, name)
		assert.NotEmpty(t, m[name].Description, name)
	}
}

// A pool's buffers that a copy still uses are pending, and its peaks are its own.
func TestPendingBuffersAndPeaks(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.WatchPool(f.pool, attribute.String("app.pool", "a"))
	require.NoError(t, err)
	b := f.alloc(t, t.Context(), 4096)
	for _, bytes := range []int64{1 << 20, 4096} {
		buffer, err := f.pool.Get(t.Context(), bytes)
		require.NoError(t, err)
		unblock := cisterntest.Hold(t, f.stream)
		c, err := f.pool.H2D(t.Context(), f.stream, b, 0, buffer, 0, 4096)
		require.NoError(t, err)
		require.NoError(t, buffer.Release())
		assert.Equal(t, map[string]int64{"app.pool=a": 1}, points(t, f.collect(t)["cistern.transfer.pending"]))
		unblock()
		require.NoError(t, c.Wait(t.Context()))
	}
	m, stats := f.collect(t), f.pool.Stats()
	assert.Equal(t, map[string]int64{"app.pool=a": 0}, points(t, m["cistern.transfer.pending"]))
	require.NotEqual(t, stats.ActiveBytes.Peak, stats.AllocatedBytes.Peak)
	assert.Equal(t, map[string]int64{
		"app.pool=a,cistern.memory.state=active": stats.ActiveBytes.Peak, "app.pool=a,cistern.memory.state=reserved": stats.AllocatedBytes.Peak,
	}, points(t, m["cistern.pinned.memory.peak"]))
	for _, s := range []string{"active", "cached"} {
		assert.Contains(t, points(t, m["cistern.pinned.memory.usage"]), "app.pool=a,cistern.memory.state="+s)
	}
	require.NoError(t, b.Free())
}

// refusing is a provider of meters that refuse one instrument.
type refusing struct {
	noopmetric.MeterProvider
	name string
}

var errRefused = errors.New("refused")

func (r refusing) Meter(string, ...metric.MeterOption) metric.Meter {
	return refusingMeter{name: r.name}
}

type refusingMeter struct {
	noopmetric.Meter
	name string
}

func (m refusingMeter) check(name string) error {
	if name == m.name {
		return fmt.Errorf("%s: %w", name, errRefused)
	}
	return nil
}

func (m refusingMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return noopmetric.Float64Histogram{}, m.check(name)
}

func (m refusingMeter) Int64Histogram(name string, _ ...metric.Int64HistogramOption) (metric.Int64Histogram, error) {
	return noopmetric.Int64Histogram{}, m.check(name)
}

func (m refusingMeter) Int64ObservableCounter(name string, _ ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return noopmetric.Int64ObservableCounter{}, m.check(name)
}

func (m refusingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return noopmetric.Registration{}, m.check("callback")
}

func TestMetersThatRefuse(t *testing.T) {
	for _, name := range []string{"cistern.device.allocation.duration", "cistern.transfer.duration", "cistern.step.duration", "cistern.step.memory.peak", "cistern.step.data.wait_time"} {
		_, err := New(Config{MeterProvider: refusing{name: name}})
		assert.ErrorIs(t, err, errRefused, name)
	}
	for _, name := range []string{"cistern.device.allocated", "cistern.transfer.io", "callback"} {
		f := newFixture(t, Config{MeterProvider: refusing{name: name}})
		_, err1 := f.tracer.Watch(f.cache)
		_, err2 := f.tracer.WatchPool(f.pool)
		assert.ErrorIs(t, errors.Join(err1, err2), errRefused, name)
		assert.Equal(t, []bool{err1 == nil, err2 == nil}, []bool{f.tracer.watched[f.cache] != nil, f.tracer.watched[f.pool] != nil},
			"what is refused is not watched")
	}
}

// The stop of an earlier watch does not end a later one.
func TestStopEndsItsOwnWatch(t *testing.T) {
	f := newFixture(t, Config{})
	stop, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	require.NoError(t, stop())
	_, err = f.tracer.Watch(f.cache)
	require.NoError(t, err)
	require.NoError(t, stop())
	_, err = f.tracer.Watch(f.cache)
	assert.ErrorIs(t, err, ErrInvalid, "it is watched")
	require.Contains(t, f.collect(t), "cistern.device.memory.usage")
}

func TestWatchConcurrentSafe(t *testing.T) {
	f := newFixture(t, Config{})
	var goroutines sync.WaitGroup
	for range 4 {
		goroutines.Go(func() {
			for range 25 {
				if stop, err := f.tracer.Watch(f.cache); err == nil {
					assert.NoError(t, stop())
				}
			}
		})
	}
	goroutines.Wait()
	_, err := f.tracer.Watch(f.cache)
	assert.NoError(t, err)
}

func TestEveryErrorHasItsClass(t *testing.T) {
	for class, errs := range map[string][]error{
		"out_of_memory":     {memcache.ErrOutOfMemory, device.ErrOutOfMemory},
		"canceled":          {context.Canceled},
		"deadline_exceeded": {context.DeadlineExceeded},
		"freed":             {memcache.ErrFreed},
		"closed":            {memcache.ErrClosed, device.ErrClosed, transfer.ErrClosed},
		"invalid":           {memcache.ErrInvalid, device.ErrInvalid, transfer.ErrInvalid},
		"out_of_range":      {transfer.ErrRange},
		"in_flight":         {transfer.ErrInFlight},
		"released":          {transfer.ErrReleased},
		"not_pinned":        {device.ErrNotPinned},
		"sticky":            {device.ErrSticky},
		"panic":             {errPanicked},
	} {
		for _, err := range errs {
			assert.Equal(t, class, errorType(fmt.Errorf("somewhere: %w", err)).Value.AsString(), "%v", err)
		}
	}
}

// The options of a series are made once.
func TestDurationsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	tracer, err := New(Config{MeterProvider: noopmetric.NewMeterProvider()})
	require.NoError(t, err)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		tracer.copyDuration.record(context.Background(), time.Second, durationKey{"host", "h2d"}, nil)
	}), "but for nothing")
}

// A duration that fails is recorded once, in seconds, with the error's class.
func TestFailedDurations(t *testing.T) {
	f := newFixture(t, Config{})
	f.tracer.copyDuration.record(t.Context(), 3*time.Second, durationKey{"host", "d2h"}, device.ErrSticky)
	h := f.collect(t)["cistern.transfer.duration"]
	assert.Equal(t, "s", h.Unit)
	p := h.Data.(metricdata.Histogram[float64]).DataPoints
	require.Len(t, p, 1)
	assert.Equal(t, []any{3.0, uint64(1)}, []any{p[0].Sum, p[0].Count})
	class, _ := p[0].Attributes.Value("error.type")
	assert.Equal(t, "sticky", class.AsString())
	assert.Less(t, p[0].Bounds[0], 1e-5, "microseconds are told apart")
}
