package tensor

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// stepRoom is what a step of many parameters is checked and queued in. It is kept from step to step, so that a step makes no garbage.
type stepRoom[U any] struct {
	all      []U
	held     stepOperands
	operands [5]*Tensor // of one update, while it is checked
}

var sgdSteps, adamSteps, rmspropSteps, adagradSteps sync.Pool

// takeStep takes a room from those of its kind. In race builds each is new: the pool's edges would order the goroutines that step.
func takeStep[U any](rooms *sync.Pool) *stepRoom[U] {
	if r, ok := rooms.Get().(*stepRoom[U]); ok {
		return r
	}
	return new(stepRoom[U])
}

// give lets go of the operands, and gives the room back.
func (r *stepRoom[U]) give(rooms *sync.Pool) {
	r.held.release()
	clear(r.all)
	clear(r.held)
	clear(r.operands[:])
	r.all, r.held = r.all[:0], r.held[:0]
	if !race.Enabled {
		rooms.Put(r)
	}
}
