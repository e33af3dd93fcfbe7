package tensor

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// CategoricalOption changes the distribution of [Sampling.Categorical]. By default, it draws from
// all logits with a temperature of 1.
type CategoricalOption func(*choice)

// choice holds the options of Categorical.
type choice struct {
	temperature, topP float64
	topK              int
}

// Temperature is the option to divide the logits by t, 0 or more. With 0 the greatest logit is
// drawn, the first one of several, as in [Reductions.ArgMax].
func Temperature(t float64) CategoricalOption {
	return func(c *choice) { c.temperature = t }
}

// TopK is the option to draw from the k greatest logits, and from those that are equal to the least
// of them. k is at least 1; if there are no more than k logits, all of them are candidates.
func TopK(k int) CategoricalOption { return func(c *choice) { c.topK = k } }

// TopP is the option to draw from the fewest of the greatest logits, after temperature and [TopK],
// that together have a probability of p, and from those that are equal to the least of them. p is 0
// to 1; with 0 only the greatest is left.
func TopP(p float64) CategoricalOption { return func(c *choice) { c.topP = p } }

// Categorical draws an index of each row of logits (…, n), with the probabilities of their softmax,
// as int32 (…) (torch.distributions.Categorical(logits=logits).sample()). Options are
// [Temperature], [TopK] and [TopP]. Nothing waits for the device.
//
// The draw inverts the sum of the probabilities. For that they are whole numbers, so that the order
// of summation does not matter: multiples of 2^-62 of the greatest, times n rounded up to a power
// of two. Devices that round an exponential differently draw another index less often than once in
// 2^30, for n up to 65,536. A probability that rounds to 0 is never drawn.
//
// -Inf is never drawn. In a row with +Inf, one of the infinite elements is drawn. A row that has no
// distribution, because it has a NaN or only -Inf, gives -1: look-ups and losses refuse it with
// [ErrIndex] and [ErrLabel].
func (s Sampling) Categorical(ctx context.Context, r Random, logits *Tensor, options ...CategoricalOption) (*Tensor, error) {
	const op = "Categorical"
	rt := s.rt
	in, err := rt.acquireRandom(op, r, logits)
	if err != nil {
		return nil, err
	}
	defer in.release()
	p, err := categorical(op, r, logits, options)
	if err != nil {
		return nil, err
	}
	last := len(logits.shape) - 1
	return rt.result(ctx, op, Int32, logits.shape[:last], func(out *Tensor) error {
		c := rt.call(backend.Categorical, out, logits, r.Live)
		c.Dtype = logits.dtype
		backend.SetParams(c, p)
		return rt.backend.Do(ctx, c)
	})
}

func categorical(op string, r Random, logits *Tensor, options []CategoricalOption) (p plan.Categorical, err error) {
	if err := wantFloats(op, logits); err != nil {
		return p, err
	}
	last := len(logits.shape) - 1
	if last < 0 || logits.shape[last] == 0 || logits.shape[last] > math.MaxInt32 {
		return p, fmt.Errorf("tensor: %s: %w: logits are %v: want rows of 1 to 2^31-1", op, ErrShape, logits.shape)
	}
	n := logits.shape[last]
	of := choice{temperature: 1, topP: 1, topK: n}
	for _, o := range options {
		if o != nil {
			o(&of)
		}
	}
	switch {
	case !(of.temperature >= 0) || math.IsInf(of.temperature, 0):
		return p, fmt.Errorf("tensor: %s: %w: a temperature of %v: want 0 or more, and finite", op, ErrInvalid, of.temperature)
	case of.topK < 1:
		return p, fmt.Errorf("tensor: %s: %w: the top %d: want 1 or more", op, ErrInvalid, of.topK)
	case !(of.topP >= 0 && of.topP <= 1):
		return p, fmt.Errorf("tensor: %s: %w: a top probability of %v: want 0 to 1", op, ErrInvalid, of.topP)
	}
	return plan.Categorical{
		Random: r.plan(), Cols: n, Kept: min(of.topK, n), TopP: of.topP, Temperature: of.temperature,
		Unit: math.Ldexp(1, 62-bits.Len(uint(n-1))),
	}, nil
}
