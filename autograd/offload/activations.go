package offload

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// Activations calls f and returns its result, as [autograd.Tape.Frame] does, and moves what its
// operations save for the backward pass to pinned host memory with o
// (torch.autograd.graph.save_on_cpu). The device has the memory for something else until Backward,
// which brings it back on a copy stream, the last values first, a few ahead of their use. Copies
// run beside the kernels, and nothing waits for them on the host. Gradients are bit-identical. A
// layer as a whole is [Layer]:
//
//	off, err := tensor.NewOffloader(env, tensor.OffloadConfig{})
//	x = offload.Activations(tape, off, func() *autograd.Variable {
//		return tape.Add(x, block.Forward(tape, x))
//	})
//
// A value moves when the program is done with it: a layer's inner values when the layer releases
// them, others at the end of f, the result, and what f was given, when it is released later. What
// the program keeps ([autograd.Variable.Keep]), holds until Backward or shares the memory of,
// parameters, and what is too small or finds no pinned memory ([tensor.OffloadConfig]) stays. What
// was made last is needed first: offloading the last layers before the loss saves nothing.
//
// Of a remat.Checkpoint inside f, what its function reads is offloaded. Inside of a checkpoint,
// which keeps nothing, and on a tape of [autograd.NoGrad], Activations is a frame. Of nested calls
// the inner one's offloader counts.
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

// Layer returns a layer whose activations for Backward are moved to pinned host memory with o: see
// [Activations]. Its parameters and buffers are l's, by the same names.
func Layer(l nn.Layer, o *tensor.Offloader) nn.Layer { return offloaded{nn.Wrapped{Layer: l}, o} }

type offloaded struct {
	nn.Wrapped
	with *tensor.Offloader
}

// Forward is the layer's, with its activations offloaded.
func (l offloaded) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l.Layer == nil {
		return t.Fail(fmt.Errorf("offload: Layer: %w: the layer is nil", autograd.ErrInvalid))
	}
	return t.Layer(nil, "", func() *autograd.Variable {
		return Activations(t, l.with, func() *autograd.Variable { return l.Layer.Forward(t, x) })
	})
}
