package host

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// streams is a device's list of open streams.
type streams struct {
	mu     sync.Mutex
	first  *stream
	n      int
	closed bool
}

//go:norace
func (l *streams) add(s *stream) bool {
	race.Disable()
	l.mu.Lock()
	ok := !l.closed
	if ok {
		s.next = l.first
		if l.first != nil {
			l.first.prev = s
		}
		l.first = s
		l.n++
	}
	l.mu.Unlock()
	race.Enable()
	return ok
}

//go:norace
func (l *streams) remove(s *stream) {
	race.Disable()
	l.mu.Lock()
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.next, s.prev = nil, nil
	l.n--
	l.mu.Unlock()
	race.Enable()
}

// list returns the open streams. If end is set, no stream can be added any more.
//
//go:norace
func (l *streams) list(end bool) []*stream {
	race.Disable()
	l.mu.Lock()
	l.closed = l.closed || end
	all := make([]*stream, l.n)
	for i, s := 0, l.first; s != nil; i, s = i+1, s.next {
		all[i] = s
	}
	l.mu.Unlock()
	race.Enable()
	return all
}
