package remat

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// A checkpoint trades time for memory (Chen et al., Training Deep Nets with Sublinear Memory Cost,
// 2016). Its function runs normally; then the tape drops the function's nodes and all values except
// the result. One node replaces them and saves the outside variables that the function read. The
// node's backward step runs the function again with the same random numbers, and the backward pass
// continues with the nodes that this run records. So only the inner values of one checkpoint, and
// of the checkpoints around it, are in memory at a time.

// checkpoint is one use of Checkpoint. It is the record of its node.
type checkpoint struct {
	tape     *autograd.Tape
	own      []*tensor.Tensor // held by regions.Bring
	outer    *checkpoint
	f        func() *autograd.Variable
	before   int             // variables of the tape up to this number are from outside
	holds    []autograd.Hold // outside variables that the function reads, with their versions
	again    bool            // the function runs again
	results  int             // of the tape before the run
	read     int             // number of results of a run before the first of unread
	unread   []unread        // the last results, which are not read in the second run
	shapes   shapeHash
	mode     autograd.Mode
	did      trail
	recorded bool // a node has this record
}

// trail is the record of a function's run by which its two runs are compared.
type trail struct {
	autograd.Recorded
	dtype  tensor.Dtype
	shape  string
	shapes shapeHash
}

// Checkpoint calls f and returns its result, like [autograd.Tape.Frame], but keeps none of f's
// other values: Backward calls f again to compute the values that gradients need
// (torch.utils.checkpoint). That costs about one more forward pass of f and saves the memory of its
// activations. For a whole layer use [Layer]; Checkpoint is for other functions:
//
//	for _, block := range blocks {
//		in := x
//		x = remat.Checkpoint(tape, func() *autograd.Variable {
//			return tape.Add(in, block.Forward(tape, in))
//		})
//	}
//
// f runs on the tape's goroutine and must do the same both times. Go variables that it reads must
// not be assigned to in between: in the loop above f reads in, not x. Random operations use the
// same numbers again, and batch norms update their running statistics only once. If the second run
// returns a result of another dtype or shape, records other operations, or reads another variable,
// the error wraps [autograd.ErrInvalid]. The second run does not compute values that no gradient
// needs, such as the last product of a transformer block. So f must not read
// ([autograd.Variable.Value], [autograd.Variable.Item]) other values then than in the first run.
// Tensors that f brings to the tape must exist until Backward and not be overwritten; if a
// parameter or variable was overwritten, the error wraps [autograd.ErrStale]. f must not make
// leaves. Variables that f keeps ([autograd.Variable.Keep]) stay until Close, those of both runs.
// The tape holds f's outside variables and tensors until f has run again.
//
// Checkpoints nest: inner ones run once more for each one around them. On a tape of
// [autograd.NoGrad] a checkpoint is only a frame.
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
	if c.did = c.trail(did, y); c.outside(y) || !y.RequiresGrad() { // nothing to run again
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

// outside reports whether a variable was not made by the function.
func (c *checkpoint) outside(v *autograd.Variable) bool {
	return v.Number() <= c.before || v.Parameter() != nil
}

// reads holds the variables of vs from outside of the function, so that the tape neither frees nor
// overwrites them before the second run, and detects an overwrite by the program.
func (c *checkpoint) reads(vs []*autograd.Variable) {
	for ; c != nil && !c.again; c = c.outer {
		for _, v := range vs {
			if v.Tensor() != nil && c.outside(v) && !c.has(v) {
				c.holds = append(c.holds, v.Hold())
			}
		}
	}
}

// letGo ends the holds of reads and Bring, unless a node has taken them.
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

// strange reports whether v is from outside of a function that runs again, and its first run did
// not read v. It is false on a nil checkpoint.
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

// Forward is not called, because the function's operations have computed the result.
func (c *checkpoint) Forward(*autograd.Call) (*tensor.Tensor, error) { return nil, nil }

// Backward runs the function again. The backward steps of the nodes that it records come next.
func (c *checkpoint) Backward(_ *autograd.Call, g *tensor.Tensor) error {
	y, did, err := c.rerun()
	if err == nil && did != c.did {
		err = fmt.Errorf("%w: the function ran differently the second time: %s, and %s before%s", autograd.ErrInvalid, did, c.did, did.apart(c.did))
	}
	if err == nil {
		err = c.tape.Give(y, g)
	}
	y.Release()
	return err
}

// String returns a text of the compared figures.
func (d trail) String() string {
	return fmt.Sprintf("%v %s of %d operations with %d random ones", d.dtype, d.shape, d.Nodes, d.Random)
}

// apart returns a text for a difference of two runs that String does not show.
func (d trail) apart(before trail) string {
	if d.shapes == before.shapes || d.Nodes != before.Nodes {
		return ""
	}
	return "; an operation in between, or its shapes, differ"
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
		return nil, did, fmt.Errorf("%w: the function ran differently the second time: its result has no gradient", autograd.ErrInvalid)
	}
	return y, c.trail(recorded, y), nil
}

// runningAgain returns the innermost checkpoint that runs again, or nil.
func (c *checkpoint) runningAgain() *checkpoint {
	for c != nil && !c.again {
		c = c.outer
	}
	return c
}

// Layer returns a layer that runs l, keeps none of its activations for Backward, and computes them
// again there; see [Checkpoint]. Its parameters and buffers are l's, with the same names.
func Layer(l nn.Layer) nn.Layer { return checkpointed{nn.Wrapped{Layer: l}} }

type checkpointed struct{ nn.Wrapped }

// Forward calls the layer's Forward in a checkpoint.
func (l checkpointed) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l.Layer == nil {
		return t.Fail(fmt.Errorf("remat: Layer: %w: the layer is nil", autograd.ErrInvalid))
	}
	return t.Layer(nil, "", func() *autograd.Variable {
		return Checkpoint(t, func() *autograd.Variable { return l.Layer.Forward(t, x) })
	})
}
