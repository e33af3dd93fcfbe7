package gemm

import (
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// workspace is the memory that a product needs besides its arguments: the panels of a product on a
// single goroutine, or the job for package workers.
type workspace[T Float] struct {
	elements []T
	run      run[T]
	vector   vectorProduct[T]
}

// spares holds workspaces for reuse, as many as there were concurrent products.
type spares[T Float] struct {
	mu  sync.Mutex
	all []*workspace[T]
}

var (
	spares32 spares[float32]
	spares64 spares[float64]
)

func sparesOf[T Float]() *spares[T] {
	var v T
	if unsafe.Sizeof(v) == 4 {
		return any(&spares32).(*spares[T])
	}
	return any(&spares64).(*spares[T])
}

// takeWorkspace returns a workspace with capacity for n elements. In race builds it is always new,
// because a reused one would order the streams that used it.
func takeWorkspace[T Float](n int) *workspace[T] {
	var w *workspace[T]
	if !race.Enabled {
		w = sparesOf[T]().take()
	}
	if w == nil {
		w = new(workspace[T])
	}
	if len(w.elements) < n {
		w.elements = make([]T, n)
	}
	return w
}

func (s *spares[T]) take() *workspace[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.all) - 1
	if last < 0 {
		return nil
	}
	w := s.all[last]
	s.all = s.all[:last]
	return w
}

func (w *workspace[T]) give() {
	if race.Enabled {
		return
	}
	s := sparesOf[T]()
	s.mu.Lock()
	s.all = append(s.all, w)
	s.mu.Unlock()
}
