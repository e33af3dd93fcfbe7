// Package forecast reports the memory that a training step needs before it runs on the real device.
// It runs the step on a dry device (package device/dry), which makes the same allocations and
// computes nothing.
//
//	program := func(ctx context.Context, rt *tensor.Runtime) (*forecast.Training, error) {
//		in := nn.Init(ctx, rt)
//		model := newModel(in)
//		adam := nn.Own(in, optim.NewAdam(nn.ParametersOf(model), optim.AdamConfig{}))
//		x, err := rt.Zeros(ctx, tensor.Float32, 128, 784)
//		...
//		return &forecast.Training{Model: model, Step: step, Close: in.Close}, in.Err()
//	}
//	f, err := forecast.Step(ctx, "dry:cuda?gpu=L4", program)
//	err = f.Table(os.Stdout)
//
// The result has the profile of the second step, the labels and source lines that hold the memory
// at its peak, and a summary of the model. [Report] writes a page of the run. [LargestBatch] and
// [SmallestLimit] search with such runs. [Measure] does the same on any device, for comparison.
//
// All values that a step reads from the dry device are zeros, so the forecast can't follow
// decisions that depend on them. It does not include memory of other programs, of the driver or of
// libraries.
package forecast
