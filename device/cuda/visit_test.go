//go:build cuda

package cuda

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVisitOfAPlaceThatChanges: if an event is recorded again during a query, the driver's result
// counts for neither place.
func TestVisitOfAPlaceThatChanges(t *testing.T) {
	var a, b stream
	var e place
	record := func() error { return nil }
	a.position.queued.Store(3)
	b.position.queued.Store(5)
	require.NoError(t, e.set(&a, false, record))
	v := e.visit()
	require.False(t, v.complete())
	require.NoError(t, e.set(&b, false, func() error {
		during := e.visit()
		require.Nil(t, during.stream)
		require.False(t, during.complete())
		during.learn()
		v.learn()
		return nil
	}))
	v.learn()
	require.Zero(t, a.position.done.Load())
	require.Zero(t, b.position.done.Load())
	v = e.visit()
	b.position.queued.Store(6)
	v.learn()
	require.EqualValues(t, 5, b.position.done.Load())
	require.True(t, v.complete())
	require.False(t, b.position.idle())
	b.position.reached(4)
	require.EqualValues(t, 5, b.position.done.Load(), "it does not go back")
	b.position.reached(6)
	require.True(t, b.position.idle())
	require.NoError(t, e.set(&a, true, record))
	require.Nil(t, e.visit().stream, "captured")
	require.ErrorIs(t, e.set(&b, false, func() error { return os.ErrInvalid }), os.ErrInvalid)
	require.Nil(t, e.visit().stream, "where it was")
}
