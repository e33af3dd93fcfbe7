package backend

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

// Ref is the memory of one operand: row-major elements. The zero Ref stands for an optional operand
// that is absent.
type Ref struct {
	Ptr   device.Ptr
	Bytes int64
	Dtype Dtype
	Host  *byte // the first byte, on a device.HostVisible; nil: to be looked up there
}

// None reports whether an optional operand is absent.
func (r *Ref) None() bool { return r.Dtype == NoDtype }

// Count is the number of elements, 0 of an absent operand.
func (r *Ref) Count() int { return int(r.Bytes / int64(max(1, dtypes[r.Dtype].size))) }

// Range is the operand's memory.
func (r *Ref) Range() device.Range { return device.Range{Ptr: r.Ptr, Bytes: r.Bytes} }

// MaxArgs is the most operands of an operation, apart from lists.
const MaxArgs = 12

// Call is one operation. Those of one runtime are made and used by one goroutine at a time; Do
// takes a call over.
type Call struct {
	Op     Op
	Dtype  Dtype // in which it computes: that of the first operand, unless the operation says otherwise
	Narrow bool  // an operand's type has a wide one
	N      int   // of Args, which are in the order of the family's operands
	Args   [MaxArgs]Ref
	C      [2]float64 // numbers
	Plan   any        // a pointer to a plan, which is never changed, or nil
	List   List       // of optimisers, norms and clips

	// Shapes are those of the tensors that Args and the first item of List are of, in their order, as
	// far as they are known. They are for tensor.OnOperation; without that option there are none.
	Shapes [][]int

	// Scratch is the backend's. It stays with the Call when that is used again.
	Scratch any

	params    Params
	hasParams bool
	pool      *Pool
}

// List are items with the same operands: the parameters of an optimiser's step, or tensors that are
// clipped.
type List struct {
	Refs   []Ref // Stride operands of each item, in the order of the family's; not to be kept after Do
	Stride int
	Own    []float64 // Width numbers for each item; not to be kept after Do
	Width  int
	Live   Ref // Float64: in a captured step the numbers of each item, which take the place of Own; zero: none
}

// Len is the number of items.
func (l *List) Len() int {
	if l.Stride == 0 {
		return 0
	}
	return len(l.Refs) / l.Stride
}

// Item are the operands of an item.
func (l *List) Item(i int) []Ref { return l.Refs[i*l.Stride:][:l.Stride] }

// Slice are the items from i up to j.
func (l List) Slice(i, j int) List {
	const size = 8
	l.Refs = l.Refs[i*l.Stride : j*l.Stride]
	if len(l.Own) > 0 {
		l.Own = l.Own[i*l.Width : j*l.Width]
	}
	if !l.Live.None() {
		l.Live.Ptr += device.Ptr(i * l.Width * size)
		l.Live.Bytes = int64((j - i) * l.Width * size)
	}
	return l
}

// Params is room for the parameters of a call: small structs without pointers.
type Params [8]uint64

// SetParams sets the parameters of a call, of the type that its family takes.
func SetParams[P any](c *Call, p P) {
	*ParamsOf[P](&c.params) = p
	c.hasParams = true
}

// Params are the call's, or nil if it has none.
func (c *Call) Params() *Params {
	if !c.hasParams {
		return nil
	}
	return &c.params
}

// ParamsOf is what SetParams was given.
func ParamsOf[P any](p *Params) *P {
	var v P
	if unsafe.Sizeof(v) > unsafe.Sizeof(*p) {
		panic(fmt.Sprintf("backend: parameters of %d bytes", unsafe.Sizeof(v))) // the type is wrong: the first call finds it
	}
	return (*P)(unsafe.Pointer(p))
}

// Add adds an operand.
func (c *Call) Add(r Ref) {
	c.Args[c.N] = r
	c.N++
	c.Narrow = c.Narrow || dtypes[r.Dtype].wide != NoDtype
}

// SetList sets the list.
func (c *Call) SetList(l List) {
	c.List = l
	for i := range l.Refs {
		c.Narrow = c.Narrow || dtypes[l.Refs[i].Dtype].wide != NoDtype
	}
}

// Mixed reports whether the type of a narrow operand is not the one that the call computes in.
func (c *Call) Mixed() bool {
	mixed := func(refs []Ref) bool {
		return slices.ContainsFunc(refs, func(r Ref) bool { return r.Dtype != c.Dtype && dtypes[r.Dtype].wide != NoDtype })
	}
	return c.Narrow && (mixed(c.Args[:c.N]) || mixed(c.List.Refs))
}

// Role is what the operation does with Args[i]: those after the family's operands are of an item of
// a list, or scratch memory.
func (c *Call) Role(i int) Role {
	r := &rows[c.Op]
	switch {
	case i < len(r.roles):
		return r.roles[i]
	case i < len(r.roles)+len(r.list):
		return r.list[i-len(r.roles)]
	}
	return Update
}

// Empty reports whether no operand that the operation writes has elements: nothing is to be done.
func (c *Call) Empty() bool {
	written := false
	for i := range c.Args[:c.N] {
		if a := &c.Args[i]; !a.None() && c.Role(i)&Write != 0 {
			if a.Bytes > 0 {
				return false
			}
			written = true
		}
	}
	return written
}

// Pool are calls that are used again. In race builds each is new: the pool's edges would order the
// goroutines that use them.
type Pool struct{ free sync.Pool }

// New takes a call from the pool.
func (p *Pool) New(op Op, d Dtype) *Call {
	c, _ := p.free.Get().(*Call)
	if c == nil {
		c = &Call{pool: p}
	}
	c.Op, c.Dtype = op, d
	return c
}

// Free gives the call back. Nothing of it may be used afterwards, but what was copied.
func (c *Call) Free() {
	clear(c.Args[:c.N]) // a kept Ref.Host would keep freed memory of the host device
	c.Op, c.Dtype, c.Narrow, c.N, c.C, c.Plan, c.List, c.hasParams = NoOp, NoDtype, false, 0, [2]float64{}, nil, List{}, false
	c.Shapes = nil
	if invariants.Enabled { // a reader that comes too late fails
		for i := range c.Args {
			c.Args[i] = Ref{Dtype: Dtypes}
		}
	}
	if !race.Enabled {
		c.pool.free.Put(c)
	}
}
