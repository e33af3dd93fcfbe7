// Package offload keeps activations, parameters and optimiser state in pinned host memory while the
// device does not need them.
//
//	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{MaxBytes: 4 << 30})
//	model := nn.Sequential{offload.Layer(first, off), offload.Layer(second, off), last}
//	err = offload.State(ctx, adam, off, 0)
//
// A [Layer] moves what the backward pass needs of it to the host until then; [Activations] is the
// same for a function. [Parameters] moves parameters between their uses, a group at a time. [State]
// moves an optimiser's state between the steps.
//
// Copies run on streams of their own beside the kernels, and the host waits for none of them.
// Numbers are bit-identical to those without offload. What is too small or finds no pinned memory
// stays on the device. The offloader is closed after everything that uses it.
package offload
