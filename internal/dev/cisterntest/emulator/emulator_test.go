//go:build emulator

package emulator

import (
	_ "embed"
	"testing"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

//go:embed testdata/threads.ptx
var threads []byte

// launched runs a kernel of testdata/threads.cu over x, in blocks of so many threads.
func launched(t *testing.T, name string, block int, x []float64) ([]float64, error) {
	t.Helper()
	return launchedWith(t, 0, name, block, x)
}

// launchedWith does it with dynamic shared memory.
func launchedWith(t *testing.T, shared uint32, name string, block int, x []float64) ([]float64, error) {
	t.Helper()
	dev, err := device.Open("emulated")
	require.NoError(t, err)
	m, err := dev.(device.ModuleLoader).LoadModule(threads)
	require.NoError(t, err)
	k, err := m.Kernel(name)
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	bytes := 8 * int64(len(x))
	mem, err := dev.AllocPinned(2 * bytes)
	require.NoError(t, err)
	numbers := unsafe.Slice((*float64)(unsafe.Pointer(&mem[0])), 2*len(x))
	copy(numbers[len(x):], x)
	p, err := dev.MappedPtr(mem)
	require.NoError(t, err)
	l := &device.Launch{Name: name, Kernel: k, Grid: [3]uint32{uint32(len(x) / block), 1, 1}, Block: [3]uint32{uint32(block), 1, 1}, SharedBytes: shared,
		Args:  []uint64{uint64(p), uint64(p) + uint64(bytes), uint64(len(x))},
		Reads: []device.Range{{Ptr: p, Bytes: 2 * bytes}}, Writes: []device.Range{{Ptr: p, Bytes: bytes}}}
	require.NoError(t, s.Launch(l))
	clear(l.Args) // the caller may
	failed := s.Synchronize(t.Context())
	got := append([]float64{}, numbers[:len(x)]...)
	if failed == nil {
		require.NoError(t, dev.FreePinned(mem))
		require.NoError(t, s.Close())
		require.NoError(t, dev.Close())
	} else {
		_ = dev.Close()
	}
	return got, failed
}

func sequence(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(i*7%50) - 10
	}
	return x
}

func TestThreadsOfAWarp(t *testing.T) {
	for _, block := range []int{32, 64, 256, 1024} {
		x := sequence(2048)
		sums, err := launched(t, "warp_sum", block, x)
		require.NoError(t, err)
		votes, err := launched(t, "vote", block, x)
		require.NoError(t, err)
		for w := 0; w < len(x); w += 32 {
			sum, positive := 0.0, 0.0
			for _, v := range x[w : w+32] {
				sum += v
				if v > 0 {
					positive++
				}
			}
			told := positive
			if positive > 0 {
				told += 100
			}
			if positive == 32 {
				told += 1000
			}
			for i := w; i < w+32; i++ {
				require.InDelta(t, sum, sums[i], 0, "block %d, thread %d", block, i)
				require.InDelta(t, told, votes[i], 0, "block %d, thread %d", block, i)
			}
		}
	}
}

func TestThreadsOfABlock(t *testing.T) {
	for _, block := range []int{1, 33, 512} {
		x := sequence(4 * block)
		got, err := launched(t, "reversed", block, x)
		require.NoError(t, err)
		for i, v := range got {
			at := i / block * block
			require.InDelta(t, x[at+block-1-(i-at)], v, 0, "block %d, thread %d", block, i)
		}
	}
}

func TestThreadsThatWaitApart(t *testing.T) {
	_, err := launched(t, "apart", 64, sequence(64))
	require.ErrorContains(t, err, "wait for each other at different places")
	_, err = launched(t, "reversed", 33, sequence(66))
	require.NoError(t, err, "the next kernel")
}

func TestSizesThatNoGPUTakes(t *testing.T) {
	_, err := launched(t, "reversed", 64, sequence(32)) // a grid of no blocks
	require.ErrorContains(t, err, "a grid has 1 to 2147483647 by 65535 by 65535 blocks")
	_, err = launched(t, "reversed", 2048, sequence(2048))
	require.ErrorContains(t, err, "a block has 1 to 1024 threads")
	for _, bytes := range []uint32{24, 256<<10 + 16} {
		_, err = launchedWith(t, bytes, "reversed", 64, sequence(64))
		require.ErrorContains(t, err, "dynamic shared memory has at most 256 KiB")
	}
}

func TestWhatIsNoKernel(t *testing.T) {
	dev, err := device.Open("emulated")
	require.NoError(t, err)
	_, err = dev.(device.ModuleLoader).LoadModule([]byte("nothing"))
	require.ErrorIs(t, err, device.ErrInvalid)
	m, err := dev.(device.ModuleLoader).LoadModule(threads)
	require.NoError(t, err)
	_, err = m.Kernel("nowhere")
	require.ErrorIs(t, err, device.ErrInvalid)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, s.Launch(&device.Launch{Func: func() {}}), device.ErrInvalid)
	require.NoError(t, s.Close())
	require.NoError(t, dev.Close())
}
