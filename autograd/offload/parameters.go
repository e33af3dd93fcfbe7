package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// parameterGroup is parameters that live in pinned memory between their uses, and come to the
// device and leave it together: those of one call of [Parameters].
type parameterGroup struct {
	hostStage
	params []*autograd.Parameter
	// next is the group that came after this one in the last forward pass, by the group before this
	// one; nil for the first. One that is used twice, as tied weights are, has two.
	next  map[*parameterGroup]*parameterGroup
	after *parameterGroup // that came after this one in the same [autograd.Tape.Run], the last time
}

// groupOf returns a parameter's group, or nil if it is not offloaded.
func groupOf(p *autograd.Parameter) *parameterGroup {
	g, _ := autograd.Attached[*parameterGroup](p)
	return g
}

// Join hooks the tape's residency.
func (g *parameterGroup) Join(t *autograd.Tape, _ *autograd.Variable) error {
	residencyOf(t)
	return nil
}

// Refuses refuses nothing: attachments that need the parameter on the device refuse the group.
func (g *parameterGroup) Refuses(autograd.Attachment) error { return nil }

// Parameters lets ps live in pinned host memory with o from now on, and takes them off the
// device (FSDP's CPUOffload, DeepSpeed's offload_param, accelerate's cpu_offload). Call it for each
// layer, or whatever is used together, as soon as that is made:
//
//	for i := range blocks {
//		blocks[i] = newBlock(in)
//		err = offload.Parameters(ctx, blocks[i].Parameters(), off)
//	}
//
// The parameters of one call are a group. A tape brings a group to the device before the first
// operation that reads one of it, and lets it go when an operation reads one of another group; so
// does Backward, in its order, and an optimiser's step brings them in pieces, with their state
// ([State]). While one group is in use, the next one is copied on a stream of its own. In a forward
// pass the next group is the one that followed in the pass before, so that the first pass copies
// none early. In a backward pass it is the group that is needed next. If the offloader's Ahead is
// negative, no group comes early. Numbers are bit-identical. A parameter that was not written leaves
// without a copy.
//
// Gradients stay on the device. So do parameters that are too small or find no pinned memory
// ([tensor.OffloadConfig]), and parameters that share their memory with other tensors. On a tape that computes in
// bfloat16 the rounded copies leave too, each time with a copy unless the tape is one of
// [autograd.NoGrad], which rounds again.
//
// [autograd.Parameter.Value] of one that is away is [tensor.Tensor.Offloaded], and an operation of
// package tensor on it an error that wraps [tensor.ErrOffloaded], until the program brings it with
// [tensor.Offloader.Fetch]; the next tape takes it away again. nn.StateDict, checkpoints and
// nn.LoadModel read and write it where it is.
//
// Captures are refused, and so are parameters of a parallel.Parallel. With nil the parameters come
// back for good, which is to come before the offloader's Close. A parameter is of the group of the
// last call. After an error of memory or of a copy some may have moved, and all can be used.
func Parameters(ctx context.Context, ps autograd.Parameters, o *tensor.Offloader) error {
	if err := checkOffload(ctx, ps, o); err != nil {
		return fmt.Errorf("offload: Parameters: %w", err)
	}
	ctx = tensor.Detached(ctx)
	g := &parameterGroup{hostStage: hostStage{by: o, keep: true}}
	for _, p := range ps {
		if groupOf(p.Parameter) == g { // it has two names
			continue
		}
		if err := moveTo(ctx, p.Parameter, g); err != nil {
			return fmt.Errorf("offload: Parameters: parameter %q: %w", p.Name, err)
		}
	}
	return nil
}

func checkOffload(ctx context.Context, ps autograd.Parameters, o *tensor.Offloader) error {
	if ctx == nil {
		return fmt.Errorf("%w: the context is nil; use context.Background()", autograd.ErrInvalid)
	}
	for _, p := range ps {
		if err := p.Err(); err != nil {
			return fmt.Errorf("parameter %q: %w", p.Name, err)
		}
		switch {
		case o != nil && o.Runtime() != p.Value().Runtime():
			return fmt.Errorf("parameter %q: %w: the offloader is of another runtime than the parameter", p.Name, autograd.ErrInvalid)
		}
		if err := p.CanAttach(&parameterGroup{hostStage: hostStage{by: o, keep: true}}); err != nil {
			return fmt.Errorf("parameter %q: %w", p.Name, err)
		}
		if c := p.Value().Runtime().Capturing(); c != nil {
			return c.Refuse("offload.Parameters", "memory stays where it is while a graph uses it: call it before the capture, with nil")
		}
	}
	return nil
}

// moveTo makes the parameter one of g, from whatever group it was in. If g has no offloader it is of none.
func moveTo(ctx context.Context, p *autograd.Parameter, g *parameterGroup) error {
	was := groupOf(p)
	if was != nil && was.by != g.by {
		if err := was.by.Fetch(ctx, p.Value()); err != nil && (p.Value().Offloaded() || !errors.Is(err, tensor.ErrClosed)) {
			return err
		}
	}
	if was != nil {
		was.params = slices.DeleteFunc(was.params, func(q *autograd.Parameter) bool { return q == p })
		p.Detach(was)
	}
	if g.by == nil {
		return nil
	}
	if err := p.Attach(g); err != nil {
		return err
	}
	g.params = append(g.params, p)
	return g.Leave(ctx, p.Value())
}
