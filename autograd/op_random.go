package autograd

import "github.com/cistern-ml/cistern/tensor"

// Random operations take the next stream of the tape's seed: see [Tape.SetSeed]. Their results are
// constants.

// Uniform makes numbers that are uniform from a up to b; see [tensor.Sampling.Uniform]. On a tape
// that computes in 16 bits, float32 means the compute dtype, as for an Input: see
// [Tape.SetComputeDtype].
func (t *Tape) Uniform(a, b float64, dtype tensor.Dtype, shape ...int) *Variable {
	return opNoise.applyAs("Uniform", t, &noise{uniform: true, from: a, scale: b, dtype: dtype, shape: newDimensions(shape)})
}

// Normal makes numbers with a normal distribution, such as the noise of a variational autoencoder;
// see [tensor.Sampling.Normal]. On a tape that computes in 16 bits, float32 means the compute
// dtype, as for an Input: see [Tape.SetComputeDtype].
func (t *Tape) Normal(mean, deviation float64, dtype tensor.Dtype, shape ...int) *Variable {
	return opNoise.applyAs("Normal", t, &noise{from: mean, scale: deviation, dtype: dtype, shape: newDimensions(shape)})
}

// noise is one use of Uniform or Normal. from and scale are the two bounds, or the mean and the
// deviation.
type noise struct {
	uniform     bool
	from, scale float64
	dtype       tensor.Dtype
	shape       dimensions
}

var opNoise = newOp[noise]("Normal")

func (*noise) constant() {}

func (n *noise) Forward(c *Call) (*tensor.Tensor, error) {
	dtype := n.dtype
	if compute := c.tape.ComputeDtype(); dtype.Valid() && dtype == compute.Wide() {
		dtype = compute
	}
	if n.uniform {
		return c.Runtime().Uniform(c.Context(), c.Random(), n.from, n.scale, dtype, n.shape.list()...)
	}
	return c.Runtime().Normal(c.Context(), c.Random(), n.from, n.scale, dtype, n.shape.list()...)
}

func (*noise) Backward(*Call, *tensor.Tensor) error { return nil }

// Bernoulli returns, for each element of p, 1 with that probability, and 0 otherwise; see
// [tensor.Sampling.Bernoulli]. No gradient goes to p.
//
//go:noinline // as Add
func (t *Tape) Bernoulli(p *Variable) *Variable { return opBernoulli.Apply(t, bernoulli{}, p) }

type bernoulli struct{}

var opBernoulli = newOp[bernoulli]("Bernoulli")

func (*bernoulli) constant() {}

func (*bernoulli) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Bernoulli(c.Context(), c.Random(), c.Input(0))
}

func (*bernoulli) Backward(*Call, *tensor.Tensor) error { return nil }

// Categorical draws an index, int32, for each row of logits, with the options of
// [tensor.Sampling.Categorical]. No gradient goes to the logits. The result is an index for
// [Tape.Embedding] and the like.
//
//go:noinline // as Add
func (t *Tape) Categorical(logits *Variable, options ...tensor.CategoricalOption) *Variable {
	return opCategorical.Apply(t, categorical{options}, logits)
}

type categorical struct{ options []tensor.CategoricalOption }

var opCategorical = newOp[categorical]("Categorical")

func (*categorical) constant() {}

func (s *categorical) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Categorical(c.Context(), c.Random(), c.Input(0), s.options...)
}

func (*categorical) Backward(*Call, *tensor.Tensor) error { return nil }

// RandPerm makes the numbers from 0 to n-1 in a random order, int64; see
// [tensor.Sampling.RandPerm]. It is an index for [Tape.IndexSelect].
func (t *Tape) RandPerm(n int) *Variable { return opRandPerm.Apply(t, randPerm{n}) }

type randPerm struct{ n int }

var opRandPerm = newOp[randPerm]("RandPerm")

func (*randPerm) constant() {}

func (p *randPerm) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().RandPerm(c.Context(), c.Random(), p.n)
}

func (*randPerm) Backward(*Call, *tensor.Tensor) error { return nil }
