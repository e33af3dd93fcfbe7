package host_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

var background = context.Background()

func newDevice(t testing.TB, capacity int64) (*host.Device, device.Stream) {
	d := cisterntest.Host(t, capacity)
	return d, cisterntest.Stream(t, d)
}

func TestFailAllocations(t *testing.T) {
	d, _ := newDevice(t, 64<<20)
	p, err := d.Reserve(d.Granularity())
	require.NoError(t, err)
	for fault, call := range map[host.Fault]func() (undo func() error, err error){
		host.FaultAlloc: func() (func() error, error) {
			p, err := d.Alloc(100)
			return func() error { return d.Free(p) }, err
		},
		host.FaultPinned: func() (func() error, error) {
			b, err := d.AllocPinned(100)
			return func() error { return d.FreePinned(b) }, err
		},
		host.FaultMap: func() (func() error, error) {
			return func() error { return d.Unmap(p, d.Granularity()) }, d.Map(p, d.Granularity())
		},
	} {
		for n := range 4 {
			d.Fail(fault, n)
			for i := 1; i <= 5; i++ {
				undo, err := call()
				if i == n {
					require.ErrorIs(t, err, device.ErrOutOfMemory)
					var e *device.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, device.CodeOutOfMemory, e.Code)
					continue
				}
				require.NoError(t, err)
				require.NoError(t, undo())
			}
		}
		d.Fail(fault, 1)
		d.Fail(fault, 0)
		undo, err := call()
		require.NoError(t, err)
		require.NoError(t, undo())
	}
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.Equal(t, total, free, "failed calls use no memory")
	require.NoError(t, d.Unreserve(p))
	require.NoError(t, d.Close())
}

func TestFailWork(t *testing.T) {
	for _, c := range []struct {
		fault host.Fault
		code  int
		queue func(s device.Stream, p device.Ptr, b []byte) error
	}{
		{host.FaultCopy, device.CodeIllegalAddress, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.CopyH2D(p, b)
		}},
		{host.FaultCopy, device.CodeIllegalAddress, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.CopyD2H(b, p)
		}},
		{host.FaultCopy, device.CodeIllegalAddress, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.CopyD2D(p, p+50, 50)
		}},
		{host.FaultCopy, device.CodeIllegalAddress, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.(device.BatchCopier).CopyD2HBatch([][]byte{b[:1], b[1:]}, []device.Ptr{p, p})
		}},
		{host.FaultCopy, device.CodeIllegalAddress, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.(device.BatchCopier).CopyH2DBatch([]device.Ptr{p, p + 1}, [][]byte{b[:1], b[1:]})
		}},
		{host.FaultCopy, device.CodeIllegalAddress, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.Copy2D(&device.Copy2D{Width: 5, Height: 9, DstHost: b, DstPitch: 10, Src: p, SrcPitch: 5})
		}},
		{host.FaultLaunch, device.CodeLaunchFailed, func(s device.Stream, p device.Ptr, b []byte) error {
			return s.Launch(&device.Launch{Name: "k", Func: func() { b[0]++ }})
		}},
	} {
		d, s := newDevice(t, 1<<20)
		p, err := d.Alloc(100)
		require.NoError(t, err)
		b, err := d.AllocPinned(100)
		require.NoError(t, err)
		release := cisterntest.Hold(t, s)
		d.Fail(c.fault, 2)
		for range 3 {
			require.NoError(t, c.queue(s, p, b), "the failure is asynchronous")
		}
		done, err := s.Query()
		require.NoError(t, err)
		require.False(t, done)
		release()
		err = s.Synchronize(background)
		require.ErrorIs(t, err, device.ErrSticky)
		var e *device.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, c.code, e.Code)
		require.ErrorIs(t, c.queue(s, p, b), device.ErrSticky)
		require.ErrorIs(t, d.Close(), device.ErrSticky)
		if c.fault == host.FaultLaunch {
			require.EqualValues(t, 1, b[0], "the first ran, the others didn't")
		}
	}
}

