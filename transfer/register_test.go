package transfer_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// registrar counts registrations.
type registrar struct {
	device.Device
	in, out atomic.Int64
}

func (d *registrar) Register(b []byte) error {
	d.in.Add(1)
	return d.Device.Register(b)
}

func (d *registrar) Unregister(b []byte) error {
	d.out.Add(1)
	return d.Device.Unregister(b)
}

// A registered slice is copied in place, without staging, and Release unregisters it once.
func TestRegister(t *testing.T) {
	r := newRig(t, transfer.Config{})
	const n = 100_000
	dev := &registrar{Device: r.dev}
	p, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	block, mine := r.alloc(t, n, r.a), fill(make([]byte, n), 5)
	b, err := p.Register(t.Context(), mine)
	require.NoError(t, err)
	require.Same(t, &mine[0], &b.Bytes()[0])
	for _, again := range [][]byte{mine, mine[:n/2], mine[n/2:], mine[n/4 : n/2]} {
		_, err := p.Register(t.Context(), again)
		require.ErrorContains(t, err, "transfer: Register of ")
	}
	_, err = p.H2D(t.Context(), r.a, block, 0, b, 0, n)
	require.NoError(t, err)
	_, err = p.Launch(t.Context(), r.a, r.inPlace(t, b, mine, 10, 1000, 3), transfer.BufferUse{Buffer: b, Writes: true})
	require.NoError(t, err)
	_, err = p.D2H(t.Context(), r.a, b, n/2, block, 0, n/2)
	require.NoError(t, err)
	require.NoError(t, b.Wait(t.Context()))
	want := fill(make([]byte, n), 5)
	copy(want[n/2:], fill(make([]byte, n/2), 5))
	for i := range 1000 {
		want[10+i] += 3
	}
	require.Equal(t, want, mine)
	require.Equal(t, fill(make([]byte, n), 5), r.read(t, r.a, block)[:n])
	st := p.Stats()
	require.Zero(t, st.AllocatedBytes.Allocated+st.HostAllocs+st.ActiveRequests.Allocated, "it was staged")
	require.Equal(t, memcache.Stat{Current: n, Peak: n, Allocated: n}, st.Registered)

	var ends atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := b.Release(); err == nil {
				ends.Add(1)
			} else if !errors.Is(err, transfer.ErrReleased) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, ends.Load())
	require.EqualValues(t, 1, dev.out.Load())
	require.ErrorIs(t, b.Release(), transfer.ErrReleased)
	require.Nil(t, b.Bytes())
	_, err = p.H2D(t.Context(), r.a, block, 0, b, 0, 1)
	require.ErrorIs(t, err, transfer.ErrReleased)
	require.Equal(t, memcache.Stat{Peak: n, Allocated: n, Freed: n}, p.Stats().Registered)

	// Close unregisters the remaining slices, and its error counts them.
	b, err = p.Register(t.Context(), mine)
	require.NoError(t, err)
	require.ErrorContains(t, p.Close(), "1 buffers of 98 KiB out")
	require.EqualValues(t, 2, dev.out.Load())
	require.Zero(t, p.Stats().Registered.Current)
	require.ErrorIs(t, b.Release(), transfer.ErrClosed)
	_, err = p.Register(t.Context(), mine)
	require.ErrorIs(t, err, transfer.ErrClosed)
	_, err = r.pool.Register(cancelled(), mine)
	require.ErrorIs(t, err, cancelled().Err())
	b, err = r.pool.Register(t.Context(), mine)
	require.NoError(t, err, "Close left it registered")
	require.NoError(t, b.Release())
	require.NoError(t, block.Free())
}

// Release of a registered slice waits for its copies, so that the caller can use the memory at
// once.
func TestUnregisterWaits(t *testing.T) {
	r := newRig(t, transfer.Config{})
	const n = 1 << 16
	block := r.alloc(t, n, r.a)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, n, 9)
	require.NoError(t, err)
	require.NoError(t, r.a.Synchronize(t.Context()))
	open := cisterntest.Hold(t, r.b)
	mine := make([]byte, n)
	b, err := r.pool.Register(t.Context(), mine)
	require.NoError(t, err)
	_, err = r.pool.D2H(t.Context(), r.b, b, 0, block, 0, n)
	require.NoError(t, err)
	released := make(chan error, 1)
	go func() { released <- b.Release() }()
	cisterntest.WaitFor(t, func() bool { return r.pool.Stats().Registered.Current == 0 })
	require.ErrorIs(t, b.Check(), transfer.ErrReleased)
	select {
	case err := <-released:
		t.Fatal("Release did not wait for the copy", err)
	default:
	}
	open()
	require.NoError(t, <-released)
	for i := range mine {
		if mine[i] != 9 {
			t.Fatal("the copy came after Release")
		}
		mine[i] = 0
	}
	require.NoError(t, block.Free())
}
