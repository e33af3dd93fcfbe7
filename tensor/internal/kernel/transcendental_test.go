package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// ulps returns the difference of v from want, in units of its last place.
func ulps(v, want float64) float64 {
	if v == want || v != v && want != want {
		return 0
	}
	return math.Abs(v-want) / (math.Nextafter(math.Abs(want), math.Inf(1)) - math.Abs(want))
}

func TestLogOfSubnormals(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range rounds(3000, 1000) {
		x := math.Float64frombits(r.Uint64() & (1<<(1+r.IntN(62)) - 1)) // subnormal or not
		assert.LessOrEqual(t, ulps(log(x), reference.Log(x)), 1.0, "log of %g", x)
	}
	assert.True(t, math.IsInf(log(0), -1))
	assert.True(t, math.IsNaN(log(-1)))
}

func TestExpOfLargeNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range rounds(3000, 1000) {
		x := 708 + 2*r.Float64()
		assert.LessOrEqual(t, ulps(exp(x), reference.Exp(x)), 2.0, "exp of %v", x)
	}
}

func TestPow(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	worst := 0.0
	for range rounds(10_000, 2000) {
		x := math.Exp((r.Float64()*2 - 1) * math.Exp2(r.Float64()*20-11)) // near 1 and far from it
		y := (r.Float64()*2 - 1) * 745 / math.Max(1e-6, math.Abs(math.Log(x)))
		if r.IntN(4) == 0 {
			x, y = -x, math.Round(y)
		}
		want := reference.Pow(x, y)
		if math.IsInf(want, 0) || math.Abs(want) < 0x1p-1021 { // rounded twice
			continue
		}
		if u := ulps(pow(x, y), want); u > worst {
			worst = u
			assert.LessOrEqual(t, u, 2.0, "pow(%g, %g)", x, y)
		}
	}
	special := []float64{0, math.Copysign(0, -1), 1, -1, 2, -2, 3, 0.5, -0.5, 5e-324, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()}
	for _, x := range special {
		for _, y := range special {
			want := reference.Pow(x, y)
			assert.LessOrEqual(t, ulps(pow(x, y), want), 1.0, "pow(%g, %g)", x, y)
			assert.Equal(t, want == want && math.Signbit(want), want == want && math.Signbit(pow(x, y)), "pow(%g, %g)", x, y)
		}
	}
	t.Logf("at most %.2f units in the last place", worst)
}

func TestNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 100_000 {
		v := int64(r.Uint64()) >> r.IntN(64)
		want, _ := new(big.Float).SetInt64(v).Float32()
		if got := nearest(v); got != want {
			assert.Equal(t, want, got, "%d", v)
		}
	}
}
