// Package float16 has the numbers of IEEE 754's binary16: a sign, 5 bits of exponent, and 10 of
// fraction. They have about 3.3 decimal digits and reach 65504; the least is 2^-24.
package float16

import (
	"math"
	"strconv"
)

// float16 is named as its dtype is written.
type float16 uint16

// Number is a float16, as its bits.
type Number = float16

// The fields of a Number, and where float32 begins to round to an infinity and to numbers with an
// exponent.
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

// Round is x rounded to the nearest Number, ties to the even one. What is past the largest one by
// half a step or more becomes infinite, NaN stays NaN with its sign, and subnormal numbers stay
// (IEEE 754's roundTiesToEven). Of a NaN the upper bits of the payload are kept.
func Round(x float32) Number {
	b := math.Float32bits(x)
	sign := Number(b>>16) & signBit
	switch b &^= 1 << 31; {
	case x != x:
		return sign | infinite | quiet | Number(b>>13)&fraction
	case b >= tooLarge:
		return sign | infinite
	case b < leastFull: // from 0.5 to 1 the places of float32 are 2^-24 apart, as these numbers are
		return sign | Number(math.Float32bits(math.Float32frombits(b)+0.5)-half)
	}
	b -= rebias << 23
	return sign | Number((b+0xfff+b>>13&1)>>13)
}

// String is the shortest decimal that float32 reads as n.
func (n float16) String() string { return strconv.FormatFloat(float64(n.Float32()), 'g', -1, 32) }

// Float32 is n's number, which float32 has exactly.
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
