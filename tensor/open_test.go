package tensor

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	_ "github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// watched is the backend of a host device that records closes and frees, and fails on request.
var watched struct {
	sync.Mutex
	log      []string
	noStream error
	noClose  error
}

type watchedDriver struct{}

func init() { device.Register("watched", watchedDriver{}) }

func (watchedDriver) Open(string, url.Values) (device.Device, error) {
	dev, err := host.New(host.Config{Capacity: 64 << 20})
	if err != nil {
		return nil, err
	}
	note("open")
	return &watchedDevice{dev}, nil
}

func note(event string) {
	watched.Lock()
	defer watched.Unlock()
	watched.log = append(watched.log, event)
}

// watchedLog returns the events since the last call, with each run of equal events once.
func watchedLog() []string {
	watched.Lock()
	defer watched.Unlock()
	log := slices.Compact(watched.log)
	watched.log = nil
	return log
}

type watchedDevice struct{ *host.Device }

func (d *watchedDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	if watched.noStream != nil {
		return nil, watched.noStream
	}
	s, err := d.Device.NewStream(o)
	return &watchedStream{s, d}, err
}

func (d *watchedDevice) Free(p device.Ptr) error {
	note("cache")
	return d.Device.Free(p)
}

func (d *watchedDevice) FreePinned(b []byte) error {
	note("pool")
	return d.Device.FreePinned(b)
}

func (d *watchedDevice) Close() error {
	note("device")
	return errors.Join(d.Device.Close(), watched.noClose)
}

type watchedStream struct {
	device.Stream
	dev *watchedDevice
}

func (s *watchedStream) Device() device.Device { return s.dev }

func (s *watchedStream) Close() error {
	note("stream")
	return s.Stream.Close()
}

// TestOpen: one call creates everything below the runtime, and Close closes it.
func TestOpen(t *testing.T) {
	env, err := Open("host?capacity=64MiB")
	require.NoError(t, err)
	ctx := t.Context()
	assert.Equal(t, "host", env.Device().Name())
	assert.Equal(t, int64(64<<20), env.Device().Properties().TotalMemory)
	for _, id := range []uint64{env.Cache().Device().ID(), env.Pool().Device().ID(), env.Stream().Device().ID()} {
		assert.Equal(t, env.Device().ID(), id)
	}
	x, err := FromSlice(ctx, env, []float64{1, 2, 3})
	require.NoError(t, err)
	y, err := env.Square(ctx, x)
	require.NoError(t, err)
	values, err := ToSlice[float64](ctx, y, nil)
	require.NoError(t, err)
	assert.Equal(t, []float64{1, 4, 9}, values)
	require.NoError(t, errors.Join(x.Release(), y.Release()))

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { assert.NoError(t, env.Close()) })
	}
	all.Wait()
	require.NoError(t, env.Close())
	_, err = env.Zeros(ctx, Float32, 1)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, env.Cache().EmptyCache(ctx), memcache.ErrClosed)
	_, err = env.Pool().Get(ctx, 1)
	require.ErrorIs(t, err, transfer.ErrClosed)
	require.ErrorIs(t, env.Stream().Memset(0, 0, 1), device.ErrClosed)
	_, err = env.Device().Alloc(1)
	require.ErrorIs(t, err, device.ErrClosed)
}

// TestOpenTakesOptions for the runtime and for everything below it, which NewRuntime refuses.
func TestOpenTakesOptions(t *testing.T) {
	below := []Option{
		CacheConfig(memcache.Config{MemoryLimit: 4 << 20}), PoolConfig(transfer.Config{MaxBytes: 1 << 20}), StreamOptions(device.StreamOptions{Priority: -1}),
	}
	env, err := Open("host", append(below, nil, AllowTF32(), OnLeak(func(Leak) {}))...)
	require.NoError(t, err)
	_, err = env.Zeros(t.Context(), Float32, 2<<20)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	_, err = env.Pool().Get(t.Context(), 2<<20)
	var limit *transfer.LimitError
	require.ErrorAs(t, err, &limit)
	x, err := env.Zeros(t.Context(), Float32, 1)
	require.NoError(t, err)
	assert.NotEmpty(t, x.handle.made, "OnLeak remembers where")
	require.NoError(t, x.Release())

	for i, name := range []string{"CacheConfig", "PoolConfig", "StreamOptions"} {
		_, err = NewRuntime(env.Cache(), env.Pool(), env.Stream(), AllowTF32(), below[i])
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, name+" is for Open")
	}
	require.NoError(t, env.Close())
}

