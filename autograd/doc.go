// Package autograd records operations on tensors on a tape and computes their gradients.
//
//	tape := autograd.NewTape(ctx, env)
//	loss := tape.CrossEntropy(tape.Linear(tape.Input(x), tape.Param(weight), nil), y)
//	_, err := tape.Backward(loss)
//	err = tape.Close()
//
// Operations are methods of the [Tape]. They return at once; nothing in a step waits for the device
// unless the program reads a value. The tape's first error sticks: operations after it do nothing,
// and [Tape.Backward], [Tape.Err] and [Tape.Close] return it. A program that has one tape, and calls
// [Tape.Reset] where this one is closed, makes fewer Go objects in a step, or none.
//
// Programs that train begin with package nn, which makes models and the tape of each step. The
// packages below this one use its exported names only:
//
//   - nn: layers, chains of layers, first values, state dicts
//   - optim: optimisers, schedules, clipping of gradients
//   - metric: what a training looks at once an epoch, added up on the device
//   - remat: activations that are computed again in the backward pass
//   - offload: activations, parameters and optimiser state in pinned host memory
//   - parallel: one model on several ranks
//   - checkpoint: files that a training goes on from
//   - safetensors, torchfile: files of named tensors, and of torch.save
//
// # Extensions
//
// An operation that is not there is an [Op], or a [Tape.Func] if it is used in one place. A
// composition of operations goes into a [Tape.Frame], or into a [Tape.Layer] if it is a layer. A
// feature, such as offload, handles the events of a tape as [Hooks], and finds the tapes that read a
// parameter by an [Attachment].
//
// # Memory
//
// The tape frees what it can as soon as it can. An operation keeps for the backward pass only what
// its gradient needs: ReLU its result, a product the factors whose partners need a gradient, a sum
// nothing. Backward frees each value after its last use and each gradient when it is consumed, so
// that at the peak of a step there are parameters, gradients, the optimiser's state and little
// else. [Tape.Frame] and [Tape.Layer] free every value that their function made, except its result.
// [Variable.Release] frees a value earlier, and [Variable.Keep] holds one to be read later.
// [NoGrad] is for evaluation: an operation except a loss frees what it has read, unless the program
// keeps it.
//
// In bfloat16 or float16 activations and gradients take half the memory: the tape computes in it,
// and the parameters stay float32 ([Tape.SetComputeDtype]).
//
// Gradients of parameters add up over several tapes until ZeroGrad, which frees them. A gradient of
// a value that was overwritten after the forward pass, such as a parameter by the step of another
// tape's optimiser, is refused; see [ErrStale].
//
// # Profiles
//
// The label of an allocation ([memcache.Label]) names its category (parameter, gradient, optimiser
// state, activation, input or workspace), its step and its module, in the backward pass as in the
// forward pass. Modules are named as their parameters are, with the type of the layer: "encoder.0
// (Linear)" has "encoder.0.weight". A part without parameters belongs to the module around it,
// which [Tape.Module] names. A part whose only weights are another module's does too; outside of
// any module it is taken for the other one, unless it is in a [Tape.Module].
//
// # As in PyTorch
//
// Names, shapes, defaults and the meaning of every number are PyTorch's. Training on MNIST gives the
// same losses to nine digits in float64.
//
// # Goroutines
//
// A tape, its variables, the parameters that it uses and their optimiser belong to one goroutine at
// a time.
package autograd
