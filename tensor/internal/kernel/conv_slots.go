package kernel

import (
	"math/bits"
	"sync/atomic"
)

// convWorkers is the most goroutines that a convolution takes, for the sake of scratch memory: each has a slot of it.
const convWorkers = 16

// slots are parts of scratch memory of the same size, as many as there are goroutines.
type slots[T Float] struct {
	elements []T
	each     int
	free     atomic.Uint32 // a bit for every slot that nobody has
}

// divide makes slots of scratch memory, or of new memory if there is less: GOMAXPROCS or the level were others when it was
// taken. It returns how many there are.
func (s *slots[T]) divide(scratch []T, each int) int {
	n := min(len(scratch)/max(1, each), convWorkers)
	if n == 0 {
		scratch, n = make([]T, each), 1
	}
	s.elements, s.each = scratch, each
	s.free.Store(1<<n - 1)
	return n
}

func (s *slots[T]) take() (slot int, elements []T) {
	for {
		free := s.free.Load()
		slot = bits.TrailingZeros32(free)
		if free != 0 && s.free.CompareAndSwap(free, free&^(1<<slot)) {
			return slot, s.elements[slot*s.each:][:s.each]
		}
	}
}

func (s *slots[T]) give(slot int) { s.free.Or(1 << slot) }
