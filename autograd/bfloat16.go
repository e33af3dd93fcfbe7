package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// How a tape computes in bfloat16. There is no list of operations: what is brought to the tape in float32, parameters and inputs, is rounded there, once,
// and an operation computes in its operands' dtype. All of them sum in float32, so that none has to be left out (docs/decisions/bfloat16.md). The parameter
// itself stays float32. It is the master that optimisers update, checkpoints keep and ranks exchange, and none of these knows of bfloat16.
//
// The variable of a parameter has a copy for its value, which lives as any value does: until the backward steps that have saved it have run. Its gradient
// is bfloat16 while it comes from one operation; a sum, of several uses or tapes, is float32, as in bfloat16 its small terms would be lost.

// SetComputeDtype lets the tape compute in bfloat16 from now on, or in the dtype of what it is given, which is what tensor.Float32 means and every tape
// does until then (torch.autocast; a compute dtype as in Keras). Parameters, inputs and leaves of float32 that are brought to the tape are rounded to
// bfloat16, in memory of the tape's: a parameter once, at its first use. Tensors of other dtypes stay as they are. So activations are bfloat16, and take
// half the memory; sums, statistics and softmax inside of operations are float32, and so are losses.
//
// Parameters stay float32, and optimisers update these (master weights): an update that bfloat16 would round away counts. Their gradients are
// bfloat16 or, where they are a sum, of several uses of the parameter or several tapes, or are reduced by a [Parallel], float32. bfloat16 has float32's
// range, so that a loss needs no scaling. A step of an optimiser between a forward pass and its backward pass is no [ErrStale]: the gradients are those
// of the copies.
//
// What is to be float32 is brought to the tape while it computes so, such as the targets of a regression, or is [Tape.Cast]. The tapes of
// [Initializer.Steps] compute as [ComputeDtype] says.
func (t *Tape) SetComputeDtype(dtype tensor.Dtype) {
	if err := checkComputeDtype(dtype); err != nil {
		t.fail("SetComputeDtype", err)
		return
	}
	if t != nil {
		t.half = dtype == tensor.BFloat16
	}
}

// ComputeDtype is BFloat16 if the tape computes in it, and Float32 if it computes in the dtype of what it is given; see [Tape.SetComputeDtype].
func (t *Tape) ComputeDtype() tensor.Dtype {
	if t != nil && t.half {
		return tensor.BFloat16
	}
	return tensor.Float32
}

func checkComputeDtype(dtype tensor.Dtype) error {
	switch dtype {
	case tensor.BFloat16, tensor.Float32:
		return nil
	case 0:
		return fmt.Errorf("%w: the compute dtype is none: want bfloat16 or float32", tensor.ErrDtype)
	default:
		return fmt.Errorf("%w: a tape can't compute in %v: want bfloat16, or float32 to compute in the dtype of what it is given", tensor.ErrDtype, dtype)
	}
}

// ComputeDtype lets the tapes of [Initializer.Steps] compute in bfloat16, while parameters are float32: see [Tape.SetComputeDtype], which tapes that the
// program makes are told by.
func ComputeDtype(dtype tensor.Dtype) InitOption {
	return initOption(func(in *Initializer) { in.compute = dtype })
}

// Cast returns x in another dtype, float32, float64 or bfloat16, to which it is rounded (torch.Tensor.to); x itself if it has that dtype. The
// gradient is cast back.
func (t *Tape) Cast(x *Variable, dtype tensor.Dtype) *Variable {
	if !t.begin("Cast", x) {
		return t.inert()
	}
	from := x.value.Dtype()
	if from == dtype {
		return x
	}
	return t.Func("Cast", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return t.rt.Convert(t.ctx, c.Input(0), dtype)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.Convert(t.ctx, g, from))
	})
}

// rounds reports whether x is rounded when it is brought to the tape.
func (t *Tape) rounds(x *tensor.Tensor) bool { return t.half && x.Dtype() == tensor.Float32 }

// rounded is x in bfloat16, in memory of the tape's.
func (t *Tape) rounded(x *tensor.Tensor, c memcache.Category) (*tensor.Tensor, error) {
	return t.rt.Convert(memcache.WithCategory(t.ctx, c), x, tensor.BFloat16)
}

// workingCopy gives the variable of a parameter a copy in bfloat16, which the tape owns. No frame and no program releases it: the next use of the
// parameter finds it, until Backward begins.
func (t *Tape) workingCopy(v *Variable) {
	p := v.param
	if p.offload != nil {
		if t.bringMaster(p); t.err != nil {
			return
		}
	}
	x, err := t.rounded(p.value, memcache.CategoryParameter)
	if err == nil && p.offload != nil {
		err = p.offload.leave(t.ctx, p.value)
	}
	if err != nil {
		t.fail("Param", err)
		return
	}
	v.value, v.owned, v.held, v.users = x, true, true, 1
}

// inOneDtype is an error if the parameter was brought to the tape while it computed in another dtype.
func (t *Tape) inOneDtype(v *Variable) error {
	if was := v.value.Dtype(); was == tensor.BFloat16 != t.rounds(v.param.value) {
		return fmt.Errorf("%w: %s is on the tape in %v, and the tape computes in %v now: Cast what it was brought as", tensor.ErrDtype, v.param.called(), was, t.ComputeDtype())
	}
	return nil
}

// addWide adds the gradient g of a parameter to the one that there is, in float32, if either is bfloat16. Then it has taken g over.
func (t *Tape) addWide(op string, v *Variable, g *tensor.Tensor) (wide *tensor.Tensor) {
	if v.param == nil {
		return g
	}
	if v.grad.Dtype() == tensor.BFloat16 {
		sum, err := t.rt.Convert(t.ctx, v.grad, tensor.Float32)
		if err != nil {
			t.fail(op+" backward", err)
			return g
		}
		if v.grad != v.param.grad {
			t.free(v.grad)
		}
		v.grad = sum
	}
	return t.widened(op, g)
}

// widened is a gradient in float32, if it is bfloat16. It takes g over.
func (t *Tape) widened(op string, g *tensor.Tensor) *tensor.Tensor {
	if g.Dtype() != tensor.BFloat16 {
		return g
	}
	wide, err := t.rt.Convert(t.ctx, g, tensor.Float32)
	if err != nil {
		t.fail(op+" backward", err)
		return g
	}
	t.free(g)
	return wide
}

// wideDtype is the dtype of what is not bfloat16 beside tensors of a dtype: losses, and their weights.
func wideDtype(d tensor.Dtype) tensor.Dtype {
	if d == tensor.BFloat16 {
		return tensor.Float32
	}
	return d
}

// mixed reports whether some of the operands are bfloat16, and another one, or one of the weights, float32. nil is neither.
func mixed(operands []*tensor.Tensor, weights ...*tensor.Tensor) bool {
	of := func(ts []*tensor.Tensor, d tensor.Dtype) bool {
		return slices.ContainsFunc(ts, func(x *tensor.Tensor) bool { return x != nil && x.Dtype() == d })
	}
	return of(operands, tensor.BFloat16) && (of(operands, tensor.Float32) || of(weights, tensor.Float32))
}
