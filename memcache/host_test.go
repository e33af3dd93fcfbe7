package memcache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// TestContentsConcurrentSafe runs programs on several goroutines, each with a stream of its own and
// blocks that other streams read. Every block keeps its owner's contents until it is freed. Under
// the race detector, reuse that comes too early is a data race. The streams need up to 88 MiB of
// segments and the device has 64, so sometimes one runs out of memory for a moment.
func TestContentsConcurrentSafe(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	side := cisterntest.Stream(t, dev)
	var wg sync.WaitGroup
	for id := range uint64(4) {
		wg.Go(func() {
			if err := churn(dev, cache, side, id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, dev.Synchronize(context.Background()))
	require.Zero(t, cache.MemoryAllocated())
	require.NoError(t, errors.Join(cache.Close(), dev.Close()))
}

// churn allocates, fills, reads on its own and on the side stream, and frees.
func churn(dev *host.Device, cache *memcache.Cache, side device.Stream, id uint64) error {
	ctx, r := context.Background(), rand.New(rand.NewPCG(id, 0))
	s, err := dev.NewStream(device.StreamOptions{})
	if err != nil {
		return err
	}
	var bad error
	for range 300 {
		bytes := 1 + r.Int64N(1<<uint(10+r.IntN(12)))
		b, err := cache.Alloc(ctx, bytes, s)
		if errors.Is(err, memcache.ErrOutOfMemory) {
			continue
		}
		if err != nil {
			return err
		}
		memory, err := dev.Bytes(b.Ptr(), bytes)
		if err != nil {
			return err
		}
		value, written := byte(r.Uint32()), newEvent(dev)
		check := func() {
			if memory[0] != value || memory[bytes-1] != value {
				panic("the block changed under its reader")
			}
		}
		use := []device.Range{b.Range(0, bytes)}
		bad = errors.Join(bad, s.Memset(b.Ptr(), value, bytes), s.Launch(&device.Launch{Func: check, Reads: use}))
		if r.IntN(2) == 0 {
			bad = errors.Join(bad, s.Record(written), side.Wait(written),
				side.Launch(&device.Launch{Func: check, Reads: use}), b.RecordStream(side))
		}
		bad = errors.Join(bad, b.Free(), written.Close())
	}
	return errors.Join(bad, s.Close())
}

func newEvent(dev device.Device) device.Event {
	e, err := dev.NewEvent(device.EventOptions{})
	if err != nil {
		panic(err)
	}
	return e
}

// TestFailedDevice: after a kernel fault the cache reports it and can still be closed.
func TestFailedDevice(t *testing.T) {
	dev := cisterntest.Host(t, 64<<20)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	s := cisterntest.Stream(t, dev)
	other := cisterntest.Stream(t, dev)
	b, err := cache.Alloc(context.Background(), 100, s)
	require.NoError(t, err)
	require.NoError(t, s.Launch(&device.Launch{Func: func() { panic("kernel bug") }}))
	require.ErrorIs(t, s.Synchronize(context.Background()), device.ErrSticky)
	require.NoError(t, b.RecordStream(other))
	require.ErrorIs(t, b.Free(), device.ErrSticky)
	_, err = cache.Alloc(context.Background(), 100<<20, s)
	require.ErrorIs(t, err, device.ErrSticky)
	require.ErrorIs(t, cache.Close(), device.ErrSticky, "only the device's Close can free its memory now")
	require.NoError(t, cache.Close())
	_ = dev.Close()
}

// TestRangesOnAHost: addresses are scarce on a host device, and one stream's range leaves enough
// for the others, also where 9/8 of the capacity are whole granules.
func TestRangesOnAHost(t *testing.T) {
	for _, exact := range []bool{false, true} {
		dev := cisterntest.Host(t, 160<<20)
		cache, err := memcache.New(dev, memcache.Config{ExpandableSegments: true, Exact: exact})
		require.NoError(t, err)
		var ends []func() error
		for range 3 {
			s := cisterntest.Stream(t, dev)
			for _, bytes := range []int64{1000, 3 << 20} {
				b, err := cache.Alloc(t.Context(), bytes, s)
				require.NoError(t, err)
				ends = append(ends, b.Free)
			}
			ends = append(ends, s.Close)
		}
		for _, end := range append(ends, cache.Close, dev.Close) {
			require.NoError(t, end())
		}
	}
}

// TestKernelUsesWhatIsReturned: a kernel that is queued when its block is freed still finds the
// block's memory while the segment is returned to the driver, which waits for the kernel.
func TestKernelUsesWhatIsReturned(t *testing.T) {
	for name, give := range map[string]func(c *memcache.Cache) error{
		"EmptyCache": func(c *memcache.Cache) error { return c.EmptyCache(context.Background()) },
		"TrimTo": func(c *memcache.Cache) error {
			_, err := c.TrimTo(context.Background(), 0)
			return err
		},
	} {
		d, err := host.New(host.Config{Capacity: 64 << 20})
		require.NoError(t, err)
		c, err := memcache.New(d, memcache.Config{})
		require.NoError(t, err)
		s, err := d.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		b, err := c.Alloc(t.Context(), 4<<20, s)
		require.NoError(t, err)
		whole := []device.Range{b.Range(0, b.Size())}
		gate, found := make(chan struct{}), make(chan error, 1)
		require.NoError(t, s.Launch(&device.Launch{Writes: whole, Func: func() {
			<-gate
			_, err := d.Bytes(b.Ptr(), b.Size())
			found <- err
		}}))
		require.NoError(t, b.Free())
		given := make(chan error, 1)
		go func() { given <- give(c) }()
		time.Sleep(20 * time.Millisecond) // in which the driver's Free begins to wait, at the latest
		close(gate)
		require.NoError(t, <-found, name)
		require.NoError(t, <-given, name)
		require.NoError(t, errors.Join(s.Close(), c.Close(), d.Close()))
	}
}
