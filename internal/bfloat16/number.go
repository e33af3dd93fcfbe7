// Package bfloat16 implements bfloat16 numbers, the upper half of a float32: its sign, its 8 bits
// of exponent, and 7 of its 23 bits of fraction. They have float32's range and about 2.4 decimal
// digits.
package bfloat16

import (
	"math"
	"strconv"
)

// bfloat16 has the name of its dtype.
type bfloat16 uint16

// Number is the bits of a bfloat16.
type Number = bfloat16

// Round returns x rounded to the nearest Number, ties to even (IEEE 754's roundTiesToEven, as
// PyTorch's c10::BFloat16 rounds). Values beyond the largest Number by half a step or more become
// infinite, NaN stays NaN with its sign, and subnormal numbers are kept.
func Round(x float32) Number {
	b := math.Float32bits(x)
	if x != x {
		return Number(b>>16) | 0x40 // quiet, and not an infinity
	}
	return Number((b + 0x7fff + b>>16&1) >> 16)
}

// String returns the shortest decimal that parses to n as a float32.
func (n bfloat16) String() string { return strconv.FormatFloat(float64(n.Float32()), 'g', -1, 32) }

// Float32 returns n as a float32, which is exact.
func (n bfloat16) Float32() float32 { return math.Float32frombits(uint32(n) << 16) }
