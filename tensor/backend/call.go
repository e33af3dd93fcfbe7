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

// Ref is the memory of one operand: row-major elements. The zero Ref is an absent optional operand.
type Ref struct {
	Ptr   device.Ptr
	Bytes int64
	Dtype Dtype
	Host  *byte // the first byte, on a device.HostVisible; nil: look it up there
}

// None reports whether an optional operand is absent.
func (r *Ref) None() bool { return r.Dtype == NoDtype }

// Count returns the number of elements, 0 for an absent operand.
func (r *Ref) Count() int { return int(r.Bytes / int64(max(1, dtypes[r.Dtype].size))) }

// Range returns the operand's memory.
func (r *Ref) Range() device.Range { return device.Range{Ptr: r.Ptr, Bytes: r.Bytes} }

// MaxArgs is the maximum number of an operation's operands, apart from lists.
const MaxArgs = 12

// Call is one operation. One goroutine at a time makes and uses a call. Do takes ownership of it.
type Call struct {
	Op Op
	// Dtype is the dtype that the operation computes in: that of the first operand, unless the
	// operation specifies another.
	Dtype  Dtype
	Narrow bool // an operand's dtype has a wide one
	N      int  // number of Args, which are in the order of the family's operands
	Args   [MaxArgs]Ref
	C      [2]float64 // numbers
	Plan   any        // a pointer to a plan, which never changes, or nil
	List   List       // for optimisers, norms and clips

	// Shapes are the shapes of the tensors of Args and of the first item of List, in this order, as
	// far as they are known. They are for tensor.OnOperation; without that option there are none.
	Shapes [][]int

	// Scratch belongs to the backend. It stays with the Call when that is reused.
	Scratch any

	params    Params
	hasParams bool
	pool      *Pool
}

// List holds items with the same operands: the parameters of an optimiser's step, or tensors that
// are clipped.
type List struct {
	// Refs has Stride operands for each item, in the order of the family's. It must not be kept
	// after Do.
	Refs   []Ref
	Stride int
	// Own has Width numbers for each item. It must not be kept after Do.
	Own   []float64
	Width int
	// Live is Float64: in a captured step it holds the numbers of the items and replaces Own. If it
	// is zero, there is none.
	Live Ref
}

// Len returns the number of items.
func (l *List) Len() int {
	if l.Stride == 0 {
		return 0
	}
	return len(l.Refs) / l.Stride
}

// Item returns the operands of an item.
func (l *List) Item(i int) []Ref { return l.Refs[i*l.Stride:][:l.Stride] }

// Slice returns the items from i up to, but not including, j.
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

// Params holds the parameters of a call: small structs without pointers.
type Params [8]uint64

// SetParams sets the parameters of a call, of the type that its family takes.
func SetParams[P any](c *Call, p P) {
	*ParamsOf[P](&c.params) = p
	c.hasParams = true
}

// Params returns the call's parameters, or nil if it has none.
func (c *Call) Params() *Params {
	if !c.hasParams {
		return nil
	}
	return &c.params
}

// ParamsOf returns the parameters as the type that SetParams was called with.
func ParamsOf[P any](p *Params) *P {
	var v P
	if unsafe.Sizeof(v) > unsafe.Sizeof(*p) {
		// The type is wrong, so the first call panics.
		panic(fmt.Sprintf("backend: parameters of %d bytes", unsafe.Sizeof(v)))
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

// Mixed reports whether an operand's dtype has a wide one and is not the dtype that the call
// computes in.
func (c *Call) Mixed() bool {
	mixed := func(refs []Ref) bool {
		return slices.ContainsFunc(refs, func(r Ref) bool { return r.Dtype != c.Dtype && dtypes[r.Dtype].wide != NoDtype })
	}
	return c.Narrow && (mixed(c.Args[:c.N]) || mixed(c.List.Refs))
}

// Role returns the role of Args[i]. Operands after the family's are those of a list's item, or
// scratch memory.
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

// Empty reports whether no operand that the operation writes has elements, so that there is nothing
// to do.
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

// Pool reuses calls. In race builds each call is new, because the pool would order the goroutines
// that use it.
type Pool struct{ free sync.Pool }

// New returns a call from the pool, or a new one.
func (p *Pool) New(op Op, d Dtype) *Call {
	c, _ := p.free.Get().(*Call)
	if c == nil {
		c = &Call{pool: p}
	}
	c.Op, c.Dtype = op, d
	return c
}

// Free returns the call to the pool. Nothing of it may be used afterwards, except copies.
func (c *Call) Free() {
	clear(c.Args[:c.N]) // a kept Ref.Host would keep freed memory of the host device
	c.Op, c.Dtype, c.Narrow, c.N, c.C, c.Plan, c.List, c.hasParams = NoOp, NoDtype, false, 0, [2]float64{}, nil, List{}, false
	c.Shapes = nil
	if invariants.Enabled { // so that a read after Free fails
		for i := range c.Args {
			c.Args[i] = Ref{Dtype: Dtypes}
		}
	}
	if !race.Enabled {
		c.pool.free.Put(c)
	}
}
