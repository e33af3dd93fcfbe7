package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// DetectAnomaly makes the tape fail, with an [AnomalyError], at the first operation whose result,
// or gradient, has a NaN or an infinity (torch.autograd.set_detect_anomaly). Call it in each step,
// before the tape's first operation; Close and Reset end it.
//
// It waits for the device at each operation, so use it only to find a fault. A tape without it
// checks nothing, at no cost. In a capture it is an error. Infinities that come from an Input, such
// as those of a mask, or from MaskedFill are not an anomaly in the forward pass, until they become
// a NaN.
func DetectAnomaly(t *Tape) {
	if t.none() {
		return
	}
	if c := t.rt.Capturing(); c != nil {
		t.fail("DetectAnomaly", c.Refuse("DetectAnomaly", "it reads each result: take the step outside of the capture"))
	}
	if _, ok := Hooked[*anomaly](t); !ok {
		t.Hook(&anomaly{lines: map[int]string{}, infinite: map[int]bool{}})
	}
}

// AnomalyError is the error of a tape with [DetectAnomaly]: the first tensor with a NaN or an
// infinity.
type AnomalyError struct {
	Op       string // the operation
	Backward bool   // true: of its backward step; false: of its forward pass
	Tensor   string // which one, such as "the result"
	Dtype    tensor.Dtype
	Shape    tensor.Shape

	Elements, NaNs, Infs int

	Module string // the path in the model, as in profiles, or ""
	Line   string // source line that called the operation
}

// Error returns one line, without the operation and the pass, because the tape's error names them.
func (e *AnomalyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %v %v, has %d NaNs and %d infinities in %d elements", e.Tensor, e.Dtype, e.Shape, e.NaNs, e.Infs, e.Elements)
	if e.Module != "" {
		fmt.Fprintf(&b, ", in module %q", e.Module)
	}
	if e.Line != "" {
		fmt.Fprintf(&b, ", of the operation at %s", e.Line)
	}
	return b.String()
}

// anomaly checks a tape's tensors.
type anomaly struct {
	NoHooks
	reads    []*Variable    // of the operation that runs
	lines    map[int]string // source lines, by the number of the operation's result
	infinite map[int]bool   // results with infinities of an Input, by their number

	given []*Variable  // the inputs of the backward step that runs
	step  AnomalyError // of that step
}

// Read records the operands.
func (a *anomaly) Read(_ *Tape, _ string, vs []*Variable) error {
	a.reads = append(a.reads[:0], vs...)
	return nil
}

// Bring does nothing.
func (a *anomaly) Bring(*Tape, *tensor.Tensor) {}

// Needed does nothing.
func (a *anomaly) Needed(*Variable) {}

// Unread reports that each result is read.
func (a *anomaly) Unread(*Tape) (tensor.Dtype, tensor.Shape, bool) { return 0, nil, false }

// Made checks the result of an operation. When an operation runs again, its result was checked
// before and may be uncomputed now.
func (a *anomaly) Made(t *Tape, op string, v *Variable, _ bool) error {
	defer func() { a.reads = a.reads[:0] }() // operations without operands do not call Read
	if !v.made || t.recomputing {
		return nil
	}
	e := AnomalyError{Op: op, Tensor: "the result", Module: memcache.LabelOf(t.ctx).Module}
	bad, err := e.count(t.ctx, v.value)
	if bad && err != nil {
		return errors.Join(&e, err)
	}
	if err != nil || !bad {
		return err
	}
	mask := op == "MaskedFill"
	for i, r := range a.reads {
		if r.made {
			mask = mask || a.infinite[r.number]
			continue
		}
		of := AnomalyError{Op: op, Tensor: fmt.Sprintf("operand %d", i+1), Module: e.Module, Line: line()}
		if r.param != nil {
			of.Tensor += ", " + r.param.called()
		}
		bad, err := of.count(t.ctx, r.value)
		switch {
		case err != nil:
			return err
		case bad && (of.NaNs > 0 || r.param != nil):
			return &of
		}
		mask = mask || bad
	}
	if mask && e.NaNs == 0 {
		a.infinite[v.number] = true
		return nil
	}
	e.Line = line()
	return &e
}

// Saved records the line of an operation.
func (a *anomaly) Saved(_ *Tape, n *Node) { a.lines[n.out.number] = line() }

// Begin checks the gradients that earlier passes have left.
func (a *anomaly) Begin(t *Tape) error {
	a.given, a.step = a.given[:0], AnomalyError{Op: "Backward", Backward: true}
	for _, v := range t.params {
		a.given = append(a.given, v)
	}
	return a.check(t, "that it had before, ")
}

// Load checks the gradients of the previous step.
func (a *anomaly) Load(t *Tape, n *Node, _ int) error {
	if err := a.check(t, ""); err != nil {
		return err
	}
	a.given = append(a.given[:0], n.call.inputs...)
	a.step = AnomalyError{Op: n.Name(), Backward: true, Module: memcache.LabelOf(t.ctx).Module, Line: a.lines[n.out.number]}
	return nil
}

// Final checks a gradient before another hook takes it.
func (a *anomaly) Final(t *Tape, v *Variable) error {
	return a.checked(t, v, "")
}

// End checks the gradients of the last step.
func (a *anomaly) End(t *Tape, err error) error {
	if err == nil {
		err = a.check(t, "")
	}
	clear(a.given)
	a.given = a.given[:0]
	return err
}

// check checks the gradients of the inputs of the step that has run.
func (a *anomaly) check(t *Tape, when string) error {
	for _, v := range a.given {
		if err := a.checked(t, v, when); err != nil {
			return err
		}
	}
	return nil
}

// checked checks v's gradient. The error names the step that has run, not the next one.
func (a *anomaly) checked(t *Tape, v *Variable, when string) error {
	if v == nil || v.grad == nil {
		return nil
	}
	e := a.step
	e.Tensor = "the gradient, " + when + "of an operand"
	if v.param != nil {
		e.Tensor = "the gradient, " + when + "of " + v.param.called()
	}
	bad, err := e.count(t.ctx, v.grad)
	if err == nil && bad {
		err = &e
	}
	if err != nil {
		t.fail(e.Op+" backward", err)
	}
	return t.err
}

// count waits for x and counts its NaNs and infinities. It first computes the greatest magnitude,
// which is finite only if all elements are, because that takes no memory of x's size.
func (e *AnomalyError) count(ctx context.Context, x *tensor.Tensor) (bad bool, err error) {
	if x.Released() || !x.Dtype().Float() || x.Elements() == 0 || x.Offloaded() {
		return false, nil
	}
	greatest, err := x.Runtime().ClipNorm(ctx, math.Inf(1), math.Inf(1), x)
	if err != nil {
		return false, err
	}
	v, err := number(ctx, greatest)
	if err = errors.Join(err, greatest.ReleaseContext(ctx)); err != nil || !math.IsNaN(v) && !math.IsInf(v, 0) {
		return false, err
	}
	e.Dtype, e.Shape, e.Elements = x.Dtype(), x.Shape(), x.Elements()
	wide, err := x.Runtime().Convert(ctx, x, tensor.Float64)
	if err != nil {
		return true, err
	}
	values, err := tensor.ToSlice[float64](ctx, wide, nil)
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			e.NaNs++
		case math.IsInf(v, 0):
			e.Infs++
		}
	}
	return true, errors.Join(err, wide.ReleaseContext(ctx))
}

// line returns the source line of the program that calls the tape.
func line() string {
	var pcs [64]uintptr
	f := callframe.Line(pcs[:runtime.Callers(2, pcs[:])])
	return callframe.Place(f.Function, f.File, f.Line)
}
