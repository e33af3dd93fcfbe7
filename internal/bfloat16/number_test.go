package bfloat16_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/internal/bfloat16"
)

// nearest finds the nearer of the two numbers around x by exact differences, without the bits that
// Round adds to.
func nearest(x float32) bfloat16.Number {
	below := bfloat16.Number(math.Float32bits(x) >> 16) // towards zero
	above := below + 1
	value := func(n bfloat16.Number) *big.Float {
		v := n.Float32()
		if math.IsInf(float64(v), 0) { // the step after the largest number
			return new(big.Float).SetMantExp(big.NewFloat(math.Copysign(1, float64(v))), 128)
		}
		return big.NewFloat(float64(v))
	}
	exact := big.NewFloat(float64(x))
	down := new(big.Float).Sub(exact, value(below))
	up := new(big.Float).Sub(value(above), exact)
	switch down.Abs(down).Cmp(up.Abs(up)) {
	case -1:
		return below
	case 1:
		return above
	}
	if below%2 == 0 {
		return below
	}
	return above
}

func TestBFloat16RoundsToTheNearest(t *testing.T) {
	t.Parallel()
	check := func(bits uint32) {
		x := math.Float32frombits(bits)
		if x != x || math.IsInf(float64(x), 0) {
			return
		}
		if got, want := bfloat16.Round(x), nearest(x); got != want {
			t.Fatalf("Round(%g, bits %#x) = %#x: want %#x", x, bits, uint16(got), uint16(want))
		}
	}
	for high := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} { // exact, just off it, and around the tie
			check(high<<16 | low)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		check(r.Uint32())
	}
}

func TestBFloat16KeepsEveryNumberAndNaN(t *testing.T) {
	t.Parallel()
	for bits := range 1 << 16 {
		n := bfloat16.Number(bits)
		v := n.Float32()
		back := bfloat16.Round(v)
		if v == v {
			if back != n {
				t.Fatalf("%#x is %g, and becomes %#x", bits, v, uint16(back))
			}
			continue
		}
		if back.Float32() == back.Float32() || back>>15 != n>>15 {
			t.Fatalf("the NaN %#x becomes %#x: want a NaN of its sign", bits, uint16(back))
		}
	}
	// These NaN have only bits that are cut off.
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7f80ffff} {
		if n := bfloat16.Round(math.Float32frombits(bits)); n.Float32() == n.Float32() {
			t.Errorf("the NaN %#x becomes %g", bits, n.Float32())
		}
	}
	for _, sign := range []int{1, -1} {
		if v := bfloat16.Round(float32(math.Inf(sign))).Float32(); !math.IsInf(float64(v), sign) {
			t.Errorf("an infinity becomes %g", v)
		}
		if v := bfloat16.Round(float32(sign) * math.MaxFloat32).Float32(); !math.IsInf(float64(v), sign) {
			t.Errorf("the largest float32 becomes %g: want an infinity", v)
		}
	}
}
