// Package forecast reports what a training step takes before it runs: it runs the step on a dry
// device (package device/dry), which allocates what the real one would and computes nothing.
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
// The result has the profile of the second step, the holders and lines of the memory at its peak,
// and a summary of the model. [Report] writes a page of the run. [LargestBatch] and [SmallestLimit]
// search with such runs. [Measure] is the same on any device, to compare.
//
// What a step decides by values that it reads is not foreseen: they are zeros. Neither is memory of
// other programs, of the driver and of libraries.
package forecast
