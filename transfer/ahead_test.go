package transfer_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

type aheadTestKey struct{}

// TestAhead: functions get the context of the first use, whether OnUse is called before or after
// it.
func TestAhead(t *testing.T) {
	start := context.WithValue(t.Context(), aheadTestKey{}, "start")
	use := context.WithValue(t.Context(), aheadTestKey{}, "use")
	for _, c := range []struct {
		want string
		use  func(*transfer.Ahead)
	}{
		{"use", func(a *transfer.Ahead) { a.Use(use); a.Unused() }},
		{"start", func(a *transfer.Ahead) { a.Unused(); a.Use(use) }},
	} {
		ctx, a := transfer.WithAhead(start)
		require.Same(t, a, transfer.AheadOf(ctx))
		require.Equal(t, "start", ctx.Value(aheadTestKey{}))
		var got []any
		f := func(ctx context.Context) { got = append(got, ctx.Value(aheadTestKey{})) }
		a.OnUse(f)
		a.OnUse(f)
		require.Empty(t, got)
		require.Equal(t, "copies ahead of their use", a.String())
		c.use(a)
		require.Equal(t, []any{c.want, c.want}, got, "once each")
		a.OnUse(f)
		require.Equal(t, []any{c.want, c.want, c.want}, got)
		require.Equal(t, "copies that are used", a.String())
	}
	require.Nil(t, transfer.AheadOf(start))
	_, inner := transfer.WithAhead(start)
	inner.OnUse(func(ctx context.Context) { require.Nil(t, transfer.AheadOf(ctx), "the start is not ahead") })
	inner.Unused()
}

// TestAheadConcurrentSafe: a function that is added during the use is called once.
func TestAheadConcurrentSafe(t *testing.T) {
	for range 100 {
		_, a := transfer.WithAhead(t.Context())
		var mu sync.Mutex
		calls := 0
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() { a.OnUse(func(context.Context) { mu.Lock(); calls++; mu.Unlock() }) })
			group.Go(func() { a.Use(t.Context()) })
		}
		group.Wait()
		require.Equal(t, 2, calls)
	}
}
