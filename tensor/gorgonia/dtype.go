package gorgonia

import (
	"reflect"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
)

// dtypes pairs dtypes of gorgonia.org/tensor with those of package tensor. Bool and Int share the
// memory layout of Uint8 and Int64 and come last, because the first pair counts in the other
// direction.
var dtypes = []struct {
	theirs gtensor.Dtype
	own    tensor.Dtype
}{
	{gtensor.Float32, tensor.Float32}, {gtensor.Float64, tensor.Float64}, {bfloat16, tensor.BFloat16}, {float16, tensor.Float16},
	{gtensor.Int32, tensor.Int32}, {gtensor.Int64, tensor.Int64}, {gtensor.Uint8, tensor.Uint8},
	{gtensor.Bool, tensor.Uint8}, {gtensor.Int, tensor.Int64},
}

// gorgonia.org/tensor has no arithmetic for these dtypes.
var (
	bfloat16 = gtensor.Dtype{Type: reflect.TypeFor[tensor.BF16]()}
	float16  = gtensor.Dtype{Type: reflect.TypeFor[tensor.F16]()}
)

// ownDtype returns package tensor's dtype for one of gorgonia.org/tensor, or 0 if there is none.
func ownDtype(dt gtensor.Dtype) tensor.Dtype {
	for _, d := range dtypes {
		if d.theirs == dt {
			return d.own
		}
	}
	return 0
}

// gorgoniaDtype returns the dtype of gorgonia.org/tensor for one of package tensor.
func gorgoniaDtype(dt tensor.Dtype) gtensor.Dtype {
	for _, d := range dtypes {
		if d.own == dt {
			return d.theirs
		}
	}
	return gtensor.Dtype{}
}
