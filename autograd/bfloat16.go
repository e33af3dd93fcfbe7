package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// How a tape computes in a dtype of 16 bits, called narrow below. Its wide dtype in the table of
// dtypes is float32. There is no list of operations: the tape rounds float32 parameters and inputs
// once, when it first uses them, and an operation computes in the dtype of its operands. All
// operations sum in float32, so that no operation needs an exception (docs/decisions/bfloat16.md).
// The parameter itself stays float32. Optimisers update it, checkpoints keep it and ranks exchange
// it, so that none of these handles the narrow dtype.
//
// The value of a parameter's variable is a rounded copy. Like any value it lives until the backward
// steps that have saved it have run. Its gradient is narrow while it comes from one operation. A
// sum, of several uses or tapes, is float32, because small terms would be lost otherwise.

// SetComputeDtype makes the tape compute in a dtype of 16 bits, such as bfloat16, from now on
// (torch.autocast; a compute dtype as in Keras). tensor.Float32, the default, means the dtype of
// the operands. Parameters, inputs and leaves of float32 that are brought to the tape are rounded
// to the compute dtype, in memory that the tape owns: a parameter once, at its first use. Tensors
// of other dtypes stay unchanged. So activations have 16 bits, and take half the memory; sums,
// statistics and softmax inside of operations are float32, and so are losses.
//
// Parameters stay float32, and optimisers update these (master weights), so that an update that 16
// bits would round away counts. Their gradients have the compute dtype. They are float32 if they
// are the sum of several uses of the parameter or of several tapes, or if a parallel.Parallel
// reduces them. bfloat16 has float32's range, so that a loss needs no scaling. In float16 gradients
// below 2^-25 are 0, because the loss is not scaled either. An optimiser's step between a forward
// pass and its backward pass is not an [ErrStale], because the gradients are those of the copies.
//
// To have an operand in float32, such as the targets of a regression, bring it to the tape while
// the compute dtype is float32, or [Tape.Cast] it. The option nn.ComputeDtype sets the compute
// dtype of the tapes of nn.Initializer.Steps.
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

// ComputeDtype returns the dtype of 16 bits that the tape computes in, or Float32 if it computes in
// the dtype of its operands; see [Tape.SetComputeDtype].
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
	return fmt.Errorf("%w: a tape can't compute in %v: want a dtype of 16 bits such as bfloat16, or float32 to compute in the dtype of the operands", tensor.ErrDtype, dtype)
}

// rounds reports whether x is rounded when it is brought to the tape.
func (t *Tape) rounds(x *tensor.Tensor) bool {
	return t.compute != 0 && x.Dtype() == t.compute.Wide()
}

// rounded returns x in the compute dtype, in memory that the tape owns.
func (t *Tape) rounded(x *tensor.Tensor, c memcache.Category) (*tensor.Tensor, error) {
	return t.rt.Convert(memcache.WithCategory(t.ctx, c), x, t.compute)
}

// workingCopy gives the variable of a parameter a copy in the compute dtype, which the tape owns.
// Neither a frame nor the program releases it, so that the next use of the parameter finds it,
// until Backward begins.
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

// Copy returns v's value if it is the copy of a parameter, rounded to the tape's compute dtype. It
// returns nil for any other variable, and for one on which the program called [Variable.Keep].
func (v *Variable) Copy() *tensor.Tensor {
	if v == nil || v.param == nil || !v.owned || v.kept {
		return nil
	}
	return v.value
}

// FreeCopy frees v's Copy on a tape of [NoGrad], and reports whether it did. The next operation
// that reads v makes it again.
func (v *Variable) FreeCopy() bool {
	if v.Copy() == nil || v.tape.record {
		return false
	}
	v.letGo()
	return true
}

// inOneDtype returns an error if the parameter was brought to the tape while the tape computed in
// another dtype.
func (t *Tape) inOneDtype(v *Variable) error {
	want := v.param.value.Dtype()
	if t.rounds(v.param.value) {
		want = t.compute
	}
	if was := v.value.Dtype(); was != want {
		return fmt.Errorf("%w: %s is on the tape in %v, and the tape computes in %v now: use Tape.Cast on the variable of the first Param", tensor.ErrDtype, v.param.called(), was, t.ComputeDtype())
	}
	return nil
}

// addWide upcasts v.grad and g, the gradients of a parameter, if they are narrow, so that their sum
// is wide. It returns g, or its upcast after freeing g.
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

// widened returns g, or its upcast after freeing g if g is narrow.
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
