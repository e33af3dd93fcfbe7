package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

// setsOf returns the attributes of all series of a metric.
func setsOf(t *testing.T, m metricdata.Metrics) (sets []attribute.Set) {
	t.Helper()
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
	case metricdata.Histogram[int64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			sets = append(sets, p.Attributes)
		}
	default:
		t.Fatalf("%s is a %T", m.Name, m.Data)
	}
	return sets
}

// TestParallelRankIsEverywhere: every span and every series of a rank's tracer has its rank,
// including those of failures, and those without ranks have none.
func TestParallelRankIsEverywhere(t *testing.T) {
	for _, config := range []Config{{Detail: All, Rank: 2, WorldSize: 4}, {Detail: All, WorldSize: 4}, {Detail: All}} {
		f := newFixture(t, config)
		_, err := f.tracer.Watch(f.cache)
		require.NoError(t, err)
		_, err = f.tracer.WatchPool(f.pool)
		require.NoError(t, err)
		p := f.traced(t)
		ctx, step := p.StartStep(t.Context(), 1)
		b := f.alloc(t, ctx, 2<<20)
		_, err = f.cache.Alloc(ctx, 1<<40, f.stream)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		c, err := f.pool.Upload(ctx, f.stream, b, 0, make([]byte, 512))
		require.NoError(t, err)
		require.NoError(t, c.Wait(ctx))
		require.NoError(t, b.FreeContext(ctx))
		step.End()
		_, failing := p.StartStep(t.Context(), 2)
		failing.Fail(device.ErrAborted)
		failing.End()
		require.NoError(t, p.Flush(t.Context()))
		require.Greater(t, len(f.spans.Ended()), 6)
		want := func(a attribute.Set, what string) {
			rank, ranked := a.Value(KeyRank)
			size, sized := a.Value(KeyWorldSize)
			assert.Equal(t, [2]bool{config.WorldSize > 0, config.WorldSize > 0}, [2]bool{ranked, sized}, what)
			if ranked {
				assert.Equal(t, [2]int64{int64(config.Rank), 4}, [2]int64{rank.AsInt64(), size.AsInt64()}, what)
			}
		}
		for _, s := range f.spans.Ended() {
			want(attribute.NewSet(s.Attributes()...), s.Name())
		}
		found := f.collect(t)
		require.Greater(t, len(found), 12)
		for _, m := range found {
			for _, set := range setsOf(t, m) {
				want(set, m.Name)
			}
		}
		assert.Equal(t, [2]int{config.Rank, config.WorldSize}, [2]int{step.Profile().Rank, step.Profile().WorldSize})
		for _, figures := range []any{step.Profile(), p.Summary(), p.Summary().Mean} {
			text, err := json.Marshal(figures)
			require.NoError(t, err)
			var fields map[string]any
			require.NoError(t, json.Unmarshal(text, &fields))
			assert.Equal(t, [2]any{float64(config.Rank), float64(config.WorldSize)}, [2]any{fields["rank"], fields["world_size"]})
		}
		var out bytes.Buffer
		require.NoError(t, p.Table(&out))
		assert.Equal(t, config.WorldSize > 0, strings.HasPrefix(out.String(), fmt.Sprintf("rank %d of 4\n", config.Rank)), out.String())
		assert.NotContains(t, out.String(), "collec", "there were none")
	}
}

// TestParallelTable: with a communicator the table has the rank without a tracer, and the time in
// its operations.
func TestParallelTable(t *testing.T) {
	ranks := journey(t, 2, time.Minute, 0, 1)
	tables := make([]bytes.Buffer, 2)
	var mean time.Duration
	each(t, ranks, func(r *traveller) error {
		p := r.profiler(t, ProfilerConfig{Stream: r.stream, Communicator: r.comm})
		for k := range int64(3) {
			_, step := p.StartStep(t.Context(), k+1)
			if err := r.comm.AllReduce(r.stream, r.mem.Ptr(), r.mem.Ptr(), 1000, device.Float32, device.ReduceSum); err != nil {
				return err
			}
			step.End()
		}
		if err := p.Flush(t.Context()); err != nil {
			return err
		}
		if r.rank == 1 {
			mean = p.Summary().Mean.CollectiveTime
		}
		return p.Table(&tables[r.rank])
	})
	for rank, want := range []string{"rank 0 of 2\n", "rank 1 of 2\n"} {
		assert.True(t, strings.HasPrefix(tables[rank].String(), want), tables[rank].String())
		assert.Contains(t, tables[rank].String(), "in collec-")
	}
	require.Positive(t, mean)
	assert.Contains(t, tables[1].String(), formatDuration(mean))
}

// placed is a communicator of which only rank and size are used.
type placed struct {
	device.Communicator
	rank, size int
}

func (p placed) Rank() int { return p.rank }
func (p placed) Size() int { return p.size }

// TestRanksAgree: the communicator's rank and size must be the tracer's, or the tracer has none.
func TestRanksAgree(t *testing.T) {
	for _, config := range []Config{{}, {Rank: 0, WorldSize: 2}, {Rank: 1, WorldSize: 2}, {Rank: 1, WorldSize: 3}} {
		tracer, err := New(config)
		require.NoError(t, err)
		for _, c := range []placed{{rank: 0, size: 1}, {rank: 0, size: 2}, {rank: 1, size: 2}, {rank: 1, size: 3}} {
			same := config.WorldSize == 0 || config.Rank == c.rank && config.WorldSize == c.size
			require.Equal(t, same, tracer.agree(c) == nil, "rank %d of %d, %+v", c.rank, c.size, config)
		}
	}
}

func TestParallelRankBadInput(t *testing.T) {
	for _, c := range []Config{{Rank: -1}, {Rank: 1}, {WorldSize: -1}, {Rank: 2, WorldSize: 2}} {
		_, err := New(c)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "Config.Rank")
	}
	f := newFixture(t, Config{Rank: 1, WorldSize: 2})
	id, err := f.dev.NewCommunicatorID()
	require.NoError(t, err)
	var dev *host.Device = f.dev
	inner, err := dev.NewCommunicator(t.Context(), id, 0, 1, device.CommunicatorOptions{})
	require.NoError(t, err)
	defer inner.Close()
	_, err = f.tracer.Communicator(t.Context(), inner)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "rank 0 of 1, and the tracer's Config says 1 of 2")
	var none *Tracer
	c, err := none.Communicator(t.Context(), inner)
	require.NoError(t, err)
	_, err = NewProfiler(ProfilerConfig{Cache: f.cache, Communicator: c, Tracer: f.tracer})
	require.ErrorIs(t, err, ErrInvalid)
}
