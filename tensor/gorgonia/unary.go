package gorgonia

import gtensor "gorgonia.org/tensor"

type unaryFunc = func(gtensor.StdEng, gtensor.Tensor, ...gtensor.FuncOpt) (gtensor.Tensor, error)

// unary runs an elementwise operation of one tensor. With WithIncr, for which StdEng loses a temporary, it
// adds the result itself.
func (e *Engine) unary(op string, f unaryFunc, a gtensor.Tensor, opts []gtensor.FuncOpt) (r gtensor.Tensor, err error) {
	reuse, incr, _ := options(opts)
	err = e.run(op, func() (err error) {
		if incr != nil {
			r, err = e.accumulate(incr, func() (gtensor.Tensor, error) { return f(e.std, a) }, a)
			return err
		}
		r, err = f(e.std, a, opts...)
		r, err = e.deliver(r, err, a, reuse)
		return err
	}, a, reuse, incr)
	return r, err
}

// Map applies fn, a func(T) T for elements of type T, to every element.
func (e *Engine) Map(fn any, a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	reuse, incr, _ := options(opts)
	var r gtensor.Tensor
	err := e.runCallback("Map", func() (err error) {
		r, err = e.std.Map(fn, a, opts...)
		r, err = e.deliver(r, err, a, reuse, incr)
		return err
	}, a, reuse, incr)
	return r, err
}

// Clamp limits every element to between min and max.
func (e *Engine) Clamp(a gtensor.Tensor, min, max any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Clamp", func(std gtensor.StdEng, a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		return std.Clamp(a, min, max, opts...)
	}, a, opts)
}

// Neg is -a, elementwise.
func (e *Engine) Neg(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Neg", gtensor.StdEng.Neg, a, opts)
}

// Inv is 1 / a, elementwise.
func (e *Engine) Inv(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := noZeros("Inv", a); err != nil {
		return nil, err
	}
	return e.unary("Inv", gtensor.StdEng.Inv, a, opts)
}

// Square is a², elementwise.
func (e *Engine) Square(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Square", gtensor.StdEng.Square, a, opts)
}

// Cube is a³, elementwise.
func (e *Engine) Cube(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Cube", gtensor.StdEng.Cube, a, opts)
}

// Exp is e to the power of a, elementwise.
func (e *Engine) Exp(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Exp", gtensor.StdEng.Exp, a, opts)
}

// Tanh is the hyperbolic tangent of a, elementwise.
func (e *Engine) Tanh(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Tanh", gtensor.StdEng.Tanh, a, opts)
}

// Log is the natural logarithm of a, elementwise.
func (e *Engine) Log(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Log", gtensor.StdEng.Log, a, opts)
}

// Log2 is the base-2 logarithm of a, elementwise.
func (e *Engine) Log2(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Log2", gtensor.StdEng.Log2, a, opts)
}

// Log10 is the base-10 logarithm of a, elementwise.
func (e *Engine) Log10(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Log10", gtensor.StdEng.Log10, a, opts)
}

// Sqrt is the square root of a, elementwise.
func (e *Engine) Sqrt(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Sqrt", gtensor.StdEng.Sqrt, a, opts)
}

// Cbrt is the cube root of a, elementwise.
func (e *Engine) Cbrt(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Cbrt", gtensor.StdEng.Cbrt, a, opts)
}

// InvSqrt is 1 / sqrt(a), elementwise.
func (e *Engine) InvSqrt(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("InvSqrt", gtensor.StdEng.InvSqrt, a, opts)
}

// Abs is the absolute value of a, elementwise.
func (e *Engine) Abs(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Abs", gtensor.StdEng.Abs, a, opts)
}

// Sign is the sign of a: -1, 0 or 1, elementwise.
func (e *Engine) Sign(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Sign", gtensor.StdEng.Sign, a, opts)
}
