package null_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var background = context.Background()

func open(t testing.TB, cfg null.Config) *null.Device {
	d, err := null.New(cfg)
	require.NoError(t, err)
	return d
}

func stream(t testing.TB, d *null.Device) *null.Stream {
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	return s.(*null.Stream)
}

func TestOpen(t *testing.T) {
	d, err := device.Open("null?capacity=140GiB")
	require.NoError(t, err)
	require.Equal(t, int64(140<<30), d.Properties().TotalMemory)
	require.NoError(t, d.Close())
	for name, want := range map[string]string{
		"null:1": "there is no device", "null?size=3": "has the option capacity", "null?capacity=1GiB&capacity=2GiB": "given 2 times",
		"null?capacity=none": "is not a size", "null?capacity=0": "is not a size", "null?capacity=2EiB": "it is 1 to",
	} {
		d, err := device.Open(name)
		require.ErrorIs(t, err, device.ErrInvalid, name)
		require.ErrorContains(t, err, want)
		require.Nil(t, d)
	}
	for _, cfg := range []null.Config{{Capacity: -1}, {Capacity: 1<<60 + 1}, {Base: 4096}} {
		_, err := null.New(cfg)
		require.ErrorIs(t, err, device.ErrInvalid)
	}
}

// TestAddresses: the device chooses new addresses; the script may choose others if they are vacant.
func TestAddresses(t *testing.T) {
	d := open(t, null.Config{Capacity: 1 << 30, Base: 1 << 30})
	a, err := d.Alloc(1000)
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, a)
	b, err := d.Alloc(1)
	require.NoError(t, err)
	require.EqualValues(t, 1<<30+1024, b)

	var chosen device.Ptr
	d.SetScript(null.Script{Before: func(c *null.Call) {
		if c.Op == null.OpAlloc || c.Op == null.OpReserve {
			c.Ptr = chosen
		}
	}})
	for _, c := range []struct {
		at device.Ptr
		ok bool
	}{{1<<30 + 512, false}, {1<<30 + 999, false}, {1<<30 - 1, false}, {1<<30 + 1000, true}, {12345, true}, {12345, false}, {^device.Ptr(0), false}} {
		chosen = c.at
		require.Equal(t, c.ok, d.Vacant(c.at, 24))
		p, err := d.Alloc(24)
		if !c.ok {
			require.ErrorIs(t, err, device.ErrInvalid)
			require.ErrorContains(t, err, "overlaps")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.at, p)
	}
	chosen = 1<<30 - 2<<20
	_, err = d.Reserve(4 << 20)
	require.ErrorIs(t, err, device.ErrInvalid)
	r, err := d.Reserve(2 << 20)
	require.NoError(t, err)
	require.Equal(t, chosen, r)
	require.NoError(t, d.Map(r, 2<<20))

	// Addresses that the device chooses avoid those of the script.
	chosen = 1<<30 + 2048
	_, err = d.Alloc(1 << 20)
	require.NoError(t, err)
	chosen = 0
	p, err := d.Alloc(1024)
	require.NoError(t, err)
	require.GreaterOrEqual(t, p, device.Ptr(1<<30+2048+1<<20))
	require.ErrorContains(t, d.Close(), "1 reservations (Unreserve) of 2.0 MiB")
}

// TestScript: it sees every call with its arguments, and can make it fail without side effects.
func TestScript(t *testing.T) {
	d := open(t, null.Config{Capacity: 64 << 20})
	var log []null.Call
	var fail error
	d.SetScript(null.Script{
		Before: func(c *null.Call) { c.Err = fail },
		After:  func(c null.Call) { log = append(log, c) },
	})
	p, err := d.Alloc(512)
	require.NoError(t, err)
	r, err := d.Reserve(4 << 20)
	require.NoError(t, err)
	require.NoError(t, d.Map(r, 2<<20))
	free, _, err := d.MemInfo()
	require.NoError(t, err)
	require.EqualValues(t, 62<<20-512, free)

	fail = errors.New("on purpose")
	_, err = d.Alloc(512)
	require.ErrorIs(t, err, fail)
	_, err = d.Reserve(2 << 20)
	require.ErrorIs(t, err, fail)
	require.ErrorIs(t, d.Map(r+2<<20, 2<<20), fail)
	require.ErrorIs(t, d.Unmap(r, 2<<20), fail)
	require.ErrorIs(t, d.Unreserve(r), fail)
	require.ErrorIs(t, d.Free(p), fail)
	fail = nil
	unchanged, _, err := d.MemInfo()
	require.NoError(t, err)
	require.Equal(t, free, unchanged)

	require.NoError(t, d.Unmap(r, 2<<20))
	require.NoError(t, d.Unreserve(r))
	require.NoError(t, d.Free(p))
	require.Equal(t, []null.Call{
		{Op: null.OpAlloc, Ptr: p, Bytes: 512}, {Op: null.OpReserve, Ptr: r, Bytes: 4 << 20}, {Op: null.OpMap, Ptr: r, Bytes: 2 << 20},
		{Op: null.OpUnmap, Ptr: r, Bytes: 2 << 20}, {Op: null.OpUnreserve, Ptr: r, Bytes: 4 << 20}, {Op: null.OpFree, Ptr: p, Bytes: 512},
	}, log)
	require.Equal(t, "unmap", null.OpUnmap.String())
	require.Equal(t, "unknown", null.Op(99).String())
	require.NoError(t, d.Close())
}

