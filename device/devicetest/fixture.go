package devicetest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/device"
)

// fixture is a test with its own device. When the test ends it closes and frees everything that its
// methods made. Then the device must close without an error and leave no goroutine.
type fixture struct {
	*testing.T
	Backend
	dev   device.Device
	stuck bool     // the device has a sticky error or is closed, so cleaning up fails
	reads [][]byte // pinned memory of read; freeing it may wait for every stream
}

var background = context.Background()

func open(t *testing.T, b Backend) *fixture {
	before := goleak.IgnoreCurrent()
	f := &fixture{T: t, Backend: b, dev: b.Open(t)}
	t.Cleanup(func() {
		for _, b := range f.reads {
			if err := f.dev.FreePinned(b); !f.stuck {
				require.NoError(t, err)
			}
		}
		err := f.dev.Close()
		if !f.stuck {
			require.NoError(t, err)
		}
		goleak.VerifyNone(t, before)
	})
	return f
}

func (f *fixture) cleanup(undo func() error) {
	f.Cleanup(func() {
		if err := undo(); !f.stuck {
			require.NoError(f, err)
		}
	})
}

func (f *fixture) stream() device.Stream {
	f.Helper()
	s, err := f.dev.NewStream(device.StreamOptions{})
	require.NoError(f, err)
	f.cleanup(s.Close)
	return s
}

func (f *fixture) event(timed bool) device.Event {
	f.Helper()
	e, err := f.dev.NewEvent(device.EventOptions{Timed: timed})
	require.NoError(f, err)
	f.cleanup(e.Close)
	return e
}

// recorded returns a new event that is recorded on s.
func (f *fixture) recorded(s device.Stream) device.Event {
	f.Helper()
	e := f.event(false)
	require.NoError(f, s.Record(e))
	return e
}

func (f *fixture) alloc(bytes int64) device.Ptr {
	f.Helper()
	p, err := f.dev.Alloc(bytes)
	require.NoError(f, err)
	f.cleanup(func() error { return f.dev.Free(p) })
	return p
}

func (f *fixture) pinned(bytes int64) []byte {
	f.Helper()
	b, err := f.dev.AllocPinned(bytes)
	require.NoError(f, err)
	require.EqualValues(f, bytes, len(b))
	f.cleanup(func() error { return f.dev.FreePinned(b) })
	return b
}

// block keeps s busy until release is called, at the latest when the test ends.
func (f *fixture) block(s device.Stream) (release func()) {
	f.Helper()
	release = sync.OnceFunc(f.Block(f, s))
	f.Cleanup(release)
	return release
}

func (f *fixture) addOne(s device.Stream, p device.Ptr, bytes int64) {
	f.Helper()
	require.NoError(f, s.Launch(f.AddOne(f, f.dev, p, bytes)))
}

func (f *fixture) fill(s device.Stream, p device.Ptr, bytes int64, value byte) {
	f.Helper()
	require.NoError(f, s.Launch(f.Fill(f, f.dev, p, bytes, value)))
}

// synchronize waits for s, which must not fail.
func (f *fixture) synchronize(s interface{ Synchronize(context.Context) error }) {
	f.Helper()
	require.NoError(f, s.Synchronize(background))
}

// done returns the result of Query of s or an event. Query must not fail.
func (f *fixture) done(s interface{ Query() (bool, error) }) bool {
	f.Helper()
	done, err := s.Query()
	require.NoError(f, err)
	return done
}

// same compares contents, unless the device has none.
func (f *fixture) same(want, got []byte) {
	f.Helper()
	if !f.NoContents {
		require.Equal(f, want, got)
	}
}

// read returns device memory once everything queued on s is done.
func (f *fixture) read(s device.Stream, p device.Ptr, bytes int64) []byte {
	f.Helper()
	b, err := f.dev.AllocPinned(bytes)
	require.NoError(f, err)
	f.reads = append(f.reads, b)
	require.NoError(f, s.CopyD2H(b, p))
	f.synchronize(s)
	return append([]byte(nil), b...)
}

// filled returns bytes bytes of value.
func filled(bytes int64, value byte) []byte {
	b := make([]byte, bytes)
	for i := range b {
		b[i] = value
	}
	return b
}

// waits runs call, which must return, but not before release has been called.
func (f *fixture) waits(release func(), call func()) {
	f.Helper()
	var released atomic.Bool
	early := make(chan bool, 1)
	go func() {
		// Deferred, because call may end the goroutine with FailNow.
		defer func() { early <- !released.Load() }()
		call()
	}()
	// A call that wrongly does not wait has time to return. A call that waits passes however long
	// this takes.
	for range 20 {
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
	released.Store(true)
	release()
	require.False(f, <-early, "the call returned before what it must wait for")
}

// refused checks that an error has the class, is a *device.Error, and names the device.
func (f *fixture) refused(err, class error) *device.Error {
	f.Helper()
	require.ErrorIs(f, err, class)
	var e *device.Error
	require.ErrorAs(f, err, &e)
	require.Equal(f, f.dev.Name(), e.Device)
	require.NotEmpty(f, e.Op)
	require.Contains(f, err.Error(), "device: ")
	return e
}
