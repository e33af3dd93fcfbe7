// Package upcast wraps a backend, and runs the operations that it does not support in a narrow
// dtype such as bfloat16. It computes them in the upcast dtype, such as float32: it converts the
// operands to scratch memory, and rounds the results once.
package upcast

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// Backend wraps another backend.
type Backend struct {
	backend.Backend
	env backend.Env
}

// New returns a backend that supports at least what next supports.
func New(next backend.Backend, env backend.Env) *Backend { return &Backend{next, env} }

// Supports implements backend.Backend. A fused operation is upcast only if its base would be upcast
// too, because otherwise the fusion does not pay. It is not upcast either if one of its parts reads
// a result that another part rounds, because the bits would differ.
func (b *Backend) Supports(c *backend.Call) bool {
	if b.Backend.Supports(c) {
		return true
	}
	if !c.Narrow || c.Dtype.Wide() == backend.NoDtype {
		return false
	}
	op, d := c.Op, c.Dtype
	defer func() { c.Op, c.Dtype, c.Narrow = op, d, true }()
	if base := op.Base(); base != backend.NoOp {
		if c.Op = base; op.Rounds() || b.Backend.Supports(c) {
			return false
		}
		c.Op = op
	}
	c.Dtype, c.Narrow = d.Wide(), false
	return b.Backend.Supports(c)
}

// Do implements backend.Backend. The items of a list, which have the same dtypes, are upcast one by
// one, so that only one item at a time has copies.
func (b *Backend) Do(ctx context.Context, c *backend.Call) error {
	switch {
	case !c.Narrow || b.Backend.Supports(c):
		return b.Backend.Do(ctx, c)
	case c.List.Stride > 0:
		return b.DoLists(ctx, []*backend.Call{c})
	case c.Empty():
		c.Free()
		return nil
	}
	return b.upcast(ctx, c, nil)
}

// lister is a backend that runs calls with lists together.
type lister interface {
	DoLists(ctx context.Context, calls []*backend.Call) error
}

// DoLists runs calls with lists on to, one after the other. If to is a [Backend], it allocates the
// memory for the copies of all calls before the first call, so that no call runs if there is not
// enough memory.
func DoLists(ctx context.Context, to backend.Backend, calls []*backend.Call) (err error) {
	if l, ok := to.(lister); ok {
		return l.DoLists(ctx, calls)
	}
	for _, c := range calls {
		if err != nil {
			c.Free()
			continue
		}
		err = to.Do(ctx, c)
	}
	return err
}

// DoLists runs calls with lists one after the other.
func (b *Backend) DoLists(ctx context.Context, calls []*backend.Call) error {
	room, err := b.room(calls)
	for _, c := range calls {
		switch all := c.List; {
		case err != nil:
			c.Free()
		case !c.Narrow || b.Backend.Supports(c):
			err = b.Backend.Do(ctx, c)
		default:
			for i := 0; i < all.Len() && err == nil; i++ {
				err = b.upcast(ctx, b.part(c, all.Slice(i, i+1)), room)
			}
			c.Free()
		}
	}
	for _, block := range room {
		b.env.FreeScratch(context.Background(), block)
	}
	return err
}

// room allocates memory for the copies of any item of the calls. The result is indexed by operand.
func (b *Backend) room(calls []*backend.Call) (room []memcache.Block, err error) {
	var sizes [backend.MaxArgs]int64
	most := 0
	need := func(at int, r backend.Ref) {
		if wide := r.Dtype.Wide(); wide != backend.NoDtype {
			sizes[at], most = max(sizes[at], int64(r.Count())*int64(wide.Size())), max(most, at+1)
		}
	}
	for _, c := range calls {
		if !c.Narrow || b.Backend.Supports(c) {
			continue
		}
		for i, r := range c.Args[:c.N] {
			need(i, r)
		}
		for i, r := range c.List.Refs {
			need(c.N+i%c.List.Stride, r)
		}
	}
	room = make([]memcache.Block, most)
	for i, bytes := range sizes[:most] {
		if bytes == 0 {
			continue
		}
		if room[i], err = b.env.Scratch(context.Background(), bytes); err != nil {
			return room, calls[0].Failed(err)
		}
	}
	return room, nil
}

