package offload_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/tensor"
)

// The parameters of eight layers are in pinned memory. Inference holds those of two on the device.
func ExampleParameters() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{})
	check(err)
	in := nn.Init(ctx, env, nn.Seed(1))
	var model nn.Sequential
	for range 8 {
		layer := in.Linear(256, 256, nn.NoBias())
		check(in.Err())
		check(offload.Parameters(ctx, layer.Parameters(), off)) // before the next one is made
		model = append(model, layer, nn.ReLU{})
	}
	x := in.Tensor(make([]float64, 256), 1, 256)
	for range 2 {
		env.Cache().ResetPeakStats()
		tape := autograd.NoGrad(ctx, env)
		model.Forward(tape, tape.Input(x))
		check(tape.Close())
	}
	fmt.Println("KiB of parameters:", model.Parameters().Bytes()>>10, "peak:", env.Cache().MaxMemoryAllocated()>>10)
	s := off.Stats()
	fmt.Println("brought:", s.Fetched, "early:", s.Prefetched, "left without a copy:", s.Unchanged)
	check(errors.Join(in.Close(), off.Close(), env.Close()))
	// Output:
	// KiB of parameters: 2048 peak: 515
	// brought: 16 early: 7 left without a copy: 16
}
