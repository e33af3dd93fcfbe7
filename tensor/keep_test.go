package tensor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestKeepAtOnce has room for one block. While the first call waits for memory another one takes
// it.
func TestKeepAtOnce(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("its memory has the size that the test gives it")
	const bytes = 40 << 20
	var at memcache.Block
	e := (*env)(r.Runtime)
	keep := func(ctx context.Context) (memcache.Block, error) { return e.Keep(ctx, &at, bytes, 0) }
	full, err := r.cache.Alloc(r.ctx, bytes, r.Stream())
	require.NoError(t, err)
	_, err = keep(r.ctx)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)

	var other memcache.Block
	remove := r.cache.OnPressure(func(ctx context.Context, _ int64) int64 {
		if other.IsZero() {
			require.NoError(t, full.Free())
			other, err = keep(ctx)
			require.NoError(t, err)
		}
		return 0 // what was freed is in use again
	})
	defer remove()
	mine, err := keep(r.ctx)
	require.NoError(t, err)
	assert.Equal(t, other, mine)
	assert.EqualValues(t, bytes, r.cache.MemoryAllocated())
	again, err := keep(r.ctx)
	require.NoError(t, err)
	assert.Equal(t, mine, again)
	require.NoError(t, at.Free())
}
