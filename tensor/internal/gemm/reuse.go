package gemm

import (
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// workspace is what a product needs besides its arguments: of one that a goroutine does by itself memory for panels, of
// others what package workers gets.
type workspace[T Float] struct {
	elements []T
	run      run[T]
	vector   vectorProduct[T]
}

// spares are workspaces to use again, as many as there were products at once.
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

// takeWorkspace is one with room for n elements. In race builds it is a new one: an old one would order the streams that had it.
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
