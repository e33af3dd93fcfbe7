package offload

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// Activations calls f and returns its result, like [autograd.Tape.Frame], and uses o to move the
// values that f's operations save for the backward pass to pinned host memory
// (torch.autograd.graph.save_on_cpu). Their device memory is free for other uses until Backward
// brings them back on a copy stream, the last values first, a few ahead of their use. Copies run
// concurrently with the kernels, and the host does not wait for them. Gradients are bit-identical.
// For a whole layer use [Layer]:
//
//	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{})
//	x = offload.Activations(tape, off, func() *autograd.Variable {
//		return tape.Add(x, block.Forward(tape, x))
//	})
//
// A value moves when the forward pass no longer uses it: a layer's inner values when the layer
// releases them, other values of f at its end, and f's result and inputs when they are released
// later. Some values stay on the device: parameters, values that the program keeps
// ([autograd.Variable.Keep]), holds until Backward or shares the memory of, and values that are too
// small or find no pinned memory ([tensor.OffloadConfig]). The backward pass needs the last values
// first, so offloading the last layers before the loss saves nothing.
//
// Of a remat.Checkpoint inside f, the values that its function reads are offloaded. Inside of a
// checkpoint, which saves nothing, and on a tape of [autograd.NoGrad], Activations is only a frame.
// In nested calls the inner call's offloader is used.
func Activations(t *autograd.Tape, o *tensor.Offloader, f func() *autograd.Variable) *autograd.Variable {
	var err error
	switch {
	case f == nil:
		err = fmt.Errorf("%w: the function is nil", autograd.ErrInvalid)
	case o == nil:
		err = fmt.Errorf("%w: the offloader is nil", autograd.ErrInvalid)
	case o.Runtime() != t.Runtime():
		err = fmt.Errorf("%w: the offloader is of another runtime than the tape", autograd.ErrInvalid)
	}
	if err != nil {
		return t.Fail(fmt.Errorf("offload: Activations: %w", err))
	}
	if !t.Begin("Activations") {
		return t.Fail(nil)
	}
	defer enterOffload(t, o)()
	return t.Frame(f)
}

// Layer returns a layer that runs l and uses o to move the activations for Backward to pinned host
// memory; see [Activations]. Its parameters and buffers are l's, with the same names.
func Layer(l nn.Layer, o *tensor.Offloader) nn.Layer { return offloaded{nn.Wrapped{Layer: l}, o} }

type offloaded struct {
	nn.Wrapped
	with *tensor.Offloader
}

// Forward calls the layer's Forward in Activations.
func (l offloaded) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l.Layer == nil {
		return t.Fail(fmt.Errorf("offload: Layer: %w: the layer is nil", autograd.ErrInvalid))
	}
	return t.Layer(nil, "", func() *autograd.Variable {
		return Activations(t, l.with, func() *autograd.Variable { return l.Layer.Forward(t, x) })
	})
}
