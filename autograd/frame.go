package autograd

import "fmt"

// Frame calls f and frees what was made on the tape meanwhile but its result, which it returns, and what was kept
// ([Variable.Keep] wins). What the backward pass needs lives until then. So a function of several operations frees what
// an operation would, on every tape, without a name for each value:
//
//	y := tape.Frame(func() *autograd.Variable {
//		return tape.Mul(tape.Sigmoid(x), tape.Tanh(x))
//	})
//
// On a tape of [NoGrad] operations inside free nothing that they read, so that values can be read again; it is freed when
// the frame ends, and what was made outside is left alone. That is what a [Layer] owes to its caller. [Variable.Release]
// frees something long before, and a frame in a frame what it made.
func (t *Tape) Frame(f func() *Variable) *Variable {
	if f == nil {
		t.fail("Frame", fmt.Errorf("%w: the function is nil", ErrInvalid))
		return t.inert()
	}
	return t.framed("Frame", f)
}

func (t *Tape) framed(call string, f func() *Variable) *Variable {
	if t.none() {
		return t.inert()
	}
	y := t.inFrame(f)
	if y == nil && t.state == "" {
		t.fail(call, fmt.Errorf("%w: the function returned nil", ErrInvalid))
	}
	if y == nil {
		return t.inert()
	}
	return y
}

// inFrame frees when f panics, too: the program may go on with the tape, or close it.
func (t *Tape) inFrame(f func() *Variable) (y *Variable) {
	outer, from := t.frame, len(t.values)
	t.frames++
	t.begun++
	t.frame = t.begun
	defer func() {
		t.frames--
		t.frame = outer
		t.leave(from, y)
	}()
	return f()
}

// leave releases the values since the from-th but y, which stays with the frame around, if there is one, or with what
// Backward releases. Backward itself, and Close, have released them all.
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
	if mine && (t.record || t.frames > 0) {
		t.values = append(t.values, y)
	}
}
