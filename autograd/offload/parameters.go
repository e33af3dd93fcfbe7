package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// parameterGroup is the parameters of one call of [Parameters]. They are in pinned memory between
// their uses, and move to the device and back together.
type parameterGroup struct {
	hostStage
	params []*autograd.Parameter
	// next is the group that came after this one in the last forward pass, by the group that came
	// before this one (nil if this one was first). A group that is used twice, such as tied
	// weights, has two entries.
	next  map[*parameterGroup]*parameterGroup
	after *parameterGroup // came next in the same [autograd.Tape.Run]
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

// Refuses refuses nothing. Attachments that need the parameter on the device refuse the group.
func (g *parameterGroup) Refuses(autograd.Attachment) error { return nil }

// Parameters moves ps to pinned host memory with o, where they stay between their uses (FSDP's
// CPUOffload, DeepSpeed's offload_param, accelerate's cpu_offload). Call it for each layer, or for
// other parameters that are used together, as soon as they are made:
//
//	for i := range blocks {
//		blocks[i] = newBlock(in)
//		err = offload.Parameters(ctx, blocks[i].Parameters(), off)
//	}
//
// The parameters of one call are a group. A tape brings a group to the device before the first
// operation that reads one of its parameters. The group leaves when an operation reads another
// group and nothing of this one. Backward does the same in its order. An optimiser's step brings
// parameters in pieces, with their state ([State]). While one group is in use, the next one is
// copied on its own stream. In a forward pass the next group is the one that followed in the
// previous pass, so the first pass copies none early. In a backward pass it is the group that is
// needed next. If the offloader's Ahead is negative, no group comes early. Results are
// bit-identical. A parameter that was not written leaves without a copy.
//
// Gradients stay on the device, and so do parameters that are too small or find no pinned memory
// ([tensor.OffloadConfig]), and parameters that share their memory with other tensors. On a tape
// that computes in bfloat16 the rounded copies move too, with a copy each time. A tape of
// [autograd.NoGrad] frees them and rounds again.
//
// While a parameter is on the host, its [autograd.Parameter.Value] is [tensor.Tensor.Offloaded],
// and operations of package tensor on it return an error that wraps [tensor.ErrOffloaded]. The
// program can bring it with [tensor.Offloader.Fetch]; the next tape moves it back. nn.StateDict,
// checkpoints and nn.LoadModel read and write it on the host.
//
// Captures and parameters of a parallel.Parallel are refused. With a nil o the parameters return to
// the device permanently, which must happen before the offloader's Close. A parameter belongs to
// the group of the last call. After an error of memory or of a copy some parameters may have moved,
// but all are usable.
func Parameters(ctx context.Context, ps autograd.Parameters, o *tensor.Offloader) error {
	if err := checkOffload(ctx, ps, o); err != nil {
		return fmt.Errorf("offload: Parameters: %w", err)
	}
	ctx = tensor.Detached(ctx)
	g := &parameterGroup{hostStage: hostStage{by: o, keep: true}}
	for _, p := range ps {
		if groupOf(p.Parameter) == g { // has two names
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
		if o != nil && o.Runtime() != p.Value().Runtime() {
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

// moveTo moves the parameter from its group, if any, to g. If g has no offloader, the parameter is
// in no group afterwards.
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
