package memtest_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// open opens a cache of a host device with a stream.
func open(t testing.TB) (*memcache.Cache, device.Stream) {
	t.Helper()
	dev, err := host.New(host.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	cache, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cache.Close() // blocks that a test leaks on purpose
		require.NoError(t, s.Close())
		require.NoError(t, dev.Close())
	})
	return cache, s
}

// alloc allocates bytes of a module.
func alloc(t testing.TB, cache *memcache.Cache, s device.Stream, category memcache.Category, module string, bytes int64) memcache.Block {
	t.Helper()
	ctx := memcache.WithCategory(memcache.WithModule(context.Background(), module), category)
	b, err := cache.Alloc(ctx, bytes, s)
	require.NoError(t, err)
	return b
}

func free(t testing.TB, blocks ...memcache.Block) {
	t.Helper()
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
}

// recorder is a test whose output is recorded.
type recorder struct {
	testing.TB
	name     string
	text     bytes.Buffer
	failed   bool
	cleanups []func()
}

func (r *recorder) Name() string     { return r.name }
func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return r.failed }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) FailNow() {
	r.failed = true
	runtime.Goexit()
}
func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	fmt.Fprintf(&r.text, format+"\n", args...)
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// record runs f as a test, with its cleanups, and returns its output. panicked is the value of its
// panic.
func record(name string, f func(t testing.TB)) (r *recorder, panicked any) {
	r = &recorder{name: name}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			panicked = recover()
			for i := len(r.cleanups) - 1; i >= 0; i-- {
				r.cleanups[i]()
			}
		}()
		f(r)
	}()
	<-done
	return r, panicked
}
