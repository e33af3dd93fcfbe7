package trace

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// collect reads all metrics, by name.
func (f *fixture) collect(t testing.TB) map[string]metricdata.Metrics {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, f.reader.Collect(t.Context(), &rm))
	found := make(map[string]metricdata.Metrics)
	for _, scope := range rm.ScopeMetrics {
		assert.Equal(t, ScopeName, scope.Scope.Name)
		for _, m := range scope.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// points maps the values of an integer metric by the attributes other than the device.
func points(t testing.TB, m metricdata.Metrics) map[string]int64 {
	t.Helper()
	var list []metricdata.DataPoint[int64]
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		list = d.DataPoints
	case metricdata.Gauge[int64]:
		list = d.DataPoints
	default:
		require.Fail(t, "no integers", "%s is a %T", m.Name, m.Data)
	}
	values := make(map[string]int64)
	for _, p := range list {
		name, ok := p.Attributes.Value(KeyDevice)
		assert.True(t, ok)
		assert.Equal(t, "host", name.AsString())
		rest, _ := p.Attributes.Filter(func(kv attribute.KeyValue) bool { return kv.Key != KeyDevice })
		values[rest.Encoded(attribute.DefaultEncoder())] = p.Value
	}
	return values
}

const small, large = "cistern.pool.name=small", "cistern.pool.name=large"

func TestMemoryMetrics(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	ctx := t.Context()
	_, err = f.cache.Alloc(ctx, 100*mib, f.stream)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	kept := f.alloc(t, ctx, 1000)
	big := f.alloc(t, ctx, 4*mib)
	other, unblock := f.recordedElsewhere(t, big)
	require.NoError(t, big.Free())
	require.NoError(t, f.alloc(t, ctx, 600).Free())

	m := f.collect(t)
	stats := f.cache.Stats()
	state := func(pool, s string) string { return "cistern.memory.state=" + s + "," + pool }
	assert.Equal(t, map[string]int64{
		state(small, "allocated"): stats.AllocatedBytes.SmallPool.Current,
		state(small, "pending"):   0,
		state(small, "split"):     stats.InactiveSplitBytes.SmallPool.Current,
		state(small, "cached"):    0,
		state(large, "allocated"): 0,
		state(large, "pending"):   stats.ActiveBytes.LargePool.Current,
		state(large, "split"):     stats.InactiveSplitBytes.LargePool.Current,
		state(large, "cached"):    0,
		state(small, "graph"):     0,
		state(large, "graph"):     0,
	}, points(t, m["cistern.device.memory.usage"]))
	assert.Equal(t, map[string]int64{small: stats.ReservedBytes.SmallPool.Current, large: stats.ReservedBytes.LargePool.Current},
		points(t, m["cistern.device.memory.reserved"]))
	assert.Equal(t, map[string]int64{
		"cistern.memory.state=allocated": f.cache.MaxMemoryAllocated(), "cistern.memory.state=reserved": f.cache.MaxMemoryReserved(),
	}, points(t, m["cistern.device.memory.peak"]))
	assert.Equal(t, map[string]int64{small: 1, large: 1}, points(t, m["cistern.device.segment.held"]))
	assert.Equal(t, map[string]int64{
		"cistern.allocation.result=hit": 1, "cistern.allocation.result=miss": 2, "cistern.allocation.result=oom": 1,
	}, points(t, m["cistern.device.allocations"]))
	assert.Equal(t, map[string]int64{"": 1}, points(t, m["cistern.device.oom.retries"]))
	assert.Equal(t, int64(1024+1024), points(t, m["cistern.device.allocated"])[small])

	for name, unit := range map[string]string{
		"cistern.device.memory.usage": "By", "cistern.device.memory.peak": "By", "cistern.device.segment.held": "{segment}",
		"cistern.device.allocations": "{allocation}", "cistern.device.oom.retries": "{retry}",
		"cistern.device.allocation.duration": "s",
	} {
		assert.Equal(t, unit, m[name].Unit, name)
		assert.NotEmpty(t, m[name].Description, name)
	}
	metricdatatest.AssertHasAttributes(t, m["cistern.device.allocated"], KeyDevice.String("host"))
	unblock()
	require.NoError(t, other())
	require.NoError(t, kept.Free())
}

