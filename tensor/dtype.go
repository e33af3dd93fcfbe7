package tensor

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/bfloat16"
	"github.com/cistern-ml/cistern/internal/float16"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// Dtype is the type of a tensor's elements. The zero value is invalid.
type Dtype = backend.Dtype

// The dtypes. Arithmetic takes Float32, Float64, BFloat16 and Float16.
const (
	Float32 = backend.Float32
	Float64 = backend.Float64
	Int32   = backend.Int32
	Int64   = backend.Int64
	Uint8   = backend.Uint8
	// BFloat16 is the upper half of a float32 ([BF16]).
	BFloat16 = backend.BFloat16
	// Float16 is IEEE 754's binary16 ([F16]). Operations compute in float32 and round once; numbers
	// above 65504 become infinite.
	Float16 = backend.Float16
)

// Shape is the dimensions of a tensor, the slowest first. A scalar has none.
type Shape []int

// String returns the dimensions in parentheses, as in "(2, 3)".
func (s Shape) String() string {
	var b strings.Builder
	for i, n := range s {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(n))
	}
	return "(" + b.String() + ")"
}

// BF16 is an element of a tensor of [BFloat16], as its bits: float32's sign and exponent, and 7
// bits of fraction. Its method Float32 returns its number, which float32 represents exactly.
type BF16 = bfloat16.Number

// ToBF16 returns x rounded to the nearest bfloat16, ties to even, as c10::BFloat16 rounds. NaN
// stays NaN, and numbers that exceed the largest bfloat16 by half a step or more become infinite.
func ToBF16(x float32) BF16 { return bfloat16.Round(x) }

// F16 is an element of a tensor of [Float16], as its bits: a sign, 5 bits of exponent and 10 of
// fraction. Its method Float32 returns its number, which float32 represents exactly.
type F16 = float16.Number

// ToF16 returns x rounded to the nearest float16, ties to even. NaN stays NaN, and numbers of 65520
// and more become infinite.
func ToF16(x float32) F16 { return float16.Round(x) }

// Element is the constraint of the Go types of tensor elements. Arithmetic takes float32, float64,
// BF16 and F16. int32 and int64 are for class labels and indices, uint8 is for masks and raw data.
type Element interface {
	float32 | float64 | BF16 | F16 | int32 | int64 | uint8
}

// DtypeOf returns the dtype of the Go type T.
func DtypeOf[T Element]() Dtype {
	var v T
	switch any(v).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case BF16:
		return BFloat16
	case F16:
		return Float16
	case int32:
		return Int32
	case int64:
		return Int64
	default:
		return Uint8
	}
}

func checkDtype(op string, dtype Dtype) error {
	if dtype.Valid() {
		return nil
	}
	return fmt.Errorf("tensor: %s: %w %v: want one of the dtypes of package tensor, such as Float32", op, ErrDtype, dtype)
}

// bytesOf returns the memory of s.
func bytesOf[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// elementsOf returns b as elements of type T.
func elementsOf[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(v)))
}
