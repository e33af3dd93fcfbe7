package safetensors_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// Example writes a tensor to a file and loads it from there.
func Example() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")
	env, _ := tensor.Open("host")
	w, err := tensor.FromSlice(ctx, env, []float32{1, 2, 3, 4}, 2, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := safetensors.WriteFile(ctx, path, []safetensors.Named{{Name: "0.weight", Tensor: w}}, nil); err != nil {
		fmt.Println(err)
		return
	}
	f, err := safetensors.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, info := range f.Tensors() {
		fmt.Println(info.Name, info.Dtype, info.Shape)
	}
	weight, err := f.Load(ctx, env, "0.weight")
	if err != nil {
		fmt.Println(err)
		return
	}
	numbers, err := tensor.ToSlice[float32](ctx, weight, nil)
	fmt.Println(numbers, errors.Join(err, f.Close(), w.Release(), weight.Release(), env.Close()))
	// Output:
	// 0.weight F32 [2 2]
	// [1 2 3 4] <nil>
}
