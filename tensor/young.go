package tensor

import (
	"runtime"
	"weak"
)

// To find a dropped tensor, Go needs a weak pointer and a cleanup. These cost more than the rest of
// a small operation: three allocations, and locks of the garbage collector when they are made, when
// they are stopped and when the memory is swept. But nearly all tensors are released soon after
// they were made. So the runtime itself holds a tensor while it is young, and makes the weak
// pointer and the cleanup when it ages. It ages when there are youngMost newer young tensors, when
// the garbage collector has run, or when the cache runs out of memory, before dropped tensors are
// looked for. A young tensor can't be found, so a dropped tensor is found one collection later than
// possible.

// youngMost is the maximum number of young tensors of a runtime.
const youngMost = 1024

// epoch is an unreachable object. Its cleanup reports a collection.
type epoch struct{ _ *byte }

// addYoung adds a handle, the newest of the list, to the young ones. The caller holds the lock.
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

// removeYoung removes a handle from the young ones, which are the first of the list. The caller
// holds the lock.
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

// collected runs after a collection. The next tensor that is made watches for another one.
func (l *handles) collected() {
	l.mu.Lock()
	l.watched = false
	l.mu.Unlock()
	l.ageAll()
}

// dropped reports whether the tensor is unreachable. The caller holds the lock.
func (h *handle) dropped() bool { return h.young == nil && h.tensor.Value() == nil }
