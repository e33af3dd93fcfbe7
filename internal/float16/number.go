// Package float16 implements the numbers of IEEE 754's binary16: a sign, 5 bits of exponent, and 10
// of fraction. They have about 3.3 decimal digits. The largest is 65504, and the smallest positive
// one 2^-24.
package float16

import (
	"math"
	"strconv"
)

// float16 has the name of its dtype.
type float16 uint16

// Number is the bits of a float16.
type Number = float16

// The fields of a Number, and the float32 bounds from which on numbers round to an infinity, and to
// normal numbers.
const (
	signBit   = 0x8000
	infinite  = 0x7c00
	fraction  = 0x03ff
	quiet     = 0x0200
	tooLarge  = 0x477ff000 // 65520, half a step past the largest number
	leastFull = 0x38800000 // 2^-14
	half      = 0x3f000000 // 0.5
	rebias    = 127 - 15
)

// Round returns x rounded to the nearest Number, ties to even (IEEE 754's roundTiesToEven). Values
// beyond the largest Number by half a step or more become infinite, NaN stays NaN with its sign and
// the upper bits of its payload, and subnormal numbers are kept.
func Round(x float32) Number {
	b := math.Float32bits(x)
	sign := Number(b>>16) & signBit
	switch b &^= 1 << 31; {
	case x != x:
		return sign | infinite | quiet | Number(b>>13)&fraction
	case b >= tooLarge:
		return sign | infinite
	case b < leastFull: // float32 values from 0.5 to 1 are 2^-24 apart, as these numbers are
		return sign | Number(math.Float32bits(math.Float32frombits(b)+0.5)-half)
	}
	b -= rebias << 23
	return sign | Number((b+0xfff+b>>13&1)>>13)
}

// String returns the shortest decimal that parses to n as a float32.
func (n float16) String() string { return strconv.FormatFloat(float64(n.Float32()), 'g', -1, 32) }

// Float32 returns n as a float32, which is exact.
func (n float16) Float32() float32 {
	sign, b := uint32(n&signBit)<<16, uint32(n&^signBit)<<13
	switch n & infinite {
	case infinite: // or NaN
		b += 2 * rebias << 23
	case 0:
		b = math.Float32bits(float32(n&fraction) * 0x1p-24)
	default:
		b += rebias << 23
	}
	return math.Float32frombits(sign | b)
}
