package tensor

import (
	"context"
	"slices"
)

// Donate lets the operation that reads t next write its result into t's memory, which is in place without a name of its own for each operation (donated
// buffers in JAX). It is for who releases t when that operation is queued and reads nothing of it again: the result is a tensor of its own, and the memory is
// freed with it. Elementwise operations of the runtime's do so, those of two operands with either one, if t has the result's shape and dtype, no other tensor
// shares the memory, and no graph of another capture has it; others, and all that write where they are told, leave t as it is. The write counts ([Tensor.Version]).
// After an error of the operation t's elements are undefined. Donate is called by the goroutine that
// queues the operation.
func Donate(t *Tensor) {
	if !t.none() {
		t.donated.Store(true)
	}
}

// allocResult makes the tensor of an elementwise operation's result: in the memory of the first operand that was donated and fits, or in memory of its
// own. in holds the operands.
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

// takeDonation ends the donation of an operand, and reports whether there was one that a result of this shape can take.
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

// references is how many of the operands' references are to s.
func (in *operands) references(s *storage) (n int32) {
	for _, held := range in.stores[:in.n] {
		if held == s {
			n++
		}
	}
	return n
}