// TestOpenFails at every step: it reports the cause, and leaves nothing open.
func TestOpenFails(t *testing.T) {
	_, err := Open("tpu:0")
	require.ErrorIs(t, err, device.ErrNoBackend)
	require.ErrorContains(t, err, `tensor: Open: device: Open("tpu:0"): `)
	require.ErrorContains(t, err, "a backend is there when its package is imported")
	_, err = Open("host?capacity=much")
	require.ErrorIs(t, err, device.ErrInvalid)
	_, err = Open("null")
	require.ErrorIs(t, err, ErrUnsupported)
	watchedLog()

	_, err = Open("watched", CacheConfig(memcache.Config{MemoryLimit: -1}))
	require.ErrorIs(t, err, memcache.ErrInvalid)
	require.Equal(t, []string{"open", "device"}, watchedLog())

	refused, stuck := errors.New("no streams"), errors.New("no end")
	watched.noStream = refused
	_, err = Open("watched")
	require.ErrorIs(t, err, refused)
	require.Equal(t, []string{"open", "device"}, watchedLog())
	watched.noStream = nil

	watched.noClose = stuck
	env, err := Open("watched", PoolConfig(transfer.Config{MaxBytes: -1}))
	require.Nil(t, env)
	require.NoError(t, env.Close(), "which a program may defer, or join, without a look at the error")
	require.ErrorContains(t, err, "MaxBytes -1")
	require.ErrorIs(t, err, stuck, "what fails on the way back is told as well")
	require.Equal(t, []string{"open", "stream", "device"}, watchedLog())
	watched.noClose = nil
}

// TestCloseOrder: nothing is closed before its users, even after a failure.
func TestCloseOrder(t *testing.T) {
	ctx := context.Background()
	watchedLog()
	env, err := Open("watched")
	require.NoError(t, err)
	x, err := FromSlice(ctx, env, []float32{1, 2, 3})
	require.NoError(t, err)
	block, err := env.Cache().Alloc(ctx, 100, env.Stream())
	require.NoError(t, err)
	require.False(t, block.IsZero())
	stuck := errors.New("no end")
	watched.noClose = stuck
	first := env.Close()
	watched.noClose = nil
	require.ErrorIs(t, first, ErrLeaked, "the tensor")
	require.ErrorContains(t, first, "1, with 12 B")
	require.ErrorContains(t, first, "memcache: ", "the block")
	require.ErrorIs(t, first, stuck)
	assert.True(t, x.Released())
	require.Equal(t, []string{"open", "pool", "stream", "cache", "device"}, watchedLog())
	require.Equal(t, first, env.Close(), "again: the same, and nothing is done")
	require.Empty(t, watchedLog())
}

// TestNewRuntimeOwnsNothing: its arguments stay open.
func TestNewRuntimeOwnsNothing(t *testing.T) {
	r := newRig(t, 64<<20)
	require.NoError(t, r.Close())
	block, err := r.cache.Alloc(r.ctx, 100, r.Stream())
	require.NoError(t, err)
	require.NoError(t, block.Free())
	require.NoError(t, r.Stream().Synchronize(r.ctx))
}

func TestBackendOption(t *testing.T) {
	rt, err := Open("host?capacity=64MiB", Backend("host"))
	require.NoError(t, err)
	require.NoError(t, rt.Close())
	for name, text := range map[string]string{"ptx": "the backend ptx", "rocm": `no backend "rocm" is registered`} {
		_, err := Open("host?capacity=64MiB", Backend(name))
		require.ErrorIs(t, err, ErrUnsupported)
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, "the backends are host, ptx")
	}
	_, err = Open("null")
	require.ErrorIs(t, err, ErrUnsupported)
}
