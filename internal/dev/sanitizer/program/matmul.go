package main

import (
	"unsafe"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// matmul makes the second access that of gonum's matrix product, whose assembly the race detector
// does not see. A tensor would not do, because it records its stream on its block.
func (b *bench) matmul(f *form) {
	f.read = func(s device.Stream, x memcache.Block) error {
		const n = 32
		product := b.scratch[s]
		from, err := b.floats(x)
		if err != nil {
			return err
		}
		to, err := b.floats(product)
		if err != nil {
			return err
		}
		return s.Launch(&device.Launch{
			Name: "matmul", Reads: []device.Range{x.Range(0, bytes)}, Writes: []device.Range{product.Range(0, bytes)},
			Func: func() {
				gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, from, n, from, n, 0, to, n)
			},
		})
	}
}

// floats returns the memory of a block.
func (b *bench) floats(x memcache.Block) ([]float32, error) {
	memory, err := b.dev.Bytes(x.Ptr(), bytes)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(memory))), bytes/4), nil
}
