package compose

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
)

// minimize is a step of one pass, or of two.
func (r *run) minimize(ctx context.Context) (err error) {
	passes := []*pass{{run: r}}
	if r.has(accumulate) {
		passes = append(passes, &pass{run: r, n: 1})
	}
	defer func() {
		for _, p := range passes {
			if e := p.end(); err == nil { // a tape that has failed returns its error again
				err = e
			}
		}
	}()
	for i, p := range passes {
		for _, p := range passes[i:] {
			if (p.n == i || r.has(interleave)) && p.tape == nil {
				if err := p.forward(ctx); err != nil {
					return err
				}
			}
		}
		backward := func() error { return p.backward(ctx, i == len(passes)-1) }
		if i == 0 && r.has(noSync) {
			err = r.parallel.NoSync(backward)
		} else {
			err = backward()
		}
		if err = errors.Join(err, p.end()); err != nil {
			return err
		}
	}
	if r.scheduler != nil {
		return r.scheduler.Step()
	}
	return nil
}

// pass is a forward pass and a backward one, the n-th of a step.
type pass struct {
	*run
	n          int
	tape       *autograd.Tape
	x, loss, y *autograd.Variable
}

// forward makes the tape, a new one or the one that is reset. Its random numbers are those of the
// step, also when the step is repeated or replayed.
func (p *pass) forward(ctx context.Context) error {
	switch {
	case !p.has(reset):
		p.tape = autograd.NewTape(ctx, p.rt)
	case p.kept == nil:
		p.kept = autograd.NewTape(ctx, p.rt)
		p.tape = p.kept
	default:
		if err := p.kept.Reset(ctx); err != nil {
			return err
		}
		p.tape = p.kept
	}
	if p.has(bfloat16) {
		p.tape.SetComputeDtype(tensor.BFloat16)
	}
	p.tape.SetSeedFrom(func() uint64 { return p.seed + uint64(10*p.step+p.n) })
	p.x = p.tape.Input(p.run.x)
	if p.has(leaf) {
		p.x = p.tape.Leaf(p.run.x)
	}
	if p.has(hookOrder) {
		p.hook()
	}
	p.loss, p.y = p.model.loss(p.tape, p.rowsOf(p.tape, p.x, p.n))
	if p.has(release) {
		p.y.Release()
	}
	return nil
}

// hook adds the features' hooks to the tape before they are needed, in any order.
func (p *pass) hook() {
	same := func() *autograd.Variable { return p.x }
	features := []func(){func() { remat.Checkpoint(p.tape, same) }}
	if p.has(offloadActivations) {
		features = append(features, func() { offload.Activations(p.tape, p.offloader, same) })
	}
	if !p.has(bfloat16) { // whose copies would be there longer
		features = append(features, func() { p.tape.Param(p.Head.Weight) }) // that of offloaded parameters, or of ranks
	}
	for _, i := range rand.New(rand.NewPCG(p.seed, 3)).Perm(len(features)) {
		features[i]()
	}
}

// end ends the tape.
func (p *pass) end() error {
	tape := p.tape
	switch p.tape = nil; {
	case tape == nil:
		return nil
	case p.has(reset):
		return tape.Reset(p.ctx)
	}
	return tape.Close()
}

// backward runs the backward pass and, after the last one of a step, the update.
func (p *pass) backward(ctx context.Context, last bool) (err error) {
	if last && p.has(inBackward) {
		optim.InBackward(p.tape, p.loss, p.opt, []int64{1, 100, 0}[p.seed%3])
		err = p.tape.Err()
	} else {
		_, err = p.tape.Backward(p.loss)
	}
	if err != nil {
		return err
	}
	if err := p.result(ctx, "loss", p.loss.Value()); err != nil {
		return err
	}
	if p.has(leaf) {
		if err := p.result(ctx, "gradient of x", p.x.Grad()); err != nil {
			return err
		}
	}
	if !last || p.has(inBackward) {
		return nil
	}
	params := nn.ParametersOf(p.model)
	if p.has(clip) {
		norm, err := optim.ClipGradNormOf(ctx, params, 0.2)
		if err == nil {
			err = p.result(ctx, "norm", norm)
		}
		if err = errors.Join(err, norm.Release()); err != nil {
			return err
		}
	}
	for _, q := range params {
		if p.options&(shardGradients) == 0 {
			if err := p.result(ctx, "gradient of "+q.Name, q.Grad()); err != nil {
				return err
			}
		}
	}
	return errors.Join(p.opt.Step(ctx), p.opt.ZeroGrad(ctx))
}

// result keeps a copy of a result of a step, for look. It upcasts gradients of bfloat16, as a
// Parallel does.
func (r *run) result(ctx context.Context, name string, t *tensor.Tensor) error {
	if t == nil {
		return nil
	}
	duplicate := r.rt.Copy
	if t.Dtype() == tensor.BFloat16 {
		duplicate = func(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
			return r.rt.Convert(ctx, t, tensor.Float32)
		}
	}
	c, err := duplicate(ctx, t)
	if err == nil {
		r.results = append(r.results, nn.NamedTensor{Name: name, Tensor: c})
	}
	return err
}
