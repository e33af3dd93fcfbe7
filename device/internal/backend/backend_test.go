package backend

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

const self = Self("it")

// TestErrors checks the class, code and text of the errors that all backends share.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err   error
		class error
		code  int
		text  string
	}{
		{self.Invalid("Op", -1, "%d is wrong", 7), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): 7 is wrong"},
		{self.Closed("Op"), device.ErrClosed, 4, "device: Op on it: closed (code 4): open another device"},
		{self.StreamClosed("Op", 7), device.ErrClosed, 400, "device: Op on it: closed (code 400): stream 7"},
		{self.EventClosed("Op"), device.ErrClosed, 400, "device: Op on it: closed (code 400): the event"},
		{self.NoContext("Op"), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): the context is nil; use context.Background()"},
		{self.NoFunction(), device.ErrInvalid, 1, "device: OnDone on it: invalid argument (code 1): the function is nil"},
		{self.BadSize("Op", -5), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): -5 bytes; the size must be positive"},
		{self.OutOfMemory("Op", 1024, 512, 2048), device.ErrOutOfMemory, 2, "device: Op of 1.0 KiB on it: out of memory (code 2): " +
			"asked for 1024 bytes, 512 of 2048 are free (512 B of 2.0 KiB)"},
		{self.Negative("Op", -5), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): the range has -5 bytes; sizes are not negative"},
		{self.Missed("Op", Miss{}, 1, 64, true), device.ErrNotPinned, 1, "device: Op of 64 B on it: host memory is not pinned (code 1): " +
			"use memory from AllocPinned, or Register the slice first"},
		{self.Missed("Op", Miss{Live: true, Offset: 8, Size: 32}, 1, 64, true), device.ErrNotPinned, 1, "device: Op of 64 B on it: " +
			"host memory is not pinned (code 1): only its first 24 bytes are"},
		{self.Missed("Op", Miss{Live: true, Offset: 8, Size: 32}, 1, 64, false), device.ErrInvalid, 1, "device: Op of 64 B on it: " +
			"invalid argument (code 1): the range of 64 bytes begins 8 bytes into an allocation of 32: 40 bytes too many"},
		{self.Missed("Op", Miss{}, 0, 64, false), device.ErrInvalid, 1, "device: Op of 64 B on it: invalid argument (code 1): the address is null"},
		{self.Missed("Op", Miss{}, 1, 64, false), device.ErrInvalid, 1, "device: Op of 64 B on it: invalid argument (code 1): " +
			"the range of 64 bytes begins in no live allocation"},
		{self.CheckUnits("Op", 0, 0, 4), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): 0 bytes; the size must be a positive multiple of 4"},
		{self.CheckUnits("Op", 3, 8, 4), device.ErrInvalid, 1, "device: Op of 8 B on it: invalid argument (code 1): the address is not a multiple of 4"},
		{self.CheckPairs("Op", 2, 3), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): 2 destinations and 3 sources; give one source for each"},
		{self.CheckElapsed("end", false, true, true), device.ErrInvalid, 1, "device: Elapsed on it: invalid argument (code 1): " +
			"the end event is untimed; make it with EventOptions.Timed"},
		{self.CheckElapsed("start", true, false, true), device.ErrInvalid, 1, "device: Elapsed on it: invalid argument (code 1): " +
			"the start event was never recorded"},
		{self.CheckElapsed("start", true, true, false), device.ErrInvalid, 600, "device: Elapsed on it: invalid argument (code 600): " +
			"the start event is not complete; synchronize it first"},
		{self.Capturing("Op", 7), device.ErrCapturing, 900, "device: Op on it: not possible in a capture (code 900): stream 7 is captured; end the capture first"},
		{self.DeviceCapturing("Op", 7), device.ErrCapturing, 900, "device: Op on it: not possible in a capture (code 900): " +
			"stream 7 of the device is captured; end the capture first, or wait for a stream or an event"},
		{self.NotCapturing(7), device.ErrInvalid, 401, "device: EndCapture on it: invalid argument (code 401): no capture has begun on stream 7"},
		{self.Unmatched(7, 8), device.ErrCapturing, 903, "device: EndCapture on it: not possible in a capture (code 903): " +
			"stream 7 joined the capture that began on stream 8; end it there"},
		{self.Unjoined(7, 8, 3), device.ErrCapturing, 904, "device: EndCapture on it: not possible in a capture (code 904): " +
			"stream 8 did not wait for the last 3 operations of stream 7; record an event there and wait for it, before EndCapture"},
		{self.CaptureEnded("Op", 7), device.ErrCapturing, 901, "device: Op on it: not possible in a capture (code 901): the capture of stream 7 was ended meanwhile"},
		{self.CapturedEvent("Op"), device.ErrCapturing, 907, "device: Op on it: not possible in a capture (code 907): " +
			"the event was last recorded in a capture, where it only orders what is captured; record it again"},
		{self.Isolated(7), device.ErrCapturing, 905, "device: Wait on it: not possible in a capture (code 905): " +
			"the event was not recorded in the capture of stream 7; wait for it before BeginCapture"},
		{self.Merged(7), device.ErrCapturing, 902, "device: Wait on it: not possible in a capture (code 902): " +
			"the event was recorded in another capture than that of stream 7"},
		{self.OtherDevices(7), device.ErrCapturing, 905, "device: Wait on it: not possible in a capture (code 905): " +
			"stream 7 is of another device than the capture in which the event was recorded"},
		{self.InCapture(self.Missed("Op", Miss{}, 1, 64, true)), device.ErrCapturing, 1, "device: Op of 64 B on it: " +
			"not possible in a capture: host memory is not pinned (code 1): use memory from AllocPinned, or Register the slice first"},
		{self.InCapture(self.Missed("Op", Miss{}, 1, 64, true)), device.ErrNotPinned, 1, "device: Op of 64 B on it: " +
			"not possible in a capture: host memory is not pinned (code 1): use memory from AllocPinned, or Register the slice first"},
		{self.InCapture(self.BadSize("Op", -5)), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): -5 bytes; the size must be positive"},
		{self.Held("Op", 64), device.ErrInvalid, 1, "device: Op of 64 B on it: invalid argument (code 1): a graph or a capture uses the memory; close the graph first"},
		{self.GraphClosed("Op"), device.ErrClosed, 400, "device: Op on it: closed (code 400): the graph"},
		{self.NotOurs("Op", "graph"), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): the graph is not one of this device"},
		{self.GraphDiffers("in %d", 3), device.ErrInvalid, 910, "device: Update on it: invalid argument (code 910): in 3"},
		{self.CheckOwner("Op", 1, 2), device.ErrInvalid, 1, "device: Op on it: invalid argument (code 1): the event is of device 1; use one of this device, 2"},
	} {
		require.EqualError(t, c.err, c.text)
		require.ErrorIs(t, c.err, c.class)
		var e *device.Error
		require.ErrorAs(t, c.err, &e)
		require.Equal(t, c.code, e.Code, c.text)
		require.GreaterOrEqual(t, e.Bytes, int64(0))
	}
	require.NoError(t, errors.Join(self.CheckUnits("Op", 8, 4, 4), self.CheckPairs("Op", 2, 2), self.CheckOwner("Op", 2, 2),
		self.CheckElapsed("end", true, true, true)))
}

