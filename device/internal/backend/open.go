package backend

import "sync"

// Open are the objects of a device that are not closed, until the device is.
type Open[T comparable] struct {
	mu    sync.Mutex
	all   map[T]struct{}
	ended bool
}

// Add reports whether there is room for x: not after End.
func (o *Open[T]) Add(x T) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[T]struct{}{}
	}
	if !o.ended {
		o.all[x] = struct{}{}
	}
	return !o.ended
}

// Remove forgets x, which is closed.
func (o *Open[T]) Remove(x T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, x)
}

// End takes them all, to be closed without the lock.
func (o *Open[T]) End() []T {
	o.mu.Lock()
	defer o.mu.Unlock()
	var left []T
	for x := range o.all {
		left = append(left, x)
	}
	o.all, o.ended = nil, true
	return left
}
