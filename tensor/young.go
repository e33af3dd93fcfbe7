package tensor

import (
	"runtime"
	"weak"
)

// To find a tensor that was dropped takes a weak pointer and a cleanup of Go's, which cost more than all else that is done for
// a small operation: three allocations, and locks of the garbage collector's when they are made, when they are stopped and when
// the memory is swept. But nearly all tensors are released soon after they were made. So the runtime holds a tensor itself while it is
// young, and gives it the two when it ages: when youngMost tensors have been made after it, when the garbage collector has run, and
// when the cache runs out of memory, before it is decided what was dropped. A dropped tensor is found one collection later
// than it could be; what is young can't be found.

// youngMost is how many unreleased tensors of a runtime are young at most.
const youngMost = 1024

// epoch is an object that nobody refers to: its end tells of a collection.
type epoch struct{ _ *byte }

// addYoung adds a handle, which is the newest of the list, to the young ones. The caller holds the lock.
func (l *handles) addYoung(h *handle, t *Tensor) {
	h.young = t
	if l.oldest == nil {
		l.oldest = h
	}
	if l.young++; l.young > youngMost {
		l.age(l.oldest)
	}
	if !l.watched {
		l.watched = true
		runtime.AddCleanup(new(epoch), (*handles).collected, l)
	}
}

// removeYoung takes a handle that is young from the young ones, which are the first of the list. The caller holds the lock.
func (l *handles) removeYoung(h *handle) {
	if l.oldest == h {
		l.oldest = h.prev
	}
	l.young--
	h.young = nil
}

// age lets the garbage collector find the tensor of a young handle. The caller holds the lock.
func (l *handles) age(h *handle) {
	t := h.young
	l.removeYoung(h)
	h.tensor = weak.Make(t)
	h.cleanup = runtime.AddCleanup(t, (*handle).died, h)
}

// ageAll lets the garbage collector find every tensor.
func (l *handles) ageAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.oldest != nil {
		l.age(l.oldest)
	}
}

// collected runs when there was a collection. The next tensor that is made waits for another one.
func (l *handles) collected() {
	l.mu.Lock()
	l.watched = false
	l.mu.Unlock()
	l.ageAll()
}

// dropped reports whether nobody can reach the tensor any more. The caller holds the lock.
func (h *handle) dropped() bool { return h.young == nil && h.tensor.Value() == nil }
