package tensor

import (
	"context"
	"slices"
)

// Donate lets the next operation that reads t write its result into t's memory, like donated
// buffers in JAX. It is for a caller that releases t once that operation is queued and reads none
// of it afterwards: the result is a separate tensor, and the memory is freed with it.
//
// Elementwise operations of the runtime accept a donation, of either operand if they have two, if t
// has the result's shape and dtype, no other tensor shares the memory, and the memory belongs to no
// graph of another capture. Other operations, and all operations with an explicit destination,
// leave t unchanged. The write counts in [Tensor.Version]. After an error of the operation t's
// elements are undefined. Donate is called by the goroutine that queues the operation.
func Donate(t *Tensor) {
	if !t.none() {
		t.donated.Store(true)
	}
}

// allocResult makes the tensor of an elementwise operation's result: in the memory of the first
// donated operand that fits, or in new memory. in holds the operands.
func (rt *Runtime) allocResult(ctx context.Context, op string, in *operands, shape Shape, a, b *Tensor) (*Tensor, error) {
	given := in.takeDonation(a, shape)
	if b != nil && in.takeDonation(b, shape) && !given {
		a, given = b, true
	}
	if !given {
		return rt.alloc(ctx, op, a.dtype, shape)
	}
	out, err := a.view(ctx, op, 0, a.shape)
	if err != nil {
		return nil, err
	}
	out.overwritten()
	return out, nil
}

// takeDonation ends the donation of an operand, and reports whether a result of this shape can use
// its memory.
func (in *operands) takeDonation(t *Tensor, shape Shape) bool {
	if !t.donated.Load() {
		return false
	}
	t.donated.Store(false)
	var by *made
	if c := t.rt.capturing.Load(); c != nil {
		by = c.made
	}
	s := t.store
	return !s.borrowed && s.tensors()-in.references(s) == 1 && s.made == by && slices.Equal(t.shape, shape)
}

// references returns how many of the operands' references are to s.
func (in *operands) references(s *storage) (n int32) {
	for _, held := range in.stores[:in.n] {
		if held == s {
			n++
		}
	}
	return n
}
