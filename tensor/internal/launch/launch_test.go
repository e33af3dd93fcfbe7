package launch

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/ptxfiles"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// loader is a device whose first module fails to load, and a module, whose kernels are their names.
type loader struct {
	device.ModuleLoader
	device.Module
	loads, finds, closes int
}

func (l *loader) LoadModule([]byte) (device.Module, error) {
	if l.loads++; l.loads == 1 {
		return nil, errors.New("busy")
	}
	return l, nil
}

func (l *loader) Kernel(name string) (any, error) {
	l.finds++
	return name, nil
}

func (l *loader) Close() error {
	l.closes++
	return nil
}

func TestModules(t *testing.T) {
	embedded := ptxfiles.Tensor
	defer func() { ptxfiles.Tensor = embedded }()
	ptxfiles.Tensor = nil
	_, err := NewModules(&loader{})
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "the tag cuda")

	ptxfiles.Tensor = os.DirFS("../ptx")
	dev := &loader{}
	m, err := NewModules(dev)
	require.NoError(t, err)
	image := &ptx.Image{Name: "some.ptx"}
	var first, second Handle
	_, err = m.Kernel(&first, image, "first")
	require.EqualError(t, err, "some.ptx: busy")
	for range 2 {
		k, err := m.Kernel(&first, image, "first")
		require.NoError(t, err)
		assert.Equal(t, "first", k)
		k, err = m.Kernel(&second, image, "second")
		require.NoError(t, err)
		assert.Equal(t, "second", k)
	}
	require.NoError(t, m.Close())
	assert.Equal(t, []int{2, 2, 1}, []int{dev.loads, dev.finds, dev.closes}, "loads, kernels that were found, and modules that were closed")
}

type own struct{ Builder[own] }

// TestBuildingAllocatesNothing: arguments are appended to what the owner of the builder allocated.
func TestBuildingAllocatesNothing(t *testing.T) {
	l := &own{}
	l.Outer, l.Dtype = l, backend.BFloat16
	args, reads, writes := make([]uint64, 0, 64), make([]device.Range, 0, 4), make([]device.Range, 0, 4)
	r, dims := device.Range{Ptr: 4096, Bytes: 64}, []int{2, 3}
	allocated := testing.AllocsPerRun(10, func() {
		l.Launch = device.Launch{Args: args, Reads: reads, Writes: writes}
		l.Blocks(1, 32, 1).Each(1000).Memory(r, backend.Update).Within(r, 8, backend.Read).Word(-1, 2)
		l.Number(1).Double(1).Flag(true, false).Dims(dims, dims).Pad(1)
	})
	if !race.Enabled { // the race detector allocates
		assert.Zero(t, allocated)
	}
	assert.Equal(t, [3]uint32{4, 1, 1}, l.Grid)
	assert.Equal(t, []device.Range{r, r}, l.Reads)
	assert.Equal(t, []device.Range{r}, l.Writes)
	want := []uint64{4096, 4104, 1<<64 - 1, 2, 0x3f800000, 0x3ff0000000000000, 1, 0, 2, 2, 3, 0, 0, 0, 0, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0}
	assert.Equal(t, want, l.Args)
}
