package tensor

import (
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/internal/bfloat16"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
)

// Dtype is the type of a tensor's elements, and Shape its dimensions, the slowest first. Both are gorgonia's, under names
// that spare a program the import.
type (
	Dtype = gtensor.Dtype
	Shape = gtensor.Shape
)

// The types of elements. Arithmetic takes Float32, Float64 and BFloat16.
var (
	Float32 = gtensor.Float32
	Float64 = gtensor.Float64
	Int32   = gtensor.Int32
	Int64   = gtensor.Int64
	Uint8   = gtensor.Uint8
	// BFloat16 is the upper half of a float32 ([BF16]).
	BFloat16 = Dtype{Type: reflect.TypeFor[BF16]()}
)

// BF16 is an element of a tensor of [BFloat16], as its bits: float32's sign and exponent, and 7 bits of fraction. Its method Float32
// is its number, which float32 has exactly.
type BF16 = bfloat16.Number

// ToBF16 is x rounded to the nearest bfloat16, ties to the even one, as c10::BFloat16 rounds. NaN stays NaN, and what is past the largest number by
// half a step or more becomes infinite.
func ToBF16(x float32) BF16 { return bfloat16.Round(x) }

// Element are the Go types of tensor elements. Arithmetic takes float32, float64 and BF16; int32 is for class
// labels and indices, the others for data on their way in.
type Element interface {
	float32 | float64 | BF16 | int32 | int64 | uint8
}

// DtypeOf is gorgonia's dtype of the Go type T.
func DtypeOf[T Element]() Dtype {
	var v T
	switch any(v).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case BF16:
		return BFloat16
	case int32:
		return Int32
	case int64:
		return Int64
	default:
		return Uint8
	}
}

// dtypes are gorgonia's types of the backend's.
var dtypes = [backend.Dtypes]Dtype{backend.Float32: Float32, backend.Float64: Float64, backend.BFloat16: BFloat16, backend.Int32: Int32,
	backend.Int64: Int64, backend.Uint8: Uint8}

// codeOf is the backend's number of a dtype; NoDtype if it has none.
func codeOf(dtype Dtype) backend.Dtype { return backend.Dtype(max(0, slices.Index(dtypes[:], dtype))) }

func checkDtype(op string, dtype Dtype) error {
	if codeOf(dtype) != backend.NoDtype {
		return nil
	}
	name := "none"
	if dtype.Type != nil {
		name = dtype.String()
	}
	return fmt.Errorf("tensor: %s: %w %s: want float32, float64, bfloat16, int32, int64 or uint8", op, ErrDtype, name)
}

// lossDtype is the dtype of a loss of elements of that dtype: a sum over a batch has more digits than bfloat16.
func lossDtype(dtype Dtype) Dtype { return dtypes[codeOf(dtype).Computes()] }

// wantFloats checks that the tensors have one floating-point dtype.
func wantFloats(op string, ts ...*Tensor) error {
	for _, t := range ts {
		if !t.code.Float() {
			return fmt.Errorf("tensor: %s: %w %v: want float32, float64 or bfloat16", op, ErrDtype, t.dtype)
		}
		if t.dtype != ts[0].dtype {
			return fmt.Errorf("tensor: %s: %w: %v and %v: want one dtype for all, see Convert", op, ErrDtype, ts[0].dtype, t.dtype)
		}
	}
	return nil
}

// bytesOf is the memory of s.
func bytesOf[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// elementsOf is b as elements of type T.
func elementsOf[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(v)))
}
