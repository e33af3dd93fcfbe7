package parallel

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// A sharded parameter is divided by its elements: each rank has the same number, and the last rank
// also has the rest, which is fewer elements than there are ranks. So the parts do not depend on
// the buckets, and the optimiser's state of a part is one tensor. Parts are exchanged in place: a
// reduce-scatter or an all-gather for the equal parts, and another operation for the rest.
// Parameters do not move.

// shard is this rank's part of a parameter.
type shard struct {
	lo, hi int // range of its elements
	each   int // elements of each part, without the rest
	rest   int // remaining elements, which belong to the last rank

	grad *tensor.Tensor // reduced gradient of the part, or nil
	next *tensor.Tensor // gradient of the part in this pass

	value, slope *tensor.Tensor // views of the part and its gradient during a step
}

func shardOf(p *autograd.Parameter, comm device.Communicator) shard {
	n, ranks := p.Value().Elements(), comm.Size()
	s := shard{each: n / ranks, rest: n % ranks}
	s.lo = comm.Rank() * s.each
	if s.hi = s.lo + s.each; comm.Rank() == ranks-1 {
		s.hi = n
	}
	return s
}

// sharded reports whether optimisers keep only this rank's part of its state.
func (r *replica) sharded() bool { return r.of.cfg.Shard != ShardNothing }

// StateShape returns the shape of this rank's part of the optimiser's state, or nil.
func (r *replica) StateShape() []int {
	if r.sharded() {
		return []int{r.part.hi - r.part.lo}
	}
	return nil
}

// PartGrad returns this rank's part of the gradient, or nil.
func (r *replica) PartGrad() *tensor.Tensor { return r.part.grad }

// SetPartGrad replaces this rank's part of the gradient.
func (r *replica) SetPartGrad(g *tensor.Tensor) { r.part.grad = g }

// Shards returns the Parallel as optim.Shards.
func (r *replica) Shards() optim.Shards { return (*shards)(r.of) }

// Operands returns the parameter and its gradient, or views of this rank's parts, until EndPiece.
func (r *replica) Operands(ctx context.Context) (p, g *tensor.Tensor, err error) {
	if !r.sharded() {
		return r.Value(), r.Grad(), nil
	}
	if r.part.value, err = r.view(ctx, r.Value()); err != nil {
		return nil, nil, err
	}
	if r.part.grad != nil {
		r.part.slope, err = r.of.rt.Share(ctx, r.part.grad)
	} else {
		r.part.slope, err = r.view(ctx, r.Grad())
	}
	if r.part.lo == r.part.hi {
		return nil, nil, err
	}
	return r.part.value, r.part.slope, err
}

// EndPiece releases the operands.
func (r *replica) EndPiece() {
	_, _ = r.part.value.Release(), r.part.slope.Release() // views: no memory is freed
	r.part.value, r.part.slope = nil, nil
}

func (r *replica) view(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
	return t.Runtime().ViewAs(ctx, t, int64(r.part.lo)*int64(t.Dtype().Size()), t.Dtype(), r.part.hi-r.part.lo)
}

// shards is a Parallel as optim.Shards.
type shards Parallel

// Parameters returns the parameters that the ranks train.
func (s *shards) Parameters() []*autograd.Parameter { return s.trained }

// NoSync is [Parallel.NoSync].
func (s *shards) NoSync(f func() error) error { return (*Parallel)(s).NoSync(f) }

// EndStep distributes the parts of ps that a step has updated to all ranks. If that or the step has
// failed, it aborts the communicator, because the other ranks would wait for this rank's parts.
func (s *shards) EndStep(ps []*autograd.Parameter, err error) error {
	d := (*Parallel)(s)
	if d.cfg.Shard == ShardNothing {
		return nil
	}
	if err == nil {
		rs := make([]*replica, len(ps))
		for i, p := range ps {
			rs[i] = replicaOf(p)
		}
		if err = d.share(rs); err != nil {
			err = d.failed("gathering parameters", err)
		}
	}
	return d.tell(err)
}

