package tensor

import (
	"errors"
	"sync"
)

// graphs are the open graphs of a runtime. The runtime's Close closes them.
type graphs struct {
	mu     sync.Mutex
	all    map[*Graph]struct{}
	closed bool
}

// add returns false if the runtime is closed.
func (l *graphs) add(g *Graph) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.all == nil {
		l.all = make(map[*Graph]struct{})
	}
	l.all[g] = struct{}{}
	return true
}

func (l *graphs) remove(g *Graph) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, g)
}

func (l *graphs) close() error {
	l.mu.Lock()
	all := l.all
	l.all, l.closed = nil, true
	l.mu.Unlock()
	var errs []error
	for g := range all {
		errs = append(errs, g.end())
	}
	return errors.Join(errs...)
}
