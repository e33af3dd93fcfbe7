package gorgonia

import gtensor "gorgonia.org/tensor"

type unaryFunc = func(gtensor.StdEng, gtensor.Tensor, ...gtensor.FuncOpt) (gtensor.Tensor, error)

// unary runs an elementwise operation of one tensor. With WithIncr, for which StdEng leaks a
// temporary, it adds the result itself.
func (e *Engine) unary(op string, f unaryFunc, a gtensor.Tensor, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.elementwise(e.run, op, opts, func(*temps) (gtensor.Tensor, error) {
		if _, incr, _ := options(opts); incr != nil {
			return e.accumulate(incr, func() (gtensor.Tensor, error) { return f(e.std, a) }, a)
		}
		return f(e.std, a, opts...)
	}, a)
}

// Map applies fn, a func(T) T for elements of type T, to every element.
func (e *Engine) Map(fn any, a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.elementwise(e.runCallback, "Map", opts, func(*temps) (gtensor.Tensor, error) { return e.std.Map(fn, a, opts...) }, a)
}

// Clamp limits every element to the range from min to max.
func (e *Engine) Clamp(a gtensor.Tensor, min, max any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.unary("Clamp", func(std gtensor.StdEng, a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		return std.Clamp(a, min, max, opts...)
	}, a, opts)
}
