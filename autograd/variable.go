package autograd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// Ownership of a value, in four terms:
//
//   - Holds are counted: the program has one until Release, the end of a frame or Backward, each
//     node that saved the value has one, and so does each recomputed region that read it from
//     outside. The end of the last hold frees the value.
//   - Keep makes the program's hold last until Close.
//   - The last reader is the operation that ends the program's hold and may overwrite the value.
//     Once and Sequential mark a value, so that the next operation is its last reader. A NoGrad
//     tape marks each result outside of frames, because no backward pass would end the hold.
//   - A scope is a run of a frame or a layer. A mark does not count in scopes that begin later, so
//     that a layer does not free its caller's values.

// Variable is a tensor on a tape. Its value lives as long as the program or the backward pass needs
// it: Backward frees the values that the program did not Keep.
type Variable struct {
	tape   *Tape
	number int // counts the tape's variables
	value  *tensor.Tensor
	grad   *tensor.Tensor
	param  *Parameter

	needsGrad bool
	owned     bool   // the tape releases the value
	held      bool   // the program has a hold
	kept      bool   // the program's hold lasts until Close
	made      bool   // by an operation
	masked    bool   // the gradient has passed the backward step of the ReLU that made the value
	pending   int32  // recorded operations that may add to the gradient of a trained parameter
	reluOf    int    // columns of the input of the LinearReLU that made the value, if it is trained
	holds     int    // the number of holds
	last      int    // the next operation is the last reader if its scope's number is lower
	freedBy   string // the last reader, which ended the program's hold
}

// Variable returns the variable that p has on the tape, or nil if the tape has not read it.
func (t *Tape) Variable(p *Parameter) *Variable {
	if t.none() {
		return nil
	}
	return t.params[p]
}

// Parameters returns the variables of all parameters that the tape has read.
func (t *Tape) Parameters() iter.Seq[*Variable] {
	return func(yield func(*Variable) bool) {
		if t.none() {
			return
		}
		for _, v := range t.params {
			if !yield(v) {
				return
			}
		}
	}
}

// Value returns the tensor, which the tape owns. Close releases it. Before that, unless Keep was
// called, it is released by Backward if it is not the loss, and on a [NoGrad] tape by the operation
// that reads it. Value is nil for the inert result of an operation after an error.
func (v *Variable) Value() *tensor.Tensor {
	if v == nil || v.tape == nil {
		return nil
	}
	v.tape.hookNeeded(v)
	return v.value
}

// Tensor is [Variable.Value] for hooks: it does not call [Recorder.Needed].
func (v *Variable) Tensor() *tensor.Tensor {
	if v == nil {
		return nil
	}
	return v.value
}

// Item waits for the value, which has one element, and returns it (torch.Tensor.item). An error
// sticks to the tape. After an error and for an inert variable the result is NaN.
func (v *Variable) Item() float64 {
	if v == nil || v.value == nil {
		return math.NaN()
	}
	x, err := number(v.tape.ctx, v.Value())
	v.tape.fail("Item", err)
	return x
}

func number(ctx context.Context, x *tensor.Tensor) (float64, error) {
	if wide := x.Dtype().Wide(); wide != 0 {
		y, err := x.Runtime().Convert(ctx, x, wide)
		if err != nil {
			return math.NaN(), err
		}
		v, err := number(ctx, y)
		return v, errors.Join(err, y.ReleaseContext(ctx))
	}
	switch x.Dtype() {
	case tensor.Float32:
		v, err := tensor.Item[float32](ctx, x)
		return orNaN(float64(v), err)
	case tensor.Int32:
		v, err := tensor.Item[int32](ctx, x)
		return orNaN(float64(v), err)
	default:
		return orNaN(tensor.Item[float64](ctx, x))
	}
}

func orNaN(v float64, err error) (float64, error) {
	if err != nil {
		return math.NaN(), err
	}
	return v, nil
}

// Shape returns the shape of the value; nil for an inert variable.
func (v *Variable) Shape() tensor.Shape { return v.Tensor().Shape() }

// Rank returns the number of the value's dimensions; 0 for an inert variable.
func (v *Variable) Rank() int { return v.Tensor().Rank() }

// Number returns the variable's number on its tape. Numbers start at 1, in the order in which the
// tape makes variables.
func (v *Variable) Number() int {
	if v == nil {
		return 0
	}
	return v.number
}

// Waits reports whether only backward steps will read the value.
func (v *Variable) Waits() bool { return v != nil && v.holds > 0 && !v.held }

// Hold is a hold on a variable's value, which is neither freed nor overwritten until Drop.
type Hold struct{ of saved }

// Hold holds the value at its present version.
func (v *Variable) Hold() Hold {
	if v == nil || v.value == nil {
		return Hold{}
	}
	v.holds++
	return Hold{saved{v, v.value.Version()}}
}

// Variable returns the variable, or nil for the zero Hold.
func (h Hold) Variable() *Variable { return h.of.Variable }

// Drop ends the hold. Call it once.
func (h Hold) Drop() {
	if h.of.Variable != nil {
		h.of.drop()
	}
}

