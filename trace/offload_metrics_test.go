package trace

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestWatchOffload(t *testing.T) {
	f := newFixture(t, Config{})
	stats := func() transfer.OffloadStats {
		return transfer.OffloadStats{Offloaded: memcache.Stat{Current: 1, Allocated: 1, Freed: 1},
			OffloadedBytes: memcache.Stat{Current: 3, Peak: 5, Allocated: 7, Freed: 4}, PinnedBytes: memcache.Stat{Current: 11, Peak: 13}}
	}
	stop, err := f.tracer.WatchOffload(f.dev, stats)
	require.NoError(t, err)
	_, err = f.tracer.WatchOffload(f.dev, stats, attribute.String("app.of", "b"))
	require.NoError(t, err)
	m := f.collect(t)
	for name, want := range map[string]int64{"cistern.offload.memory.usage": 3, "cistern.offload.pinned.usage": 11, "cistern.offload.moved": 7} {
		assert.Equal(t, map[string]int64{"": want, "app.of=b": want}, points(t, m[name]), name)
	}
	require.NoError(t, stop())
	assert.Equal(t, map[string]int64{"app.of=b": 3}, points(t, f.collect(t)["cistern.offload.memory.usage"]))
	require.NoError(t, f.tracer.Close())
	assert.NotContains(t, f.collect(t), "cistern.offload.memory.usage")
	_, err = f.tracer.WatchOffload(f.dev, nil)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = f.tracer.WatchOffload(nil, stats)
	assert.ErrorIs(t, err, ErrInvalid)
	stop, err = (*Tracer)(nil).WatchOffload(f.dev, stats)
	require.NoError(t, err)
	require.NoError(t, stop())
}
