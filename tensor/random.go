package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Random is the source of an operation's random numbers: a stream of a seed. The same seed and
// stream always give the same numbers, on every device, and an operation begins at the first. Two
// streams have nothing in common, so each operation of a program uses its own. The numbers are
// those of Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3);
// [plan.Random] and [plan.Noise] describe which ones.
type Random struct {
	Seed, Stream uint64
	// Live is one Int64 in device memory whose bits replace Seed when the work runs, so that a
	// graph can use another seed at each replay ([Scalars]). nil: Seed.
	Live *Tensor
}

func (r Random) plan() plan.Random { return plan.Random{Seed: r.Seed, Stream: r.Stream} }

// acquireRandom holds the operands and the live seed, if there is one.
func (rt *Runtime) acquireRandom(op string, r Random, ts ...*Tensor) (operands, error) {
	var room [2]*Tensor
	in, err := rt.acquire(op, present(append(room[:0], ts...), r.Live)...)
	if err == nil && r.Live != nil && (!r.Live.is(Int64) || r.Live.Elements() != 1) {
		err = fmt.Errorf("tensor: %s: %w: the seed is %v %v: want one int64", op, ErrDtype, r.Live.dtype, r.Live.shape)
	}
	return in.unless(err)
}

// Uniform returns a tensor of numbers that are uniform from a up to, but not including, b
// (torch.Tensor.uniform_), or a if they are equal. a and b are rounded to the dtype first. A number
// has 32 random bits before it is rounded, or 53 in float64. The bits are the same on every device.
func (s Sampling) Uniform(ctx context.Context, r Random, a, b float64, dtype Dtype, shape ...int) (*Tensor, error) {
	lo, hi := dtype.Value(dtype.Bits(a)), dtype.Value(dtype.Bits(b))
	if !(lo <= hi) || math.IsInf(hi-lo, 0) || math.IsNaN(hi-lo) {
		return nil, fmt.Errorf("tensor: Uniform: %w: from %v to %v in %v: want finite bounds in their order, with a difference that is finite", ErrInvalid, a, b, dtype)
	}
	return s.rt.noise(ctx, "Uniform", backend.Uniform, r, plan.Noise{From: lo, Scale: hi - lo, Limit: reaches(dtype, lo, hi)}, dtype, shape)
}

// reaches returns the least number from lo to hi that the dtype rounds to hi.
func reaches(dtype Dtype, lo, hi float64) float64 {
	for {
		middle := lo + (hi-lo)/2
		switch {
		case middle == lo || middle == hi:
			return hi
		case dtype.Value(dtype.Bits(middle)) >= dtype.Value(dtype.Bits(hi)):
			hi = middle
		default:
			lo = middle
		}
	}
}

// Normal returns a tensor of numbers with a normal distribution of this mean and standard
// deviation, which must not be negative (torch.normal). It uses Box and Muller's transform. Before
// they are scaled, numbers are up to 6.7 away from 0, or 8.6 in float64. Two devices may differ in
// how they round logarithm, sine and cosine.
func (s Sampling) Normal(ctx context.Context, r Random, mean, deviation float64, dtype Dtype, shape ...int) (*Tensor, error) {
	if !(deviation >= 0) || math.IsInf(deviation, 0) || math.IsInf(mean, 0) || math.IsNaN(mean) {
		return nil, fmt.Errorf("tensor: Normal: %w: mean %v, deviation %v: want finite numbers, and a deviation of 0 or more", ErrInvalid, mean, deviation)
	}
	return s.rt.noise(ctx, "Normal", backend.Normal, r, plan.Noise{From: mean, Scale: deviation}, dtype, shape)
}

func (rt *Runtime) noise(ctx context.Context, name string, op backend.Op, r Random, n plan.Noise, dtype Dtype, shape []int) (*Tensor, error) {
	if !dtype.Float() {
		return nil, fmt.Errorf("tensor: %s: %w %v: want a floating-point dtype, such as float32", name, ErrDtype, dtype)
	}
	in, err := rt.acquireRandom(name, r)
	if err != nil {
		return nil, err
	}
	defer in.release()
	n.Random = r.plan()
	return rt.result(ctx, name, dtype, shape, func(out *Tensor) error {
		c := rt.call(op, out, r.Live)
		backend.SetParams(c, n)
		return rt.backend.Do(ctx, c)
	})
}

// Bernoulli returns 1 with the probability that the element of p is, and 0 otherwise, in p's dtype
// (torch.bernoulli). Elements of at most 0 always give 0, elements of at least 1 always give 1, and
// NaN gives NaN. Probabilities have a resolution of 2^-32. The result is the same on every device.
func (s Sampling) Bernoulli(ctx context.Context, r Random, p *Tensor) (*Tensor, error) {
	const op = "Bernoulli"
	rt := s.rt
	in, err := rt.acquireRandom(op, r, p)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := wantFloats(op, p); err != nil {
		return nil, err
	}
	return rt.result(ctx, op, p.dtype, p.shape, func(out *Tensor) error {
		c := rt.call(backend.Bernoulli, out, p, r.Live)
		backend.SetParams(c, r.plan())
		return rt.backend.Do(ctx, c)
	})
}

// RandPerm returns the numbers from 0 to n-1 in a random order, int64 (torch.randperm). It sorts
// random numbers of 64-log2(n) bits, rounded up, with scratch memory of the result's size. Of two
// equal random numbers, the smaller index comes first; a million numbers have such a pair with
// probability 1/32. The order is the same on every device.
func (s Sampling) RandPerm(ctx context.Context, r Random, n int) (*Tensor, error) {
	const op = "RandPerm"
	rt := s.rt
	in, err := rt.acquireRandom(op, r)
	if err != nil {
		return nil, err
	}
	defer in.release()
	return rt.result(ctx, op, Int64, []int{n}, func(out *Tensor) error {
		spare, err := rt.allocScratch(ctx, op, Int64, out.shape)
		if err != nil {
			return err
		}
		defer func() { rt.parked.add(spare.ReleaseContext(ctx)) }()
		c := rt.call(backend.Randperm, out, spare, r.Live)
		backend.SetParams(c, r.plan())
		return rt.backend.Do(ctx, c)
	})
}
