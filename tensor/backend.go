package tensor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/gpuop"
	"github.com/cistern-ml/cistern/tensor/internal/hostop"
	"github.com/cistern-ml/cistern/tensor/internal/upcast"
	"github.com/cistern-ml/cistern/tensor/internal/watch"
)

func init() {
	backend.Register("host", openHost)
	backend.Register("ptx", openPTX)
	watch.Backend = func(runtime any, wrap func(backend.Backend) backend.Backend) {
		rt := runtime.(*Runtime)
		rt.backend = wrap(rt.backend)
	}
}

// openHost opens the backend of devices with host-visible memory.
func openHost(e backend.Env) (backend.Backend, error) {
	dev, ok := e.Stream().Device().(device.HostVisible)
	if !ok {
		return nil, backend.ErrOther
	}
	b, err := hostop.New(e, dev)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return b, nil
}

// openPTX opens the backend of devices that load PTX.
func openPTX(e backend.Env) (backend.Backend, error) {
	dev, ok := e.Stream().Device().(device.ModuleLoader)
	if !ok {
		return nil, backend.ErrOther
	}
	return gpuop.New(e, dev)
}

// openBackend opens the named backend, or one for the runtime's device if name is empty.
func (rt *Runtime) openBackend(name string) error {
	e := (*env)(rt)
	next, err := backend.For(e, name)
	switch {
	case errors.Is(err, backend.ErrOther):
		return fmt.Errorf("tensor: NewRuntime: device %s: %w: %w: the backends are %s",
			rt.stream.Device().Name(), ErrUnsupported, err, strings.Join(backend.Names(), ", "))
	case err != nil:
		return fmt.Errorf("tensor: NewRuntime: %w", err)
	}
	rt.visible, _ = rt.stream.Device().(device.HostVisible)
	if gpu, ok := next.(*gpuop.Backend); ok {
		rt.pause = gpu.Pause
	}
	rt.backend = upcast.New(next, e)
	if rt.onOperation != nil {
		rt.backend = observed{rt.backend, rt}
	}
	return nil
}

// env implements [backend.Env] for a runtime.
type env Runtime

func (e *env) Stream() device.Stream { return e.stream }

func (e *env) NewCall(op backend.Op, d backend.Dtype) *backend.Call { return e.calls.New(op, d) }

func (e *env) TF32() bool { return e.tf32 }

// Scratch allocates from the capture's pool during a capture. The block belongs to no lifetime,
// even if ctx has one.
func (e *env) Scratch(ctx context.Context, bytes int64) (memcache.Block, error) {
	if c := e.capturing.Load(); c != nil {
		ctx = c.pool.Context(ctx)
	}
	b, err := e.cache.AllocWorkspace(ctx, bytes, e.stream)
	if err != nil {
		err = fmt.Errorf("scratch memory: %w", err)
	}
	return b, err
}

func (e *env) FreeScratch(ctx context.Context, b memcache.Block) { e.parked.add(b.FreeContext(ctx)) }

// Keep holds no lock across the allocation, so several goroutines may each allocate a block. The
// first block is stored. A goroutine that is late, or finds no memory for a second block, uses the
// stored one.
func (e *env) Keep(ctx context.Context, at *memcache.Block, bytes, zeroed int64) (memcache.Block, error) {
	e.keeping.Lock()
	b := *at
	e.keeping.Unlock()
	if !b.IsZero() {
		return b, nil
	}
	fresh, err := e.cache.Alloc((*Runtime)(e).lasting(ctx), bytes, e.stream)
	if err == nil && zeroed > 0 {
		if err = e.stream.Memset(fresh.Ptr(), 0, zeroed); err != nil {
			e.parked.add(fresh.Free())
			fresh = memcache.Block{}
		}
	}
	e.keeping.Lock()
	if at.IsZero() {
		*at = fresh
	}
	b = *at
	e.keeping.Unlock()
	if b.IsZero() {
		return b, err
	}
	if b != fresh && err == nil {
		e.parked.add(fresh.Free())
	}
	return b, nil
}

func (e *env) Unkeep(at *memcache.Block) error {
	e.keeping.Lock()
	b := *at
	*at = memcache.Block{}
	e.keeping.Unlock()
	return b.Free()
}
