package tensor

import "context"

func samplingSignatures() []signature {
	type tensors = []*Tensor
	return []signature{
		{"Uniform", "0.nil 0.one", []operand{i64()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Uniform(ctx, Random{Live: ts[0]}, 0, 1, Float32, 2))
		}},
		{"Normal", "0.nil 0.one", []operand{i64()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Normal(ctx, Random{Live: ts[0]}, 0, 1, Float32, 2))
		}},
		{"RandPerm", "0.nil 0.one", []operand{i64()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.RandPerm(ctx, Random{Live: ts[0]}, 3))
		}},
		{"Bernoulli", "0.0 0.1 0.bfloat16 0.float64 0.less 0.one 0.two 1.nil 1.one", []operand{f32(2, 3), i64()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Bernoulli(ctx, Random{Live: ts[1]}, ts[0]))
		}},
		{"Categorical", "0.0 0.1 0.bfloat16 0.float64 0.less 0.one 0.two 1.nil 1.one", []operand{f32(2, 3), i64()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Categorical(ctx, Random{Live: ts[1]}, ts[0]))
		}},
	}
}
