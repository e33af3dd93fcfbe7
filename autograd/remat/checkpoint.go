package remat

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// A checkpoint trades time for memory (Chen et al., Training Deep Nets with Sublinear Memory Cost,
// 2016). Its function runs as any other, then the tape drops its nodes and all values except the
// result. One node replaces them, which saves the outside variables that the function read. Its
// backward step runs the function again with the same random numbers, and the backward pass
// continues with the nodes that the function records. So at most one checkpoint's inner values are
// in memory, and those of the checkpoints around it.

// checkpoint is one use of Checkpoint. It is the record of its node.
type checkpoint struct {
	tape     *autograd.Tape
	own      []*tensor.Tensor // that regions.Bring holds
	outer    *checkpoint
	f        func() *autograd.Variable
	before   int             // the tape's variables up to there are from outside
	holds    []autograd.Hold // what the function reads from outside, at the versions that it read first
	again    bool            // the function runs once more
	results  int             // that the tape had before the run
	read     int             // results of a run that are read, until the first of unread
	unread   []unread        // the last results, which the second run does not read
	shapes   shapeHash
	mode     autograd.Mode
	did      trail
	recorded bool // a node has the record
}

// trail is by what the two runs of a function are compared.
type trail struct {
	autograd.Recorded
	dtype  tensor.Dtype
	shape  string
	shapes shapeHash
}

// Checkpoint calls f and returns its result, as [autograd.Tape.Frame] does, and keeps nothing else
// of it: Backward calls f again for the values that gradients need (torch.utils.checkpoint). That
// costs about a forward pass of f, and saves the memory of its activations. A layer as a whole is
// [Layer]; f is for what is none:
//
//	for _, block := range blocks {
//		in := x
//		x = remat.Checkpoint(tape, func() *autograd.Variable {
//			return tape.Add(in, block.Forward(tape, in))
//		})
//	}
//
// f runs on the tape's goroutine, and must do the same both times. Its Go variables must not be
// assigned to in between: in the loop above f reads in, and not x. Random operations take the same
// numbers again, and batch norms move their running statistics once. A second run that gives
// another result in kind, records other operations, or reads another variable is an error that
// wraps [autograd.ErrInvalid]. What no gradient needs of it, such as the last product of a
// transformer's block, is not computed again: f must not look at other values
// ([autograd.Variable.Value], [autograd.Variable.Item]) then than before. Tensors that f brings to
// the tape must be there until Backward, and not be overwritten; a parameter or variable that was
// is an error that wraps [autograd.ErrStale]. Leaves are made outside. What f keeps
// ([autograd.Variable.Keep]) stays until Close, of each run. The tape holds f's outside variables
// and tensors until f has run again.
//
// Checkpoints nest: inner ones run once more for each one around them. On a tape of
// [autograd.NoGrad] a checkpoint is a frame.
func Checkpoint(t *autograd.Tape, f func() *autograd.Variable) *autograd.Variable {
	switch {
	case f == nil:
		return t.Fail(fmt.Errorf("remat: Checkpoint: %w: the function is nil", autograd.ErrInvalid))
	case !t.Begin("Checkpoint"):
		return t.Fail(nil)
	case !t.Recording():
		return t.Frame(f)
	}
	r := regionsOf(t)
	c := &checkpoint{tape: t, outer: r.checkpoint, f: f, before: t.Count(), mode: t.Mode()}
	defer c.letGo()
	var did autograd.Recorded
	y := c.run(r, func() (y *autograd.Variable) {
		y, did = t.Dropped(f)
		return y
	})
	switch {
	case t.Phase() == autograd.PhaseEnded: // the program has ended the tape
		return t.Fail(nil)
	case t.Err() == nil && y == nil:
		return t.Fail(fmt.Errorf("remat: Checkpoint: %w: the function returned nil", autograd.ErrInvalid))
	case t.Err() != nil:
		return t.Fail(nil)
	}
	if c.did = c.trail(did, y); c.outside(y) || !y.RequiresGrad() { // nothing was computed for it, or no gradient comes to it
		return y
	}
	c.recorded = true
	t.Record("Checkpoint", y, c, c.holds, c.own...)
	return y
}

// run calls f as a run of the function.
func (c *checkpoint) run(r *regions, f func() *autograd.Variable) *autograd.Variable {
	outer := r.checkpoint
	r.checkpoint = c
	c.results, c.shapes = r.results, 0
	defer func() {
		r.checkpoint = outer
		if !c.again {
			c.read = r.results - c.results - len(c.unread)
		}
	}()
	return f()
}

