package transfer_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// add is a kernel that adds v to each byte of at. On the host device at is mem.
func add(t testing.TB, dev device.Device, at device.Range, mem []byte, v byte) *device.Launch {
	t.Helper()
	r := []device.Range{at}
	l := &device.Launch{Name: "add", Reads: r, Writes: r}
	if _, ok := dev.(device.HostVisible); ok {
		l.Func = func() {
			for i := range mem {
				mem[i] += v
			}
		}
		return l
	}
	l.Kernel, l.Args = cisterntest.Kernel(t, dev, "add"), []uint64{uint64(at.Ptr), uint64(at.Bytes), uint64(v)}
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{256, 1, 1}
	return l
}

// addTo is add to a part of a block.
func (r *rig) addTo(t testing.TB, b memcache.Block, offset, bytes int64, v byte) *device.Launch {
	t.Helper()
	var mem []byte
	if dev, ok := r.dev.(device.HostVisible); ok {
		var err error
		mem, err = dev.Bytes(b.Ptr()+device.Ptr(offset), bytes)
		require.NoError(t, err)
	}
	return add(t, r.dev, b.Range(offset, bytes), mem, v)
}

// read returns the bytes of block b after all work on s.
func (r *rig) read(t testing.TB, s device.Stream, b memcache.Block) []byte {
	t.Helper()
	got := make([]byte, b.Size())
	require.NoError(t, r.pool.Download(t.Context(), s, got, b, 0))
	return got
}

// idle waits for the copies of released buffers, and checks that no buffer is out and that the
// pool's statistics agree.
func idle(t testing.TB, p *transfer.Pool) {
	t.Helper()
	cisterntest.WaitFor(t, func() bool { return p.Stats().Pending == 0 })
	st := p.Stats()
	require.Zero(t, st.ActiveRequests.Current, "buffers out")
	require.Zero(t, st.ActiveBytes.Current)
	require.Zero(t, st.RequestedBytes.Current)
	require.Equal(t, st.CachedBytes.Current, st.AllocatedBytes.Current)
	require.Equal(t, st.ActiveRequests.Allocated, st.Hits+st.Misses)
}

// failing is a device whose driver calls for pinned memory fail from the n-th on.
type failing struct {
	device.Device
	left atomic.Int64
}

func (d *failing) AllocPinned(bytes int64) ([]byte, error) {
	if d.left.Add(-1) < 0 {
		return nil, &device.Error{Op: "AllocPinned", Device: "failing", Bytes: bytes, Err: device.ErrOutOfMemory}
	}
	return d.Device.AllocPinned(bytes)
}

// inert is a device and a stream that panic in all methods except those that identify them.
type inert struct {
	device.Device
	id uint64
}

func (d inert) ID() uint64   { return d.id }
func (d inert) Name() string { return "inert" }

type inertStream struct {
	device.Stream
	dev device.Device
}

func (s inertStream) Device() device.Device { return s.dev }
func (s inertStream) ID() uint64            { return 1 }

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
