// Package autograd trains models: a tape that records operations on tensors and runs them backward,
// layers, and optimisers.
//
//	in := nn.Init(ctx, env, nn.Seed(1))
//	model := nn.Sequential{in.Linear(784, 512), nn.ReLU{}, in.Linear(512, 10)}
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(1e-3)}))
//	for _, tape := range in.Steps(1000) {
//		x, y := next()
//		tape.Minimize(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
//	}
//	err := in.Close()
//
// An [nn.Initializer] makes what is trained, and its errors stick. Operations are methods of the
// [Tape]. They return at once; nothing in a step waits for the device unless the program reads a
// value. The tape's first error sticks, too: operations after it do nothing, and [Tape.Backward],
// [Tape.Err] and [Tape.Close] return it. Minimize and Steps are short for this:
//
//	tape := autograd.NewTape(ctx, env)
//	loss, err := tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
//	err = adam.Step(ctx)
//	err = adam.ZeroGrad(ctx)
//	err = tape.Close()
//
// A program that has one tape, and calls [Tape.Reset] where this one is closed, makes fewer Go
// objects in a step, or none.
//
// # Memory
//
// The tape frees what it can as soon as it can. An operation keeps for the backward pass only what
// its gradient needs: ReLU its result, a product the factors whose partners need a gradient, a sum
// nothing. A [nn.Sequential] model releases what is between two layers, and adds bias and ReLU in
// place. Backward frees each value after its last use and each gradient when it is consumed, so
// that at the peak of a step there are parameters, gradients, the optimiser's state and little
// else. A program that composes operations itself puts them in a [Tape.Frame], or in a [Tape.Layer]
// if they are a layer, which frees what is between. [Variable.Release] frees a value earlier, and
// [Variable.Keep] holds one to be read later. [NoGrad] is for evaluation: an operation frees what
// it has read, unless the program keeps it.
//
// Where that is too much, a [remat.Checkpoint] computes a part's values again in the backward pass,
// and a [offload.Activations] moves them to pinned host memory until then; layers are [remat.Layer] and
// [offload.Layer]:
//
//	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{MaxBytes: 4 << 30})
//	model := nn.Sequential{offload.Layer(first, off), offload.Layer(second, off), last}
//
// An optimiser's state can live there between the steps, too: err = offload.State(ctx, adam, off, 0).
// And gradients need not be there all at once: [optim.InBackward] updates parameters, and
// frees their gradients, while the backward pass goes on.
//
// In bfloat16 or float16 activations and gradients take half the memory. The tape computes in it,
// and the parameters stay float32 ([Tape.SetComputeDtype]):
//
//	in := nn.Init(ctx, env, nn.ComputeDtype(tensor.BFloat16))
//
// Gradients of parameters add up over several tapes until ZeroGrad, which frees them. A gradient of
// a value that was overwritten after the forward pass, such as a parameter by the step of another
// tape's optimiser, is refused; see [ErrStale].
//
// # Profiles
//
// What is allocated says by itself what it is for ([memcache.Label]): parameter, gradient,
// optimiser state, activation, input or workspace, of which step, and of which module, in the
// backward pass as in the forward pass. Modules are named as their parameters are: "encoder.0" has
// "encoder.0.weight". An optimiser tells parameters their names; for a model without one
// [nn.NameModules] does; the last name counts. A part without parameters belongs to the module around
// it, which [Tape.Module] names. So does one whose only weights are another one's; outside of any
// module it is taken for that one: say [Tape.Module].
//
// # As in PyTorch
//
// Names, shapes, defaults and the meaning of every number are PyTorch's: weights are (out, in),
// names are "0.weight", initial values are uniform in ±1/sqrt(in), optimisers follow torch.optim.
// Training on MNIST gives the same losses to nine digits in float64.
//
// # Goroutines
//
// A tape, its variables, the parameters that it uses and their optimiser belong to one goroutine at
// a time.
package autograd
