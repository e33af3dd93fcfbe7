package hostop

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// args is what a kernel needs of a call, in few lines of a processor's cache, because a stream's
// queue may hold a thousand of them. They are used again when the kernel has run, but those of a
// captured launch belong to the graph.
type args struct {
	next     atomic.Pointer[args] // among those for reuse
	Op       backend.Op
	dtype    backend.Dtype
	captured bool // set by the stream before the kernel can run
	n        int
	f        function
	run      func() // calls f, and gives the args back
	Plan     any
	C        [2]float64
	few      [4]memory
	live     []byte
	more     *more
}

// memory is that of an operand.
type memory struct {
	first *byte
	bytes int64
}

// more is what few calls have. It stays with the args.
type more struct {
	operands [backend.MaxArgs]memory // those after the first four
	params   backend.Params
	own      [8]float64
}

// at is where an operand is.
func (a *args) at(i int) *memory {
	if i < len(a.few) {
		return &a.few[i]
	}
	return &a.rest().operands[i-len(a.few)]
}

func (a *args) rest() *more {
	if a.more == nil {
		a.more = new(more)
	}
	return a.more
}

func (a *args) set(f function, c *backend.Call) {
	a.f, a.Op, a.dtype, a.Plan, a.C = f, c.Op, c.Dtype, c.Plan, c.C
	if p := c.Params(); p != nil {
		a.rest().params = *p
	}
	if own := c.List.Own; len(own) > 0 {
		copy(a.rest().own[:], own)
	}
}

// of is the elements of an operand; nil if it is absent or empty.
func of[T any](a *args, i int) []T {
	if i >= a.n {
		return nil
	}
	m := a.at(i)
	if m.bytes == 0 {
		return nil
	}
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(m.first)), m.bytes/int64(unsafe.Sizeof(v)))
}

// params are the parameters of the call.
func params[P any](a *args) *P { return backend.ParamsOf[P](&a.more.params) }

// own are the numbers of a list's item, from the device in a captured step.
func (a *args) own() []float64 {
	if a.live != nil {
		return unsafe.Slice((*float64)(unsafe.Pointer(&a.live[0])), len(a.live)/8)
	}
	return a.more.own[:]
}

// spare are args for reuse, which the stream's goroutine gives back without a lock. In race builds
// each is new: a reused address would order the streams that have it.
type spare struct {
	mu       sync.Mutex
	first    *args
	_        [48]byte
	returned atomic.Pointer[args]
}

func (s *spare) take() *args {
	var a *args
	if !race.Enabled {
		s.mu.Lock()
		if s.first == nil {
			s.first = s.returned.Swap(nil)
		}
		if a = s.first; a != nil {
			s.first = a.next.Load()
		}
		s.mu.Unlock()
	}
	if a == nil {
		a = new(args)
		a.run = func() {
			a.f(a)
			if !a.captured {
				s.giveBack(a)
			}
		}
	}
	return a
}

// giveBack lets go of the memory, which would not be freed otherwise.
func (s *spare) giveBack(a *args) {
	if race.Enabled {
		return
	}
	if a.more != nil && a.n > len(a.few) {
		clear(a.more.operands[:a.n-len(a.few)])
	}
	a.few, a.n, a.live, a.Plan, a.captured = [4]memory{}, 0, nil, nil, false
	if invariants.Enabled {
		a.f = func(*args) { panic("hostop: a kernel runs again after its arguments were given back") }
	}
	for {
		first := s.returned.Load()
		a.next.Store(first)
		if s.returned.CompareAndSwap(first, a) {
			return
		}
	}
}
