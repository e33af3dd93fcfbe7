package memcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type otherKey struct{}

// A context with another state replaces the previous one, unless a foreign context is between them.
func TestCarriersDoNotStack(t *testing.T) {
	under := context.WithValue(t.Context(), otherKey{}, 1)
	ctx := WithModule(WithStep(under, 3), "encoder")
	assert.Same(t, under, ctx.(*carrier).Context)
	assert.Equal(t, Label{Step: 3, Module: "encoder"}, LabelOf(ctx))
	assert.Equal(t, 1, ctx.Value(otherKey{}))
	between := context.WithValue(ctx, otherKey{}, 2)
	over := WithCategory(between, CategoryInput)
	assert.Same(t, between, over.(*carrier).Context)
	assert.Equal(t, Label{Step: 3, Module: "encoder", Category: CategoryInput}, LabelOf(over))
	assert.Equal(t, Label{Step: 3, Module: "encoder"}, LabelOf(ctx), "no label changes")
}

func TestCarrierIsOneAllocation(t *testing.T) {
	ctx := WithStep(t.Context(), 1)
	var to context.Context
	assert.EqualValues(t, 1, testing.AllocsPerRun(100, func() { to = WithCategory(ctx, CategoryInput) }))
	assert.Equal(t, int64(1), LabelOf(to).Step)
}

// TestTasksAndPoolsInOneContext: a task keeps the pool of its context, and a pool keeps the task.
func TestTasksAndPoolsInOneContext(t *testing.T) {
	c, _ := newCache(t, Config{})
	pool, err := c.NewPool(PoolOptions{})
	require.NoError(t, err)
	require.Same(t, pool, c.PoolOf(c.Wait(pool.Context(t.Context()))))
	waiting := c.Wait(t.Context())
	require.NotNil(t, ctxStateOf(waiting).taskOf(c))
	require.Same(t, ctxStateOf(waiting).taskOf(c), ctxStateOf(pool.Context(waiting)).taskOf(c))
	require.NoError(t, pool.Release())
}
