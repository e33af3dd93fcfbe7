package tensor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestKeepAtOnce has memory for one block. While the first call waits for memory, another call
// takes it.
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
		return 0 // the freed memory is in use again
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

// TestKeepZeroes the first bytes of a new block, as many as requested.
func TestKeepZeroes(t *testing.T) {
	r := newRig(t, 64<<20)
	const bytes = 1 << 20
	for _, zeroed := range []int64{0, 512, bytes} {
		garbage, err := r.cache.Alloc(r.ctx, bytes, r.Stream())
		require.NoError(t, err)
		require.NoError(t, r.Stream().Memset(garbage.Ptr(), 0xff, bytes))
		require.NoError(t, garbage.Free())
		var at memcache.Block
		e := (*env)(r.Runtime)
		b, err := e.Keep(r.ctx, &at, bytes, zeroed)
		require.NoError(t, err)
		require.Equal(t, garbage.Ptr(), b.Ptr(), "the memory with the garbage")
		x, err := r.FromBlock(b, Uint8, bytes)
		require.NoError(t, err)
		for i, v := range get[uint8](r, x, nil) {
			if int64(i) < zeroed {
				require.Zero(t, v, i)
			} else {
				require.NotZero(t, v, i)
			}
		}
		require.NoError(t, x.Release())
		require.NoError(t, e.Unkeep(&at))
		require.True(t, at.IsZero())
	}
}
