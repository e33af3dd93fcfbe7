package autograd

import "fmt"

// Layer runs f as the Forward of a [nn.Layer], and returns f's result. The caller keeps the values that
// exist: no operation in f frees or overwrites them. At the end of f, Layer frees all values that f
// has made, except the result, as [Tape.Frame] does. In profiles f runs in the layer's module. Its
// name is that of p, a parameter of the layer, without the local name, such as "weight" (see
// [nn.NameModules]). If p is nil or has no name, f runs in the tape's module. After an error of the
// tape f is not called. A call makes no Go objects. See [Tape.Enter] for several results.
//
//	func (l *Gated) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
//		return t.Layer(l.Weight, "weight", func() *autograd.Variable {
//			return t.Mul(t.Linear(x, t.Param(l.Weight), nil), t.Sigmoid(t.Linear(x, t.Param(l.Gate), nil)))
//		})
//	}
func (t *Tape) Layer(p *Parameter, local string, f func() *Variable) *Variable {
	if t.Err() != nil {
		return t.inert()
	}
	defer t.Enter(p, local).Leave()
	return t.framed("Layer", f)
}

// Frame calls f and frees what was made on the tape meanwhile but its result, which it returns, and
// what was kept ([Variable.Keep] wins). What the backward pass needs lives until then. So a
// function of several operations frees what an operation would, on every tape, without a name for
// each value:
//
//	y := tape.Frame(func() *autograd.Variable {
//		return tape.Mul(tape.Sigmoid(x), tape.Tanh(x))
//	})
//
// On a tape of [NoGrad] operations inside free nothing that they read, so that values can be read
// again; it is freed when the frame ends, and what was made outside is left alone. That is what a
// [nn.Layer] owes to its caller. [Variable.Release] frees something long before, and a frame in a
// frame what it made.
func (t *Tape) Frame(f func() *Variable) *Variable { return t.framed("Frame", f) }

func (t *Tape) framed(call string, f func() *Variable) *Variable {
	switch {
	case t.none():
		return t.inert()
	case f == nil:
		t.fail(call, fmt.Errorf("%w: the function is nil", ErrInvalid))
		return t.inert()
	}
	y := t.inFrame(f)
	if y != nil {
		return y
	}
	if t.state == "" {
		t.fail(call, fmt.Errorf("%w: the function returned nil", ErrInvalid))
	}
	return t.inert()
}

// inFrame frees when f panics, too: the program may go on with the tape, or close it.
func (t *Tape) inFrame(f func() *Variable) (y *Variable) {
	outer, from := t.open(), len(t.values)
	t.scope.frame, t.scope.borrowed = true, outer.borrowed
	defer func() {
		t.scope = outer
		t.leave(from, y)
	}()
	return f()
}

// leave releases the values since the from-th except y. Backward and Close have released them all.
func (t *Tape) leave(from int, y *Variable) {
	if from > len(t.values) {
		return
	}
	inside := t.values[from:]
	mine := false
	for _, v := range inside {
		if v == y {
			mine = true
			continue
		}
		v.Release()
	}
	clear(inside)
	t.values = t.values[:from]
	if mine {
		t.expect(y)
	}
}
