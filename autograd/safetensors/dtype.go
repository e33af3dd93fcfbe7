package safetensors

import "github.com/cistern-ml/cistern/tensor"

// sizes are the bytes of an element of each of the format's dtypes. Writers put the tensors of the
// last dtype first, so that larger elements come before smaller ones and all are aligned.
var sizes = []struct {
	name string
	size int64
}{
	{"BOOL", 1}, {"U8", 1}, {"I8", 1}, {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2}, {"BF16", 2},
	{"I32", 4}, {"U32", 4}, {"F32", 4}, {"F64", 8}, {"I64", 8}, {"U64", 8},
}

// rank returns the index of a dtype in sizes, or -1.
func rank(dtype string) int {
	for i, d := range sizes {
		if d.name == dtype {
			return i
		}
	}
	return -1
}

// dtypes are those that tensors support without conversion. Booleans are masks.
var dtypes = map[string]tensor.Dtype{
	"F32": tensor.Float32, "F64": tensor.Float64, "BF16": tensor.BFloat16, "F16": tensor.Float16, "I32": tensor.Int32, "I64": tensor.Int64, "U8": tensor.Uint8, "BOOL": tensor.Uint8,
}

// nameOf returns the name under which a dtype is written, or "".
func nameOf(d tensor.Dtype) string {
	for _, s := range sizes {
		if known, ok := dtypes[s.name]; ok && s.name != "BOOL" && known == d {
			return s.name
		}
	}
	return ""
}
