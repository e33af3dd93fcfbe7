package memcache

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// closingStream is a stream that is being closed: until Close is over it refuses every call while
// its work continues.
type closingStream struct {
	*scriptedStream
	entered chan struct{}
	leave   chan error // what Close returns; nil closes the stream
}

func (s *closingStream) Record(device.Event) error         { return device.ErrClosed }
func (s *closingStream) Synchronize(context.Context) error { return device.ErrClosed }
func (s *closingStream) Close() error {
	s.entered <- struct{}{}
	err := <-s.leave
	s.closed.Store(err == nil)
	return err
}

// TestFreeWhileARecordedStreamIsClosed: the free waits for the stream's work, returns no error, and
// the block is not reused before.
func TestFreeWhileARecordedStreamIsClosed(t *testing.T) {
	for _, config := range []Config{{}, {NoCaching: true}} {
		c, dev := newCache(t, config)
		s := dev.stream(1)
		closing := &closingStream{scriptedStream: dev.stream(2), entered: make(chan struct{}), leave: make(chan error)}
		b := mustAlloc(t, c, 1000, s)
		require.NoError(t, b.RecordStream(closing))
		freed := make(chan error, 1)
		go func() { freed <- b.Free() }()
		select {
		case <-closing.entered:
		case err := <-freed:
			require.Fail(t, "the free does not wait", "%v", err)
		}
		st := c.Stats()
		require.Equal(t, []int64{0, 1}, []int64{st.Allocation.All.Current, st.Active.All.Current})
		require.Len(t, dev.live, 1)
		closing.leave <- nil
		require.NoError(t, <-freed)
		require.Zero(t, c.Stats().Active.All.Current)
		require.NoError(t, errors.Join(c.check(), c.Close()))
		require.Empty(t, dev.live)
	}
}

// TestFreeWhileACloseFails: a stream that neither runs nor closes is an error.
func TestFreeWhileACloseFails(t *testing.T) {
	c, dev := newCache(t, Config{NoCaching: true})
	closing := &closingStream{scriptedStream: dev.stream(2), entered: make(chan struct{}, 1), leave: make(chan error, 1)}
	b := mustAlloc(t, c, 1000, dev.stream(1))
	require.NoError(t, b.RecordStream(closing))
	closing.leave <- device.ErrSticky
	require.ErrorIs(t, b.Free(), device.ErrSticky)
	require.Len(t, dev.live, 1, "the stream may use it")
}

// TestFreeWhileAHostStreamIsClosed does the same with work on the stream.
func TestFreeWhileAHostStreamIsClosed(t *testing.T) {
	for _, config := range []Config{{}, {NoCaching: true}} {
		dev := cisterntest.Host(t, 64<<20)
		c, err := New(dev, config)
		require.NoError(t, err)
		s := cisterntest.Stream(t, dev)
		user := cisterntest.Stream(t, dev)
		b := mustAlloc(t, c, 4096, s)
		release, errs := make(chan struct{}), make(chan error, 2)
		require.NoError(t, user.Launch(&device.Launch{Func: func() { <-release }, Writes: []device.Range{b.Range(0, 4096)}}))
		require.NoError(t, b.RecordStream(user))
		go func() { errs <- user.Close() }()
		for err := error(nil); !errors.Is(err, device.ErrClosed); {
			_, err = user.Query()
		}
		require.False(t, user.Closed())
		go func() { errs <- b.Free() }()
		close(release)
		require.NoError(t, errors.Join(<-errs, <-errs, c.Close(), dev.Close()))
	}
}

// TestPeerThatIsBeingClosed: its events are refused while its work continues. A request and a flush
// wait for that work.
func TestPeerThatIsBeingClosed(t *testing.T) {
	c, dev := newCache(t, Config{})
	far := &moody{scripted: newScripted(1 << 30)}
	dev.peers, far.peers = true, true
	s := dev.stream(device.NewID())
	user := &closingPeer{moodyStream: &moodyStream{scriptedStream: far.scripted.stream(device.NewID()), dev: far},
		entered: make(chan struct{}), leave: make(chan struct{})}
	b := mustAlloc(t, c, 3*mib, s)
	require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
	far.query = device.ErrClosed
	require.NotEqual(t, b.Ptr(), mustAlloc(t, c, 3*mib, s).Ptr(), "the peer still uses it")

	flush := func(ctx context.Context) <-chan error {
		flushed := make(chan error, 1)
		go func() { flushed <- c.EmptyCache(ctx) }()
		select {
		case <-user.entered:
		case err := <-flushed:
			require.Fail(t, "the flush does not wait", "%v", err)
		case <-time.After(5 * time.Second):
			require.Fail(t, "the flush does not wait for the stream")
		}
		return flushed
	}
	ctx, cancel := context.WithCancel(t.Context())
	flushed := flush(ctx)
	cancel()
	select {
	case err := <-flushed:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(5 * time.Second):
		require.Fail(t, "the flush goes on with a context that has ended")
	}
	flushed = flush(t.Context())
	require.EqualValues(t, 1, c.Stats().Active.All.Current-c.Stats().Allocation.All.Current)
	close(user.leave)
	require.NoError(t, <-flushed)
	require.Zero(t, c.Stats().Active.All.Current-c.Stats().Allocation.All.Current)
}

// TestPeerThatFails: a failed peer uses no memory any more, and keeps no block pending.
func TestPeerThatFails(t *testing.T) {
	c, dev := newCache(t, Config{})
	far := &moody{scripted: newScripted(1 << 30)}
	dev.peers, far.peers = true, true
	s := dev.stream(device.NewID())
	user := &moodyStream{scriptedStream: far.scripted.stream(device.NewID()), dev: far}
	b := mustAlloc(t, c, 3*mib, s)
	require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
	far.query = device.ErrSticky
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 3*mib, s).Ptr())
}

// closingPeer is a stream whose device is being closed.
type closingPeer struct {
	*moodyStream
	entered, leave chan struct{}
}

func (s *closingPeer) Close() error {
	s.entered <- struct{}{}
	<-s.leave
	s.closed.Store(true)
	return nil
}
