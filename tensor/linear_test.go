package tensor

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// TestLinearIsTheProductAndThenTheBias, bit for bit, at every level: with one output, one row, no
// inputs, batches and NaN too, and with products that are worth several goroutines. A library may
// add up a product with a bias in another order.
func TestLinearIsTheProductAndThenTheBias(t *testing.T) {
	for _, l := range simd.Available() {
		t.Run(l.String(), func(t *testing.T) {
			defer simd.Use(l)()
			seed := rand.Uint64()
			t.Logf("seed %#x", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			testLinear[float32](t, random)
			testLinear[float64](t, random)
		})
	}
}

func testLinear[T kernel.Float](t *testing.T, random *rand.Rand) {
	r := newRig(t, 256<<20).scoped()
	_, library := r.dev.(device.MatrixMultiplier)
	size := func() int {
		if random.IntN(3) == 0 {
			return 1
		}
		return 1 + random.IntN(70)
	}
	shapes := [][3]int{{100, 90, 784}, {300, 1, 3000}, {1, 300, 3000}, {5, 3, 0}, {0, 3, 5}, {5, 0, 3}}
	for range rounds(40, 15) {
		shapes = append(shapes, [3]int{size(), size(), size()})
	}
	for _, s := range shapes {
		numbers := func(n int) []T {
			x := make([]T, n)
			for i := range x {
				x[i] = T(random.NormFloat64())
			}
			if n > 0 && random.IntN(5) == 0 {
				x[random.IntN(n)] = T(math.NaN())
			}
			return x
		}
		rows, outs, ins := s[0], s[1], s[2]
		shape := []int{rows, ins}
		switch {
		case rows == 1 && random.IntN(2) == 0:
			shape = []int{ins}
		case rows > 0 && random.IntN(2) == 0:
			shape = []int{2, rows, ins}
			rows *= 2
		}
		x, w, b := put(r, numbers(rows*ins), shape...), put(r, numbers(outs*ins), outs, ins), put(r, numbers(outs), outs)
		for _, relu := range []bool{false, true} {
			want, err := r.MatMul(r.ctx, x, w, TransB)
			require.NoError(t, err)
			one, add := r.Linear, r.AddBiasInPlace
			if relu {
				one, add = r.LinearReLU, r.AddBiasReLUInPlace
			}
			require.NoError(t, add(r.ctx, want, b))
			got, err := one(r.ctx, x, w, b)
			require.NoError(t, err)
			require.Equal(t, want.Shape(), got.Shape())
			a, c := get[T](r, want, nil), get[T](r, got, nil)
			for i := range a {
				same := library && math.Abs(float64(a[i]-c[i])) < 1e-6*float64(ins+10) || a[i] == c[i] && math.Signbit(float64(a[i])) == math.Signbit(float64(c[i])) || a[i] != a[i] && c[i] != c[i]
				if !same {
					require.Failf(t, "wrong", "%v, relu %v: element %d is %v, want %v",
						s, relu, i, c[i], a[i])
				}
			}
		}
	}
}

// TestReLUBiasGrad compares with the gradient of ReLU, and with the sums of its rows in float64,
// with NaN and infinities among them, in place and not.
func TestReLUBiasGrad(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	testReLUBiasGrad[float32](t, random, 1e-6)
	testReLUBiasGrad[float64](t, random, 1e-14)
}

func testReLUBiasGrad[T kernel.Float](t *testing.T, random *rand.Rand, tolerance float64) {
	r := newRig(t, 256<<20).scoped()
	shapes := [][]int{{0, 3}, {3, 0}, {5}, {2000, 40}, {3, 400, 33}, {1, 300}}
	for range 30 {
		shapes = append(shapes, []int{1 + random.IntN(3), 1 + random.IntN(300), 1 + random.IntN(80)})
	}
	for _, shape := range shapes {
		n, cols := elements(shape), shape[len(shape)-1]
		dy, y := make([]T, n), make([]T, n)
		for i := range n {
			dy[i], y[i] = T(random.NormFloat64()), max(0, T(random.NormFloat64()))
		}
		if n > 0 && random.IntN(4) == 0 {
			dy[random.IntN(n)], y[random.IntN(n)] = T(math.Inf(1)), T(math.NaN())
		}
		x, from := put(r, dy, shape...), put(r, y, shape...)
		masked, err := r.ApplyGrad(r.ctx, fn.ReLU, nil, x, from)
		want := get[T](r, masked, err)
		var dst *Tensor
		if random.IntN(2) == 0 {
			dst = x
		}
		dx, db, err := r.ReLUBiasGrad(r.ctx, dst, x, from)
		require.NoError(t, err)
		require.Equal(t, dst != nil, dx == x)
		require.EqualValues(t, []int{cols}, db.Shape())
		got, sums := get[T](r, dx, nil), get[T](r, db, nil)
		for i, v := range want {
			if v != got[i] && (v == v || got[i] == got[i]) {
				require.Failf(t, "wrong", "%v: element %d is %v, want %v", shape, i, got[i], v)
			}
		}
		for j := range cols {
			var sum, size float64
			for i := j; i < n; i += cols {
				sum, size = sum+float64(want[i]), size+math.Abs(float64(want[i]))
			}
			s := float64(sums[j])
			if !(math.Abs(s-sum) <= tolerance*size) && s != sum && (s == s || sum == sum) {
				require.Failf(t, "wrong", "%v: sum %d is %v, want %v", shape, j, s, sum)
			}
		}
	}
	scalar, err := r.Sum(r.ctx, put(r, []T{1}))
	require.NoError(t, err)
	_, _, err = r.ReLUBiasGrad(r.ctx, nil, scalar, scalar)
	require.ErrorIs(t, err, ErrShape)
	_, _, err = r.ReLUBiasGrad(r.ctx, nil, put(r, make([]T, 6), 2, 3), put(r, make([]T, 6), 3, 2))
	require.ErrorIs(t, err, ErrShape)
}

func TestLinearRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, w, b := put(r, make([]float32, 6), 2, 3), put(r, make([]float32, 12), 4, 3), put(r, make([]float32, 4), 4)
	for _, f := range []func(context.Context, *Tensor, *Tensor, *Tensor) (*Tensor, error){r.Linear, r.LinearReLU} {
		for name, operands := range map[string][3]*Tensor{
			"a bias that is too short": {x, w, x}, "weights that are none": {x, b, b}, "rows that are too short": {w, put(r, make([]float32, 16), 4, 4), b},
		} {
			_, err := f(r.ctx, operands[0], operands[1], operands[2])
			require.ErrorIs(t, err, ErrShape, name)
		}
		_, err := f(r.ctx, x, w, put(r, make([]float64, 4), 4))
		require.ErrorIs(t, err, ErrDtype)
	}
}
