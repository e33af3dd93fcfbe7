package tensor

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limit is a number that an operation accepts up to a limit: inside are numbers at the limit,
// outside are the next numbers beyond it.
type limit struct {
	name            string
	inside, outside []float64
	call            func(v float64) (results, error)
}

var (
	nan, inf    = math.NaN(), math.Inf(1)
	smallestNum = math.SmallestNonzeroFloat64
	justBelow0  = []float64{-math.SmallestNonzeroFloat64, math.NaN()}
	beyond01    = []float64{-math.SmallestNonzeroFloat64, math.Nextafter(1, 2), nan, inf}
)

func (r *rig) blank(dtype Dtype, shape ...int) *Tensor {
	r.t.Helper()
	x, err := r.Zeros(r.ctx, dtype, shape...)
	require.NoError(r.t, err)
	return x
}

// limits of probabilities, weights of classes, eps and the like.
func numberLimits(r *rig) []limit {
	x, square := r.blank(Float32, 2, 3), r.blank(Float32, 1, 2, 3, 3)
	batches := r.blank(Int64)
	mean, variance := r.blank(Float32, 3), r.blank(Float32, 3)
	labels := r.blank(Int32, 2)
	stats := NormConfig{Shape: []int{3}}
	return []limit{
		{"the probability of a dropout", []float64{0, 1}, beyond01, func(v float64) (results, error) { return one(r.Dropout(r.ctx, nil, x, v, Random{Seed: 1})) }},
		{"label smoothing", []float64{0, 1}, beyond01, func(v float64) (results, error) {
			return one(r.CrossEntropy(r.ctx, x, labels, LabelSmoothing(v)))
		}},
		{"the delta of a Huber loss", []float64{smallestNum, math.MaxFloat64}, []float64{0, -1, nan, inf}, func(v float64) (results, error) {
			return one(r.HuberLoss(r.ctx, x, x, v))
		}},
		{"classes of int32 labels", []float64{math.MaxInt32}, []float64{math.MaxInt32 + 1}, func(v float64) (results, error) {
			logits, err := r.Zeros(r.ctx, Float32, 0, int(v))
			if err != nil { // an int has 32 bits
				return nil, err
			}
			return one(r.CrossEntropy(r.ctx, logits, r.blank(Int32, 0)))
		}},
		{"logits of int32 indices", []float64{1, math.MaxInt32}, []float64{0, math.MaxInt32 + 1}, func(v float64) (results, error) {
			logits, err := r.Zeros(r.ctx, Float32, 0, int(v))
			if err != nil { // an int has 32 bits
				return nil, err
			}
			return one(r.Categorical(r.ctx, Random{}, logits))
		}},
		{"a temperature", []float64{0, smallestNum, math.MaxFloat64}, append(justBelow0, inf), func(v float64) (results, error) {
			return one(r.Categorical(r.ctx, Random{}, x, Temperature(v)))
		}},
		{"a top probability", []float64{0, smallestNum, 1}, beyond01, func(v float64) (results, error) {
			return one(r.Categorical(r.ctx, Random{}, x, TopP(v)))
		}},
		{"a deviation", []float64{0, smallestNum, math.MaxFloat64}, append(justBelow0, inf), func(v float64) (results, error) {
			return one(r.Normal(r.ctx, Random{}, 0, v, Float64, 2))
		}},
		{"a reduction", []float64{float64(MeanReduction), float64(NoReduction)}, []float64{float64(NoReduction) + 1}, func(v float64) (results, error) {
			return one(r.MSELoss(r.ctx, x, x, func(c *LossConfig) { c.Reduction = Reduction(v) }))
		}},
		{"the eps of a norm", []float64{0, smallestNum, math.MaxFloat64}, append(justBelow0, inf), func(v float64) (results, error) {
			stats.Eps = v
			return two(r.Normalize(r.ctx, x, nil, nil, stats))
		}},
		{"the eps of a batch norm", []float64{0, smallestNum, math.MaxFloat64}, append(justBelow0, inf), func(v float64) (results, error) {
			return two(r.BatchNorm(r.ctx, x, nil, nil, BatchNormConfig{Training: true, Eps: v}))
		}},
		{"the momentum of a batch norm", []float64{-math.MaxFloat64, math.MaxFloat64, nan}, []float64{inf, -inf}, func(v float64) (results, error) {
			return two(r.BatchNorm(r.ctx, x, nil, nil, BatchNormConfig{Training: true, Momentum: v, Mean: mean, Var: variance, Batches: batches}))
		}},
		{"a mean of all batches without their number", []float64{0}, []float64{nan}, func(v float64) (results, error) {
			return two(r.BatchNorm(r.ctx, x, nil, nil, BatchNormConfig{Training: true, Momentum: v, Mean: mean, Var: variance}))
		}},
		{"batches that train", []float64{2}, []float64{0, 1}, func(v float64) (results, error) {
			return two(r.BatchNorm(r.ctx, r.blank(Float32, int(v), 3), nil, nil, BatchNormConfig{Training: true}))
		}},
		{"elements that train", []float64{2}, []float64{0, 1}, func(v float64) (results, error) {
			return two(r.BatchNorm(r.ctx, r.blank(Float32, 1, 3, int(v)), nil, nil, BatchNormConfig{Training: true}))
		}},
		{"batches that do not train", []float64{0, 1, 2}, nil, func(v float64) (results, error) {
			return two(r.BatchNorm(r.ctx, r.blank(Float32, int(v), 3), nil, nil, BatchNormConfig{Mean: mean, Var: variance}))
		}},
		{"the correction of a variance", []float64{-inf, 0, inf}, []float64{nan}, func(v float64) (results, error) { return one(r.Var(r.ctx, x, v)) }},
		{"the divisor of a pooling that takes none", []float64{0}, []float64{1, -1}, func(v float64) (results, error) {
			return two(r.MaxPool2d(r.ctx, square, PoolingConfig{Kernel: []int{2}, Divisor: int(v)}))
		}},
		{"the most that a norm is clipped to", []float64{0, inf}, append(justBelow0, -inf), func(v float64) (results, error) { return one(r.ClipNorm(r.ctx, v, 2, x)) }},
		{"the norm of a clip", []float64{-inf, 0, inf}, []float64{nan}, func(v float64) (results, error) { return one(r.ClipNorm(r.ctx, 1, v, x)) }},
		{"the pooling that takes no ExcludePadding", []float64{0}, []float64{1}, func(v float64) (results, error) {
			return two(r.MaxPool2d(r.ctx, square, PoolingConfig{Kernel: []int{2}, ExcludePadding: v > 0}))
		}},
	}
}

