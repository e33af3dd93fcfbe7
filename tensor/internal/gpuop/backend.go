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
	blas   device.MatrixMultiplier // nil: the device has no library
	fused  bool                    // blas adds a bias
	// hasMatrixUnits is whether the GPU takes modules for compute capability 8.0.
	hasMatrixUnits func() bool

	modules *launch.Modules
	kernels [][backend.Dtypes]launch.Handle // by name

	workspace, parts memcache.Block // see lasting.go
}

// New makes the backend of the environment's stream, whose device is dev.
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

// Close is backend.Backend's. No module is being loaded.
func (b *Backend) Close() error {
	return errors.Join(b.env.Unkeep(&b.workspace), b.env.Unkeep(&b.parts), b.modules.Close())
}

// Supports is backend.Backend's.
func (b *Backend) Supports(c *backend.Call) bool {
	e := &table[c.Op]
	if e.can != nil {
		return e.can(b, c)
	}
	return !c.Mixed() && e.kernel.has(c.Dtype)
}

// Do is backend.Backend's.
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
