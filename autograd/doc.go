// Package autograd records operations on tensors on a tape and computes their gradients.
//
//	tape := autograd.NewTape(ctx, env)
//	loss := tape.CrossEntropy(tape.Linear(tape.Input(x), tape.Param(weight), nil), y)
//	_, err := tape.Backward(loss)
//	err = tape.Close()
//
// Operations are methods of the [Tape]. They return at once; nothing in a step waits for the device
// unless the program reads a value. The tape's first error sticks: operations after it do nothing,
// and [Tape.Backward], [Tape.Err] and [Tape.Close] return it. A program that keeps one tape and
// calls [Tape.Reset] instead of Close makes few or no Go objects in a step.
//
// Programs that train start with package nn, which makes models and the tape of each step. The
// packages below this one use only its exported names:
//
//   - nn: layers, chains of layers, initial values, state dicts
//   - optim: optimisers, schedules, clipping of gradients
//   - metric: mean loss, accuracy and confusion of an epoch, summed on the device
//   - remat: activations that are computed again in the backward pass
//   - offload: activations, parameters and optimiser state in pinned host memory
//   - parallel: one model on several ranks
//   - checkpoint: files from which a training resumes
//   - safetensors, torchfile: files of named tensors, and of torch.save
//
// # Extensions
//
// To add an operation, make an [Op], or call [Tape.Func] if it is used in one place. To compose
// operations, use [Tape.Frame], or [Tape.Layer] for a layer. A feature, such as offload, handles
// the events of a tape as [Hooks], and finds the tapes that read a parameter by an [Attachment].
//
// # Memory
//
// The tape frees memory as early as possible. An operation saves for the backward pass only the
// values that its gradient needs: ReLU saves its result, a product saves each factor if the other
// one needs a gradient, and a sum saves nothing. Backward frees each value after its last use and
// each gradient when it is consumed, so that at the peak of a step there are parameters, gradients,
// the optimiser's state and little else. [Tape.Frame] and [Tape.Layer] free every value that their
// function made, except its result. [Variable.Release] frees a value earlier, and [Variable.Keep]
// holds one to be read later. [NoGrad] is for evaluation: each operation except a loss frees the
// results that it has read, unless the program keeps them.
//
// In bfloat16 or float16, activations and gradients take half the memory, because the tape computes
// in 16 bits while the parameters stay float32 ([Tape.SetComputeDtype]).
//
// Gradients of parameters add up over several tapes until ZeroGrad, which frees them. Backward
// fails with [ErrStale] if it needs a value that was overwritten after the forward pass, such as a
// parameter that an optimiser has updated.
//
// # Profiles
//
// The label of an allocation ([memcache.Label]) names its category (parameter, gradient, optimiser
// state, activation, input or workspace), its step and its module, in the backward pass as in the
// forward pass. Modules are named as their parameters are, with the type of the layer: "encoder.0
// (Linear)" has "encoder.0.weight". A part without parameters belongs to the enclosing module,
// which [Tape.Module] can name. A part with only the weights of another module does too; without an
// enclosing module, it is taken for that other module.
//
// # As in PyTorch
//
// Names, shapes, defaults and the meaning of every number are PyTorch's. Training on MNIST gives
// the same losses to nine digits in float64.
//
// # Goroutines
//
// A tape, its variables, the parameters that it uses and their optimiser belong to one goroutine at
// a time.
package autograd
