package float16_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/internal/float16"
)

// value returns a number by the definition of its fields.
func value(n float16.Number) float64 {
	fraction, exponent := float64(n&1023), int(n>>10&31)
	var v float64
	switch exponent {
	case 0:
		v = math.Ldexp(fraction, -24)
	case 31:
		if v = math.Inf(1); fraction != 0 {
			return math.NaN()
		}
	default:
		v = math.Ldexp(1024+fraction, exponent-25)
	}
	if n>>15 == 1 {
		return -v
	}
	return v
}

// nearest rounds by arithmetic, whereas Round works with bits.
func nearest(x float64) float64 {
	_, exponent := math.Frexp(x)                  // x is from half of to all of 2^exponent
	place := math.Ldexp(1, max(exponent-11, -24)) // its last place, of 11 bits, or of the subnormal numbers
	if v := math.RoundToEven(x/place) * place; math.Abs(v) <= 65504 {
		return math.Copysign(v, x)
	}
	return math.Inf(int(math.Copysign(1, x)))
}

func TestFloat16RoundsToTheNearest(t *testing.T) {
	t.Parallel()
	check := func(bits uint32) {
		x := math.Float32frombits(bits)
		if x != x || math.IsInf(float64(x), 0) {
			return
		}
		got, want := value(float16.Round(x)), nearest(float64(x))
		if got != want || math.Signbit(got) != math.Signbit(want) {
			t.Fatalf("Round(%g, bits %#x) = %g: want %g", x, bits, got, want)
		}
	}
	for bits := range 1 << 16 {
		n := float16.Number(bits)
		next := value(n + 1)
		if n&0x7fff == 0x7bff {
			next = math.Copysign(65536, value(n)) // the step after the largest number
		}
		at := math.Float32bits(float32(value(n)))
		tie := math.Float32bits(float32((value(n) + next) / 2)) // exact in float32
		for _, b := range []uint32{at, tie} {
			for _, near := range []uint32{b - 1, b, b + 1} {
				check(near)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		check(r.Uint32())
		check(math.Float32bits(float32(math.Ldexp(r.Float64()-0.5, r.IntN(48)-30)))) // where float16 has numbers
	}
}

func TestFloat16KeepsEveryNumberAndNaN(t *testing.T) {
	t.Parallel()
	for bits := range 1 << 16 {
		n := float16.Number(bits)
		v := n.Float32()
		back := float16.Round(v)
		if want := value(n); want == want {
			if float64(v) != want || math.Signbit(float64(v)) != math.Signbit(want) {
				t.Fatalf("%#x is %g: want %g", bits, v, want)
			}
			if back != n {
				t.Fatalf("%#x is %g, and becomes %#x", bits, v, uint16(back))
			}
			continue
		}
		if v == v {
			t.Fatalf("the NaN %#x is %g", bits, v)
		}
		if back != n|0x200 {
			t.Fatalf("the NaN %#x becomes %#x: want it quiet", bits, uint16(back))
		}
	}
	// These NaN have only bits that are cut off.
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7f801fff} {
		if n := float16.Round(math.Float32frombits(bits)); n.Float32() == n.Float32() {
			t.Errorf("the NaN %#x becomes %g", bits, n.Float32())
		}
	}
	for _, sign := range []int{1, -1} {
		for _, x := range []float32{float32(math.Inf(1)), math.MaxFloat32, 65520} {
			if v := float16.Round(float32(sign) * x).Float32(); !math.IsInf(float64(v), sign) {
				t.Errorf("%g becomes %g: want an infinity", float32(sign)*x, v)
			}
		}
	}
	if s := float16.Round(-1.0 / 3).String(); s != "-0.33325195" {
		t.Errorf("a third is printed as %s", s)
	}
}
