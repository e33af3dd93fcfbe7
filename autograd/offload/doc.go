// Package offload keeps activations, parameters and optimiser state in pinned host memory while the
// device does not need them.
//
//	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{MaxBytes: 4 << 30})
//	model := nn.Sequential{offload.Layer(first, off), offload.Layer(second, off), last}
//	err = offload.State(ctx, adam, off, 0)
//
// A [Layer] moves its activations to the host until the backward pass needs them; [Activations]
// does the same for a function. [Parameters] moves parameters to the host between their uses, a
// group at a time. [State] moves an optimiser's state to the host between the steps.
//
// Copies run on their own streams concurrently with the kernels, and the host does not wait for
// them. Results are bit-identical to those without offload. Tensors that are too small, or for
// which there is no pinned memory, stay on the device. Close the offloader after everything that
// uses it.
package offload
