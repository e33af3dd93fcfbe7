package gpuop

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// Backend runs operations on a stream of a device that loads PTX.
type Backend struct {
	env    backend.Env
	stream device.Stream
	blas   device.MatrixMultiplier // nil if the device has no library
	fused  bool                    // blas can add a bias
	// hasMatrixUnits reports whether the GPU loads modules for compute capability 8.0.
	hasMatrixUnits func() bool

	modules *launch.Modules
	kernels [][backend.Dtypes]launch.Handle // by name

	workspace, parts memcache.Block // see lasting.go
}

// New returns the backend for the environment's stream; dev is the stream's device.
func New(env backend.Env, dev device.ModuleLoader) (*Backend, error) {
	modules, err := launch.NewModules(dev)
	if err != nil {
		return nil, err
	}
	b := &Backend{env: env, stream: env.Stream(), blas: multiplier(dev), modules: modules,
		kernels: make([][backend.Dtypes]launch.Handle, len(texts))}
	b.hasMatrixUnits = sync.OnceValue(func() bool {
		_, err := b.kernel(narrowEditions[0].forward, backend.BFloat16)
		return err == nil
	})
	b.fused = b.blas != nil && b.blas.MatMulEpilogues()
	if _, err := b.kernel(table[backend.Fill].kernel, backend.Float32); err != nil {
		return nil, fmt.Errorf("the kernels: %w", err)
	}
	return b, nil
}

// Close implements backend.Backend. No module may be loading.
func (b *Backend) Close() error {
	return errors.Join(b.env.Unkeep(&b.workspace), b.env.Unkeep(&b.parts), b.modules.Close())
}

// Supports implements backend.Backend.
func (b *Backend) Supports(c *backend.Call) bool {
	e := &table[c.Op]
	if e.can != nil {
		return e.can(b, c)
	}
	return !c.Mixed() && e.kernel.has(c.Dtype)
}

// Do implements backend.Backend.
func (b *Backend) Do(ctx context.Context, c *backend.Call) error {
	defer c.Free()
	if c.Empty() {
		return nil
	}
	if err := b.run(ctx, c); err != nil {
		return c.Failed(err)
	}
	return nil
}

func (b *Backend) run(ctx context.Context, c *backend.Call) error {
	return table[c.Op].run(ctx, b.begin(c), table[c.Op].kernel)
}
