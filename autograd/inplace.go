package autograd

import (
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// mayOverwrite reports whether the operation that runs may write its result into v's memory. The
// caller ensures that its backward step does not read v. The runtime makes the last check, that no
// other tensor shares the memory ([tensor.Donate]). So the peak is that of ReLU(inplace=True) and
// add_ in PyTorch, and no value is overwritten that a gradient needs.
func (t *Tape) mayOverwrite(v *Variable) bool {
	return v.made && !v.kept && v.holds == 1 && t.lastReader(v) && !t.outOfPlace
}

// lastReader reports whether the operation that runs is the last one to read v, except for backward
// steps. Scopes that began after the mark have higher numbers. A scope that has ended has passed
// its marks out, because the scope around it has a lower number.
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
// operation that reads v is its last reader, also inside of layers; else no operation is. The caller
// releases v after Back.
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
// releases v, and another one is an error. So a function of several operations holds nothing longer
// than needed, and an elementwise operation writes its result into v's memory, unless a gradient
// needs v or another tensor shares it:
//
//	y := tape.ReLU(tape.Add(x, block.Forward(tape, x).Once()).Once())
//
// Operations in a [Tape.Frame] or a [nn.Layer] that begins later don't count: a value that they read
// stays until it is released otherwise. After [Variable.Keep], and in a [Tape.Layer] for a value
// that its caller has made, Once does nothing.
func (v *Variable) Once() *Variable {
	if v != nil && v.tape != nil && v.number > v.tape.scope.borrowed {
		v.markLast()
	}
	return v
}
