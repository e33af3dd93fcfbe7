package autograd

import (
	"fmt"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/tensor"
)

// Random numbers are functions of a counter: a tape has a seed, and each of its random operations
// takes the seed's next stream. So the numbers are the same on every device, when the backward pass
// computes an operation again, and on each tape with the same seed.

// SetSeed makes the tape's random operations the same in every run (torch.manual_seed). Call it
// before the first of them. Without it they differ from run to run, except on the tapes of
// nn.Initializer.Steps, whose seeds come from the initialiser.
//
// In a capture the seed is a constant of the graph, whose replays all have the same numbers: see
// SetSeedFrom.
func (t *Tape) SetSeed(seed uint64) {
	if t != nil {
		t.random, t.seeded = tensor.Random{Seed: seed}, true
	}
}

// SetSeedFrom is SetSeed with the number that next returns. It calls next now or, in a capture,
// before each replay. Tapes without a seed and those of nn.Initializer.Steps get theirs from such a
// source.
func (t *Tape) SetSeedFrom(next func() uint64) {
	if next == nil {
		t.fail("SetSeedFrom", fmt.Errorf("%w: the function is nil", ErrInvalid))
		return
	}
	t.SetSeed(0)
	if t.Runtime() == nil {
		return
	}
	c := t.rt.Capturing()
	if c == nil {
		t.random.Seed = next()
		return
	}
	live, err := tensor.Scalars(t.ctx, c, 1, func(to []int64) error { to[0] = int64(next()); return nil })
	t.fail("SetSeedFrom", err)
	t.random.Live = live
}

// nextRandom returns the source of the next random operation's numbers.
func (t *Tape) nextRandom() tensor.Random {
	t.ensureSeed()
	r := t.random
	t.random.Stream++
	return r
}

func (t *Tape) ensureSeed() {
	if !t.seeded {
		t.SetSeedFrom(rand.Uint64)
	}
}

// Random returns a source of random numbers that no other operation uses: the tape's seed and a
// stream of it. Each call returns the next stream, so that Forward keeps the source for Backward.
func (c *Call) Random() tensor.Random {
	if c.tape.none() {
		return tensor.Random{}
	}
	return c.tape.nextRandom()
}
