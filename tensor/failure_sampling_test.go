package tensor

import "context"

// samplingRows are programs of random numbers.
var samplingRows = []trialRow{
	{Of: "Sampling.Uniform", Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.Uniform(ctx, Random{Seed: 7}, 1, 2, m.dtype, 2, 3))
		}
	})},
	{Of: "Sampling.Normal of a live seed", Make: of(func(m *trialRig) op {
		seed := put(m.rig, []int64{7}, 1)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.Normal(ctx, Random{Live: seed}, 1, 2, m.dtype, 2, 3))
		}
	})},
	{Of: "Sampling.Bernoulli", Make: of(func(m *trialRig) op {
		p := m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Bernoulli(ctx, Random{Seed: 7}, p)) }
	})},
	{Of: "Sampling.Categorical", Make: of(func(m *trialRig) op {
		logits := m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.Categorical(ctx, Random{Seed: 7}, logits, TopK(2), TopP(0.9)))
		}
	})},
	{Of: "Sampling.RandPerm", Make: of(func(m *trialRig) op {
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.RandPerm(ctx, Random{Seed: 7}, 5)) }
	})},
}
