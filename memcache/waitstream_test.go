package memcache

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestWaitStreamEndsFrees: it ends the earlier frees of the stream's blocks that waited only for
// the other stream. The stream's next work waits for the other's.
func TestWaitStreamEndsFrees(t *testing.T) {
	c, dev := newCache(t, Config{})
	own, by, third := dev.stream(1), dev.stream(2), dev.stream(3)
	one := used(t, c, 12*mib, own, by)
	two := mustAlloc(t, c, 14*mib, own)
	third.busy = true
	require.NoError(t, errors.Join(two.RecordStream(by), two.RecordStream(third), two.Free()))
	used(t, c, 16*mib, third, by) // another stream's
	require.NoError(t, c.WaitStream(own, by))
	require.True(t, behind(t, own))
	require.EqualValues(t, 2, c.Stats().Active.All.Current)
	used(t, c, 18*mib, own, by) // later than the wait
	require.NoError(t, c.PollFrees())
	require.EqualValues(t, 3, c.Stats().Active.All.Current)
	again := mustAlloc(t, c, 12*mib, own)
	require.Equal(t, one.Ptr(), again.Ptr())
	third.finish()
	require.NoError(t, c.PollFrees())
	require.EqualValues(t, 3, c.Stats().Active.All.Current, "two waited for the third stream alone: by's event has been taken out")
	require.Equal(t, two.Ptr(), mustAlloc(t, c, 14*mib, own).Ptr())
	by.finish()
	require.False(t, behind(t, own))
	require.NoError(t, errors.Join(c.PollFrees(), c.check()))
	require.EqualValues(t, 2, c.Stats().Active.All.Current)
}

// TestWaitStreamOfIdleStreams ends nothing, and waits for nothing.
func TestWaitStreamOfIdleStreams(t *testing.T) {
	c, dev := newCache(t, Config{})
	own, by := dev.stream(1), dev.stream(2)
	require.NoError(t, errors.Join(c.WaitStream(own, by), c.WaitStream(own, own)))
	require.False(t, behind(t, own))
	require.ErrorIs(t, c.WaitStream(own, nil), ErrInvalid)
	require.ErrorIs(t, c.WaitStream(nil, by), ErrInvalid)
	require.ErrorIs(t, c.WaitStream(own, newScripted(1<<20).stream(9)), ErrInvalid)
	b := used(t, c, 512, own, by)
	by.finish()
	require.NoError(t, errors.Join(by.Close(), c.WaitStream(own, by)), "a closed stream has done its work")
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 512, own).Ptr())
	require.NoError(t, own.Close())
	require.ErrorIs(t, c.WaitStream(own, dev.stream(3)), device.ErrClosed)
}

// TestEraseStream: a free does not wait for an erased stream, and still waits for the others.
func TestEraseStream(t *testing.T) {
	c, dev := newCache(t, Config{})
	own, by, third := dev.stream(1), dev.stream(2), dev.stream(3)
	by.busy, third.busy = true, true
	b := mustAlloc(t, c, 512, own)
	require.NoError(t, errors.Join(b.EraseStream(by), b.RecordStream(by), b.EraseStream(by), b.EraseStream(by), b.Free()))
	require.Zero(t, c.Stats().Active.All.Current)
	require.ErrorIs(t, b.EraseStream(by), ErrFreed)
	b = mustAlloc(t, c, 512, own)
	require.NoError(t, errors.Join(b.RecordStream(third), b.RecordStream(by), b.EraseStream(by), b.Free()))
	require.EqualValues(t, 1, c.Stats().Active.All.Current)
	third.finish()
	require.NoError(t, c.PollFrees())
	require.Zero(t, c.Stats().Active.All.Current)
	b = mustAlloc(t, c, 512, own)
	require.NoError(t, errors.Join(b.RecordStream(by), b.EraseStream(by), b.RecordStream(by), b.Free()))
	require.EqualValues(t, 1, c.Stats().Active.All.Current, "it is recorded again")
	require.ErrorIs(t, b.EraseStream(nil), ErrInvalid)
	require.NoError(t, Block{}.EraseStream(by))
	by.finish()
	require.NoError(t, errors.Join(c.PollFrees(), c.check()))
}

// TestWaitStreamEndsFreesOfOneStream: with Exact all pending frees are in one list, and those of
// streams that don't wait stay.
func TestWaitStreamEndsFreesOfOneStream(t *testing.T) {
	c, dev := newCache(t, Config{Exact: true})
	own, by, third := dev.stream(1), dev.stream(2), dev.stream(3)
	used(t, c, 16*mib, third, by)
	b := used(t, c, 12*mib, own, by)
	used(t, c, 14*mib, third, by)
	require.NoError(t, c.WaitStream(own, by))
	require.EqualValues(t, 2, c.Stats().Active.All.Current)
	used(t, c, 18*mib, third, by) // queued after the removed events
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 12*mib, own).Ptr())
	by.finish()
	require.NoError(t, errors.Join(c.PollFrees(), c.check()))
	require.EqualValues(t, 1, c.Stats().Active.All.Current)
}
