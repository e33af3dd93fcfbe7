package backend

import "sync"

// Open tracks the open objects of a device until the device is closed.
type Open[T comparable] struct {
	mu    sync.Mutex
	all   map[T]struct{}
	ended bool
}

// Add adds x. It returns false after End.
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

// Remove removes x, which has been closed.
func (o *Open[T]) Remove(x T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, x)
}

// End removes and returns all objects, for the caller to close without the lock.
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
