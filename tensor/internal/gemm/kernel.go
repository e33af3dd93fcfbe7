package gemm

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Kernel is the micro-kernel of the active level, for a caller that makes the panels and says in which order tiles come.
type Kernel[T Float] struct{ machine *machine }

// KernelOf is that of the level that is active.
func KernelOf[T Float]() Kernel[T] { return Kernel[T]{machineOf[T]()} }

// Level is what [Panel] takes.
func (k Kernel[T]) Level() simd.Level { return k.machine.level }

// Rows is the most that a tile has.
func (k Kernel[T]) Rows() int { return k.machine.rows }

// Columns is the width of a panel of B and the most columns of a tile.
func (k Kernel[T]) Columns() int { return k.machine.columns }

// Depth is that of a block of the inner dimension.
func (k Kernel[T]) Depth() int { return k.machine.depth }

// Goroutines is how many goroutines so many multiply-adds are worth.
func (k Kernel[T]) Goroutines(work int) int {
	return max(1, min(runtime.GOMAXPROCS(0), work/k.machine.grain))
}

// Tile sets rows x columns elements of c to the product over depth > 0 of a and b, or adds it. Rows of c are crs elements apart,
// those of a ars and its columns aks; b is a panel, with rows Columns apart, which are read to their end.
func (k Kernel[T]) Tile(rows, columns int, c []T, crs int, a []T, ars, aks int, b []T, depth int, add bool) {
	_ = c[(rows-1)*crs+columns-1]
	_ = a[(rows-1)*ars+(depth-1)*aks]
	_ = b[depth*k.machine.columns-1]
	tile(k.machine, rows, columns, &c[0], crs, &a[0], ars, aks, &b[0], k.machine.columns, depth, add)
}
