package tensor

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func TestSumAlternatingAxes(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	data := make([]float64, 120)
	for i := range data {
		data[i] = float64(i)
	}
	x := put(r, data, 2, 4, 3, 5)
	want := []float64{490, 590, 690, 1690, 1790, 1890}
	y, err := r.Sum(r.ctx, x, 1, 3)
	assert.Equal(t, want, get[float64](r, y, err))
	y, err = r.SumTo(r.ctx, x, 2, 1, 3, 1)
	assert.Equal(t, want, get[float64](r, y, err))
	y, err = r.Mean(r.ctx, x, 1, 3)
	for i, v := range get[float64](r, y, err) {
		assert.Equal(t, want[i]/20, v)
	}
	y, err = r.Sum(r.ctx, x, 0, 2)
	assert.Equal(t, []float64{210, 216, 222, 228, 234}, get[float64](r, y, err)[:5])
}

func TestGradientOfOneElementInPlace(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, shape := range [][]int{{1}, {1, 1}, {2}} {
		n := elements(shape)
		dy, y := put(r, slices.Repeat([]float64{-1}, n), shape...), put(r, slices.Repeat([]float64{3}, n), shape...)
		_, err := r.ApplyGrad(r.ctx, fn.ReLU, dy, dy, y)
		assert.Equal(t, slices.Repeat([]float64{-1}, n), get[float64](r, dy, err))
		_, err = r.ApplyGrad(r.ctx, fn.ReLU, y, dy, y)
		assert.Equal(t, slices.Repeat([]float64{-1}, n), get[float64](r, y, err))
	}
}

func TestMeanOfBatchNorm(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	rows := 100_000
	if brief() {
		rows = 10_000
	}
	shape := []int{rows, 2, 50}
	data := spread[float32](elements(shape), 0, 1)
	y, err := r.Mean(r.ctx, put(r, data, shape...), 0, 2)
	want := reference.SumTo(arrayOf(shape, data), []int{1, 2, 1}, 50*float64(rows))
	for i, v := range get[float32](r, y, err) {
		assert.Equal(t, float32(want.Data[i]), v)
	}
	big := put(r, slices.Repeat([]float32{3e38}, 10))
	y, err = r.Mean(r.ctx, big)
	assert.Equal(t, []float32{3e38}, get[float32](r, y, err), "the sum is more than float32 holds, the mean is not")
}

func TestZeroTimesInfinityIsNaN(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	inf := math.Inf(1)
	for _, rows := range []int{1, 2, 20} { // few and many rows take different ways
		for _, inner := range []int{2, 30, 300} {
			a, b := make([]float64, rows*inner), slices.Repeat([]float64{1}, 2*inner)
			b[2*(inner-1)], b[2*(inner-1)+1] = math.NaN(), -inf // times 0
			y, err := r.MatMul(r.ctx, put(r, a, rows, inner), put(r, b, inner, 2))
			for _, v := range get[float64](r, y, err) {
				require.True(t, math.IsNaN(v), "%d rows, inner dimension %d: %v", rows, inner, v)
			}
			turned := make([]float64, len(b))
			for i, v := range b {
				turned[i%2*inner+i/2] = v
			}
			y, err = r.MatMul(r.ctx, put(r, a, rows, inner), put(r, turned, 2, inner), TransB)
			for _, v := range get[float64](r, y, err) {
				require.True(t, math.IsNaN(v), "%d rows, inner dimension %d, transposed: %v", rows, inner, v)
			}
		}
	}
	y, err := r.MatMul(r.ctx, put(r, []float32{0, 1e30}, 1, 2), put(r, []float32{3e38, 3e38, 1, 2}, 2, 2))
	assert.Equal(t, []float32{1e30, 2e30}, get[float32](r, y, err), "huge numbers are no infinities")
}

