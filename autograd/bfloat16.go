package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// How a tape computes in a dtype of 16 bits, called narrow below. The table of dtypes gives its
// wide dtype, float32. There is no list of operations: the tape rounds float32 parameters and
// inputs once, when it first uses them, and an operation computes in the dtype of its operands. All
// operations sum in float32, so that none has to be left out (docs/decisions/bfloat16.md). The
// parameter itself stays float32. Optimisers update it, checkpoints keep it and ranks exchange it,
// so that none of these handles the narrow dtype.
//
// The variable of a parameter has a copy for its value, which lives as any value does: until the
// backward steps that have saved it have run. Its gradient is narrow while it comes from one
// operation; a sum, of several uses or tapes, is float32, as its small terms would be lost
// otherwise.

// SetComputeDtype lets the tape compute in a dtype of 16 bits, such as bfloat16, from now on, or in
// the dtype of what it is given, which is what tensor.Float32 means and every tape does until then
// (torch.autocast; a compute dtype as in Keras). Parameters, inputs and leaves of float32 that are
// brought to the tape are rounded to it, in memory of the tape's: a parameter once, at its first
// use. Tensors of other dtypes stay as they are. So activations have 16 bits, and take half the
// memory; sums, statistics and softmax inside of operations are float32, and so are losses.
//
// Parameters stay float32, and optimisers update these (master weights): an update that 16 bits
// would round away counts. Their gradients are of the compute dtype or, where they are a sum, of
// several uses of the parameter or several tapes, or are reduced by a parallel.Parallel, float32. bfloat16
// has float32's range, so that a loss needs no scaling; in float16 gradients below 2^-25 are 0, and
// the loss is not scaled either. A step of an optimiser between a forward pass and its backward
// pass is no [ErrStale]: the gradients are those of the copies.
//
// What is to be float32 is brought to the tape while it computes so, such as the targets of a
// regression, or is [Tape.Cast]. The tapes of nn.Initializer.Steps compute as nn.ComputeDtype says.
func (t *Tape) SetComputeDtype(dtype tensor.Dtype) {
	if err := checkComputeDtype(dtype); err != nil {
		t.fail("SetComputeDtype", err)
		return
	}
	if t != nil {
		t.compute = 0
		if dtype.Wide() != 0 {
			t.compute = dtype
		}
	}
}

// ComputeDtype is the dtype of 16 bits that the tape computes in, or Float32 if it computes in the
// dtype of what it is given; see [Tape.SetComputeDtype].
func (t *Tape) ComputeDtype() tensor.Dtype {
	if t != nil && t.compute != 0 {
		return t.compute
	}
	return tensor.Float32
}

func checkComputeDtype(dtype tensor.Dtype) error {
	if dtype == tensor.Float32 || dtype.Wide() != 0 {
		return nil
	}
	return fmt.Errorf("%w: a tape can't compute in %v: want a dtype of 16 bits such as bfloat16, or float32 to compute in the dtype of what it is given", tensor.ErrDtype, dtype)
}

// rounds reports whether x is rounded when it is brought to the tape.
func (t *Tape) rounds(x *tensor.Tensor) bool {
	return t.compute != 0 && x.Dtype() == t.compute.Wide()
}

// rounded is x in the compute dtype, in memory of the tape's.
func (t *Tape) rounded(x *tensor.Tensor, c memcache.Category) (*tensor.Tensor, error) {
	return t.rt.Convert(memcache.WithCategory(t.ctx, c), x, t.compute)
}

// workingCopy gives the variable of a parameter a copy in the compute dtype, which the tape owns.
// No frame and no program releases it: the next use of the parameter finds it, until Backward
// begins.
func (t *Tape) workingCopy(v *Variable) {
	p := v.param
	away, elsewhere := Attached[Opener](p)
	if elsewhere {
		if t.fail("Param", away.Open(t, p)); t.err != nil {
			return
		}
	}
	x, err := t.rounded(p.value, memcache.CategoryParameter)
	if err == nil && elsewhere {
		err = away.Shut(t, p)
	}
	if err != nil {
		t.fail("Param", err)
		return
	}
	v.value, v.owned, v.held, v.holds = x, true, true, 1
}

// Copy returns the copy of a parameter that the tape has rounded to its compute dtype as v's value; nil
// if there is none, or [Variable.Keep] was called.
func (v *Variable) Copy() *tensor.Tensor {
	if v == nil || v.param == nil || !v.owned || v.kept {
		return nil
	}
	return v.value
}

// FreeCopy frees v's Copy on a tape of [NoGrad], and reports whether it did. The next operation that
// reads v makes it again.
func (v *Variable) FreeCopy() bool {
	if v.Copy() == nil || v.tape.record {
		return false
	}
	v.letGo()
	return true
}

// inOneDtype is an error if the parameter was brought to the tape while it computed in another dtype.
func (t *Tape) inOneDtype(v *Variable) error {
	want := v.param.value.Dtype()
	if t.rounds(v.param.value) {
		want = t.compute
	}
	if was := v.value.Dtype(); was != want {
		return fmt.Errorf("%w: %s is on the tape in %v, and the tape computes in %v now: Cast what it was brought as", tensor.ErrDtype, v.param.called(), was, t.ComputeDtype())
	}
	return nil
}

// addWide adds the gradient g of a parameter to the one that there is, in the wide dtype, if either
// is narrow. Then it has taken g over.
func (t *Tape) addWide(op string, v *Variable, g *tensor.Tensor) (wide *tensor.Tensor) {
	if v.param == nil {
		return g
	}
	if wide := v.grad.Dtype().Wide(); wide != 0 {
		sum, err := t.rt.Convert(t.ctx, v.grad, wide)
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

// widened is a gradient in the wide dtype, if it is narrow. It takes g over.
func (t *Tape) widened(op string, g *tensor.Tensor) *tensor.Tensor {
	dtype := g.Dtype().Wide()
	if dtype == 0 {
		return g
	}
	wide, err := t.rt.Convert(t.ctx, g, dtype)
	if err != nil {
		t.fail(op+" backward", err)
		return g
	}
	t.free(g)
	return wide
}
