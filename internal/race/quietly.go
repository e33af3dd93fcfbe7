package race

import "unsafe"

// Quietly returns the results of wait. In race builds it hides the happens-before edge from wait,
// which would otherwise hide that the caller's own work lacks an event. An error is returned with
// its edge.
//
// wait may be any code. In race builds it runs on a goroutine of its own. Between [Disable] and
// [Enable] the detector would also miss the locks of the functions that wait calls, such as those
// of a context or of package fmt, and report races.
func Quietly[T any](wait func() (T, error)) (T, error) {
	if !Enabled {
		return wait()
	}
	q := &quiet[T]{done: make(chan struct{})}
	go q.run(wait)
	return q.await()
}

type quiet[T any] struct {
	value T
	err   error
	done  chan struct{}
}

//go:norace
func (q *quiet[T]) run(wait func() (T, error)) {
	value, err := wait()
	if err != nil {
		ReleaseMerge(unsafe.Pointer(q))
	}
	Disable()
	q.value, q.err = value, err
	close(q.done)
	Enable()
}

//go:norace
func (q *quiet[T]) await() (T, error) {
	Disable()
	<-q.done
	Enable()
	if q.err != nil {
		Acquire(unsafe.Pointer(q))
	}
	return q.value, q.err
}