func TestCrossEntropyOfLargeLogits(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, v := range []float64{1e30, -1e30, 1e300} {
		loss, err := r.CrossEntropy(r.ctx, put(r, slices.Repeat([]float64{v}, 6), 2, 3), put(r, []int32{0, 2}))
		assert.InDelta(t, math.Log(3), get[float64](r, loss, err)[0], 1e-15, "logits of %v", v)
	}
	loss, err := r.CrossEntropy(r.ctx, put(r, slices.Repeat([]float32{1e30}, 6), 2, 3), put(r, []int32{0, 2}))
	assert.Equal(t, []float32{float32(math.Log(3))}, get[float32](r, loss, err))
}

// spread returns numbers in [lo, hi) that look random and are the same in every language: 24 bits
// of a hash of the index.
func spread[T kernel.Float](n int, lo, hi T) []T {
	x := make([]T, n)
	for i := range x {
		h := uint32(i)*2654435761 + 12345
		h = (h ^ h>>16) * 0x45d9f3b
		h ^= h >> 16
		x[i] = lo + (hi-lo)*(T(h>>8)/(1<<24))
	}
	return x
}

// TestSumsOfMany: errors of float64 grow with the logarithm of the number of terms. Sequential sums
// would have errors a hundred times the bound.
func TestSumsOfMany(t *testing.T) {
	r := newRig(t, 512<<20).scoped()
	const n = 1 << 18
	x := spread[float64](n, 1, 1.1)
	bound := 24 * 0x1p-53
	check := func(what string, want reference.Result, y *Tensor, err error) {
		t.Helper()
		for i, v := range get[float64](r, y, err) {
			if !(math.Abs(v-want.Data[i]) <= bound*want.Size[i]) {
				require.Failf(t, "wrong", "%s: element %d is %v, want %v", what, i, v, want.Data[i])
			}
		}
	}
	for _, c := range [][2][]int{{{n}, {}}, {{n / 4, 4}, {4}}, {{2, n / 4, 2}, {2, 1, 1}}, {{n / 8, 4, 2}, {1, 4, 1}}, {{n / 256, 2, 128}, {1, 2, 1}}} {
		y, err := r.SumTo(r.ctx, put(r, x, c[0]...), c[1]...)
		check(fmt.Sprintf("the sum of %v to %v", c[0], c[1]), reference.SumTo(arrayOf(c[0], x), c[1], 1), y, err)
	}
	rows := reference.Array{Shape: []int{1, n}, Data: x}
	y, err := r.Softmax(r.ctx, put(r, x, 1, n))
	check("softmax", reference.Softmax(rows), y, err)
	y, err = r.SoftmaxGrad(r.ctx, put(r, x, 1, n), put(r, x, 1, n))
	check("the gradient of softmax", reference.SoftmaxGrad(rows, rows), y, err)
	labels := make([]int32, n/2)
	y, err = r.CrossEntropy(r.ctx, put(r, x, n/2, 2), put(r, labels))
	check("cross entropy", reference.CrossEntropy(reference.Array{Shape: []int{n / 2, 2}, Data: x}, labels), y, err)
	// Errors of equal numbers do not cancel.
	equal := make([]float64, n)
	for i := range equal {
		equal[i] = 1.1
	}
	y, err = r.SumTo(r.ctx, put(r, equal, n))
	assert.InEpsilon(t, n*1.1, get[float64](r, y, err)[0], bound, "the sum of equal numbers")
	equal[0] = 1.2
	y, err = r.CrossEntropy(r.ctx, put(r, equal, 1, n), put(r, []int32{0}))
	assert.InEpsilon(t, math.Log1p((n-1)*math.Exp(equal[1]-equal[0])), get[float64](r, y, err)[0], bound, "cross entropy of equal numbers but one")
	y, err = r.CrossEntropy(r.ctx, put(r, make([]float64, 3*n), n, 3), put(r, make([]int32, n)))
	assert.InDelta(t, math.Log(3), get[float64](r, y, err)[0], bound, "cross entropy of zeros")
}

