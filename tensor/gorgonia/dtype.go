package gorgonia

import (
	"reflect"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
)

// dtypes pairs the library's dtypes with package tensor's. Bool and Int have the memory of another
// dtype there, and come last: in the other direction the first pair counts.
var dtypes = []struct {
	library gtensor.Dtype
	own     tensor.Dtype
}{
	{gtensor.Float32, tensor.Float32}, {gtensor.Float64, tensor.Float64}, {bfloat16, tensor.BFloat16}, {float16, tensor.Float16},
	{gtensor.Int32, tensor.Int32}, {gtensor.Int64, tensor.Int64}, {gtensor.Uint8, tensor.Uint8},
	{gtensor.Bool, tensor.Uint8}, {gtensor.Int, tensor.Int64},
}

// The dtypes of this package, which the library has no arithmetic for.
var (
	bfloat16 = gtensor.Dtype{Type: reflect.TypeFor[tensor.BF16]()}
	float16  = gtensor.Dtype{Type: reflect.TypeFor[tensor.F16]()}
)

// ownDtype returns package tensor's dtype of a library's, or 0.
func ownDtype(dt gtensor.Dtype) tensor.Dtype {
	for _, d := range dtypes {
		if d.library == dt {
			return d.own
		}
	}
	return 0
}

// libraryDtype returns the library's dtype of one of package tensor's.
func libraryDtype(dt tensor.Dtype) gtensor.Dtype {
	for _, d := range dtypes {
		if d.own == dt {
			return d.library
		}
	}
	return gtensor.Dtype{}
}
