package gemm

import "github.com/cistern-ml/cistern/tensor/internal/spare"

// reuse holds the objects that products reuse.
type reuse[T Float] struct {
	runs    spare.Pool[run[T]]
	vectors spare.Pool[vectorProduct[T]]
	panels  spare.Pool[panels[T]]
}

var (
	reuse32 reuse[float32]
	reuse64 reuse[float64]
)

func reuseOf[T Float]() *reuse[T] {
	if r, ok := any(&reuse32).(*reuse[T]); ok {
		return r
	}
	return any(&reuse64).(*reuse[T])
}

// panels is memory for panels of factors.
type panels[T Float] struct{ elements []T }

// takePanels returns panels with at least n elements.
func takePanels[T Float](n int) *panels[T] {
	p := reuseOf[T]().panels.Take()
	if len(p.elements) < n {
		p.elements = make([]T, n)
	}
	return p
}

func (p *panels[T]) give() { reuseOf[T]().panels.Give(p) }