// TestErrorsOfFloat32 bounds the error of float32 results against the reference: in the worst
// element, and relative to the terms of its sum; with -v it prints them. The bounds are about twice
// the errors that were found. The -short form computes fewer results. The sums stay as long, except
// those of whole arrays and columns.
func TestErrorsOfFloat32(t *testing.T) {
	r := newRig(t, 512<<20).scoped()
	some := func(n int) int { return n }
	if brief() {
		some = func(n int) int { return n / 4 }
	}
	report := func(what string, bound float64, want reference.Result, y *Tensor, err error) {
		t.Helper()
		worst, sum := 0.0, 0.0
		got := get[float32](r, y, err)
		for i, v := range got {
			if e := math.Abs(float64(v) - want.Data[i]); e > 0 {
				e /= want.Size[i] * 0x1p-23
				worst, sum = max(worst, e), sum+e
			}
		}
		t.Logf("%-44s worst %8.4f eps, mean %8.4f eps", what, worst, sum/float64(len(got)))
		assert.LessOrEqual(t, worst, bound, what)
	}
	for _, s := range []struct {
		shape, to []int
		lo        float32
	}{
		{[]int{some(1_000_000)}, []int{}, 0}, {[]int{some(1_000_000)}, []int{}, -1},
		{[]int{some(4096), 256}, []int{256}, 0}, {[]int{some(256), 4096}, []int{some(256), 1}, 0},
		{[]int{some(32), 3, 56, 56}, []int{1, 3, 1, 1}, -1},
	} {
		x := spread(elements(s.shape), s.lo, 1)
		y, err := r.SumTo(r.ctx, put(r, x, s.shape...), s.to...)
		report(fmt.Sprintf("sum %v to %v of [%v, 1)", s.shape, s.to, s.lo), 0.5, reference.SumTo(arrayOf(s.shape, x), s.to, 1), y, err)
	}
	for _, s := range []struct {
		m, n, k int
		bound   float64
	}{
		{some(128), 64, 784, 1}, {some(64), 64, 2048, 1}, {8, 16, 5000, 1}, {1, 1, 100_000, 3},
		{1, 10, 50_000, 1}, {128, 10, 512, 1},
	} {
		x, w := spread[float32](s.m*s.k, -1, 1), spread[float32](s.k*s.n, -1, 1)
		y, err := r.MatMul(r.ctx, put(r, x, s.m, s.k), put(r, w, s.k, s.n))
		want := reference.MatMul(arrayOf([]int{s.m, s.k}, x), arrayOf([]int{s.k, s.n}, w), false, false)
		if _, ok := r.dev.(*host.Device); !ok {
			s.bound = math.Sqrt(float64(s.k)) // whatever the device's library does
		}
		report(fmt.Sprintf("matmul (%d, %d) by (%d, %d)", s.m, s.k, s.k, s.n), s.bound, want, y, err)
	}
	for _, s := range [][2]int{{some(128), 1000}, {some(16), 50_000}, {1024, 10}} {
		x, labels := spread[float32](s[0]*s[1], -10, 10), make([]int32, s[0])
		for i := range labels {
			labels[i] = int32(i * 7 % s[1])
		}
		in, on := arrayOf(s[:], x), put(r, labels)
		logits := put(r, x, s[0], s[1])
		y, err := r.Softmax(r.ctx, logits)
		report(fmt.Sprintf("softmax %v", s), 0.51, reference.Softmax(in), y, err)
		y, err = r.CrossEntropy(r.ctx, logits, on)
		report(fmt.Sprintf("cross entropy %v", s), 0.51, reference.CrossEntropy(in, labels), y, err)
		y, err = r.CrossEntropyGrad(r.ctx, nil, logits, on, put(r, []float32{1}))
		report(fmt.Sprintf("gradient of cross entropy %v", s), 0.51, reference.CrossEntropyGrad(in, labels, 1), y, err)
	}
}

func arrayOf[T kernel.Float](shape []int, data []T) reference.Array {
	a := reference.Array{Shape: shape, Data: make([]float64, len(data))}
	for i, v := range data {
		a.Data[i] = float64(v)
	}
	return a
}