// TestCheckApart compares with a check of every byte, also at the ends of the address space.
func TestCheckApart(t *testing.T) {
	for i := range 12 * 12 * 6 {
		dst, src, bytes := device.Ptr(i%12), device.Ptr(i/12%12), int64(i/144)
		overlap := false
		for b := range bytes * bytes {
			overlap = overlap || dst+device.Ptr(b/bytes) == src+device.Ptr(b%bytes)
		}
		require.Equal(t, overlap, self.CheckApart(dst, src, bytes) != nil, "%d %d %d", dst, src, bytes)
	}
	require.NoError(t, self.CheckApart(5, 5, 0))
	require.NoError(t, self.CheckApart(5, 5, -1), "a size that is not one is refused elsewhere")
	require.NoError(t, self.CheckApart(0, math.MaxUint64, math.MaxInt64))
	require.ErrorContains(t, self.CheckApart(16, 8, 10), "8 bytes apart; ranges of 10 bytes overlap")
}

type mine struct{ device.Event }

type theirs struct{ device.Event }

func TestEvent(t *testing.T) {
	e := &mine{}
	got, err := Event[*mine](self, "Op", e)
	require.NoError(t, err)
	require.Same(t, e, got)
	for _, wrong := range []device.Event{nil, (*mine)(nil)} {
		got, err = Event[*mine](self, "Op", wrong)
		require.ErrorContains(t, err, "the event is nil")
		require.ErrorIs(t, err, device.ErrInvalid)
		require.Nil(t, got)
	}
	got, err = Event[*mine](self, "Op", theirs{})
	require.ErrorContains(t, err, "the event is a backend.theirs; use one")
	require.Nil(t, got)
}

