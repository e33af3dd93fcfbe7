package audit

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/promtest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// exposed serves for Prometheus what the reader collects, until the test ends.
func exposed(t *testing.T) (sdkmetric.Reader, *httptest.Server) {
	registry := prometheus.NewRegistry()
	reader, err := promexporter.New(promexporter.WithRegisterer(registry))
	require.NoError(t, err)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return reader, server
}

// TestQuantilesOfPeaks compares Prometheus's quantiles of step peaks with those of peaks that the
// test chooses, from 1 KiB to 80 GiB.
func TestQuantilesOfPeaks(t *testing.T) {
	reader, server := exposed(t)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	prometheus := promtest.Start(t, server.Listener.Addr().String())
	dev, err := null.New(null.Config{Capacity: 1 << 40})
	require.NoError(t, err)
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(5, 99))
	const least, most = 2, 80 << 30 / 512 // of 512 bytes, the least that the cache splits off
	anywhere := func() int64 { return 512 * int64(math.Round(least*math.Exp2(r.Float64()*math.Log2(most/least)))) }
	programs := [][]int64{{512 * least}, {512 * most}}
	for range 14 { // steps that are all equal
		programs = append(programs, []int64{anywhere()})
	}
	for range 8 { // that are all different, around a size or anywhere
		var near, far []int64
		for size := anywhere(); len(near) < 201; {
			near = append(near, (size+r.Int64N(size))/512*512)
			far = append(far, anywhere())
		}
		programs = append(programs, near, far)
	}
	for rank, sizes := range programs {
		tracer, err := trace.New(trace.Config{MeterProvider: provider, Rank: rank, WorldSize: len(programs)})
		require.NoError(t, err)
		profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Tracer: tracer})
		require.NoError(t, err)
		for n, size := range sizes {
			ctx, step := profiler.StartStep(context.Background(), int64(n+1))
			b, err := cache.Alloc(ctx, size, stream)
			require.NoError(t, err)
			sizes[n] = b.Size() // which is the size, unless a rest is too small to be split off
			require.NoError(t, b.Free())
			step.End()
		}
		require.NoError(t, errors.Join(profiler.Close(), tracer.Close()))
	}
	prometheus.Query(`count(cistern_step_memory_last_peak_bytes) == ` + strconv.Itoa(len(programs)))
	last := prometheus.Query("cistern_step_memory_last_peak_bytes")
	require.Len(t, last, len(programs))
	for _, s := range last {
		sizes := programs[rankOf(t, s)]
		require.EqualValues(t, sizes[len(sizes)-1], s.Value)
	}
	for _, q := range []float64{0.5, 0.99} {
		answer := prometheus.Query("histogram_quantile(" + strconv.FormatFloat(q, 'g', -1, 64) + ", cistern_step_memory_peak_bytes_bucket)")
		require.Len(t, answer, len(programs))
		for _, s := range answer {
			sizes := slices.Sorted(slices.Values(programs[rankOf(t, s)]))
			truth := float64(sizes[int(math.Ceil(q*float64(len(sizes))))-1])
			require.InEpsilon(t, truth, s.Value, 0.05, "quantile %v of %d steps", q, len(sizes))
		}
	}
	require.NoError(t, errors.Join(cache.Close(), stream.Close(), dev.Close(), provider.Shutdown(context.Background())))
}

func rankOf(t *testing.T, s promtest.Series) int {
	rank, err := strconv.Atoi(s.Labels["cistern_rank"])
	require.NoError(t, err)
	return rank
}

// TestNamesOfMetrics: promtool finds no fault with the names of all metrics.
func TestNamesOfMetrics(t *testing.T) {
	check := promtest.Promtool(t)
	reader, server := exposed(t)
	w := newWorld(t, 0, sdkmetric.WithReader(reader))
	_, err := w.tracer.WatchOffload(w.dev, func() transfer.OffloadStats { return transfer.OffloadStats{} })
	require.NoError(t, err)
	inside := w.start(w.scenes[0], 1)
	w.copy(inside, w.alloc(inside, labels[0], mib, true), 100, 10)
	_, next := w.tracer.Transfer().Start(inside.ctx, transfer.OpNext)
	next.End(transfer.OpInfo{Op: transfer.OpNext, Device: "host"})
	w.end(inside.steps[0], false)
	require.NoError(t, w.profiler.Flush(context.Background()))
	var text []byte
	missing := func() (names []string) {
		answer, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		text, err = io.ReadAll(answer.Body)
		require.NoError(t, errors.Join(err, answer.Body.Close()))
		for _, name := range metricNames(t) {
			if !strings.HasPrefix(name, "cistern.collective.") && !strings.Contains(string(text), "\n# TYPE "+strings.ReplaceAll(name, ".", "_")) {
				names = append(names, name)
			}
		}
		return names
	}
	// A copy is complete for its caller a moment before its observer has recorded it.
	for deadline := time.Now().Add(10 * time.Second); len(missing()) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	require.Empty(t, missing())
	check(text)
	w.close()
}
