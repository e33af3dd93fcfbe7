// Package spare holds objects for reuse.
package spare

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// Pool holds spare objects for each processor, so that a reused object is probably still in its
// cache. Its zero value is empty. Any goroutine may use it.
type Pool[T any] struct{ pool sync.Pool }

// Take returns a spare object or a new one. In race builds it is always new, because a reused one
// would order the streams that used it.
func (p *Pool[T]) Take() *T {
	if race.Enabled {
		return new(T)
	}
	if x, ok := p.pool.Get().(*T); ok {
		return x
	}
	return new(T)
}

// Give makes x available to Take, which may return it to another goroutine at once.
func (p *Pool[T]) Give(x *T) {
	if !race.Enabled {
		p.pool.Put(x)
	}
}
