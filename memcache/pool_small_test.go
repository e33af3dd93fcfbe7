package memcache

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPoolStartsSmall: the pool's segments grow with its contents, and other pools' don't.
func TestPoolStartsSmall(t *testing.T) {
	dev := newScripted(1 << 30)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	p, ctx := newPool(t, c, PoolOptions{StartSmall: true})
	other, inOther := newPool(t, c, PoolOptions{})
	s := dev.stream(1)
	var blocks []Block
	// MiB, and blocks of 1.5 MiB that one holds
	for i, segments := range [][2]int64{{4, 2}, {4, 2}, {8, 5}, {16, 10}, {20, 13}, {20, 13}} {
		before := c.MemoryReserved()
		for range segments[1] {
			blocks = append(blocks, allocIn(t, ctx, c, 3<<19, s))
			require.Equal(t, segments[0]<<20, c.MemoryReserved()-before, "segment %d, %d blocks", i, len(blocks))
		}
	}
	before := c.MemoryReserved()
	blocks = append(blocks, allocIn(t, inOther, c, 3<<19, s))
	require.EqualValues(t, 20<<20, c.MemoryReserved()-before)
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
	require.NoError(t, errors.Join(p.Release(), other.Release(), c.EmptyCache(t.Context())))
	require.Zero(t, c.MemoryReserved())
	require.NoError(t, c.Close())
}
