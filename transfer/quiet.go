package transfer

import (
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// quietly waits without ordering anything that the race detector sees. The pool and the loader also wait for
// copies and steps of which the caller is to know nothing: an edge from there would hide the event that the
// caller's own work lacks. An error is passed on with its edge.
func quietly(wait func() error) error {
	if !race.Enabled {
		return wait()
	}
	q := &quiet{done: make(chan struct{})}
	go q.run(wait)
	return q.await()
}

// quiet is a wait that runs on a goroutine of its own.
type quiet struct {
	err  error
	done chan struct{}
}

//go:norace
func (q *quiet) run(wait func() error) {
	err := wait()
	if err != nil {
		race.ReleaseMerge(unsafe.Pointer(q))
	}
	race.Disable()
	q.err = err
	close(q.done)
	race.Enable()
}

//go:norace
func (q *quiet) await() error {
	race.Disable()
	<-q.done
	race.Enable()
	if q.err != nil {
		race.Acquire(unsafe.Pointer(q))
	}
	return q.err
}
