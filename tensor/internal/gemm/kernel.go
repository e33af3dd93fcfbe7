package gemm

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Kernel is the micro-kernel of the active level, for a caller that packs the panels and orders the
// tiles itself.
type Kernel[T Float] struct{ machine *machine }

// KernelOf returns the micro-kernel of the active level.
func KernelOf[T Float]() Kernel[T] { return Kernel[T]{machineOf[T]()} }

// Level returns the micro-kernel's level, for [Panel].
func (k Kernel[T]) Level() simd.Level { return k.machine.level }

// Rows returns the largest number of rows of a tile.
func (k Kernel[T]) Rows() int { return k.machine.rows }

// Columns returns the number of columns of a panel of B, which is the largest number of columns of
// a tile.
func (k Kernel[T]) Columns() int { return k.machine.columns }

// Depth returns the depth of a block of the inner dimension.
func (k Kernel[T]) Depth() int { return k.machine.depth }

// Goroutines returns the number of goroutines that work multiply-adds are worth.
func (k Kernel[T]) Goroutines(work int) int {
	return max(1, min(runtime.GOMAXPROCS(0), work/k.machine.grain))
}

// Tile sets rows x columns elements of c to the product of a and b over depth > 0, or adds it. The
// rows of c are crs elements apart, those of a ars elements, and the columns of a aks elements. b
// is a panel with rows [Kernel.Columns] apart, which are read to their end.
func (k Kernel[T]) Tile(rows, columns int, c []T, crs int, a []T, ars, aks int, b []T, depth int, add bool) {
	_ = c[(rows-1)*crs+columns-1]
	_ = a[(rows-1)*ars+(depth-1)*aks]
	_ = b[depth*k.machine.columns-1]
	tile(k.machine, rows, columns, &c[0], crs, &a[0], ars, aks, &b[0], k.machine.columns, depth, add)
}
