package launch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/ptxfiles"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// loader is a device that counts its loads. load may refuse one.
type loader struct {
	load   func(image string) error
	mu     sync.Mutex
	loaded []string
	finds  int
	closes atomic.Int32
}

func (l *loader) LoadModule(image []byte) (device.Module, error) {
	if l.load != nil {
		if err := l.load(string(image)); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loaded = append(l.loaded, string(image))
	return l, nil
}

func (l *loader) Kernel(name string) (any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finds++
	return name, nil
}

func (l *loader) Close() error {
	l.closes.Add(1)
	return nil
}

// modulesOf returns the modules of a device, and an image with the kernels one and two.
func modulesOf(t *testing.T, dev *loader) (*Modules, *ptx.Image) {
	embedded := ptxfiles.Tensor
	t.Cleanup(func() { ptxfiles.Tensor = embedded })
	ptxfiles.Tensor = os.DirFS("../ptx")
	m, err := NewModules(dev)
	require.NoError(t, err)
	return m, &ptx.Image{Name: "some", Files: fstest.MapFS{
		"some.ptx":    {Data: []byte("head\n.visible .entry one(\n)\n{\n}\n.visible .entry two(\n)\n{\n}\n")},
		"some.fatbin": {Data: []byte("compiled")},
	}}
}

func find(t *testing.T, m *Modules, at *Handle, image *ptx.Image, name string) {
	t.Helper()
	k, err := m.Kernel(at, image, name)
	require.NoError(t, err)
	assert.Equal(t, name, k)
}

// TestModules: compiled code is loaded once for all of its kernels, and each kernel is looked up
// once. A failed load is retried, and not replaced by PTX.
func TestModules(t *testing.T) {
	busy := errors.New("busy")
	dev := &loader{load: func(string) error { return busy }}
	m, image := modulesOf(t, dev)
	var one, two Handle
	_, err := m.Kernel(&one, image, "one")
	require.EqualError(t, err, "some.fatbin: busy")
	dev.load = nil
	for range 2 {
		find(t, m, &one, image, "one")
		find(t, m, &two, image, "two")
	}
	assert.Equal(t, []string{"compiled"}, dev.loaded)
	assert.Equal(t, 2, dev.finds)
	for range 2 {
		require.NoError(t, m.Close())
	}
	assert.EqualValues(t, 1, dev.closes.Load())
	_, err = m.Kernel(new(Handle), image, "one")
	require.ErrorIs(t, err, device.ErrClosed)

	ptxfiles.Tensor = nil
	_, err = NewModules(dev)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "the tag cuda")
}

// TestPTX: a device that does not take compiled code loads the PTX of each kernel that it needs
// once.
func TestPTX(t *testing.T) {
	for name, compiled := range map[string]bool{"refused": true, "absent": false} {
		t.Run(name, func(t *testing.T) {
			dev := &loader{load: func(image string) error {
				if image == "compiled" {
					return fmt.Errorf("compute capability 12.0: %w", device.ErrUnsupported)
				}
				return nil
			}}
			m, image := modulesOf(t, dev)
			if !compiled {
				delete(image.Files.(fstest.MapFS), "some.fatbin")
				dev.load = nil
			}
			var one, again, two Handle
			find(t, m, &one, image, "one")
			find(t, m, &again, image, "one")
			assert.Equal(t, []string{"head\n.visible .entry one(\n)\n{\n}\n"}, dev.loaded)
			find(t, m, &two, image, "two")
			assert.Equal(t, "head\n.visible .entry two(\n)\n{\n}\n", dev.loaded[1])
			require.NoError(t, m.Close())
			assert.EqualValues(t, 2, dev.closes.Load())

			dev.load = func(string) error { return device.ErrUnsupported }
			m, image = modulesOf(t, dev)
			_, err := m.Kernel(new(Handle), image, "two")
			require.EqualError(t, err, "some.ptx, two: not supported")
		})
	}
}

// TestModulesTogether: goroutines that need the same module wait for one load. Meanwhile others
// load their modules. Close waits for the load and closes the module.
func TestModulesTogether(t *testing.T) {
	loading, loaded := make(chan struct{}, 9), make(chan struct{})
	dev := &loader{load: func(image string) error {
		if image == "compiled" {
			loading <- struct{}{}
			<-loaded
		}
		return nil
	}}
	m, image := modulesOf(t, dev)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			k, err := m.Kernel(new(Handle), image, "one")
			assert.NoError(t, err)
			assert.Equal(t, "one", k)
		})
	}
	<-loading
	other := &ptx.Image{Name: "other", Files: fstest.MapFS{"other.fatbin": {Data: []byte("another")}}}
	find(t, m, new(Handle), other, "three")
	close(loaded)
	group.Wait()
	require.Empty(t, loading, "one load")

	loaded = make(chan struct{})
	m, image = modulesOf(t, dev)
	dev.loaded = nil
	dev.closes.Store(0)
	group.Go(func() { _, _ = m.Kernel(new(Handle), image, "one") })
	<-loading
	closed := make(chan error)
	go func() { closed <- m.Close() }()
	for open := true; open; { // until Close waits for the load
		m.mu.Lock()
		open = m.loads != nil
		m.mu.Unlock()
	}
	_, err := m.Kernel(new(Handle), other, "three")
	require.ErrorIs(t, err, device.ErrClosed)
	close(loaded)
	require.NoError(t, <-closed)
	group.Wait()
	assert.Equal(t, []string{"compiled"}, dev.loaded)
	assert.EqualValues(t, 1, dev.closes.Load())
}

// TestHandlesAllocateNothing: a known kernel is found again without an allocation.
func TestHandlesAllocateNothing(t *testing.T) {
	m, image := modulesOf(t, &loader{})
	var one Handle
	find(t, m, &one, image, "one")
	m.mu.Lock() // and without the lock
	defer m.mu.Unlock()
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = m.Kernel(&one, image, "one") }))
}

type own struct{ Builder[own] }

// TestBuildingAllocatesNothing: arguments are appended to memory that the builder's owner has
// allocated.
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