// recordedElsewhere records b on another stream that is blocked until unblock; done closes the stream.
func (f *fixture) recordedElsewhere(t testing.TB, b memcache.Block) (done func() error, unblock func()) {
	s := f.newStream(t)
	unblock = cisterntest.Hold(t, s)
	require.NoError(t, b.RecordStream(s))
	return s.Close, unblock
}

func TestTotalsSurviveAReset(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	}
	before := points(t, f.collect(t)["cistern.device.allocations"])
	f.cache.ResetAccumulatedStats()
	assert.Equal(t, before, points(t, f.collect(t)["cistern.device.allocations"]))
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	before["cistern.allocation.result=hit"]++
	assert.Equal(t, before, points(t, f.collect(t)["cistern.device.allocations"]))
	// A reset loses neither the counts before it that were not collected, nor those after it.
	for range 4 {
		require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	}
	f.cache.ResetAccumulatedStats()
	for range 10 {
		require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	}
	before["cistern.allocation.result=hit"] += 14
	m := f.collect(t)
	assert.Equal(t, before, points(t, m["cistern.device.allocations"]))
	assert.Equal(t, int64(18*512), points(t, m["cistern.device.allocated"])[small])
}

func TestWatchStops(t *testing.T) {
	f := newFixture(t, Config{})
	stop, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	_, err = f.tracer.Watch(f.cache)
	assert.ErrorIs(t, err, ErrInvalid, "twice would count twice")
	require.Contains(t, f.collect(t), "cistern.device.memory.usage")
	require.NoError(t, stop())
	require.NoError(t, stop())
	assert.NotContains(t, f.collect(t), "cistern.device.memory.usage")
	_, err = f.tracer.Watch(f.cache)
	require.NoError(t, err)
	require.Contains(t, f.collect(t), "cistern.device.memory.usage")
	require.NoError(t, f.tracer.Close())
	assert.NotContains(t, f.collect(t), "cistern.device.memory.usage")
	_, err = f.tracer.Watch(f.cache)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = f.tracer.Watch(nil)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = f.tracer.WatchPool(nil)
	assert.ErrorIs(t, err, ErrInvalid)
}

func TestWatchOfAClosedCache(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	_, err = f.tracer.WatchPool(f.pool)
	require.NoError(t, err)
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	require.NoError(t, f.cache.Close())
	require.NoError(t, f.pool.Close())
	m := f.collect(t)
	assert.Equal(t, map[string]int64{small: 0, large: 0}, points(t, m["cistern.device.memory.reserved"]))
	assert.Equal(t, int64(1), points(t, m["cistern.device.allocations"])["cistern.allocation.result=miss"])
}

func TestSeveralCachesOfOneDevice(t *testing.T) {
	f := newFixture(t, Config{})
	second, err := memcache.New(f.dev, memcache.Config{})
	require.NoError(t, err)
	_, err = f.tracer.Watch(f.cache, attribute.String("app.cache", "a"))
	require.NoError(t, err)
	_, err = f.tracer.Watch(second, attribute.String("app.cache", "b"))
	require.NoError(t, err)
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	peaks := points(t, f.collect(t)["cistern.device.memory.peak"])
	assert.Equal(t, int64(512), peaks["app.cache=a,cistern.memory.state=allocated"])
	assert.Equal(t, int64(0), peaks["app.cache=b,cistern.memory.state=allocated"])
	require.NoError(t, second.Close())
}

func TestTransferMetrics(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.WatchPool(f.pool)
	require.NoError(t, err)
	b := f.alloc(t, t.Context(), 4096)
	buffer, err := f.pool.Get(t.Context(), 4096)
	require.NoError(t, err)
	c, err := f.pool.H2D(t.Context(), f.stream, b, 0, buffer, 0, 4096)
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	c, err = f.pool.D2H(t.Context(), f.stream, buffer, 0, b, 0, 1024)
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	m := f.collect(t)
	const h2d, d2h = "cistern.transfer.direction=h2d", "cistern.transfer.direction=d2h"
	assert.Equal(t, map[string]int64{h2d: 4096, d2h: 1024}, points(t, m["cistern.transfer.io"]))
	assert.Equal(t, map[string]int64{h2d: 1, d2h: 1}, points(t, m["cistern.transfer.copies"]))
	usage := points(t, m["cistern.pinned.memory.usage"])
	assert.Equal(t, f.pool.Stats().ActiveBytes.Current, usage["cistern.memory.state=active"])
	assert.Positive(t, usage["cistern.memory.state=active"])
	require.NoError(t, buffer.Release())
	require.NoError(t, b.Free())
	buffer, err = f.pool.Get(t.Context(), 4096)
	require.NoError(t, err)
	require.NoError(t, buffer.Release())
	m = f.collect(t)
	assert.Equal(t, map[string]int64{"cistern.allocation.result=hit": 1, "cistern.allocation.result=miss": 1}, points(t, m["cistern.pinned.allocations"]))
	usage = points(t, m["cistern.pinned.memory.usage"])
	assert.Zero(t, usage["cistern.memory.state=active"])
	assert.Positive(t, usage["cistern.memory.state=cached"])
}

