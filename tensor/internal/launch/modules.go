package launch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// Modules are the modules of a device, each of which is loaded when its first kernel is needed.
type Modules struct {
	dev   device.ModuleLoader
	mu    sync.Mutex
	loads map[*ptx.Image]func() (device.Module, error)
}

// Handle caches the handle of a kernel; nil before [Modules.Kernel] has found it.
type Handle = atomic.Pointer[any]

// NewModules returns modules of dev, of which none is loaded yet. A program that was built without
// kernels for GPUs is an error.
func NewModules(dev device.ModuleLoader) (*Modules, error) {
	if !ptx.Embedded() {
		return nil, fmt.Errorf("%w: this program has no kernels for GPUs: build it with the tag cuda", backend.ErrUnsupported)
	}
	return &Modules{dev: dev, loads: make(map[*ptx.Image]func() (device.Module, error))}, nil
}

// Kernel returns the handle of an image's kernel, and caches it in at.
func (m *Modules) Kernel(at *Handle, image *ptx.Image, name string) (any, error) {
	if k := at.Load(); k != nil {
		return *k, nil
	}
	module, err := m.load(image)
	if err != nil {
		return nil, err
	}
	k, err := module.Kernel(name)
	if err != nil {
		return nil, err
	}
	at.Store(&k)
	return k, nil
}

// load loads an image, which the driver may have to compile, without a lock: goroutines that need
// it wait for it alone.
func (m *Modules) load(image *ptx.Image) (device.Module, error) {
	m.mu.Lock()
	load := m.loads[image]
	if load == nil {
		load = sync.OnceValues(func() (device.Module, error) {
			module, err := m.dev.LoadModule(image.PTX)
			if err != nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				delete(m.loads, image) // the next call tries again
				return nil, fmt.Errorf("%s: %w", image.Name, err)
			}
			return module, nil
		})
		m.loads[image] = load
	}
	m.mu.Unlock()
	return load()
}

// Close closes the modules. None is being loaded.
func (m *Modules) Close() error {
	var err error
	for _, load := range m.loads {
		if module, failed := load(); failed == nil {
			err = errors.Join(err, module.Close())
		}
	}
	return err
}
