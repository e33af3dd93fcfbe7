package torchfile_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/torchfile"
	"github.com/cistern-ml/cistern/tensor"
)

// Example loads a file of torch.save into a model.
func Example() {
	ctx := context.Background()
	env, _ := tensor.Open("host")
	in := nn.Init(ctx, env)
	model := nn.Sequential{in.Linear(2, 3), in.BatchNorm(3)}
	f, err := torchfile.Open("testdata/nested_state_dict.pt")
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := nn.LoadWeights(ctx, model, f)
	fmt.Println(len(report.Loaded), errors.Join(err, f.Close(), in.Close(), env.Close()))
	// Output: 7 <nil>
}
