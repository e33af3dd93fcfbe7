//go:build cuda

package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestOpenCloseLeavesNothing makes and closes everything CISTERN_CYCLES times. The driver's free
// bytes must return to their value.
func TestOpenCloseLeavesNothing(t *testing.T) {
	cycles := 10
	if v := os.Getenv("CISTERN_CYCLES"); v != "" {
		var err error
		cycles, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	var first int64
	for i := range cycles {
		d := open(t)
		free, _, err := d.MemInfo()
		require.NoError(t, err)
		if i == 1 { // the first context allocates memory that the process keeps
			first = free
		} else if i > 1 {
			require.Equal(t, first, free, "cycle %d", i)
		}
		p, err := d.Alloc(64 << 20)
		require.NoError(t, err)
		host, err := d.AllocPinned(1 << 20)
		require.NoError(t, err)
		s, err := d.NewStream(device.StreamOptions{Priority: -1})
		require.NoError(t, err)
		var events []device.Event
		for i := range 10 {
			e, err := d.NewEvent(device.EventOptions{Timed: i%2 == 0})
			require.NoError(t, err)
			events = append(events, e)
			require.NoError(t, s.CopyH2D(p, host))
			require.NoError(t, s.Record(e))
		}
		v := d.(device.VirtualMemory)
		at, err := v.Reserve(4 * v.Granularity())
		require.NoError(t, err)
		require.NoError(t, v.Map(at, v.Granularity()))
		require.NoError(t, s.Memset(at, 1, v.Granularity()))
		require.NoError(t, s.Synchronize(context.Background()))
		for _, e := range events {
			require.NoError(t, e.Close())
		}
		require.NoError(t, errors.Join(v.Unmap(at, v.Granularity()), v.Unreserve(at), s.Close(), d.FreePinned(host), d.Free(p), d.Close()))
	}
}

// TestTwoGPUs copies across devices, and lets streams of one device wait for events of the other.
func TestTwoGPUs(t *testing.T) {
	a := open(t)
	defer func() { require.NoError(t, a.Close()) }()
	b, err := device.Open("cuda:1")
	if errors.Is(err, device.ErrNoDevice) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	const n = 1 << 20
	var ptr [2]device.Ptr
	var stream [2]device.Stream
	for i, d := range []device.Device{a, b} {
		ptr[i], err = d.Alloc(n)
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Free(ptr[i])) }()
		stream[i], err = d.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, stream[i].Close()) }()
	}
	e, err := a.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	defer e.Close()
	host, err := b.AllocPinned(n)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.FreePinned(host)) }()

	for value := byte(1); value < 20; value++ {
		release := block(t, stream[0])
		require.NoError(t, stream[0].Memset(ptr[0], value, n))
		require.NoError(t, stream[0].Record(e))
		require.NoError(t, stream[1].Wait(e))
		require.NoError(t, stream[1].CopyD2D(ptr[1], ptr[0], n))
		require.NoError(t, stream[1].CopyD2H(host, ptr[1]))
		done, err := stream[1].Query()
		require.NoError(t, err)
		require.False(t, done, "it waits for the other device")
		release()
		require.NoError(t, stream[1].Synchronize(context.Background()))
		require.Equal(t, bytes.Repeat([]byte{value}, n), host)
	}
	require.ErrorIs(t, stream[1].Record(e), device.ErrInvalid)
}
