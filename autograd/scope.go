package autograd

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// Frame calls f, returns its result, and frees all other values that f made on the tape, except
// those on which [Variable.Keep] was called. Values that the backward pass needs live until it has
// used them. So on every tape a function of several operations frees as much as one operation
// would, without a name for each value:
//
//	y := tape.Frame(func() *autograd.Variable {
//		return tape.Mul(tape.Sigmoid(x), tape.Tanh(x))
//	})
//
// On a tape of [NoGrad], operations in f do not free the values that they read, so that f can read
// a value again. The end of the frame frees the values of f, and leaves those made outside alone,
// as a nn.Layer must do for its caller. To free values of f earlier, call [Variable.Release], or
// use a frame in the frame.
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

// inFrame frees when f panics, too, because the program may recover and use the tape.
func (t *Tape) inFrame(f func() *Variable) (y *Variable) {
	outer, from := t.open(), len(t.values)
	t.scope.frame, t.scope.borrowed = true, outer.borrowed
	defer func() {
		t.scope = outer
		t.leave(from, y)
	}()
	return f()
}

// leave releases the values from the index from on, except y. If f called Backward or Close, they
// have released all.
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

// mayOverwrite reports whether the operation that runs may write its result into v's memory. The
// caller ensures that its backward step does not read v. The runtime makes the last check, that no
// other tensor shares the memory ([tensor.Donate]). So the peak is that of ReLU(inplace=True) and
// add_ in PyTorch, and no value that a gradient needs is overwritten.
func (t *Tape) mayOverwrite(v *Variable) bool {
	return v.made && !v.kept && v.holds == 1 && t.lastReader(v) && !t.outOfPlace
}

// lastReader reports whether the operation that runs is the last one to read v, except for backward
// steps. Scopes that began after the mark have higher numbers. Marks of a scope that has ended
// count in the scope around it, because that one has a lower number.
func (t *Tape) lastReader(v *Variable) bool { return v.last > t.scope.number }

// donate lets the next operation write its result into v's memory, if it may.
func (t *Tape) donate(v *Variable) {
	if t.mayOverwrite(v) {
		tensor.Donate(v.value)
	}
}

// endHolds ends the program's hold on the inputs that op was the last to read.
func (t *Tape) endHolds(op string, inputs []*Variable) {
	for _, v := range inputs {
		if t.lastReader(v) {
			v.freedBy = op
			v.Release()
		}
	}
}

// Last reports whether the next operation in this scope is the last reader of v.
func (v *Variable) Last() bool { return v != nil && v.tape != nil && v.tape.lastReader(v) }

// Lent is a variable that [Variable.Lend] has lent to a layer, until Back.
type Lent struct {
	v    *Variable
	last int
}

// Lend lends v, a value between the layers of a chain, to the next one: if once is true, the next
// operation that reads v is its last reader, also inside of layers; else no operation is. The
// caller releases v after Back.
func (v *Variable) Lend(once bool) Lent {
	if v == nil {
		return Lent{}
	}
	l := Lent{v, v.last}
	if v.last = 0; once {
		v.last = math.MaxInt
	}
	return l
}

// Back ends the loan.
func (l Lent) Back() {
	if l.v != nil {
		l.v.last = l.last
	}
}

// Once makes the next operation that reads v its last reader, and returns v: that operation
// releases v, and another one is an error. So a function of several operations holds no value
// longer than needed, and an elementwise operation writes its result into v's memory, unless a
// gradient needs v or another tensor shares the memory:
//
//	y := tape.ReLU(tape.Add(x, block.Forward(tape, x).Once()).Once())
//
// Operations in a [Tape.Frame] or a nn.Layer that begins later don't count: they do not release v.
// After [Variable.Keep], and in a [Tape.Layer] for a value that its caller has made, Once does
// nothing.
func (v *Variable) Once() *Variable {
	if v != nil && v.tape != nil && v.number > v.tape.scope.borrowed {
		v.markLast()
	}
	return v
}

// open enters the scope of a layer, which borrows the variables that exist. It returns the scope
// around it, for setScope.
func (t *Tape) open() (outer scope) {
	outer = t.scope
	t.scopes++
	t.scope.number, t.scope.borrowed = t.scopes, t.variables
	return outer
}

func (t *Tape) setScope(s scope) { t.scope = s }