func TestLeft(t *testing.T) {
	var l Leftover
	require.NoError(t, self.Left(&l))
	for i, h := range []*Held{&l.Allocations, &l.Mappings, &l.Reservations, &l.Pinned, &l.Registered} {
		for range i + 1 {
			h.Add(1024)
		}
	}
	require.EqualError(t, self.Left(&l), "device: Close on it: memory was still in use: 1 allocations (Free) of 1.0 KiB, "+
		"2 mappings (Unmap) of 2.0 KiB, 3 reservations (Unreserve) of 3.0 KiB, 4 pinned buffers (FreePinned) of 4.0 KiB, "+
		"5 registered slices (Unregister) of 5.0 KiB")
}

// owner counts the calls of Emptied.
type owner struct{ told atomic.Int32 }

func (o *owner) Emptied() { o.told.Add(1) }

func TestGate(t *testing.T) {
	var o owner
	g := Gate{Owner: &o}
	require.True(t, g.Enter())
	require.True(t, g.Enter())
	g.Leave()
	g.Shut()
	require.False(t, g.Enter())
	require.Zero(t, o.told.Load(), "one is inside")
	g.Leave()
	require.EqualValues(t, 1, o.told.Load())
	require.False(t, g.Enter())
	require.EqualValues(t, 1, o.told.Load(), "once")
	var empty Gate
	empty.Owner = &o
	empty.Shut()
	require.EqualValues(t, 2, o.told.Load(), "at once if nobody is inside")
}

// TestGateConcurrentSafe: no call is inside when ShutAndWait returns, and none enters later.
func TestGateConcurrentSafe(t *testing.T) {
	for range 200 {
		var g Gate
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for g.Enter() {
					inside.Add(1)
					inside.Add(-1)
					g.Leave()
				}
			})
		}
		require.True(t, g.Enter())
		go g.Leave()
		g.ShutAndWait()
		require.Zero(t, inside.Load())
		require.False(t, g.Enter())
		wg.Wait()
	}
}

func TestHandles(t *testing.T) {
	var p Handles[int]
	made := 0
	take := func() int {
		h, err := p.Take(func(h *int) error { made++; *h = made; return nil })
		require.NoError(t, err)
		return h
	}
	require.Equal(t, []int{1, 2}, []int{take(), take()})
	p.Put(1)
	require.Equal(t, []int{1, 3}, []int{take(), take()}, "one is used again")
	failed := errors.New("on purpose")
	_, err := p.Take(func(h *int) error { *h = 9; return failed })
	require.ErrorIs(t, err, failed)
	p.Put(2)
	require.Equal(t, []int{1, 2, 3}, p.End(), "those that are out, too, and none that could not be made")
	require.Empty(t, p.End())
	p.Put(3)
	require.Equal(t, 4, take(), "what comes back later is gone")
}

// TestHandlesConcurrentSafe: no handle has two users at a time.
func TestHandlesConcurrentSafe(t *testing.T) {
	var p Handles[*atomic.Bool]
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				h, err := p.Take(func(h **atomic.Bool) error { *h = new(atomic.Bool); return nil })
				if err != nil || h.Swap(true) {
					t.Error(fmt.Sprint("a handle with two users ", err))
					return
				}
				h.Store(false)
				p.Put(h)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, len(p.End()), 8)
}

func TestOpen(t *testing.T) {
	var o Open[int]
	require.True(t, o.Add(1))
	require.True(t, o.Add(2))
	o.Remove(1)
	o.Remove(3)
	require.Equal(t, []int{2}, o.End())
	require.False(t, o.Add(4), "the device is closed")
	o.Remove(2)
	require.Empty(t, o.End())
}
