//go:build unix

package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// lengths returns the lengths for the tests: all that end in a different part of a vector, and
// larger ones.
func lengths() []int {
	var all []int
	for n := 1; n <= 70; n++ {
		all = append(all, n)
	}
	return append(all, 127, 128, 129, 255, 500, 1000)
}

// eachLevel runs a test at every level with assembly in this package, which NEON has not.
func eachLevel(t *testing.T, f func(t *testing.T)) {
	for _, l := range Available() {
		if l < AVX2 {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			defer Use(l)()
			f(t)
		})
	}
}

// special returns the numbers at which arithmetic changes.
func special[T Float]() []T {
	inf := T(math.Inf(1))
	all := []T{0, 1, 0.5, 2, 20, 88.7, 89.5, 104, 709.7, 745.2, 1e30, inf, T(math.NaN()), 3e-39, 1e-45}
	big, tiny, least := math.MaxFloat64, 1e-310, 5e-324
	all = append(all, T(big), T(tiny), T(least))
	for _, v := range all[:len(all):len(all)] {
		all = append(all, -v)
	}
	return append(all, T(math.Copysign(0, -1)))
}

// draw returns a random number, sometimes a special one.
func draw[T Float](r *rand.Rand) T {
	if r.IntN(4) == 0 {
		s := special[T]()
		return s[r.IntN(len(s))]
	}
	return T((r.Float64()*2 - 1) * math.Exp2(r.Float64()*12-6))
}

func same[T Float](a, b T) bool {
	return a != a && b != b || a == b && math.Signbit(float64(a)) == math.Signbit(float64(b))
}

// where describes the memory of the operands: flush with the end of the fence or with its start,
// and whether the result replaces an operand.
type where struct{ end, inPlace bool }

func places(f func(w where)) {
	for _, end := range []bool{false, true} {
		for _, inPlace := range []bool{false, true} {
			f(where{end, inPlace})
		}
	}
}

// plainBinary returns the functions according to IEEE 754.
func plainBinary[T Float]() [binaries]func(a, b T) T {
	return [binaries]func(a, b T) T{
		Add: func(a, b T) T { return a + b }, Sub: func(a, b T) T { return a - b }, Mul: func(a, b T) T { return a * b }, Div: func(a, b T) T { return a / b },
		ReLUGrad: func(a, b T) T {
			if b <= 0 {
				return 0
			}
			return a
		},
		TanhGrad:    func(a, b T) T { return a * T(T(1-b)*T(1+b)) },
		SigmoidGrad: func(a, b T) T { return T(a*b) * T(1-b) },
		SqrtGrad:    func(a, b T) T { return a / T(2*b) },
		SquareGrad:  func(a, b T) T { return a * T(2*b) },
		Maximum: func(a, b T) T {
			if a > b || a != a {
				return a
			}
			return b
		},
		Minimum: func(a, b T) T {
			if a < b || a != a {
				return a
			}
			return b
		},
		AddReLU: func(a, b T) T {
			if a+b < 0 {
				return 0
			}
			return a + b
		},
	}
}

func TestBinary(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		testBinary[float32](t)
		testBinary[float64](t)
	})
}

func testBinary[T Float](t *testing.T) {
	fences := [3]*fence{newFence(t, 8000), newFence(t, 8000), newFence(t, 8000)}
	r := rand.New(rand.NewPCG(1, 2))
	for op, plain := range plainBinary[T]() {
		f := BinaryOf[T](Binary(op))
		if plain == nil {
			require.Nil(t, f)
			continue
		}
		for _, n := range lengths() {
			places(func(w where) {
				sa, sb := min(1, r.IntN(4)), min(1, r.IntN(4))
				a, b, dst := slice[T](fences[0], (n-1)*sa+1, w.end), slice[T](fences[1], (n-1)*sb+1, w.end), slice[T](fences[2], n, w.end)
				for i := range a {
					a[i] = draw[T](r)
				}
				for i := range b {
					b[i] = draw[T](r)
				}
				want := make([]T, n)
				for i := range want {
					want[i] = plain(a[i*sa], b[i*sb])
				}
				last := fences[2]
				if w.inPlace && sa == 1 {
					dst, last = a, fences[0]
				} else if w.inPlace && sb == 1 {
					dst, last = b, fences[1]
				}
				f(&dst[0], &a[0], &b[0], n, sa, sb)
				for i, v := range want {
					if !same(v, dst[i]) {
						require.Failf(t, "wrong",
							"function %d, element %d of %d, strides %d and %d: %v, want %v",
							op, i, n, sa, sb, dst[i], v)
					}
				}
				require.True(t, intact(last, dst), "function %d of %d", op, n)
			})
		}
	}
}

// plainUnary returns the functions that round once.
func plainUnary[T Float]() [unaries]func(x, c, d T) T {
	return [unaries]func(x, c, d T) T{
		Neg: func(x, _, _ T) T { return -x }, Abs: func(x, _, _ T) T { return T(math.Abs(float64(x))) },
		Sqrt: func(x, _, _ T) T { return T(math.Sqrt(float64(x))) }, Square: func(x, _, _ T) T { return x * x },
		ReLU: func(x, _, _ T) T {
			if x < 0 {
				return 0
			}
			return x
		},
		AddConst: func(x, c, _ T) T { return x + c }, MulConst: func(x, c, _ T) T { return x * c },
		LeakyReLU: func(x, c, _ T) T {
			if x > 0 {
				return x
			}
			return x * c
		},
		Clamp: func(x, c, d T) T {
			if x < c {
				x = c
			}
			if x > d {
				x = d
			}
			return x
		},
	}
}

func TestUnary(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		testUnary[float32](t)
		testUnary[float64](t)
	})
}

// testUnary compares with IEEE 754. Functions that round more than once are compared with
// themselves: an element's result must not depend on its position.
func testUnary[T Float](t *testing.T) {
	from, to := newFence(t, 8000), newFence(t, 8000)
	r := rand.New(rand.NewPCG(3, 4))
	for op, plain := range plainUnary[T]() {
		f := UnaryOf[T](Unary(op))
		if op == int(NoUnary) {
			require.Nil(t, f)
			continue
		}
		if plain == nil {
			plain = func(x, c, d T) T {
				var y T
				f(&y, &x, 1, c, d)
				return y
			}
		}
		for _, n := range lengths() {
			places(func(w where) {
				c, d := draw[T](r), draw[T](r)
				x, dst, last := slice[T](from, n, w.end), slice[T](to, n, w.end), to
				want := make([]T, n)
				for i := range x {
					x[i] = draw[T](r)
					want[i] = plain(x[i], c, d)
				}
				if w.inPlace {
					dst, last = x, from
				}
				f(&dst[0], &x[0], n, c, d)
				for i, v := range want {
					if !same(v, dst[i]) {
						require.Failf(t, "wrong",
							"function %d, element %d of %d, parameters %v and %v: %v, want %v",
							op, i, n, c, d, dst[i], v)
					}
				}
				require.True(t, intact(last, dst), fmt.Sprintf("function %d of %d", op, n))
			})
		}
	}
}
