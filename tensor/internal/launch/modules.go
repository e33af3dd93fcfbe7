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

// Modules holds the modules of a device. Each is loaded when its first kernel is needed. A module
// is an image's compiled code, or the PTX of a single kernel if the device does not take compiled
// code.
type Modules struct {
	dev   device.ModuleLoader
	mu    sync.Mutex                             // guards loads; not held while the device loads
	loads map[part]func() (device.Module, error) // nil after Close
}

// part is the source of a module: the image's compiled code, or a kernel's PTX.
type part struct {
	image  *ptx.Image
	kernel string // "": the compiled code
}

// Handle caches the handle of a kernel. It is nil until [Modules.Kernel] has found the kernel.
type Handle = atomic.Pointer[any]

// NewModules returns an empty set of modules of dev. It returns [backend.ErrUnsupported] if the
// program was built without kernels for GPUs.
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

// load loads a module without holding the lock, so that only goroutines that need this module wait.
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

// Close closes the modules. It waits for those that are still loading. It is idempotent.
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
