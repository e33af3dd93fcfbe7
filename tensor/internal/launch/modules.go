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

// Modules are the modules of a device, each of which is loaded when its first kernel is needed: an
// image's compiled code, or where the device does not take that, PTX of the kernel alone.
type Modules struct {
	dev   device.ModuleLoader
	mu    sync.Mutex                             // of loads; not held while the device loads
	loads map[part]func() (device.Module, error) // nil after Close
}

// part is what a module is made of: the image's compiled code, or a kernel's PTX.
type part struct {
	image  *ptx.Image
	kernel string // "": the compiled code
}

// Handle caches the handle of a kernel; nil before [Modules.Kernel] has found it.
type Handle = atomic.Pointer[any]

// NewModules returns modules of dev, of which none is loaded yet. A program that was built without
// kernels for GPUs is an error.
func NewModules(dev device.ModuleLoader) (*Modules, error) {
	if !ptx.Embedded() {
		return nil, fmt.Errorf("%w: this program has no kernels for GPUs: build it with the tag cuda", backend.ErrUnsupported)
	}
	return &Modules{dev: dev, loads: make(map[part]func() (device.Module, error))}, nil
}

// Kernel returns the handle of an image's kernel, and caches it in at.
func (m *Modules) Kernel(at *Handle, image *ptx.Image, name string) (any, error) {
	if k := at.Load(); k != nil {
		return *k, nil
	}
	module, err := m.load(part{image: image})
	if errors.Is(err, device.ErrUnsupported) {
		module, err = m.load(part{image, name})
	}
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

// load loads a module without a lock: goroutines that need it wait for it alone.
func (m *Modules) load(p part) (device.Module, error) {
	m.mu.Lock()
	if m.loads == nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("%s: the kernels: %w", p.image.Name, device.ErrClosed)
	}
	load := m.loads[p]
	if load == nil {
		load = sync.OnceValues(func() (device.Module, error) {
			module, err := p.loadOn(m.dev)
			if err != nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				delete(m.loads, p) // the next call tries again
				return nil, fmt.Errorf("%s: %w", p, err)
			}
			return module, nil
		})
		m.loads[p] = load
	}
	m.mu.Unlock()
	return load()
}

func (p part) loadOn(dev device.ModuleLoader) (device.Module, error) {
	if p.kernel != "" {
		return dev.LoadModule(p.image.PTX(p.kernel))
	}
	code := p.image.Compiled()
	if code == nil {
		return nil, device.ErrUnsupported
	}
	return dev.LoadModule(code)
}

func (p part) String() string {
	if p.kernel == "" {
		return p.image.Name + ".fatbin"
	}
	return p.image.Name + ".ptx, " + p.kernel
}

// Close closes the modules, after those that are being loaded. It is idempotent.
func (m *Modules) Close() error {
	m.mu.Lock()
	loads := m.loads
	m.loads = nil
	m.mu.Unlock()
	var err error
	for _, load := range loads {
		if module, failed := load(); failed == nil {
			err = errors.Join(err, module.Close())
		}
	}
	return err
}