// TestCloseOvertakesACall: a call that the script blocks until the device is closed returns that it
// is closed.
func TestCloseOvertakesACall(t *testing.T) {
	for name, call := range map[null.Op]func(d *null.Device, p, r device.Ptr) error{
		null.OpAlloc:     func(d *null.Device, _, _ device.Ptr) error { _, err := d.Alloc(512); return err },
		null.OpFree:      func(d *null.Device, p, _ device.Ptr) error { return d.Free(p) },
		null.OpReserve:   func(d *null.Device, _, _ device.Ptr) error { _, err := d.Reserve(2 << 20); return err },
		null.OpMap:       func(d *null.Device, _, r device.Ptr) error { return d.Map(r+2<<20, 2<<20) },
		null.OpUnmap:     func(d *null.Device, _, r device.Ptr) error { return d.Unmap(r, 2<<20) },
		null.OpUnreserve: func(d *null.Device, _, r device.Ptr) error { return d.Unreserve(r) },
	} {
		d := open(t, null.Config{})
		p, err := d.Alloc(512)
		require.NoError(t, err)
		r, err := d.Reserve(4 << 20)
		require.NoError(t, err)
		require.NoError(t, d.Map(r, 2<<20))
		d.SetScript(null.Script{Before: func(c *null.Call) {
			if c.Op == name {
				require.ErrorContains(t, d.Close(), "1 allocations (Free) of 512 B")
			}
		}})
		require.ErrorIs(t, call(d, p, r), device.ErrClosed, name)
	}
}

func TestFailNext(t *testing.T) {
	d := open(t, null.Config{})
	r, err := d.Reserve(2 << 20)
	require.NoError(t, err)
	d.FailNext(2)
	_, err = d.Alloc(512)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorIs(t, d.Map(r, 2<<20), device.ErrOutOfMemory)
	require.NoError(t, d.Map(r, 2<<20))
}

// TestWaitsReachTheScript: a script can end a wait by releasing the stream.
func TestWaitsReachTheScript(t *testing.T) {
	d := open(t, null.Config{})
	s := stream(t, d)
	e, err := d.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	calls := 0
	for _, wait := range []func(context.Context) error{e.Synchronize, s.Synchronize, d.Synchronize} {
		release, err := s.Hold()
		require.NoError(t, err)
		require.NoError(t, s.Record(e))
		d.SetScript(null.Script{Before: func(c *null.Call) {
			calls++
			require.Equal(t, null.Call{Op: null.OpSynchronize, Stream: s.ID(), Context: background}, *c)
			release()
		}})
		require.NoError(t, wait(background))
		require.NoError(t, wait(background), "nothing is left to wait for")
	}
	require.Equal(t, 3, calls)
	require.NoError(t, d.Close())
}

// TestHold: events recorded on a held stream are complete once all holds are released.
func TestHold(t *testing.T) {
	d := open(t, null.Config{})
	s, err := d.NewStreamWithID(7)
	require.NoError(t, err)
	require.EqualValues(t, 7, s.ID())
	var events [3]device.Event
	var release [2]func()
	for i := range events {
		events[i], err = d.NewEvent(device.EventOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Record(events[i]))
		if i < 2 {
			release[i], err = s.Hold()
			require.NoError(t, err)
		}
	}
	complete := func() (list [3]bool) {
		for i, e := range events {
			list[i], err = e.Query()
			require.NoError(t, err)
		}
		return list
	}
	require.Equal(t, [3]bool{true, false, false}, complete())
	release[1]()
	require.Equal(t, [3]bool{true, false, false}, complete())
	release[0]()
	release[0]()
	require.Equal(t, [3]bool{true, true, true}, complete())
	require.NoError(t, s.Close())
	_, err = s.Hold()
	require.ErrorIs(t, err, device.ErrClosed)
	require.NoError(t, d.Close())
}

// TestRecordAndQueryAllocateNothing: neither allocates, also on a held stream.
func TestRecordAndQueryAllocateNothing(t *testing.T) {
	d := open(t, null.Config{})
	s := stream(t, d)
	e, err := d.NewEvent(device.EventOptions{})
	require.NoError(t, err)
	record := func() {
		_ = s.Record(e)
		_, _ = e.Query()
	}
	require.Zero(t, testing.AllocsPerRun(1000, record))
	release, err := s.Hold()
	require.NoError(t, err)
	for range 10_000 {
		record() // grows the queue first
	}
	release()
	_, err = s.Hold()
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(1000, record))
}

// TestConcurrentSafe: many goroutines use memory, holds, events and scripts.
func TestConcurrentSafe(t *testing.T) {
	d := open(t, null.Config{Capacity: 1 << 30})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := stream(t, d)
			e, err := d.NewEvent(device.EventOptions{})
			if err != nil {
				t.Error(err)
			}
			for i := range 300 {
				p, err := d.Alloc(int64(1 + i*1000))
				release, err2 := s.Hold()
				if err := errors.Join(err, err2, s.Record(e), s.Memset(p, 0, 1)); err != nil {
					t.Error(err)
					return
				}
				if done, _ := e.Query(); done {
					t.Error("the stream is held")
				}
				d.SetScript(null.Script{})
				time.AfterFunc(time.Microsecond, release)
				if err := errors.Join(e.Synchronize(background), d.Free(p)); err != nil {
					t.Error(err)
					return
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.Equal(t, total, free)
	require.NoError(t, d.Close())
}

func BenchmarkRecordQuery(b *testing.B) {
	d := open(b, null.Config{})
	s := stream(b, d)
	e, err := d.NewEvent(device.EventOptions{})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Record(e)
		_, _ = e.Query()
	}
}

func BenchmarkAllocFree(b *testing.B) {
	d := open(b, null.Config{})
	b.ReportAllocs()
	for b.Loop() {
		p, _ := d.Alloc(2 << 20)
		_ = d.Free(p)
	}
}
