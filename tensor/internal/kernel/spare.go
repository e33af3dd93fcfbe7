package kernel

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// spares holds jobs for reuse, as many as there were concurrent ones.
type spares[J any] struct {
	mu  sync.Mutex
	all []*J
}

// take returns a job. In race builds it is always new, because a reused one would order the streams
// that used it.
func (s *spares[J]) take() *J {
	if race.Enabled {
		return new(J)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.all) - 1
	if last < 0 {
		return new(J)
	}
	j := s.all[last]
	s.all = s.all[:last]
	return j
}

func (s *spares[J]) give(j *J) {
	if race.Enabled {
		return
	}
	s.mu.Lock()
	s.all = append(s.all, j)
	s.mu.Unlock()
}

// either returns a or b, whichever is a V. It selects between variables for float32 and float64 by
// a type parameter.
func either[V any](a, b any) V {
	if v, ok := a.(V); ok {
		return v
	}
	return b.(V)
}
