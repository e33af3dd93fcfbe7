package loader_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(held{m}) }

// held keeps the GPU open meanwhile: each test opens it again, which is quick then.
type held struct{ *testing.M }

func (m held) Run() int {
	name := os.Getenv("CISTERN_TEST_DEVICE")
	if name == "" {
		return m.M.Run()
	}
	dev, err := device.Open(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.M.Run()
	if err := dev.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// rig is a device with a cache, a pool and two streams. Its cleanup checks that nothing is left.
type rig struct {
	dev   device.Device
	cache *memcache.Cache
	pool  *transfer.Pool
	a, b  device.Stream
}

func newRig(t testing.TB, cfg transfer.Config) *rig {
	t.Helper()
	if name := os.Getenv("CISTERN_TEST_DEVICE"); name != "" {
		dev, err := device.Open(name)
		require.NoError(t, err)
		return rigOn(t, dev, cfg)
	}
	dev, err := host.New(host.Config{Capacity: 256 << 20})
	require.NoError(t, err)
	return rigOn(t, dev, cfg)
}

func rigOn(t testing.TB, dev device.Device, cfg transfer.Config) *rig {
	t.Helper()
	r := &rig{dev: dev}
	var err error
	r.cache, err = memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	r.pool, err = transfer.New(dev, cfg)
	require.NoError(t, err)
	r.a, r.b = r.stream(t), r.stream(t)
	t.Cleanup(func() { r.close(t) })
	return r
}

func (r *rig) stream(t testing.TB) device.Stream {
	s, err := r.dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	return s
}

func (r *rig) close(t testing.TB) {
	require.NoError(t, r.pool.Close())
	st := r.pool.Stats()
	require.Zero(t, st.AllocatedBytes.Current, "pinned bytes after Close")
	require.Zero(t, st.ActiveBytes.Current)
	require.Zero(t, st.Pending)
	require.NoError(t, errors.Join(r.cache.Close(), freeFlags(r.dev), r.a.Close(), r.b.Close(), r.dev.Close()))
}

// host skips a test that only the host device can do.
func (r *rig) host(t testing.TB) {
	t.Helper()
	if _, ok := r.dev.(*host.Device); !ok {
		t.Skip("only on the host device")
	}
}

func (r *rig) alloc(t testing.TB, bytes int64, s device.Stream) memcache.Block {
	t.Helper()
	b, err := r.cache.Alloc(t.Context(), bytes, s)
	require.NoError(t, err)
	return b
}

// hold makes s wait until the function it returns is called.
func hold(t testing.TB, s device.Stream) (open func()) {
	t.Helper()
	if _, ok := s.Device().(device.HostVisible); !ok {
		open = spin(t, s)
		t.Cleanup(open)
		return open
	}
	held := make(chan struct{})
	require.NoError(t, s.Launch(&device.Launch{Name: "hold", Func: func() { <-held }}))
	open = sync.OnceFunc(func() { close(held) })
	t.Cleanup(open)
	return open
}

// waitFor waits until cond is true.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	for begin := time.Now(); !cond(); {
		require.Less(t, time.Since(begin), 20*time.Second, "it did not happen")
		time.Sleep(100 * time.Microsecond)
	}
}

// unrecordable is a stream on which nothing can be recorded.
type unrecordable struct{ device.Stream }

var errRecord = errors.New("no record")

func (unrecordable) Record(device.Event) error { return errRecord }

// seenContext tells when somebody waits for it.
type seenContext struct {
	context.Context
	seen chan struct{}
	told bool
}

func (c *seenContext) Done() <-chan struct{} {
	if !c.told {
		c.told = true
		close(c.seen)
	}
	return c.Context.Done()
}
