package autograd

import (
	"math/rand/v2"

	"github.com/cistern-ml/cistern/tensor"
)

// Random operations take their numbers from a counter: a tape has a seed, and each of its random operations the next stream
// of it. So a tape computes the same on every device, in its backward pass again, and as often as it is made with its seed.

// SetSeed makes the tape's random operations the same in every run (torch.manual_seed). Call it before the first of them.
// Without it they differ; the tapes of [Initializer.Steps] have seeds of the initialiser's.
func (t *Tape) SetSeed(seed uint64) { t.seed, t.seeded, t.stream = seed, true, 0 }

// nextRandom is where the next random operation takes its numbers from.
func (t *Tape) nextRandom() (seed, stream uint64) {
	t.ensureSeed()
	t.stream++
	return t.seed, t.stream - 1
}

func (t *Tape) ensureSeed() {
	if !t.seeded {
		t.SetSeed(rand.Uint64())
	}
}

// Random is a source of random numbers that no other call has: the tape's seed, and a stream of it. Each call of it gives the
// next one; forward keeps it for backward.
func (c *Call) Random() (seed, stream uint64) { return c.tape.nextRandom() }

// Dropout returns x with each element 0 with probability p, and the others over 1-p; see [tensor.Runtime.Dropout]. It does so
// on every tape; the layer [Dropout] asks the tape whether it trains.
func (t *Tape) Dropout(x *Variable, p float64) *Variable {
	var seed, stream uint64
	return t.Func("Dropout", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		seed, stream = c.Random()
		return t.rt.Dropout(t.ctx, nil, x.value, p, seed, stream)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.Dropout(t.ctx, inPlace(g), g, p, seed, stream))
	})
}
