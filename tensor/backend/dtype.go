package backend

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/internal/bfloat16"
	"github.com/cistern-ml/cistern/internal/float16"
)

// Dtype is the type of an operand's elements.
type Dtype uint8

// The types. NoDtype is the type of an absent optional operand.
const (
	NoDtype Dtype = iota
	Float32
	Float64
	BFloat16
	Float16
	Int32
	Int64
	Uint8
	Dtypes
)

type dtype struct {
	name, suffix string
	size         int
	wide         Dtype
	float        bool
	least, most  float64 // of whole numbers that float64 has
	epsilon      float64
	bits         func(v float64) uint64
	value        func(bits uint64) float64
}

// dtypes is the only table of types. Kernels are listed elsewhere, by operation and type, and an
// empty cell is an error.
var dtypes = [Dtypes]dtype{
	NoDtype: {name: "none", bits: func(float64) uint64 { return 0 }, value: func(uint64) float64 { return 0 }},
	Float32: {name: "float32", suffix: "_f32", size: 4, float: true, epsilon: 0x1p-23, bits: func(v float64) uint64 { return uint64(math.Float32bits(float32(v))) },
		value: func(b uint64) float64 { return float64(math.Float32frombits(uint32(b))) }},
	Float64: {name: "float64", suffix: "_f64", size: 8, float: true, epsilon: 0x1p-52, bits: math.Float64bits, value: math.Float64frombits},
	BFloat16: {name: "bfloat16", suffix: "_bf16", size: 2, float: true, epsilon: 0x1p-7, wide: Float32,
		bits:  func(v float64) uint64 { return uint64(bfloat16.Round(float32(v))) },
		value: func(b uint64) float64 { return float64(bfloat16.Number(b).Float32()) }},
	Float16: {name: "float16", suffix: "_f16", size: 2, float: true, epsilon: 0x1p-10, wide: Float32,
		bits:  func(v float64) uint64 { return uint64(float16.Round(float32(v))) },
		value: func(b uint64) float64 { return float64(float16.Number(b).Float32()) }},
	Int32: {name: "int32", suffix: "_i32", size: 4, least: math.MinInt32, most: math.MaxInt32, bits: func(v float64) uint64 { return uint64(uint32(int32(v))) },
		value: func(b uint64) float64 { return float64(int32(b)) }},
	Int64: {name: "int64", suffix: "_i64", size: 8, least: -1 << 53, most: 1 << 53, bits: func(v float64) uint64 { return uint64(int64(v)) },
		value: func(b uint64) float64 { return float64(int64(b)) }},
	Uint8: {name: "uint8", suffix: "_u8", size: 1, most: 255, bits: func(v float64) uint64 { return uint64(uint8(v)) },
		value: func(b uint64) float64 { return float64(uint8(b)) }},
}

// String returns the name, "none" for NoDtype.
func (d Dtype) String() string {
	if d >= Dtypes {
		return fmt.Sprintf("Dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// row returns d's row of the table, or the row of NoDtype.
func (d Dtype) row() *dtype {
	if d >= Dtypes {
		d = NoDtype
	}
	return &dtypes[d]
}

// Valid reports whether d is a dtype that tensors can have.
func (d Dtype) Valid() bool { return d > NoDtype && d < Dtypes }

// Size returns the size of an element in bytes.
func (d Dtype) Size() int { return d.row().size }

// Suffix returns the suffix of the names of GPU kernels for the type.
func (d Dtype) Suffix() string { return d.row().suffix }

// Wide returns the type to which operands are upcast if there is no kernel for d; NoDtype if there
// is no such type.
func (d Dtype) Wide() Dtype { return d.row().wide }

// Float reports whether there is arithmetic with the type.
func (d Dtype) Float() bool { return d.row().float }

// Bounds returns the least and the greatest number of a type of whole numbers, limited to those
// that float64 represents exactly. whole is false for other types.
func (d Dtype) Bounds() (least, most float64, whole bool) {
	return d.row().least, d.row().most, d.row().most > 0
}

// Epsilon returns the distance from 1 to the next number of a floating-point type.
func (d Dtype) Epsilon() float64 { return d.row().epsilon }

// Computes returns the type in which numbers of type d are added up. Statistics and losses have
// this type.
func (d Dtype) Computes() Dtype {
	if wide := d.row().wide; wide != NoDtype {
		return wide
	}
	return d
}

// Bits returns, in the low bits, the element nearest to v. A type of whole numbers must be able to
// represent v.
func (d Dtype) Bits(v float64) uint64 { return d.row().bits(v) }

// Value returns the number of an element with these bits; for an int64 the nearest float64.
func (d Dtype) Value(bits uint64) float64 { return d.row().value(bits) }

// Missing returns the bits of an element for an index out of range: NaN, or 0 in whole numbers.
func (d Dtype) Missing() uint64 {
	if !d.row().float {
		return 0
	}
	return d.row().bits(math.NaN())
}
