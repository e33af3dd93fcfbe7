//go:build unix

package simd

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

var long = flag.Bool("long", false, "every float32 is an argument, and not one of 4099")

// approximation is a function that rounds more than once: its exact value, and the allowed error in
// units in the last place for float32 and float64.
type approximation struct {
	of             func(x float64) float64
	single, double float64
	monotonic      bool // of float32
}

var approximations = map[Unary]approximation{
	Exp:     {reference.Exp, 0.95, 1, true},
	Tanh:    {reference.Tanh, 0.501, 2, true},
	Sigmoid: {reference.Sigmoid, 0.502, 2, true},
	SiLU:    {func(x float64) float64 { return x * reference.Sigmoid(x) }, 0.502, 3, false},
	Log:     {reference.Log, 0.501, 2, false},
	Erf:     {math.Erf, 0.501, 2, true},
	Rsqrt:   {func(x float64) float64 { return 1 / math.Sqrt(x) }, 0.501, 2, false},
}

// quick holds functions that are accurate enough as a reference for float32.
var quick = map[Unary]func(x float64) float64{
	Exp:  math.Exp,
	Tanh: math.Tanh,
	Sigmoid: func(x float64) float64 {
		if x < 0 {
			return math.Exp(x) / (1 + math.Exp(x))
		}
		return 1 / (1 + math.Exp(-x))
	},
	Log:   math.Log,
	Erf:   math.Erf,
	Rsqrt: func(x float64) float64 { return 1 / math.Sqrt(x) },
	SiLU: func(x float64) float64 {
		if x < 0 {
			return x * (math.Exp(x) / (1 + math.Exp(x)))
		}
		return x / (1 + math.Exp(-x))
	},
}

// ulps returns the difference of v from want, in units of the last place of T.
func ulps[T Float](v T, want float64) float64 {
	if same(v, T(want)) {
		if math.IsInf(want, 0) || want != want || math.IsInf(float64(v), 0) {
			return 0
		}
	} else if math.IsInf(float64(v), 0) || math.IsInf(want, 0) || want != want || v != v {
		return math.Inf(1)
	}
	_, e := math.Frexp(want)
	digits, least := 53, -1074
	if single(v) {
		digits, least = 24, -149
	}
	return math.Abs(float64(v)-want) / math.Ldexp(1, max(e-digits, least))
}

func single[T Float](v T) bool {
	_, ok := any(v).(float32)
	return ok
}

// TestSingle uses arguments of all magnitudes.
func TestSingle(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		for op, f := range approximations {
			run, of := UnaryOf[float32](op), quick[op]
			const block = 1024
			var x, y [block]float32
			step := uint64(4099)
			if *long {
				step = 1
			}
			worst, at := 0.0, float32(0)
			for bits := uint64(0); bits < 1<<32; {
				for i := range x {
					x[i] = math.Float32frombits(uint32(min(bits, 1<<32-1)))
					bits += step
				}
				run(&y[0], &x[0], block, 0, 0)
				for i, v := range y {
					if u := ulps(v, of(float64(x[i]))); u > worst {
						worst, at = u, x[i]
					}
					if falls := x[i] < 0; f.monotonic && i > 0 && (y[i-1] > v != falls && y[i-1] != v) && x[i] < 0 == (x[i-1] < 0) {
						require.Failf(t, "not monotonic", "function %d at %v", op, x[i])
					}
				}
			}
			t.Logf("function %d: at most %.4f units in the last place, at %v", op, worst, at)
			require.LessOrEqual(t, worst, f.single, "function %d at %v", op, at)
		}
	})
}

// argument is an argument of a function, and the function's exact value for it.
type argument struct{ x, want float64 }

// arguments returns special arguments and random ones of all magnitudes. The short form has a
// quarter of the random ones. They cover every branch of a function, but are less likely to include
// its worst error.
func arguments(op Unary, f approximation) (all []argument) {
	add := func(x float64) {
		if op == SiLU && x < -700 {
			return // a subnormal sigmoid has lost digits
		}
		all = append(all, argument{x, f.of(x)})
	}
	for _, x := range special[float64]() {
		add(x)
	}
	n := 4000
	switch {
	case *long:
		n = 400_000
	case testing.Short():
		n = 1000
	}
	r := rand.New(rand.NewPCG(5, uint64(op)))
	for range n {
		add((r.Float64()*2 - 1) * math.Exp2(r.Float64()*30-20))
		add(r.NormFloat64() * 3)
		add(math.Copysign(708+r.Float64()*38, r.Float64()-0.5))
	}
	return all
}

func TestDouble(t *testing.T) {
	// The arguments are shared by all levels, because the reference takes longer than the
	// functions.
	all := map[Unary][]argument{}
	eachLevel(t, func(t *testing.T) {
		for op, f := range approximations {
			run := UnaryOf[float64](op)
			if all[op] == nil {
				all[op] = arguments(op, f)
			}
			worst, at := 0.0, 0.0
			for _, a := range all[op] {
				var y float64
				run(&y, &a.x, 1, 0, 0)
				if u := ulps(y, a.want); u > worst {
					worst, at = u, a.x
				}
			}
			t.Logf("function %d: at most %.4f units in the last place, at %v", op, worst, at)
			require.LessOrEqual(t, worst, f.double+0.5, "function %d at %v", op, at) // the reference is rounded
		}
	})
}