// sizeLimits are the limits of axes, windows and ranges.
func sizeLimits(r *rig) []limit {
	x, line := r.blank(Float32, 2, 5), r.blank(Float32, 1, 1, 5)
	square, window := r.blank(Float32, 1, 2, 7, 7), r.blank(Float32, 1, 2, 3, 3)
	index := r.blank(Int32, 2)
	axes := func(name string, call func(axis int) (*Tensor, error)) limit {
		return limit{"the axis of " + name, []float64{-2, 1}, []float64{-3, 2}, func(v float64) (results, error) { return one(call(int(v))) }}
	}
	pool := func(name string, inside, outside []float64, set func(c *PoolingConfig, v int)) limit {
		return limit{name, inside, outside, func(v float64) (results, error) {
			c := PoolingConfig{Kernel: []int{3}}
			set(&c, int(v))
			return two(r.MaxPool2d(r.ctx, square, c))
		}}
	}
	conv := func(name string, inside, outside []float64, set func(c *ConvConfig, v int)) limit {
		return limit{name, inside, outside, func(v float64) (results, error) {
			var c ConvConfig
			set(&c, int(v))
			return one(r.Conv2d(r.ctx, square, window, nil, c))
		}}
	}
	return []limit{
		axes("Softmax", func(axis int) (*Tensor, error) { return r.Softmax(r.ctx, x, axis) }),
		axes("Sum", func(axis int) (*Tensor, error) { return r.Sum(r.ctx, x, axis) }),
		axes("Cat", func(axis int) (*Tensor, error) { return r.Cat(r.ctx, axis, x) }),
		axes("Narrow", func(axis int) (*Tensor, error) { return r.Narrow(r.ctx, x, axis, 0, 1) }),
		axes("IndexSelect", func(axis int) (*Tensor, error) { return r.IndexSelect(r.ctx, x, axis, index) }),
		axes("Transpose", func(axis int) (*Tensor, error) { return r.Transpose(r.ctx, x, 0, axis) }),
		{"the start of a range of two", []float64{0, 3}, []float64{-1, 4}, func(v float64) (results, error) { return one(r.Narrow(r.ctx, x, 1, int(v), 2)) }},
		{"the length of a range", []float64{0, 2}, []float64{-1, 3}, func(v float64) (results, error) { return one(r.Narrow(r.ctx, x, 1, 3, int(v))) }},
		{"the first of some rows", []float64{0, 2}, []float64{-1, 3}, func(v float64) (results, error) { return one(r.Rows(r.ctx, x, int(v), 2)) }},
		{"the end of some rows", []float64{0, 2}, []float64{-1, 3}, func(v float64) (results, error) { return one(r.Rows(r.ctx, x, 0, int(v))) }},
		{"elements fewer before", []float64{-5, 1}, []float64{-6}, func(v float64) (results, error) {
			return one(r.Pad(r.ctx, x, 0, []int{0, int(v)}, []int{0, 0}))
		}},
		{"rows of an embedding", []float64{0, 1}, []float64{-1}, func(v float64) (results, error) {
			return one(r.EmbeddingGrad(r.ctx, r.blank(Float32, 2, 3), index, int(v), EmbeddingConfig{}))
		}},
		{"the padding index", []float64{-2, 1}, []float64{-3, 2}, func(v float64) (results, error) {
			return one(r.Embedding(r.ctx, index, x, EmbeddingConfig{PaddingIndex: []int{int(v)}}))
		}},
		pool("the window of a pooling", []float64{1, 7}, []float64{0, 8}, func(c *PoolingConfig, v int) { c.Kernel = []int{v} }),
		pool("the stride of a pooling", []float64{1, math.MaxInt32}, []float64{0, math.MaxInt32 + 1}, func(c *PoolingConfig, v int) { c.Stride = []int{v} }),
		pool("the dilation of a pooling", []float64{1, 3}, []float64{0, 4}, func(c *PoolingConfig, v int) { c.Dilation = []int{v} }),
		pool("the padding of a pooling", []float64{0, 1}, []float64{-1, 2}, func(c *PoolingConfig, v int) { c.Padding = []int{v} }),
		pool("the padding of a pooling of 5", []float64{0, 2}, []float64{-1, 3}, func(c *PoolingConfig, v int) { c.Dilation, c.Padding = []int{2}, []int{v} }),
		{"the size of averages", []float64{-1, 1, 9}, []float64{-2}, func(v float64) (results, error) {
			return one(r.AdaptiveAvgPool2d(r.ctx, square, int(v)))
		}},
		{"what averages are of", []float64{1}, []float64{0}, func(v float64) (results, error) {
			return one(r.AdaptiveAvgPool2d(r.ctx, r.blank(Float32, 1, int(v), 2), 3))
		}},
		conv("the stride of a convolution", []float64{1, 1 << 28}, []float64{0, math.MaxInt32 + 1}, func(c *ConvConfig, v int) { c.Stride = []int{v} }),
		conv("the padding of a convolution", []float64{0, 1}, []float64{-1}, func(c *ConvConfig, v int) { c.Padding = []int{v} }),
		conv("the dilation of a convolution", []float64{1, 3}, []float64{0, 4}, func(c *ConvConfig, v int) { c.Dilation = []int{v} }),
		conv("the groups of a convolution", []float64{0, 1}, []float64{-1, 2}, func(c *ConvConfig, v int) { c.Groups = v }),
		{"the window of a convolution whose padding is more than an int32", nil, []float64{4}, func(v float64) (results, error) {
			return one(r.Conv1d(r.ctx, line, r.blank(Float32, 1, 1, int(v)), nil, ConvConfig{Same: true, Dilation: []int{math.MaxInt32}}))
		}},
		{"the output padding", []float64{0, 2}, []float64{-1, 3}, func(v float64) (results, error) {
			return one(r.ConvTranspose2d(r.ctx, square, r.blank(Float32, 2, 1, 1, 1), nil, ConvConfig{Stride: []int{3}, OutputPadding: []int{int(v)}}))
		}},
	}
}

