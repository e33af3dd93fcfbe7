package kernel

import (
	"math/bits"
	"sync/atomic"
)

// convWorkers is the largest number of goroutines of a convolution. It limits scratch memory,
// because each goroutine has a slot.
const convWorkers = 16

// slots are parts of equal size of scratch memory, one per goroutine.
type slots[T Float] struct {
	elements []T
	each     int
	free     atomic.Uint32 // a bit for every free slot
}

// divide makes slots of scratch memory, and returns their number. If scratch is too small, because
// GOMAXPROCS or the level has changed since it was allocated, it allocates memory for one slot.
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
