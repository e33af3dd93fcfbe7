package backendtest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// insideHalf are operations that keep what they compute on their way in bfloat16: an attention its result, which its gradient reads, and a recurrent layer its
// states and gates, step by step.
var insideHalf = map[string]float64{"attention": 0x1p-8, "recurrent": 0x1p-5, "recurrent gradient": 0x1p-4}

// round makes data numbers that bfloat16 has, in a trial of it.
func (c *trial[T]) round(data []T) {
	if c.half {
		for i, v := range data {
			if data[i] = T(nearestHalf(float64(v))); v != v {
				data[i] = T(math.NaN())
			}
		}
	}
}

// nearestHalf is the nearest bfloat16, ties to even, by arithmetic: Round works with bits.
func nearestHalf(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	_, exponent := math.Frexp(v)                  // v is from half of to all of 2^exponent
	place := math.Ldexp(1, max(exponent-8, -133)) // its last place, of 8 bits, or of the subnormal numbers
	if v = math.RoundToEven(v/place) * place; math.Abs(v) >= 0x1p128 {
		return math.Inf(int(math.Copysign(1, v)))
	}
	return v
}

func (c *trial[T]) halfTensor(data []T, shape []int) *tensor.Tensor {
	bits := make([]tensor.BF16, len(data))
	for i, v := range data {
		bits[i] = tensor.BF16(math.Float32bits(float32(v)) >> 16)
		if v != v {
			bits[i] = 0x7fc0
		}
	}
	t, err := c.r.New(c.ctx, tensor.BFloat16, shape...)
	require.NoError(c.t, err)
	require.NoError(c.t, tensor.CopyFrom(c.ctx, t, bits))
	return t
}

// wide is the trial for what is not in bfloat16: losses and their gradients, running statistics.
func (c *trial[T]) wide() *trial[T] {
	w := *c
	w.half = false
	return &w
}

// elements are a tensor's, of bfloat16 as numbers.
func (c *trial[T]) elements(t *tensor.Tensor) []T {
	c.t.Helper()
	if t.Dtype() != tensor.BFloat16 {
		got, err := tensor.ToSlice[T](c.ctx, t, nil)
		require.NoError(c.t, err)
		return got
	}
	bits, err := tensor.ToSlice[tensor.BF16](c.ctx, t, nil)
	require.NoError(c.t, err)
	got := make([]T, len(bits))
	for i, b := range bits {
		if got[i] = T(math.Float32frombits(uint32(b) << 16)); got[i] != got[i] {
			got[i] = T(math.NaN()) // any NaN is as good
		}
	}
	return got
}

// agreesHalf is agrees for a result that is rounded to bfloat16 behind the tolerance. A loss is not rounded, and so nearer.
func agreesHalf(got, want, size float64, tol tolerance) bool {
	if agrees(float32(got), want, size, tol) {
		return true
	}
	off := tol.result*unit[float32]()*math.Abs(want) + tol.terms*size
	if tol != (tolerance{}) {
		off += (tol.result + tol.terms/unit[float32]()) * float64(smallest[float32]())
	}
	low, high := nearestHalf(float64(float32(want-off))), nearestHalf(float64(float32(want+off)))
	return low <= got && got <= high
}

// singleHalf are the operations whose kernels for bfloat16 on GPUs compute exponentials in float32 (bfloat16_rows.cu, bfloat16_elementwise.cu), and showed it.
var singleHalf = map[string]bool{"softmax along an axis": true, "cross entropy with options": true, "CrossEntropyGrad": true, "function gradient": true}

// singleTerms are eight roundings of a term to float32, and one more each of an exponential and a logarithm (CUDA's expf is off by two places).
const singleTerms = 10 * 0x1p-24

// underflowed excuses a result for which float32 had too small a number on the way: that is 0 or has few digits, and special numbers are infinite, or up to
// 1e30 times 100.
func underflowed(got, want float64) bool {
	if !finite(want) {
		return math.IsNaN(got)
	}
	return math.Abs(got-want) <= 100*1e30*float64(smallest[float32]())
}
