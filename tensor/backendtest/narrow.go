package backendtest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// narrow is a dtype of 16 bits, by its definition.
type narrow struct {
	digits, place int     // bits of a number, and the exponent of the last place of subnormal ones
	limit         float64 // the power of two past the greatest number
	large         float64 // large numbers are a few times this
}

var narrows = map[tensor.Dtype]narrow{
	tensor.BFloat16: {8, -133, 0x1p128, 1e30},
	tensor.Float16:  {11, -24, 0x1p16, 1e4},
}

// insideNarrow are the operations that round intermediate results to 16 bits, with the number of
// roundings: an attention its result, which its gradient reads, a recurrent layer its states and
// gates, step by step, and ScatterAdd the numbers that it adds.
var insideNarrow = map[string]float64{"attention": 1, "recurrent": 8, "recurrent gradient": 16, "recurrent layer": 32, "ScatterAdd": 1}

// round rounds data to numbers of the narrow dtype, in a trial of one.
func (c *trial[T]) round(data []T) {
	if c.narrow != 0 {
		for i, v := range data {
			if data[i] = T(c.nearest(float64(v))); v != v {
				data[i] = T(math.NaN())
			}
		}
	}
}

// nearest returns the nearest number of the narrow dtype, ties to even. It uses arithmetic, because
// Round uses bits.
func (c *trial[T]) nearest(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	n := narrows[c.narrow]
	_, exponent := math.Frexp(v) // |v| is in [2^(exponent-1), 2^exponent)
	place := math.Ldexp(1, max(exponent-n.digits, n.place))
	if v = math.Copysign(math.RoundToEven(v/place)*place, v); math.Abs(v) >= n.limit {
		return math.Inf(int(math.Copysign(1, v)))
	}
	return v
}

// write writes the elements of a tensor.
func (c *trial[T]) write(t *tensor.Tensor, data []T) {
	var err error
	switch c.narrow {
	case tensor.Float16:
		err = tensor.CopyFrom(c.ctx, t, converted(data, func(v T) tensor.F16 { return tensor.ToF16(float32(v)) }))
	case tensor.BFloat16:
		err = tensor.CopyFrom(c.ctx, t, converted(data, func(v T) tensor.BF16 { return tensor.ToBF16(float32(v)) }))
	default:
		err = tensor.CopyFrom(c.ctx, t, data)
	}
	require.NoError(c.t, err)
}

// smallest returns the smallest number of the trial's dtype.
func (c *trial[T]) smallest() T {
	if c.narrow == 0 {
		return smallest[T]()
	}
	return T(math.Ldexp(1, narrows[c.narrow].place))
}

func (c *trial[T]) greatest() T {
	if c.narrow == 0 {
		return greatest[T]()
	}
	return T(narrows[c.narrow].limit * (1 - c.narrow.Epsilon()/2))
}

func (c *trial[T]) large() T {
	if c.narrow == 0 {
		return 1e30
	}
	return T(narrows[c.narrow].large)
}

// wide returns the trial for tensors that are not narrow: losses and their gradients, running
// statistics.
func (c *trial[T]) wide() *trial[T] {
	w := *c
	w.narrow = 0
	return &w
}

// elements returns a tensor's elements; those of 16 bits as numbers.
func (c *trial[T]) elements(t *tensor.Tensor) []T {
	c.t.Helper()
	switch t.Dtype() {
	case tensor.BFloat16:
		return converted(slice[tensor.BF16](c, t), func(v tensor.BF16) T { return one(T(v.Float32())) })
	case tensor.Float16:
		return converted(slice[tensor.F16](c, t), func(v tensor.F16) T { return one(T(v.Float32())) })
	}
	return slice[T](c, t)
}

func slice[E tensor.Element, T kernel.Float](c *trial[T], t *tensor.Tensor) []E {
	c.t.Helper()
	got, err := tensor.ToSlice[E](c.ctx, t, nil)
	require.NoError(c.t, err)
	return got
}

// one returns v, or the same NaN for every NaN.
func one[T kernel.Float](v T) T {
	if v != v {
		return T(math.NaN())
	}
	return v
}

func converted[D, S any](data []S, f func(S) D) []D {
	all := make([]D, len(data))
	for i, v := range data {
		all[i] = f(v)
	}
	return all
}

// agreesNarrow is agrees for a result that is rounded to 16 bits after the tolerance. A loss is not
// rounded, and so agrees more closely.
func (c *trial[T]) agreesNarrow(got, want, size float64, tol tolerance) bool {
	if agrees(float32(got), want, size, tol) {
		return true
	}
	off := tol.result*unit[float32]()*math.Abs(want) + tol.terms*size
	if tol != (tolerance{}) {
		off += (tol.result + tol.terms/unit[float32]()) * float64(smallest[float32]())
	}
	low, high := c.nearest(float64(float32(want-off))), c.nearest(float64(float32(want+off)))
	return low <= got && got <= high
}

// singleHalf are the operations whose kernels for bfloat16 on GPUs compute exponentials in float32
// (bfloat16_rows.cu, bfloat16_elementwise.cu), with a difference that tests have shown.
var singleHalf = map[string]bool{"softmax along an axis": true, "cross entropy with options": true, "CrossEntropyGrad": true, "function gradient": true}

// singleTerms is eight roundings of a term to float32, and one more each for an exponential and a
// logarithm (CUDA's expf is off by two places).
const singleTerms = 10 * 0x1p-24

// underflowed accepts a result for which an intermediate number was too small for float32, and so
// is 0 or has few digits. Special numbers are infinite, or up to 1e30 times 100.
func underflowed(got, want float64) bool {
	if !finite(want) {
		return math.IsNaN(got)
	}
	return math.Abs(got-want) <= 100*1e30*float64(smallest[float32]())
}
