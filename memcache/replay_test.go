package memcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReplaysAreToldToTheScopesAround, of their cache, each graph once.
func TestReplaysAreToldToTheScopesAround(t *testing.T) {
	c, _ := newCache(t, Config{})
	other, _ := newCache(t, Config{})
	a, b := &GraphMemory{Held: 1}, &GraphMemory{Held: 2}
	c.Replayed(context.Background(), a) // nobody listens
	ctx, outer := c.Scope(context.Background(), "outer")
	c.Replayed(ctx, a)
	between, foreign := other.Scope(ctx, "another cache's")
	inside, inner := c.Scope(between, "inner")
	c.Replayed(inside, b)
	c.Replayed(inside, b)
	c.Replayed(inside, nil)
	inner.End()
	c.Replayed(ctx, b)
	assert.Equal(t, []Replays{{a, 1}, {b, 3}}, outer.Replays())
	assert.Equal(t, []Replays{{b, 2}}, inner.Replays())
	assert.Empty(t, foreign.Replays())
	foreign.End()
	outer.End()
}

// TestProfileSince has what came, by owner and size, whatever went.
func TestProfileSince(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	take := func(module string, n int64) Block {
		b, err := c.Alloc(WithModule(context.Background(), module), n, s)
		require.NoError(t, err)
		return b
	}
	gone, stays := take("gone", 512), take("a", 512)
	before := c.Profile()
	require.NoError(t, gone.Free())
	blocks := []Block{stays, take("a", 512), take("a", 500), take("a", 1024), take("b", 2048)}
	got := c.Profile().Since(before)
	require.Len(t, got, 3)
	for i, want := range []struct {
		module    string
		blocks    int
		bytes     int64
		requested int64
	}{{"b", 1, 2048, 2048}, {"a", 1, 1024, 1024}, {"a", 2, 1024, 1016}} { // of three requests of 1,524 bytes one was there before
		h := got[i]
		assert.Equal(t, want.module, h.Module)
		assert.Equal(t, []int64{int64(want.blocks), want.bytes, want.requested}, []int64{int64(h.Blocks), h.Bytes, h.Requested}, h)
	}
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
}