// Grad returns the gradient of a [Tape.Leaf] or of a parameter: in a hook the sum so far, and after
// Backward all of it. The tape owns a leaf's gradient, until Close. A parameter's gradient is
// [Parameter.Grad] after Backward. All other gradients are freed when they are consumed.
func (v *Variable) Grad() *tensor.Tensor {
	switch {
	case v == nil:
		return nil
	case v.param != nil && v.grad == nil:
		return v.param.grad
	}
	return v.grad
}

// RequiresGrad reports whether Backward computes a gradient of the variable.
func (v *Variable) RequiresGrad() bool { return v != nil && v.needsGrad }

// Parameter returns the parameter that [Tape.Param] has brought to the tape as v, or nil.
func (v *Variable) Parameter() *Parameter {
	if v == nil {
		return nil
	}
	return v.param
}

// Keep keeps the value until Close, and returns v. Call it on a value that is read after Backward,
// or more than once on a [NoGrad] tape. On a released value it is an error that sticks to the tape.
func (v *Variable) Keep() *Variable {
	if v == nil || v.tape == nil {
		return v
	}
	if v.released() {
		v.tape.fail("Keep", v.releasedError("the variable"))
	}
	v.kept = true
	v.tape.hookNeeded(v)
	return v
}

// Release ends the program's use of the value. It is freed now, or as soon as the backward pass no
// longer needs it; a later operation on it is an error. Release does nothing on a released or kept
// variable, or on a parameter's.
func (v *Variable) Release() {
	if v != nil && v.param == nil {
		v.letGo()
	}
}

// letGo is Release, also for the copy of a parameter.
func (v *Variable) letGo() {
	if !v.held || v.kept {
		return
	}
	v.held = false
	v.drop()
}

// markLast makes the next operation in this scope, or in one around it, the last reader of v.
func (v *Variable) markLast() { v.last = v.tape.scope.number + 1 }

// released reports whether the program may not read v. A function that runs again may read values
// that the program has released since its first run, because the region holds them.
func (v *Variable) released() bool {
	return v.owned && !v.held && !(v.tape.recomputing && v.holds > 0)
}

func (v *Variable) releasedError(what string) error {
	switch {
	case v.freedBy == "":
		return fmt.Errorf("%w: %s: Release only values that no later operation reads, or Keep them", tensor.ErrReleased, what)
	case v.tape.record:
		return fmt.Errorf("%w: %s was freed when %s had read it: call Once before the last operation that reads it", tensor.ErrReleased, what, v.freedBy)
	}
	return fmt.Errorf("%w: %s was freed when %s had read it: on a tape of NoGrad call Keep on a value that is read again", tensor.ErrReleased, what, v.freedBy)
}

// drop ends a hold. The end of the last one frees the value.
func (v *Variable) drop() {
	if !v.owned {
		return
	}
	v.holds--
	switch {
	case v.holds == 0:
		v.tape.free(v.value)
	case len(v.tape.hooks) > 0:
		v.tape.hookLetGo(v.value, tensor.MemoryOf(v.value))
	}
}

// free releases a tensor that the tape owns.
func (t *Tape) free(x *tensor.Tensor) {
	var m tensor.Memory
	if len(t.hooks) > 0 {
		m = tensor.MemoryOf(x)
	}
	if err := x.ReleaseContext(t.ctx); err != nil {
		t.fail("release", err)
	}
	t.hookLetGo(nil, m)
}

// String describes the value, such as "float32 (128, 10) on host".
func (v *Variable) String() string { return v.Value().String() }

// room allocates a tape's variables. The program may hold pointers to them, so that each tape makes
// new ones; only a reset tape ([Tape.Reset]) reuses its own.
type room struct {
	fresh  []Variable   // not taken yet
	group  int          // the size of the next group
	again  bool         // the tape was reset
	groups [][]Variable // to be reused in the next step
	at     int          // number of groups that this step has used
}

// Bounds of the number of variables in a group.
const (
	leastVariables = 16
	mostVariables  = 512
)

// take returns an empty variable.
func (r *room) take() *Variable {
	if len(r.fresh) == 0 {
		r.more()
	}
	v := &r.fresh[0]
	r.fresh = r.fresh[1:]
	return v
}

func (r *room) more() {
	if r.at < len(r.groups) {
		r.fresh = r.groups[r.at]
		r.at++
		return
	}
	r.fresh = make([]Variable, min(max(r.group, leastVariables), mostVariables))
	r.group = 2 * len(r.fresh)
	if r.again {
		r.groups = append(r.groups, r.fresh)
		r.at++
	}
}

// reset clears the variables that were taken. expected is the number that the next step takes.
func (r *room) reset(expected int) {
	if !r.again {
		*r = room{again: true, group: expected}
		return
	}
	for _, g := range r.groups[:r.at] {
		clear(g)
	}
	r.fresh, r.at = nil, 0
}

// newVariable makes a variable without a value.
func (t *Tape) newVariable() *Variable {
	v := t.take()
	t.variables++
	v.tape, v.number = t, t.variables
	return v
}
