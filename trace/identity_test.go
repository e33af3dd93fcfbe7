package trace

import (
	"context"
	"errors"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// known is a device that an agent of the machine identifies, too.
type known struct{ device.Device }

func (d known) Properties() device.Properties {
	p := d.Device.Properties()
	p.Model, p.UUID, p.PCIAddress = "H", "GPU-1", "0000:18:00.0"
	return p
}

// knownStream is a stream of that device.
type knownStream struct {
	device.Stream
	dev device.Device
}

func (s knownStream) Device() device.Device { return s.dev }

// Metrics and steps of a GPU have the identity by which an agent's metrics join them, and failed
// steps their error.
func TestIdentityOfADevice(t *testing.T) {
	f := newFixture(t, Config{})
	cache, err := memcache.New(known{f.dev}, memcache.Config{})
	require.NoError(t, err)
	_, err = f.tracer.Watch(cache)
	require.NoError(t, err)
	p := f.profiler(t, ProfilerConfig{Cache: cache, Tracer: f.tracer})
	ctx, step := p.StartStep(t.Context(), 1)
	b, err := cache.Alloc(ctx, 4*mib, knownStream{f.stream, cache.Device()})
	require.NoError(t, err)
	require.NoError(t, b.Free())
	step.End()
	_, step = p.StartStep(t.Context(), 2)
	step.Fail(context.Canceled)
	step.Fail(errors.New("later"))
	step.End()

	a := attributes(f.named("cistern.step")[0])
	for key, want := range map[attribute.Key]any{KeyDevice: "host", "hw.id": "GPU-1", "hw.type": "gpu", "hw.model": "H", KeyPCIAddress: "0000:18:00.0"} {
		assert.Equal(t, want, a[key], key)
	}
	m := f.collect(t)
	series := attribute.NewSet(KeyDevice.String("host"), attribute.String("hw.id", "GPU-1"), attribute.String("hw.type", "gpu"))
	limit := m["cistern.device.memory.limit"].Data.(metricdata.Sum[int64]).DataPoints
	require.Len(t, limit, 1)
	assert.Equal(t, series, limit[0].Attributes)
	assert.EqualValues(t, 64*mib, limit[0].Value)

	peaks := m["cistern.step.memory.peak"].Data.(metricdata.Histogram[int64]).DataPoints
	durations := m["cistern.step.duration"].Data.(metricdata.Histogram[float64]).DataPoints
	require.Len(t, peaks, 2)
	require.Len(t, durations, 2)
	failed := attribute.NewSet(append(series.ToSlice(), attribute.String("error.type", "canceled"))...)
	for i := range peaks {
		assert.EqualValues(t, 1, peaks[i].Count)
		assert.EqualValues(t, 1, durations[i].Count)
		assert.Positive(t, durations[i].Sum)
		switch peaks[i].Attributes {
		case series:
			assert.EqualValues(t, 4*mib, peaks[i].Sum)
			bucket := 0
			for bucket < len(peaks[i].Bounds) && peaks[i].Bounds[bucket] < 4*mib {
				bucket++
			}
			assert.EqualValues(t, 1, peaks[i].BucketCounts[bucket])
		case failed:
			assert.Zero(t, peaks[i].Sum)
		default:
			assert.Fail(t, "another series", "%v", peaks[i].Attributes)
		}
	}
	assert.Equal(t, "s", m["cistern.step.duration"].Unit)
	assert.Equal(t, "By", m["cistern.step.memory.peak"].Unit)
	require.NoError(t, cache.Close())
}

// The host is not a GPU: it has only its name.
func TestIdentityOfTheHost(t *testing.T) {
	dev := cisterntest.Host(t, mib)
	assert.Equal(t, []attribute.KeyValue{KeyDevice.String("host")}, identity(dev))
	assert.Equal(t, identity(dev), description(dev))
	require.NoError(t, dev.Close())
}

func TestVersionIn(t *testing.T) {
	const module = "github.com/cistern-ml/cistern"
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3":  {Main: debug.Module{Path: "example.com/app", Version: "v9.9.9"}, Deps: []*debug.Module{{Path: module, Version: "v1.2.3"}}},
		"v1.2.4":  {Main: debug.Module{Path: module, Version: "v1.2.4"}},
		"v1.2.5":  {Deps: []*debug.Module{{Path: module, Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.2.5"}}}},
		"(devel)": {Deps: []*debug.Module{{Path: module, Version: "v1.0.0", Replace: &debug.Module{Path: "../cistern"}}}},
	} {
		assert.Equal(t, want, versionIn(info, module))
	}
	assert.Equal(t, "(devel)", versionIn(nil, module))
	assert.Equal(t, "(devel)", versionIn(&debug.BuildInfo{}, module))
	assert.NotEmpty(t, version())
}
