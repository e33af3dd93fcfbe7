package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/gpuop"
	"github.com/cistern-ml/cistern/tensor/internal/hostop"
	"github.com/cistern-ml/cistern/tensor/internal/upcast"
)

// openBackend finds the backend for the runtime's device.
func (rt *Runtime) openBackend() error {
	e := (*env)(rt)
	var next backend.Backend
	switch dev := rt.stream.Device().(type) {
	case device.HostVisible:
		rt.visible = dev
		host, err := hostop.New(e, dev)
		if err != nil {
			return fmt.Errorf("tensor: NewRuntime: %w: %w", ErrInvalid, err)
		}
		next = host
	case device.ModuleLoader:
		gpu, err := gpuop.New(e, dev)
		if err != nil {
			return fmt.Errorf("tensor: NewRuntime: %w", err)
		}
		next, rt.pause = gpu, gpu.Pause
	default:
		return fmt.Errorf("tensor: NewRuntime: device %s: %w: there are kernels for devices whose memory the host can touch, "+
			"and for those that load PTX", rt.stream.Device().Name(), ErrUnsupported)
	}
	rt.backend = upcast.New(next, e)
	return nil
}

// env is a runtime as its backend sees it.
type env Runtime

func (e *env) Stream() device.Stream { return e.stream }

func (e *env) NewCall(op backend.Op, d backend.Dtype) *backend.Call { return e.calls.New(op, d) }

func (e *env) TF32() bool { return e.tf32 }

// Scratch takes the memory of a capture while there is one. It belongs to no lifetime, whatever ctx
// has.
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

// Keep holds no lock across the allocation: several goroutines may allocate one each, and whichever
// is late, or finds no memory for a second one, takes the one that is there.
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
