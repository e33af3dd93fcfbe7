// Package nn makes models of layers, with their first values, and the tapes of a training's steps.
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
// An [Initializer] makes what is trained. Its first error sticks, and that of a step's tape sticks
// to it; Close frees what it has made, and what it owns ([Own]).
//
// # Models
//
// A model is a [Layer], or a struct of layers and parameters, whose parts [ParametersOf] and
// [BuffersOf] find by their names. A [Sequential] releases what is between two layers, and adds
// bias and ReLU in place. A layer of the program's own calls [autograd.Tape.Layer] in its Forward,
// which frees every value except the result.
//
// Profiles name modules after their parameters, with the type of the layer: "encoder.0.fc (Linear)".
// An optimiser gives parameters their names; for a model without one [NameModules] does. The last
// name counts. Layers of this package, chains and [LayerOf] find their place by a parameter; a layer
// without parameters has a place in a [Sequential], and is a part of the layer around elsewhere. A
// layer that stands in two places has the name of the first one where that is inside of the layer
// around, else the number in its chain, or no name of its own.
//
// [StateDict] lists what of a model is saved. [SaveModel] and [LoadModel] write and read it as
// safetensors, in the names that PyTorch's state_dict has. [LoadWeights] loads published
// weights: renamed, transposed, converted, from shards or from PyTorch's own files.
//
// # As in PyTorch
//
// Weights are (out, in), names are "0.weight", first values are uniform in ±1/sqrt(in). Parameters
// are float32 or float64; tapes may compute in 16 bits ([ComputeDtype]).
package nn