// TestRefusedCallsDontCount: only the next call with valid arguments fails.
func TestRefusedCallsDontCount(t *testing.T) {
	d, s := newDevice(t, 1<<20)
	p, err := d.Alloc(100)
	require.NoError(t, err)
	d.Fail(host.FaultAlloc, 1)
	_, err = d.Alloc(-1)
	require.ErrorIs(t, err, device.ErrInvalid)
	_, err = d.Alloc(2 << 20)
	require.ErrorContains(t, err, "asked for 2097152 bytes, 1048476 of 1048576 are free")
	_, err = d.Alloc(5)
	require.ErrorContains(t, err, "asked for 5 bytes, 1048476 of 1048576 are free")
	d.Fail(host.FaultCopy, 1)
	d.Fail(host.FaultLaunch, 1)
	d.Fail(host.Fault(99), 1)
	require.ErrorIs(t, s.CopyD2D(p, p+50, 51), device.ErrInvalid)
	require.NoError(t, s.CopyD2D(p, p, 0))
	require.ErrorIs(t, s.Copy2D(&device.Copy2D{Width: -1}), device.ErrInvalid)
	require.ErrorIs(t, s.Launch(&device.Launch{}), device.ErrInvalid)
	require.ErrorIs(t, s.Launch(&device.Launch{Func: func() {}, Writes: []device.Range{{Ptr: p, Bytes: 101}}}), device.ErrInvalid)
	require.NoError(t, s.Memset(p, 1, 100))
	require.NoError(t, s.Synchronize(background), "nothing has failed")
	require.NoError(t, s.CopyD2D(p, p+50, 50))
	require.ErrorContains(t, s.Synchronize(background), "CopyD2D on host: "+device.ErrSticky.Error()+" (code 700)")
	require.ErrorIs(t, d.Close(), device.ErrSticky)

	d, s = newDevice(t, 1<<20)
	p, err = d.Alloc(100)
	require.NoError(t, err)
	b, err := d.AllocPinned(100)
	require.NoError(t, err)
	d.Fail(host.FaultCopy, 2)
	batch := func() error {
		return s.(device.BatchCopier).CopyH2DBatch([]device.Ptr{p, p + 10, p + 20}, [][]byte{b[:10], b[10:20], b[20:30]})
	}
	require.NoError(t, batch())
	require.NoError(t, s.Synchronize(background), "a batch is one copy")
	require.NoError(t, batch())
	require.ErrorContains(t, s.Synchronize(background), "CopyH2DBatch")
	require.ErrorIs(t, d.Close(), device.ErrSticky)

	d, s = newDevice(t, 1<<20)
	d.Fail(host.FaultLaunch, 1)
	for _, ranges := range [][]device.Range{{{Ptr: 0, Bytes: 1}}, {{Ptr: 0, Bytes: -1}}} {
		require.ErrorIs(t, s.Launch(&device.Launch{Func: func() {}, Reads: ranges}), device.ErrInvalid)
	}
	require.NoError(t, s.Launch(&device.Launch{Name: "k", Func: func() {}}))
	require.ErrorContains(t, s.Synchronize(background), "k: launch failure on demand")
	require.ErrorIs(t, d.Close(), device.ErrSticky)
}

// TestTheFirstErrorStays: a later failure does not replace the device's error.
func TestTheFirstErrorStays(t *testing.T) {
	d, a := newDevice(t, 1<<20)
	b, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	gate, begun := make(chan struct{}), make(chan struct{})
	require.NoError(t, b.Launch(&device.Launch{Name: "second", Func: func() { close(begun); <-gate; panic("second") }}))
	<-begun
	require.NoError(t, a.Launch(&device.Launch{Name: "first", Func: func() { panic("first") }}))
	require.ErrorContains(t, a.Synchronize(background), "first: the kernel panicked: first")
	close(gate)
	require.ErrorContains(t, b.Synchronize(background), "first: the kernel panicked: first")
	require.ErrorContains(t, b.Close(), "first: the kernel panicked: first")
	require.ErrorContains(t, d.Close(), "first: the kernel panicked: first")
}

func TestKernelsThatDontReturn(t *testing.T) {
	for want, kernel := range map[string]func(){
		"gemm: the kernel panicked: boom":                                                func() { panic(errors.New("boom")) },
		"gemm: the kernel panicked: runtime error: index out of range [5] with length 3": func() { _ = make([]int, 3)[len(t.Name())-20] },
		"gemm: the kernel called runtime.Goexit":                                         runtime.Goexit,
	} {
		d, s := newDevice(t, 1<<20)
		ran := false
		require.NoError(t, s.Launch(&device.Launch{Name: "gemm", Func: kernel}))
		if err := s.Launch(&device.Launch{Func: func() { ran = true }}); err != nil {
			require.ErrorIs(t, err, device.ErrSticky)
		}
		err := s.Synchronize(background)
		require.ErrorIs(t, err, device.ErrSticky)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "(code 719)")
		require.ErrorIs(t, s.Close(), device.ErrSticky)
		require.NoError(t, s.Close())
		require.ErrorIs(t, d.Close(), device.ErrSticky)
		require.False(t, ran)
	}
}

func TestCallbackThatEndsItsGoroutine(t *testing.T) {
	d, s := newDevice(t, 1<<20)
	last := make(chan error, 1)
	require.NoError(t, s.OnDone(func(error) { runtime.Goexit() }))
	require.NoError(t, s.OnDone(func(err error) { last <- err }))
	require.NoError(t, <-last)
	require.NoError(t, s.OnDone(func(error) { runtime.Goexit() }))
	require.NoError(t, d.Close())
}
