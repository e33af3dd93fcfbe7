package nn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// The names in a file have a prefix that the model's names lack.
func ExampleRename() {
	folder, err := os.MkdirTemp("", "weights")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "model.safetensors")
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	published := &struct{ Model nn.Sequential }{nn.Sequential{in.Linear(2, 4), nn.ReLU{}, in.Linear(4, 1)}}
	check(nn.SaveModel(ctx, published, path))

	model := nn.Sequential{in.Linear(2, 4), nn.ReLU{}, in.Linear(4, 1)} // 0.weight, 0.bias, 2.weight, 2.bias
	file, err := safetensors.Open(path)                                 // model.0.weight, …
	check(err)
	report, err := nn.LoadWeights(ctx, model, file, nn.Rename(func(name string) string {
		return strings.TrimPrefix(name, "model.")
	}))
	check(errors.Join(err, file.Close()))
	fmt.Print(report)

	check(errors.Join(in.Close(), env.Close()))
	// Output:
	// loaded: 4
	//   0.weight: F32 (4, 2) of "model.0.weight", as float32 (4, 2)
	//   0.bias: F32 (4) of "model.0.bias", as float32 (4)
	//   2.weight: F32 (1, 4) of "model.2.weight", as float32 (1, 4)
	//   2.bias: F32 (1) of "model.2.bias", as float32 (1)
}
