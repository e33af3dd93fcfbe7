package transfer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// unrecordable is a stream on which nothing can be recorded.
type unrecordable struct {
	device.Stream
}

var errRecord = errors.New("no record")

func (unrecordable) Record(device.Event) error { return errRecord }

// Memory under a copy that nothing says the end of is never handed out again.
func TestCopyWithoutAnEnd(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	for range 3 {
		b := r.get(t, 64)
		_, err := r.pool.H2D(t.Context(), unrecordable{r.a}, block, 0, b, 0, 64)
		require.ErrorIs(t, err, errRecord)
		require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
		require.Nil(t, b.Bytes())
		require.ErrorIs(t, b.Wait(t.Context()), transfer.ErrInFlight)
		_, err = r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
		require.ErrorIs(t, err, transfer.ErrInFlight)
		require.NoError(t, b.Release())
	}
	st := r.pool.Stats()
	require.EqualValues(t, 3, st.Misses)
	require.EqualValues(t, 3, st.HostFrees)
	require.NoError(t, block.Free())
}

// A slot of which nothing says when it is free ends the loader, not the order.
func TestLoaderWithoutAnEnd(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l, err := transfer.NewLoader(t.Context(), r.pool, transfer.LoaderConfig{
		Cache: r.cache, Compute: unrecordable{r.a}, Copy: r.b, Fields: []int64{imageBytes, labelBytes},
	})
	require.NoError(t, err)
	require.NoError(t, l.Start(t.Context(), counter(9, nil)))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, b.Release(), errRecord)
	for range 2 {
		_, err = l.Next(t.Context())
		require.ErrorIs(t, err, errRecord)
	}
	require.NoError(t, l.Close())
}
