package parallel

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// A sharded parameter is cut by its elements: each rank has as many, and the last one the rest too,
// which is fewer than there are ranks. So where the buckets are does not count, the optimiser's
// state of a part is a tensor, and parts are exchanged in place: a reduce-scatter or an all-gather
// of what is equal, and the rest beside it. Parameters stay where they are.

// shard is this rank's part of a parameter.
type shard struct {
	lo, hi int // its elements
	each   int // of the parts, without the rest
	rest   int // elements behind them, which are the last rank's

	grad *tensor.Tensor // the reduced gradient of the part; nil: there is none
	next *tensor.Tensor // that of this pass

	value, slope *tensor.Tensor // views of the part and of its gradient, in a step
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

// sharded reports whether optimisers keep a part of its state alone.
func (r *replica) sharded() bool { return r.of.cfg.Shard != ShardNothing }

// StateShape is the shape of the part that optimisers keep for the parameter, or nil.
func (r *replica) StateShape() []int {
	if r.sharded() {
		return []int{r.part.hi - r.part.lo}
	}
	return nil
}

// PartGrad returns this rank's part of the gradient, or nil.
func (r *replica) PartGrad() *tensor.Tensor { return r.part.grad }

// SetPartGrad replaces it.
func (r *replica) SetPartGrad(g *tensor.Tensor) { r.part.grad = g }

// Shards returns the Parallel as optimisers need it.
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

// EndPiece lets go of the operands.
func (r *replica) EndPiece() {
	_, _ = r.part.value.Release(), r.part.slope.Release() // of views: no memory is freed
	r.part.value, r.part.slope = nil, nil
}

func (r *replica) view(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
	return t.Runtime().ViewAs(ctx, t, int64(r.part.lo)*int64(t.Dtype().Size()), t.Dtype(), r.part.hi-r.part.lo)
}

// shards is a Parallel as optimisers need it.
type shards Parallel

// Parameters are those that the ranks train.
func (s *shards) Parameters() []*autograd.Parameter { return s.trained }

// NoSync is [Parallel.NoSync].
func (s *shards) NoSync(f func() error) error { return (*Parallel)(s).NoSync(f) }

// EndStep gives all ranks the parts of ps that a step has updated. If that fails, or the step has
// failed, it tells the other ranks, which would wait for this one's parts.
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

// share gives all ranks all parts of some parameters.
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

// gather makes a tensor like the parameter whole, of which this rank has its part.
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

// scatters reports whether gradients are cut, too.
func (d *Parallel) scatters() bool { return d.cfg.Shard == ShardGradients }

// reduce makes the gradient the mean of all ranks', or next its part of the mean.
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

// makeShards makes room for the parts of a bucket's gradients, and frees the gradients of the
// bucket before: the runtime's stream waits until these are reduced, which has had the time of a
// bucket's backward steps.
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

// holdSharded takes the gradients of a bucket that is on its way from the parameters.
func (d *Parallel) holdSharded(b *bucket) {
	if !d.scatters() {
		return
	}
	for _, r := range b.replicas {
		d.pass.held = append(d.pass.held, r.Grad())
		r.SetGrad(nil)
	}
}

// freeHeld frees the gradients of the last bucket that went.
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

// keepShards makes the parts of this pass the gradients', or adds them to what was there.
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
					_ = r.ZeroGrad(context.Background()) // an error of the cache's, which the capture's own has come before
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

// ZeroGrad frees the part of the gradient.
func (r *replica) ZeroGrad(ctx context.Context) error {
	g, next := r.part.grad, r.part.next
	r.part.grad, r.part.next = nil, nil
	return errors.Join(g.ReleaseContext(ctx), next.ReleaseContext(ctx))
}

// reset ends a pass that has failed: what is on its way may be used still.
func (d *Parallel) reset() {
	d.lend(append(d.pass.held, d.pass.flags)...)
	for _, r := range d.replicas {
		if d.pass.on && r.bucket < d.pass.next {
			d.lend(r.Grad())
		}
		d.lend(r.part.next)
		_ = r.part.next.Release() // the pass's error is what the program gets
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