// outside reports whether a variable is not of the function's making.
func (c *checkpoint) outside(v *autograd.Variable) bool {
	return v.Number() <= c.before || v.Parameter() != nil
}

// reads holds the variables among vs that are from outside of the function, so that they are not
// freed or overwritten.
func (c *checkpoint) reads(vs []*autograd.Variable) {
	for ; c != nil && !c.again; c = c.outer {
		for _, v := range vs {
			if v.Tensor() != nil && c.outside(v) && !c.has(v) {
				c.holds = append(c.holds, v.Hold())
			}
		}
	}
}

// letGo ends the holds of reads and Bring, unless a node has taken them over.
func (c *checkpoint) letGo() {
	if c.recorded {
		return
	}
	for _, h := range c.holds {
		h.Drop()
	}
	for _, x := range c.own {
		if err := x.ReleaseContext(c.tape.Context()); err != nil {
			c.tape.Fail(err)
		}
	}
}

func (c *checkpoint) has(v *autograd.Variable) bool {
	return slices.ContainsFunc(c.holds, func(h autograd.Hold) bool { return h.Variable() == v })
}

// strange reports whether v is from outside of a function that runs again and has not read it
// before. The nil checkpoint is none.
func (c *checkpoint) strange(v *autograd.Variable) bool {
	for ; c != nil; c = c.outer {
		if c.again && c.outside(v) && !c.has(v) {
			return true
		}
	}
	return false
}

func (c *checkpoint) trail(did autograd.Recorded, y *autograd.Variable) trail {
	return trail{Recorded: did, dtype: y.Tensor().Dtype(), shape: fmt.Sprint(y.Shape()), shapes: c.shapes}
}

// Forward is not called: the function's operations have computed the result.
func (c *checkpoint) Forward(*autograd.Call) (*tensor.Tensor, error) { return nil, nil }

// Backward runs the function again. The backward steps of what it records then come next.
func (c *checkpoint) Backward(_ *autograd.Call, g *tensor.Tensor) error {
	y, did, err := c.rerun()
	if err == nil && did != c.did {
		err = fmt.Errorf("%w: the function did something else when it ran again: %s, and %s before%s", autograd.ErrInvalid, did, c.did, did.apart(c.did))
	}
	if err == nil {
		err = c.tape.Give(y, g)
	}
	y.Release()
	return err
}

// String says what a function did.
func (d trail) String() string {
	return fmt.Sprintf("%v %s of %d operations with %d random ones", d.dtype, d.shape, d.Nodes, d.Random)
}

// apart says in what two runs differ that String tells nothing of.
func (d trail) apart(before trail) string {
	if d.shapes == before.shapes || d.Nodes != before.Nodes {
		return ""
	}
	return "; an operation on the way is another one, or of other shapes"
}

// rerun runs the function again.
func (c *checkpoint) rerun() (y *autograd.Variable, did trail, err error) {
	t := c.tape
	c.before, c.again = t.Count(), true
	var recorded autograd.Recorded
	y = c.run(regionsOf(t), func() (y *autograd.Variable) {
		y, recorded = t.Rerun(c.mode, c.f)
		return y
	})
	switch {
	case t.Err() != nil:
		return nil, did, t.Err()
	case t.Phase() != autograd.PhaseBackward:
		return nil, did, fmt.Errorf("%w: the function ended the tape", autograd.ErrSpent)
	case y.Tensor() == nil || !y.RequiresGrad() || c.outside(y):
		return nil, did, fmt.Errorf("%w: the function did something else when it ran again: its result has no gradient", autograd.ErrInvalid)
	}
	return y, c.trail(recorded, y), nil
}

// runningAgain is the innermost checkpoint that runs again; nil: none does.
func (c *checkpoint) runningAgain() *checkpoint {
	for c != nil && !c.again {
		c = c.outer
	}
	return c
}

// Layer returns a layer that keeps none of its activations for Backward, and computes them again
// there: see [Checkpoint]. Its parameters and buffers are l's, by the same names.
func Layer(l nn.Layer) nn.Layer { return checkpointed{nn.Wrapped{Layer: l}} }

type checkpointed struct{ nn.Wrapped }

// Forward is the layer's, in a checkpoint.
func (l checkpointed) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l.Layer == nil {
		return t.Fail(fmt.Errorf("remat: Layer: %w: the layer is nil", autograd.ErrInvalid))
	}
	return t.Layer(nil, "", func() *autograd.Variable {
		return Checkpoint(t, func() *autograd.Variable { return l.Layer.Forward(t, x) })
	})
}
