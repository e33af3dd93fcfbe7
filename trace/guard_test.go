package trace

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
)

// unobserved are the situations in which a program does not record, each with the context that it
// would use.
func unobserved(t testing.TB) map[string]struct {
	config Config
	ctx    context.Context
} {
	sdk := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	unsampled, span := sdk.Tracer("test").Start(t.Context(), "unsampled")
	noop, _ := nooptrace.NewTracerProvider().Tracer("test").Start(t.Context(), "noop")
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	t.Cleanup(func() {
		span.End()
		assert.NoError(t, sdk.Shutdown(context.Background()))
		assert.NoError(t, meters.Shutdown(context.Background()))
	})
	return map[string]struct {
		config Config
		ctx    context.Context
	}{
		"global":      {Config{TracerProvider: otel.GetTracerProvider(), MeterProvider: otel.GetMeterProvider()}, t.Context()},
		"noop":        {Config{TracerProvider: nooptrace.NewTracerProvider(), MeterProvider: noopmetric.NewMeterProvider()}, noop},
		"no parent":   {Config{TracerProvider: sdk, MeterProvider: meters}, t.Context()},
		"unsampled":   {Config{TracerProvider: sdk, MeterProvider: meters}, unsampled},
		"other steps": {Config{TracerProvider: sdk, MeterProvider: meters, AllEvery: 1}, unsampled},
	}
}

func TestNoGoHeapAllocationsWithoutRecordingParent(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for name, tt := range unobserved(t) {
		for _, detail := range []Detail{Steps, Slow, All} {
			t.Run(name+"/"+detail.String(), func(t *testing.T) {
				if detail == All && name == "no parent" {
					t.Skip("the sampler is asked about each")
				}
				config := tt.config
				config.Detail = detail
				if detail == All {
					config.AllEvery = 0
				}
				f := newFixture(t, config)
				plain, err := memcache.New(f.dev, memcache.Config{})
				require.NoError(t, err)
				allocs := func(c *memcache.Cache) float64 {
					require.NoError(t, must(t, c, f, tt.ctx).Free())
					return testing.AllocsPerRun(1000, func() {
						b, _ := c.Alloc(tt.ctx, 512, f.stream)
						_ = b.FreeContext(tt.ctx)
					})
				}
				assert.Zero(t, allocs(plain))
				assert.Zero(t, allocs(f.cache))
				require.NoError(t, plain.Close())
			})
		}
	}
}

func must(t *testing.T, c *memcache.Cache, f *fixture, ctx context.Context) memcache.Block {
	b, err := c.Alloc(ctx, 512, f.stream)
	require.NoError(t, err)
	return b
}

// At the default detail a recording parent costs no allocation on the Go heap either.
func TestNoGoHeapAllocationsAtSlow(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	f := newFixture(t, Config{})
	ctx, _ := f.parent(t)
	require.NoError(t, f.alloc(t, ctx, 512).Free())
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		b, _ := f.cache.Alloc(ctx, 512, f.stream)
		_ = b.FreeContext(ctx)
	}))
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{Detail: 2}, {Detail: -2}, {AllEvery: -1}, {AllEvery: 10, Detail: All}} {
		tracer, err := New(c)
		assert.ErrorIs(t, err, ErrInvalid, "%+v", c)
		assert.Nil(t, tracer)
	}
}

func TestDetailText(t *testing.T) {
	for _, d := range []Detail{Steps, Slow, All} {
		text, err := d.MarshalText()
		require.NoError(t, err)
		var back Detail
		require.NoError(t, back.UnmarshalText(text))
		assert.Equal(t, d, back)
	}
	var d Detail
	assert.ErrorIs(t, d.UnmarshalText([]byte("much")), ErrInvalid)
	assert.Equal(t, "Detail(7)", Detail(7).String())
}

func TestNilTracer(t *testing.T) {
	f := newFixture(t, Config{})
	for _, tracer := range []*Tracer{nil, {}} {
		assert.Nil(t, tracer.Memory())
		assert.Nil(t, tracer.Transfer())
		assert.Zero(t, tracer.Counts())
		stop, err := tracer.Watch(f.cache)
		require.NoError(t, err)
		assert.NoError(t, stop())
		stop, err = tracer.WatchPool(f.pool)
		require.NoError(t, err)
		assert.NoError(t, stop())
		assert.NoError(t, tracer.Close())

		p := f.profiler(t, ProfilerConfig{Tracer: tracer})
		_, step := p.StartStep(t.Context(), 1)
		assert.Equal(t, int64(1), step.End().Step)
	}
}
