package memcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestReplaysAreToldToTheScopesAround: the enclosing scopes of the graph's cache list each graph
// once.
func TestReplaysAreToldToTheScopesAround(t *testing.T) {
	c, _ := newCache(t, Config{})
	other, _ := newCache(t, Config{})
	a, b := &GraphMemory{Held: 1}, &GraphMemory{Held: 2}
	c.Replayed(context.Background(), a) // no scope
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
