package transfer_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// The loader on the simulated device, which does nothing until a caller waits for it.

// newLoader makes a loader of one field of 64 bytes.
func newLoader(t testing.TB, r *rig) *loader.Loader {
	t.Helper()
	l, err := loader.New(t.Context(), r.pool, loader.Config{Cache: r.cache, Compute: r.a, Copy: r.b, Fields: []int64{64}, Ahead: 2})
	require.NoError(t, err)
	return l
}

// counter is a source of n batches: all bytes of batch i are i+1.
func counter(n int) loader.Source {
	i := 0
	return func(_ context.Context, fields [][]byte) error {
		if i == n {
			return io.EOF
		}
		i++
		for k := range fields[0] {
			fields[0][k] = byte(i)
		}
		return nil
	}
}

// The copy stream overwrites a slot after the compute stream has used it, although the host waits
// for neither.
func TestLoaderWaitsForTheSlotsLastUse(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	l := newLoader(t, r)
	require.NoError(t, l.Start(t.Context(), counter(8)))
	sinks, err := dev.AllocPinned(8 * 64)
	require.NoError(t, err)
	for i := range 8 {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, r.a.CopyD2H(sinks[64*i:][:64], b.Field(0).Ptr()))
		require.NoError(t, b.Release())
		time.Sleep(time.Millisecond) // the source goes on
		if i < 3 {
			require.NoError(t, r.b.Synchronize(t.Context())) // runs everything that may run
		}
	}
	require.NoError(t, r.a.Synchronize(t.Context()))
	for i := range 8 {
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, 64), sinks[64*i:][:64], "batch %d", i)
	}
	require.NoError(t, dev.FreePinned(sinks))
	require.NoError(t, l.Close())
}

// Next waits for the oldest of the steps in flight, and for each once.
func TestThrottleWaitsForTheOldestStep(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	l := newLoader(t, r)
	require.NoError(t, l.Start(t.Context(), counter(9)))
	ends := make([]device.Event, 9)
	for i := range 9 {
		b, err := l.Next(t.Context())
		require.NoError(t, err)
		for k := range i { // the simulated device has run only awaited work
			done, err := ends[k].Query()
			require.NoError(t, err)
			require.Equal(t, k < i-1, done, "step %d when batch %d is there", k, i)
		}
		ends[i], err = r.dev.NewEvent(device.EventOptions{})
		require.NoError(t, err)
		require.NoError(t, r.a.Record(ends[i]))
		require.NoError(t, b.Release())
	}
	require.NoError(t, l.Close())
}