// share gathers the whole values of rs on all ranks.
func (d *Parallel) share(rs []*replica) error {
	values := make([]*tensor.Tensor, len(rs))
	for i, r := range rs {
		values[i] = r.Value()
	}
	err := d.fork()
	if err == nil {
		err = d.grouped(func() error {
			for i, r := range rs {
				if err := r.gather(values[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return d.handOver(err, values...)
}

// gather completes t, which has the parameter's shape and this rank's part, with the other ranks'
// parts.
func (r *replica) gather(t *tensor.Tensor) error {
	d := r.of
	p, _, dt := place(t)
	size := device.Ptr(dt.Bytes())
	tensor.IncrementVersion(t)
	if r.part.each > 0 {
		if err := d.comm.AllGather(d.stream, p, p+device.Ptr(d.Rank()*r.part.each)*size, int64(r.part.each), dt); err != nil {
			return err
		}
	}
	if r.part.rest == 0 {
		return nil
	}
	rest := p + device.Ptr(d.Size()*r.part.each)*size
	return d.comm.Broadcast(d.stream, rest, rest, int64(r.part.rest), dt, d.Size()-1)
}

// scatters reports whether gradients are sharded too.
func (d *Parallel) scatters() bool { return d.cfg.Shard == ShardGradients }

// reduce replaces the gradient with the mean of all ranks'. If gradients are sharded, it writes
// this rank's part of the mean to next instead.
func (r *replica) reduce() error {
	d, g := r.of, r.Grad()
	p, n, dt := place(g)
	tensor.IncrementVersion(g)
	if !d.scatters() {
		return d.comm.AllReduce(d.stream, p, p, n, dt, device.ReduceAvg)
	}
	size := device.Ptr(dt.Bytes())
	part, _, _ := place(r.part.next)
	if r.part.each > 0 {
		if err := d.comm.ReduceScatter(d.stream, part, p, int64(r.part.each), dt, device.ReduceAvg); err != nil {
			return err
		}
	}
	if r.part.rest == 0 {
		return nil
	}
	rest := p + device.Ptr(d.Size()*r.part.each)*size
	to := rest
	if d.Rank() == d.Size()-1 {
		to = part + device.Ptr(r.part.each)*size
	}
	return d.comm.AllReduce(d.stream, to, rest, int64(r.part.rest), dt, device.ReduceAvg)
}

// makeShards allocates the parts of a bucket's gradients, and frees the whole gradients of the
// previous bucket. The runtime's stream waits for their reduction, which has run during a bucket's
// backward steps.
func (d *Parallel) makeShards(ctx context.Context, b *bucket) error {
	if !d.scatters() {
		return nil
	}
	if err := d.freeHeld(ctx); err != nil {
		return err
	}
	ctx = tensor.Detached(ctx)
	for _, r := range b.replicas {
		var err error
		if r.part.next, err = d.rt.New(ctx, r.Value().Dtype(), r.part.hi-r.part.lo); err != nil {
			return err
		}
	}
	return nil
}

// holdSharded takes the whole gradients of a bucket that is being reduced from their parameters.
func (d *Parallel) holdSharded(b *bucket) {
	if !d.scatters() {
		return
	}
	for _, r := range b.replicas {
		d.pass.held = append(d.pass.held, r.Grad())
		r.SetGrad(nil)
	}
}

// freeHeld frees the whole gradients of the last launched bucket.
func (d *Parallel) freeHeld(ctx context.Context) error {
	if d.pass.held == nil {
		return nil
	}
	if err := d.join(); err != nil {
		return err // reset frees them
	}
	for len(d.pass.held) > 0 {
		g := d.pass.held[0]
		d.pass.held = d.pass.held[1:]
		if err := g.ReleaseContext(ctx); err != nil {
			return err
		}
	}
	d.pass.held = nil
	return nil
}

// keepShards makes this pass's parts the gradients, or adds them to earlier ones.
func (d *Parallel) keepShards(ctx context.Context) error {
	if err := d.freeHeld(ctx); err != nil {
		return err
	}
	for _, r := range d.replicas {
		next := r.part.next
		if next == nil {
			continue
		}
		if r.part.grad != nil {
			if err := d.rt.AddInPlace(ctx, r.part.grad, next); err != nil {
				return err // reset frees the rest
			}
			r.part.next = nil
			if err := next.ReleaseContext(ctx); err != nil {
				return err
			}
			continue
		}
		r.part.grad, r.part.next = next, nil
		if c := d.rt.Capturing(); c != nil {
			c.OnFailure(func() {
				if r.part.grad == next {
					_ = r.ZeroGrad(context.Background()) // the capture's own error came first
				}
			})
		}
	}
	return nil
}

// dropGrad frees the gradient of this pass.
func (r *replica) dropGrad(ctx context.Context) error {
	if !r.of.scatters() {
		return r.Parameter.ZeroGrad(ctx)
	}
	next := r.part.next
	r.part.next = nil
	return next.ReleaseContext(ctx)
}

// ZeroGrad frees this rank's part of the gradient.
func (r *replica) ZeroGrad(ctx context.Context) error {
	g, next := r.part.grad, r.part.next
	r.part.grad, r.part.next = nil, nil
	return errors.Join(g.ReleaseContext(ctx), next.ReleaseContext(ctx))
}

// reset ends a pass that has failed. It records memory that the communication stream may still use.
func (d *Parallel) reset() {
	d.lend(append(d.pass.held, d.pass.flags)...)
	for _, r := range d.replicas {
		if d.pass.on && r.bucket < d.pass.next {
			d.lend(r.Grad())
		}
		d.lend(r.part.next)
		_ = r.part.next.Release() // the program gets the pass's error
		r.part.next = nil
	}
	for _, t := range append(d.pass.held, d.pass.flags) {
		_ = t.Release()
	}
	if !d.cfg.LocalBuffers {
		d.lend(d.buffers...)
	}
	d.pass = pass{}
}
