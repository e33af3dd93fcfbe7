package trace

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// The memory of private pools is not free for requests outside of them.
func TestPrivatePoolsAndFreeBlocks(t *testing.T) {
	f := newFixture(t, Config{})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	first, err := f.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	second, err := f.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	for _, p := range []*memcache.Pool{first, second} {
		require.NoError(t, f.alloc(t, p.Context(t.Context()), 12*mib).Free())
	}
	require.NoError(t, f.alloc(t, first.Context(t.Context()), 512).Free())
	m := f.collect(t)
	assert.Equal(t, map[string]int64{small: 2 * mib, large: 24 * mib}, points(t, m["cistern.device.memory.private"]))
	assert.Equal(t, map[string]int64{small: 0, large: 0}, points(t, m["cistern.device.memory.largest_free"]))

	kept := f.alloc(t, t.Context(), 12*mib)
	require.NoError(t, f.alloc(t, t.Context(), 2*mib).Free())
	tiny := f.alloc(t, t.Context(), 512)
	m = f.collect(t)
	assert.Equal(t, map[string]int64{small: 2*mib - 512, large: 20 * mib}, points(t, m["cistern.device.memory.largest_free"]))
	assert.Equal(t, map[string]int64{small: 2 * mib, large: 24 * mib}, points(t, m["cistern.device.memory.private"]))
	require.NoError(t, errors.Join(kept.Free(), tiny.Free(), first.Release(), second.Release()))
}
