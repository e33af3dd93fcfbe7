package tensor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache"
)

// handle is the part of a tensor that outlives it. With it the memory is freed if the garbage
// collector finds the tensor unreleased. It must not refer to the tensor strongly.
type handle struct {
	rt       *Runtime
	store    *storage
	own      storage // store, unless the tensor is a view
	shape    Shape
	dims     [4]int // holds shape, if it is large enough
	dtype    Dtype
	bytes    int64
	made     []uintptr // the call stack, with OnLeak
	released atomic.Bool
	left     atomic.Bool // in a slot that is reused: the release of the tensor is complete

	// Under the lock of the runtime's list.
	prev, next *handle
	young      *Tensor // nil once it ages; then the two fields below are set
	tensor     weak.Pointer[Tensor]
	cleanup    runtime.Cleanup
}

// newHandles is how many handles are allocated at a time, except for lifetimes with groups.
const newHandles = 16

// newHandle returns a new tensor and its handle, with a copy of the shape. They belong to l's group
// if it has one. Until begin attaches the handle, the tensor is none.
func (rt *Runtime) newHandle(l *Lifetime, dtype Dtype, shape Shape) (*Tensor, *handle) {
	t, h := l.newTensor()
	if t == nil {
		t, h = new(Tensor), rt.live.newHandle()
	}
	h.rt, h.dtype = rt, dtype
	h.shape = slices.Clip(append(h.dims[:0:len(h.dims)], shape...))
	h.bytes = int64(elements(shape)) * int64(dtype.Size())
	return t, h
}

func (l *handles) newHandle() *handle {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fresh) == 0 {
		l.fresh = make([]handle, newHandles)
	}
	h := &l.fresh[0]
	l.fresh = l.fresh[1:]
	return h
}

// release releases the handle's reference once; freed reports whether this call did.
func (h *handle) release(ctx context.Context) (freed bool, err error) {
	if !claim(h) {
		return false, nil
	}
	return true, h.store.release(ctx)
}

// claim reports whether the caller may release the reference, which is true for the first call
// alone.
func claim(h *handle) bool {
	if !h.released.CompareAndSwap(false, true) {
		return false
	}
	if !h.store.borrowed {
		h.rt.live.remove(h)
	}
	return true
}

// handles are a runtime's unreleased tensors, except those with borrowed memory.
type handles struct {
	mu     sync.Mutex
	first  *handle
	n      int
	bytes  int64
	closed bool
	fresh  []handle // for new tensors

	oldest  *handle // the oldest young handle; young ones are the first of the list
	young   int     // number of young handles
	watched bool    // the next collection will call collected
}

func (l *handles) add(h *handle, t *Tensor) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if h.next = l.first; h.next != nil {
		h.next.prev = h
	}
	l.first = h
	l.n++
	l.bytes += h.bytes
	l.addYoung(h, t)
	return nil
}

func (l *handles) remove(h *handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.young != nil {
		l.removeYoung(h)
	} else {
		h.cleanup.Stop()
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		l.first = h.next
	}
	h.prev, h.next = nil, nil
	l.n--
	l.bytes -= h.bytes
	if l.n < 0 || l.bytes < 0 {
		accounting.Broken("tensor runtime", "bytes of live tensors", l.bytes)
	}
}

func (l *handles) count() (int, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n, l.bytes
}

// all returns the handles for which keep is true.
func (l *handles) all(keep func(*handle) bool) []*handle {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hs []*handle
	for h := l.first; h != nil; h = h.next {
		if keep(h) {
			hs = append(hs, h)
		}
	}
	return hs
}

// close refuses new handles and releases the remaining ones.
func (l *handles) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	var errs []error
	var n, bytes int64
	where := ""
	for _, h := range l.all(func(*handle) bool { return true }) {
		if !claim(h) {
			continue
		}
		label := h.store.label()
		if err := h.store.release(context.Background()); err != nil {
			errs = append(errs, err)
		}
		n, bytes = n+1, bytes+h.bytes
		if one := h.known(label); one != "" {
			where = ", one of them" + one
		}
	}
	if n > 0 {
		errs = append(errs, fmt.Errorf("tensor: Close: %w: %d, with %s%s", ErrLeaked, n, humanize.IBytes(uint64(bytes)), where))
	}
	return errors.Join(errs...)
}

// known describes an unreleased tensor beyond its size: the label of its memory, and the place that
// made it.
func (h *handle) known(label memcache.Label) string {
	s := ""
	if label != (memcache.Label{}) {
		s = " " + label.String()
	}
	if h.made == nil {
		return s
	}
	if s != "" {
		s += ","
	}
	return s + " made at " + place(h.made)
}

// stack returns the call stack of the package's caller.
func stack() []uintptr {
	var pcs [32]uintptr
	n := runtime.Callers(3, pcs[:])
	return append([]uintptr(nil), pcs[:n]...)
}