// Numbers at their limits are accepted, and the next numbers beyond are refused, before memory is
// allocated.
func TestLimits(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, l := range append(numberLimits(r), sizeLimits(r)...) {
		for _, v := range l.inside {
			got, err := l.call(v)
			require.NoError(t, err, "%s: %v", l.name, v)
			require.NotContains(t, got, (*Tensor)(nil), "%s: %v", l.name, v)
		}
		for _, v := range l.outside {
			_, err := l.call(v)
			assert.True(t, errors.Is(err, ErrShape) || errors.Is(err, ErrInvalid), "%s: %v: %v", l.name, v, err)
		}
	}
	require.NoError(t, r.Synchronize(r.ctx))
	_, err := r.Softmax(r.ctx, r.blank(Float32, 2, 5), 2)
	require.EqualError(t, err, "tensor: Softmax: wrong shape (2, 5) has no axis 2: want -2..1")
}

// The values are so small that the default for an eps of 0 shows in the result.
func TestEpsOfNorms(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float64{-1e-3, 1e-3}, 1, 2)
	norm := func(c NormConfig) float64 {
		y, _, err := r.Normalize(r.ctx, x, nil, nil, c)
		return get[float64](r, y, err)[1]
	}
	shape := []int{2}
	assert.InDelta(t, 1e-3/math.Sqrt(1e-6+1e-5), norm(NormConfig{Shape: shape}), 1e-12)
	assert.InDelta(t, 1e-3/math.Sqrt(1e-6+1e-4), norm(NormConfig{Shape: shape, Eps: 1e-4}), 1e-12)
	assert.InDelta(t, 1e-3/math.Sqrt(1e-6+0x1p-52), norm(NormConfig{Shape: shape, RMS: true}), 1e-12)
}
