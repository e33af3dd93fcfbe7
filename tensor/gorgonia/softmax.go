package gorgonia

import gtensor "gorgonia.org/tensor"

// softmax runs f on compact operands, with a result that f fills. StdEng would allocate a result in
// Go memory, even with a tensor to reuse, unless the operation is also unsafe.
func (e *Engine) softmax(op string, opts []gtensor.FuncOpt, f func([]gtensor.Tensor, ...gtensor.FuncOpt) (gtensor.Tensor, error), operands ...gtensor.Tensor) (gtensor.Tensor, error) {
	reuse, _, unsafe := options(opts)
	return result(e.run, op, func(w *temps) (gtensor.Tensor, error) {
		like, out := operands[0], reuse
		if out == nil {
			out = gtensor.New(gtensor.WithEngine(e), gtensor.Of(like.Dtype()), gtensor.WithShape(like.Shape()...))
		}
		in := make([]gtensor.Tensor, len(operands))
		for i, t := range operands {
			in[i] = w.compact(t)
		}
		r, err := f(in, gtensor.WithReuse(out), gtensor.UseUnsafe())
		r, err = e.deliver(r, err, reuse)
		switch {
		case reuse != nil:
		case err != nil:
			discard(out)
		case unsafe: // in place
			defer discard(r)
			return like, gtensor.Copy(like, out)
		}
		return r, err
	}, append(operands, reuse)...)
}
