// Package nn makes models of layers with their initial values, and the tapes of training steps.
//
//	in := nn.Init(ctx, env, nn.Seed(1))
//	model := nn.Sequential{in.Linear(784, 512), nn.ReLU{}, in.Linear(512, 10)}
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(1e-3)}))
//	for _, tape := range in.Steps(1000) {
//		x, y := next()
//		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
//	}
//	err := in.Close()
//
// An [Initializer] makes layers, parameters and tapes. Its first error sticks, and so does that of
// a step's tape. Close frees everything that it has made or owns ([Own]).
//
// # Models
//
// A model is a [Layer], or a struct of layers and parameters, in which [ParametersOf] and
// [BuffersOf] find the parts and their names. A [Sequential] releases the values between its
// layers, and adds bias and ReLU in place. A layer of the program's own calls [autograd.Tape.Layer]
// in its Forward, which frees every value except the result.
//
// Profiles name modules after their parameters, with the type of the layer: "encoder.0.fc
// (Linear)". An optimiser sets the names of parameters; for a model without one [NameModules] does.
// The last name counts. Layers of this package, chains and [LayerOf] find their path by a
// parameter. A layer without parameters has a path only in a [Sequential]; elsewhere it is a part
// of the enclosing layer. A layer that is used twice has the first path if that is inside of the
// enclosing layer. Otherwise its name is the number in its chain, or it has none.
//
// [StateDict] lists the tensors of a model that are saved. [SaveModel] and [LoadModel] write and
// read them as safetensors, under the names of PyTorch's state_dict. [LoadWeights] loads published
// weights: renamed, transposed, converted, from shards or from PyTorch's own files.
//
// # As in PyTorch
//
// Weights are (out, in), names are "0.weight", initial values are uniform in ±1/sqrt(in).
// Parameters are float32 or float64; tapes may compute in 16 bits ([ComputeDtype]).
package nn
