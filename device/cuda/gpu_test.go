//go:build cuda

package cuda_test

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/cuda"
)

var one = [3]uint32{1, 1, 1}

// open opens the first GPU with the kernels of testdata/test.cu. Without a GPU it skips the test.
func open(t testing.TB) device.Device {
	d, err := device.Open("cuda:0")
	if errors.Is(err, device.ErrNoDevice) {
		t.Skip(err)
	}
	require.NoError(t, err)
	image, err := os.ReadFile("testdata/test.ptx")
	require.NoError(t, err)
	m, err := d.(device.ModuleLoader).LoadModule(image)
	require.NoError(t, err)
	all := map[string]any{}
	for _, name := range []string{"fill", "addOne", "spin", "fault", "nothing"} {
		all[name], err = m.Kernel(name)
		require.NoError(t, err)
	}
	kernels.Store(d.ID(), all)
	return d
}

// kernels holds the kernels of each device by its ID. They are looked up while there is nothing to
// wait for.
var kernels sync.Map

func kernel(t testing.TB, d device.Device, name string) any {
	all, ok := kernels.Load(d.ID())
	require.True(t, ok)
	return all.(map[string]any)[name]
}

// overBytes returns the launch of a kernel over the bytes at p.
func overBytes(t testing.TB, d device.Device, name string, p device.Ptr, bytes int64, args ...uint64) *device.Launch {
	r := []device.Range{{Ptr: p, Bytes: bytes}}
	blocks := min(max((bytes+255)/256, 1), 4096)
	return &device.Launch{Name: name, Kernel: kernel(t, d, name), Grid: [3]uint32{uint32(blocks), 1, 1}, Block: [3]uint32{256, 1, 1},
		Args: append([]uint64{uint64(p), uint64(bytes)}, args...), Reads: r, Writes: r}
}

// block queues a kernel that runs until release. Its flag is not in the device's table or its
// leftover memory; it is freed with the context.
func block(t testing.TB, s device.Stream) (release func()) {
	flag, p, err := cuda.Flag(s.Device())
	require.NoError(t, err)
	require.NoError(t, s.Launch(&device.Launch{Name: "spin", Kernel: kernel(t, s.Device(), "spin"), Grid: one, Block: one,
		Args: []uint64{uint64(p)}}))
	return func() { atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(flag))), 1) }
}