func TestDurationsNeedNoSpan(t *testing.T) {
	f := newFixture(t, Config{Detail: Steps})
	b := f.alloc(t, t.Context(), 512)
	_, err := f.cache.Alloc(t.Context(), 100*mib, f.stream)
	require.Error(t, err)
	c, err := f.pool.Upload(t.Context(), f.stream, b, 0, make([]byte, 512))
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, b.Free())
	require.NoError(t, f.pool.Close())
	m := f.collect(t)
	for name, want := range map[string]map[string]uint64{
		"cistern.device.allocation.duration": {small: 1, large + ",error.type=out_of_memory": 2},
		"cistern.transfer.duration":          {"cistern.transfer.operation=h2d": 1},
	} {
		got := make(map[string]uint64)
		for _, p := range m[name].Data.(metricdata.Histogram[float64]).DataPoints {
			rest, _ := p.Attributes.Filter(func(kv attribute.KeyValue) bool { return kv.Key != KeyDevice })
			got[rest.Encoded(attribute.DefaultEncoder())] = p.Count
			assert.Positive(t, p.Sum)
		}
		assert.Equal(t, want, got, name)
	}
	assert.Empty(t, f.spans.Started())
}

// The memory that may be held has a limit, and the states of memory are shares of it.
func TestLimitAndUtilization(t *testing.T) {
	f := newFixture(t, Config{})
	pool, err := transfer.New(f.dev, transfer.Config{MaxBytes: 4 * mib})
	require.NoError(t, err)
	for _, watch := range []func() (func() error, error){
		func() (func() error, error) { return f.tracer.Watch(f.cache) },
		func() (func() error, error) { return f.tracer.WatchPool(f.pool) },
		func() (func() error, error) { return f.tracer.WatchPool(pool, attribute.String("app.pool", "limited")) },
	} {
		_, err := watch()
		require.NoError(t, err)
	}
	b := f.alloc(t, t.Context(), 4*mib)
	buffer, err := pool.Get(t.Context(), mib)
	require.NoError(t, err)
	m := f.collect(t)
	assert.Equal(t, map[string]int64{"": 64 * mib}, points(t, m["cistern.device.memory.limit"]))
	assert.Equal(t, map[string]int64{"app.pool=limited": 4 * mib}, points(t, m["cistern.pinned.memory.limit"]), "the other pool has none")
	shares := func(name string) map[string]float64 {
		values := make(map[string]float64)
		for _, p := range m[name].Data.(metricdata.Gauge[float64]).DataPoints {
			state, _ := p.Attributes.Value(KeyState)
			values[state.AsString()] += p.Value
		}
		return values
	}
	reserved := float64(f.cache.MemoryReserved()) / (64 * mib)
	assert.Equal(t, map[string]float64{"allocated": 4. / 64, "pending": 0, "split": reserved - 4./64, "cached": 0, "graph": 0}, shares("cistern.device.memory.utilization"))
	assert.Equal(t, map[string]float64{"active": 0.25, "cached": 0}, shares("cistern.pinned.memory.utilization"))

	require.NoError(t, f.cache.SetMemoryFraction(0.5))
	m = f.collect(t)
	assert.Equal(t, map[string]int64{"": 32 * mib}, points(t, m["cistern.device.memory.limit"]))
	assert.Equal(t, 4./32, shares("cistern.device.memory.utilization")["allocated"])
	require.NoError(t, f.cache.SetMemoryFraction(0))
	m = f.collect(t)
	assert.Empty(t, m["cistern.device.memory.utilization"].Data, "of nothing there is no share")
	require.NoError(t, buffer.Release())
	require.NoError(t, b.Free())
	require.NoError(t, pool.Close())
}
