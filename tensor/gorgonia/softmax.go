package gorgonia

import gtensor "gorgonia.org/tensor"

// softmax runs f with a result that f fills: StdEng makes one in Go memory, even if it is given one to
// reuse, unless the operation is called unsafe as well.
func (e *Engine) softmax(op string, like gtensor.Tensor, opts []gtensor.FuncOpt,
	f func(...gtensor.FuncOpt) (gtensor.Tensor, error), operands ...gtensor.Tensor) (r gtensor.Tensor, err error) {
	reuse, _, unsafe := options(opts)
	err = e.run(op, func() error {
		out := reuse
		if out == nil {
			out = gtensor.New(gtensor.WithEngine(e), gtensor.Of(like.Dtype()), gtensor.WithShape(like.Shape()...))
		}
		r, err = f(gtensor.WithReuse(out), gtensor.UseUnsafe())
		if r, err = e.deliver(r, err, reuse); err != nil || reuse != nil {
			if err != nil && reuse == nil {
				discard(out)
			}
			return err
		}
		if unsafe { // in place
			defer discard(r)
			r = like
			return gtensor.Copy(like, out)
		}
		return nil
	}, append(operands, reuse)...)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// SoftMax is the softmax of float32 or float64 along an axis; negative axes count from the last.
func (e *Engine) SoftMax(x gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.softmax("SoftMax", x, opts, func(opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		c, done := compact(x)
		defer done()
		return e.std.SoftMax(c, axis, opts...)
	}, x)
}

// LogSoftMax is the logarithm of SoftMax.
func (e *Engine) LogSoftMax(x gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.softmax("LogSoftMax", x, opts, func(opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		c, done := compact(x)
		defer done()
		return e.std.LogSoftMax(c, axis, opts...)
	}, x)
}

// SoftMaxB is the gradient of the input of SoftMax.
func (e *Engine) SoftMaxB(output, grad gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.softmax("SoftMaxB", output, opts, func(opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		o, done := compact(output)
		defer done()
		g, done := compact(grad)
		defer done()
		return e.std.SoftMaxB(o, g, axis, opts...)
	}, output, grad)
}

// LogSoftMaxB is the gradient of the input of LogSoftMax.
func (e *Engine) LogSoftMaxB(output, grad gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.softmax("LogSoftMaxB", output, opts, func(opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		o, done := compact(output)
		defer done()
		g, done := compact(grad)
		defer done()
		return e.std.LogSoftMaxB(o, g, axis, opts...)
	}, output, grad)
}
