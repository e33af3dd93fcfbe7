package cisterntest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// Hold makes s wait until release is called, or until the test's clean-up, so that the device can
// close. Further calls of release do nothing. On a GPU a kernel spins; before its device closes,
// the test calls [FreeFlags].
func Hold(t testing.TB, s device.Stream) (release func()) {
	t.Helper()
	if _, ok := s.Device().(device.ModuleLoader); ok {
		release = spin(t, s)
	} else {
		gate := make(chan struct{})
		require.NoError(t, s.Launch(&device.Launch{Name: "hold", Func: func() { <-gate }}))
		release = sync.OnceFunc(func() { close(gate) })
	}
	t.Cleanup(release)
	return release
}

// flags are the mapped words that spinning kernels watch, by the device's ID.
var flags sync.Map

// spin queues a kernel that runs until the returned function is called.
func spin(t testing.TB, s device.Stream) (release func()) {
	t.Helper()
	dev := s.Device()
	flag, err := dev.AllocPinned(4)
	require.NoError(t, err)
	clear(flag)
	p, err := dev.MappedPtr(flag)
	require.NoError(t, err)
	require.NoError(t, s.Launch(&device.Launch{Name: "spin", Kernel: Kernel(t, dev, "spin"), Grid: [3]uint32{1, 1, 1},
		Block: [3]uint32{1, 1, 1}, Args: []uint64{uint64(p)}, Reads: []device.Range{{Ptr: p, Bytes: 4}}}))
	old, _ := flags.Load(dev.ID())
	all, _ := old.([][]byte)
	flags.Store(dev.ID(), append(all, flag))
	// Once: the flag may be freed before the test's clean-up.
	return sync.OnceFunc(func() { atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(flag))), 1) })
}

// FreeFlags frees the memory of [Hold] on the device. All streams must be released, because freeing
// waits for them.
func FreeFlags(dev device.Device) error {
	all, ok := flags.LoadAndDelete(dev.ID())
	if !ok {
		return nil
	}
	var errs []error
	for _, flag := range all.([][]byte) {
		errs = append(errs, dev.FreePinned(flag))
	}
	return errors.Join(errs...)
}

// WaitFor waits until cond is true.
func WaitFor(t testing.TB, cond func() bool) {
	t.Helper()
	for begin := time.Now(); !cond(); {
		require.Less(t, time.Since(begin), 20*time.Second, "it did not happen")
		time.Sleep(100 * time.Microsecond)
	}
}
