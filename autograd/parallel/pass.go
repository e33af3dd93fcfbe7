package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// Each final gradient is counted in its bucket. Full buckets are reduced in the buckets' order, so
// that all ranks queue the same operations.

// pass is a backward pass whose gradients are reduced.
type pass struct {
	on       bool
	captured bool
	next     int   // the next bucket to reduce
	order    []int // replicas in the order of their final gradients
	missing  []*replica
	flags    *tensor.Tensor   // 1 for a replica with a gradient, else 0; nil: all 1
	held     []*tensor.Tensor // whole gradients of the last launched bucket, if sharded
}

// parallelHook hooks a Parallel to the tapes that read its parameters.
type parallelHook struct {
	autograd.NoHooks
	of *Parallel
}

// Begin begins a pass.
func (h *parallelHook) Begin(*autograd.Tape) error { return h.of.begin() }

// Final assigns a gradient and counts it in its bucket.
func (h *parallelHook) Final(t *autograd.Tape, v *autograd.Variable) error {
	r := replicaOf(v.Parameter())
	if r == nil || r.of != h.of || !h.of.pass.on {
		return nil
	}
	if err := t.AssignGrad(v, true); err != nil { // ranks sum in float32
		return err
	}
	return h.of.produced(t.Context(), r)
}

// End reduces the remaining buckets. If the tape failed, it aborts the communicator.
func (h *parallelHook) End(t *autograd.Tape, err error) error {
	d := h.of
	switch {
	case err == nil:
		for _, r := range d.replicas { // those that no operation reads, and NoSync's
			if v := t.Variable(r.Parameter); v != nil {
				if err := t.AssignGrad(v, true); err != nil {
					return err
				}
			}
		}
		if d.pass.on {
			return d.finish(t)
		}
	case !d.closed && d.local == 0:
		_ = d.tell(err)
		d.reset()
	}
	return nil
}

// begin begins a pass, unless gradients stay on this rank.
func (d *Parallel) begin() error {
	d.pass = pass{captured: d.rt.Capturing() != nil}
	switch {
	case d.closed:
		return fmt.Errorf("the Parallel: %w", device.ErrClosed)
	case slices.ContainsFunc(d.frozen, trains):
		p := d.frozen[slices.IndexFunc(d.frozen, trains)]
		return d.failed("before the pass", fmt.Errorf("%w: parameter %q was frozen when the Parallel was made, and trains now, so its gradient would not be reduced: make a new Parallel, with a new communicator", autograd.ErrInvalid, p.Name))
	case d.local > 0:
		return nil
	}
	if err := d.comm.AsyncError(); err != nil {
		return d.failed("an earlier operation", err)
	}
	d.pass.on = true
	for i := range d.buckets {
		d.buckets[i].left = len(d.buckets[i].replicas)
	}
	for _, r := range d.replicas {
		r.ready = false
	}
	return nil
}

func trains(p autograd.Named) bool { return p.RequiresGrad() }

// produced marks a gradient as final and reduces full buckets, except the last bucket, which is
// reduced at the end of the pass.
func (d *Parallel) produced(ctx context.Context, r *replica) error {
	r.ready = true
	d.pass.order = append(d.pass.order, r.index)
	d.buckets[r.bucket].left--
	for d.pass.next < len(d.buckets)-1 && d.buckets[d.pass.next].left == 0 {
		if err := d.launch(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish reduces the remaining buckets, and makes the runtime's stream wait for all of them.
func (d *Parallel) finish(t *autograd.Tape) (err error) {
	p := &d.pass
	defer func() {
		if err == nil {
			err = p.flags.ReleaseContext(t.Context())
			d.pass = pass{}
		}
	}()
	if err := d.fill(t.Context()); err != nil {
		return err
	}
	for p.next < len(d.buckets) {
		if err := d.launch(t.Context()); err != nil {
			return err
		}
	}
	for _, end := range []func(context.Context) error{func(context.Context) error { return d.join() }, d.settle, d.keepShards} {
		if err := end(t.Context()); err != nil {
			return d.failed("the end of the pass", err) // later ones would fail too
		}
	}
	if c := d.rt.Capturing(); c != nil {
		return c.OnReplay(func() error { return d.passed(context.Background(), true) })
	}
	if err := d.passed(t.Context(), false); err != nil {
		return err
	}
	return d.learn(t.Context())
}

// passed counts a pass, and verifies every VerifyEvery-th. Before a replay buffers are left out,
// because they may differ after passes of NoSync.
func (d *Parallel) passed(ctx context.Context, replayed bool) error {
	d.passes++
	if n := d.cfg.VerifyEvery; n > 0 && d.passes%n == 0 {
		return d.verify(ctx, replayed || d.cfg.LocalBuffers)
	}
	return nil
}

// fill assigns zeros to replicas without a gradient, for the sum with the other ranks', and sets
// their flags to 0.
func (d *Parallel) fill(ctx context.Context) error {
	p := &d.pass
	ctx = tensor.Detached(ctx)
	flags := make([]int32, len(d.replicas))
	for i, r := range d.replicas {
		if flags[i] = 1; r.Grad() != nil || r.part.next != nil {
			continue
		}
		if c := d.rt.Capturing(); c != nil {
			return d.failed("a captured step", c.Refuse("Backward", fmt.Sprintf("parameter %q has got no gradient, and whether other ranks have one is not known before the replay", r.name)))
		}
		zeros, err := d.rt.Zeros(ctx, r.Value().Dtype(), r.Value().Shape()...)
		if err != nil {
			return d.failed(fmt.Sprintf("zeros for parameter %q, which has got no gradient", r.name), err)
		}
		flags[i], p.missing = 0, append(p.missing, r)
		r.SetGrad(zeros)
	}
	if p.missing == nil {
		return nil
	}
	var err error
	if p.flags, err = tensor.FromSlice(ctx, d.rt, flags); err != nil {
		return d.failed("copying the list of parameters that have got no gradient", err)
	}
	return nil
}

// end queues the operations that follow the last bucket's gradients.
func (p *pass) end(d *Parallel) error {
	if !p.captured {
		flags := p.flags
		if flags == nil {
			flags = d.ones
		}
		from, n, dt := place(flags)
		to, _, _ := place(d.counts)
		if err := d.comm.AllReduce(d.stream, to, from, n, dt, device.ReduceSum); err != nil {
			return err
		}
	}
	if d.cfg.LocalBuffers {
		return nil
	}
	return d.broadcastAll(d.buffers)
}

// settle frees the gradients of fill that no rank has.
func (d *Parallel) settle(ctx context.Context) error {
	if d.pass.missing == nil {
		return nil
	}
	counts, err := tensor.ToSlice[int32](ctx, d.counts, nil)
	if err == nil {
		err = d.comm.AsyncError()
	}
	if err != nil {
		return fmt.Errorf("reading which ranks have a gradient: %w", err)
	}
	for _, r := range d.pass.missing {
		if counts[r.index] > 0 {
			continue
		}
		if err := r.dropGrad(ctx); err != nil {
			return err
		}
	}
	return nil
}
