// Package bfloat16 has the numbers of the upper half of a float32: its sign, its 8 bits of exponent, and 7 of its 23 bits of
// fraction. They have float32's range and about 2.4 decimal digits.
package bfloat16

import (
	"math"
	"strconv"
)

// bfloat16 is named as its dtype is written.
type bfloat16 uint16

// Number is a bfloat16, as its bits.
type Number = bfloat16

// Round is x rounded to the nearest Number, ties to the even one. What is past the largest one by half a step or more becomes
// infinite, NaN stays NaN with its sign, and subnormal numbers stay (IEEE 754's roundTiesToEven, as PyTorch's c10::BFloat16 rounds).
func Round(x float32) Number {
	b := math.Float32bits(x)
	if x != x {
		return Number(b>>16) | 0x40 // quiet, and not an infinity
	}
	return Number((b + 0x7fff + b>>16&1) >> 16)
}

// String is the shortest decimal that float32 reads as n.
func (n bfloat16) String() string { return strconv.FormatFloat(float64(n.Float32()), 'g', -1, 32) }

// Float32 is n's number, which float32 has exactly.
func (n bfloat16) Float32() float32 { return math.Float32frombits(uint32(n) << 16) }
