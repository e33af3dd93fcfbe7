package tensor

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// gpuKernels are the operations of a device that runs compiled kernels. Each is one launch; matrix products go to
// the device's library, if it has one.
type gpuKernels struct {
	rt     *Runtime
	dev    device.ModuleLoader
	stream device.Stream
	tf32   bool
	blas   device.MatrixMultiplier // nil: the device has no library
	fused  bool                    // blas adds a bias
	// hasMatrixUnits is whether the GPU takes modules for compute capability 8.0.
	hasMatrixUnits func() bool

	mu        sync.Mutex
	modules   map[*ptx.Image]func() (device.Module, error)
	kernels   map[kernelKey]any
	workspace memcache.Block // of blas
	parts     memcache.Block // see takeParts

	launches sync.Pool
}

func newGPUKernels(rt *Runtime, dev device.ModuleLoader, tf32 bool) (*gpuKernels, error) {
	g := &gpuKernels{rt: rt, dev: dev, stream: rt.stream, tf32: tf32, blas: multiplier(dev),
		modules: make(map[*ptx.Image]func() (device.Module, error)), kernels: make(map[kernelKey]any)}
	g.hasMatrixUnits = sync.OnceValue(func() bool {
		_, err := g.kernel(kernelKey{"attention", attentionEditions[0].suffix})
		return err == nil
	})
	g.fused = g.blas != nil && g.blas.MatMulEpilogues()
	if _, err := g.kernel(kernelKey{"fill", fillSuffix[4]}); err != nil {
		return nil, fmt.Errorf("tensor: NewRuntime: the kernels: %w", err)
	}
	return g, nil
}

// close runs when nothing is queued any more: no module is being loaded.
func (g *gpuKernels) close() error {
	g.mu.Lock()
	w, p := g.workspace, g.parts
	g.workspace, g.parts = memcache.Block{}, memcache.Block{}
	g.mu.Unlock()
	err := errors.Join(w.Free(), p.Free())
	for _, load := range g.modules {
		if m, failed := load(); failed == nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

// module loads an image, which the driver may have to compile, without a lock: goroutines that need it wait for it alone.
func (g *gpuKernels) module(image *ptx.Image) (device.Module, error) {
	g.mu.Lock()
	load := g.modules[image]
	if load == nil {
		load = sync.OnceValues(func() (device.Module, error) {
			m, err := g.dev.LoadModule(image.PTX)
			if err != nil {
				g.mu.Lock()
				defer g.mu.Unlock()
				delete(g.modules, image) // the next call tries again
				return nil, fmt.Errorf("%s: %w", image.Name, err)
			}
			return m, nil
		})
		g.modules[image] = load
	}
	g.mu.Unlock()
	return load()
}

// kernelKey names a kernel: for a dtype, or for none.
type kernelKey struct {
	name   string // of the operation
	suffix string // "_f32", "_f64", the size of an element, or ""
}

func (g *gpuKernels) kernel(key kernelKey) (any, error) {
	g.mu.Lock()
	k := g.kernels[key]
	g.mu.Unlock()
	if k != nil {
		return k, nil
	}
	name := strings.ReplaceAll(key.name, " ", "_") + key.suffix
	image := ptx.Find(name)
	if image == nil {
		return nil, fmt.Errorf("%w: there is no kernel %s", ErrUnsupported, name)
	}
	m, err := g.module(image)
	if err != nil {
		return nil, err
	}
	if k, err = m.Kernel(name); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kernels[key] = k
	return k, nil
}

// run queues the launch.
func (g *gpuKernels) run(l *gpuLaunch) error { return g.runAs(l, kernelKey{l.Name, l.suffix}) }

// runAs queues the launch of another kernel.
func (g *gpuKernels) runAs(l *gpuLaunch, key kernelKey) error { return g.queue(g.stream, l, key) }

func (g *gpuKernels) queue(s device.Stream, l *gpuLaunch, key kernelKey) (err error) {
	if l.Kernel, err = g.kernel(key); err == nil {
		err = s.Launch(&l.Launch)
	}
	if err != nil {
		err = fmt.Errorf("tensor: %s: %w", l.Name, err)
	}
	g.launches.Put(l)
	return err
}
