package main

import (
	"errors"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// matmul lets the second access be that of gonum's matrix product, whose assembly the race detector does
// not see.
func (b *bench) matmul(f *form) {
	var pool *transfer.Pool
	var runtime *tensor.Runtime
	f.begin = func() (err error) {
		if pool, err = transfer.New(b.dev, transfer.Config{}); err != nil {
			return err
		}
		runtime, err = tensor.NewRuntime(b.cache, pool, b.consumer)
		return err
	}
	f.read = func(s device.Stream, x memcache.Block) error {
		m, err := runtime.FromBlock(x, gtensor.Float32, 32, 32)
		if err != nil {
			return err
		}
		product, err := runtime.MatMul(b.ctx, m, m, false, false)
		if err != nil {
			return err
		}
		return errors.Join(product.Release(), m.Release())
	}
	f.end = func() error { return errors.Join(runtime.Close(), pool.Close()) }
}
