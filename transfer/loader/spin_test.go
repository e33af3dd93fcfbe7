package loader_test

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// flags are the mapped words that spinning kernels watch, by the device's ID. They are freed with the rig: that waits for
// every stream.
var flags sync.Map

// spin queues a kernel that runs until the function it returns is called.
func spin(t testing.TB, s device.Stream) (open func()) {
	t.Helper()
	dev := s.Device()
	flag, err := dev.AllocPinned(4)
	require.NoError(t, err)
	clear(flag)
	p, err := dev.MappedPtr(flag)
	require.NoError(t, err)
	require.NoError(t, s.Launch(&device.Launch{Name: "spin", Kernel: gpuKernel(t, dev, "spin"), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
		Args: []uint64{uint64(p)}, Reads: []device.Range{{Ptr: p, Bytes: 4}}}))
	old, _ := flags.Load(dev.ID())
	all, _ := old.([][]byte)
	flags.Store(dev.ID(), append(all, flag))
	// Once: the flag may be freed by the time of a test's cleanup.
	return sync.OnceFunc(func() { atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(flag))), 1) })
}

// modules are the loaded kernels, by the device's ID. They end with the device.
var modules sync.Map

func gpuKernel(t testing.TB, dev device.Device, name string) any {
	t.Helper()
	m, ok := modules.Load(dev.ID())
	if !ok {
		image, err := os.ReadFile("../../memcache/testdata/kernels/spin.ptx")
		require.NoError(t, err)
		loaded, err := dev.(device.ModuleLoader).LoadModule(image)
		require.NoError(t, err)
		m, _ = modules.LoadOrStore(dev.ID(), loaded)
	}
	k, err := m.(device.Module).Kernel(name)
	require.NoError(t, err)
	return k
}

func freeFlags(dev device.Device) error {
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
