package hostop

import (
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// args holds what a kernel needs of a call. It takes few cache lines, because a stream's queue may
// hold a thousand of them. It is reused after the kernel has run, except that the args of a
// captured launch belong to the graph.
type args struct {
	Op       backend.Op
	dtype    backend.Dtype
	captured bool // set by the stream before the kernel can run
	n        int
	f        function
	run      func() // calls f and returns the args for reuse
	Plan     any
	C        [2]float64
	few      [4]memory
	live     []byte
	more     *more
}

// memory is the memory of an operand.
type memory struct {
	first *byte
	bytes int64
}

// more holds what few calls have. It stays with the args.
type more struct {
	operands [backend.MaxArgs]memory // after the first four
	params   backend.Params
	own      [8]float64
}

// at returns the memory of operand i.
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

// of returns the elements of operand i, or nil if it is absent or empty.
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

// params returns the parameters of the call.
func params[P any](a *args) *P { return backend.ParamsOf[P](&a.more.params) }

// own returns the numbers of a list's item; in a captured step they are in device memory.
func (a *args) own() []float64 {
	if a.live != nil {
		return unsafe.Slice((*float64)(unsafe.Pointer(&a.live[0])), len(a.live)/8)
	}
	return a.more.own[:]
}

// spare holds args for reuse. In race builds all args are new, because a reused address would order
// the streams that used it.
type spare struct{ free sync.Pool }

func (s *spare) take() *args {
	a, _ := s.free.Get().(*args)
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

// giveBack clears the references to memory, which would not be freed otherwise, and returns the
// args for reuse.
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
	s.free.Put(a)
}
