package kernel

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// spares are jobs to use again, as many as there were at once.
type spares[J any] struct {
	mu  sync.Mutex
	all []*J
}

// take returns a job. In race builds it is a new one: an old one would order the streams that had it.
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

// either is a or b, whichever is a V: the one of float32 and float64 that belongs to a type
// parameter.
func either[V any](a, b any) V {
	if v, ok := a.(V); ok {
		return v
	}
	return b.(V)
}