// part returns a copy of c whose list is part.
func (b *Backend) part(c *backend.Call, part backend.List) *backend.Call {
	p := b.env.NewCall(c.Op, c.Dtype)
	p.C, p.Plan = c.C, c.Plan
	if params := c.Params(); params != nil {
		backend.SetParams(p, *params)
	}
	for _, r := range c.Args[:c.N] {
		p.Add(r)
	}
	p.SetList(part)
	return p
}

// copied is an operand and its upcast copy. An operand that appears twice, such as a result in
// place, has only one copy.
type copied struct {
	of, wide backend.Ref
	block    memcache.Block
	read     bool // the operand was converted to the copy
	written  bool // the copy is converted back
}

// copies holds the copies of one call.
type copies struct {
	b   *Backend
	c   *backend.Call // until it is done
	ctx context.Context
	// lent is the memory for a list's items, by operand; nil if there is none.
	lent []memcache.Block
	all  []copied
	room [backend.MaxArgs]copied
}

// upcast runs c in the upcast dtype. The memory for the copies comes from room, unless room is nil.
func (b *Backend) upcast(ctx context.Context, c *backend.Call, room []memcache.Block) error {
	// The copies ignore the end of ctx, because other calls of the same update may already be
	// queued.
	k := copies{b: b, c: c, lent: room, ctx: context.Background()}
	k.all = k.room[:0]
	narrow := c.Dtype
	defer k.free()
	if err := k.replace(c); err != nil {
		c.Free()
		return err
	}
	if err := b.Backend.Do(ctx, c); err != nil {
		if errors.Is(err, backend.ErrUnsupported) && narrow.Wide() != backend.NoDtype {
			err = fmt.Errorf("%w, in which %v is computed", err, narrow)
		}
		return err
	}
	for i := range k.all {
		if o := &k.all[i]; o.written {
			if err := k.convert(o.of, o.wide); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace replaces the call's narrow operands by upcast copies.
func (k *copies) replace(c *backend.Call) (err error) {
	for i, role := range c.Op.Roles()[:c.N] {
		if c.Args[i], err = k.of(c.Args[i], role, i); err != nil {
			return err
		}
	}
	if c.List.Stride > 0 {
		list := make([]backend.Ref, len(c.List.Refs)) // the caller keeps its own
		for i, role := range c.Op.ListRoles() {
			if list[i], err = k.of(c.List.Refs[i], role, c.N+i); err != nil {
				return err
			}
		}
		c.List.Refs = list
	}
	c.Dtype, c.Narrow = c.Dtype.Computes(), false
	return nil
}

// of returns the copy of operand at, or the operand itself if it is not narrow.
func (k *copies) of(r backend.Ref, role backend.Role, at int) (backend.Ref, error) {
	wide := r.Dtype.Wide()
	if wide == backend.NoDtype {
		return r, nil
	}
	o, err := k.copyOf(r, wide, at)
	if err != nil {
		return r, err
	}
	if role&backend.Read != 0 && !o.read {
		o.read = true
		if err := k.convert(o.wide, r); err != nil {
			return r, err
		}
	}
	o.written = o.written || role&backend.Write != 0
	return o.wide, nil
}

func (k *copies) copyOf(r backend.Ref, wide backend.Dtype, at int) (*copied, error) {
	for i := range k.all {
		if o := &k.all[i]; r.Bytes > 0 && o.of.Range() == r.Range() {
			return o, nil
		}
	}
	bytes := int64(r.Count()) * int64(wide.Size())
	var block memcache.Block
	if k.lent != nil {
		block = k.lent[at]
	} else {
		var err error
		if block, err = k.b.env.Scratch(k.ctx, bytes); err != nil {
			return nil, k.c.Failed(err)
		}
	}
	k.all = append(k.all, copied{of: r, block: block, wide: backend.Ref{Ptr: block.Ptr(), Bytes: bytes, Dtype: wide}})
	return &k.all[len(k.all)-1], nil
}

// free frees the copies; the stream may reuse their memory for later work.
func (k *copies) free() {
	if k.lent != nil {
		return
	}
	for i := range k.all {
		k.b.env.FreeScratch(k.ctx, k.all[i].block)
	}
}

func (k *copies) convert(dst, src backend.Ref) error {
	c := k.b.env.NewCall(backend.Convert, dst.Dtype)
	c.Add(dst)
	c.Add(src)
	return k.b.Backend.Do(k.ctx, c)
}
