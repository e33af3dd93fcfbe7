package autograd_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// The parameters of eight layers live in pinned memory: inference has those of two on the device.
func ExampleParameters_Offload() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{})
	check(err)
	in := autograd.Init(ctx, env, autograd.Seed(1))
	var model autograd.Sequential
	for range 8 {
		layer := in.Linear(256, 256, autograd.NoBias())
		check(in.Err())
		check(layer.Parameters().Offload(ctx, off)) // before the next one is made
		model = append(model, layer, autograd.ReLU{})
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
