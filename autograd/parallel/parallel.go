package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// Parallel trains one model on several ranks, each of which has a copy of it and computes on its
// part of every batch (torch.nn.parallel.DistributedDataParallel):
//
//	dp, err := parallel.New(ctx, comm, model, parallel.Config{})
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
//	for _, tape := range in.Steps(1000) {
//		x, y := next() // of this rank
//		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
//	}
//	err = errors.Join(dp.Err(), dp.Close(), comm.Close())
//
// The loop is that of one rank. [autograd.Tape.Backward] of a tape that has read parameters of the
// model makes their gradients the mean of all ranks', so that with batches of equal size and a loss
// that is a mean every rank takes the step that one rank would take on all of the batch. Gradients
// are reduced in buckets while the backward pass goes on, on a stream of the Parallel's own; what
// is queued on the runtime's stream after Backward finds them reduced. All ranks run the same
// number of these backward passes, and none has to use all parameters: one that has got no gradient
// on this rank gets the others', and one that has got none on any has none, for which this rank
// waits at the end of Backward.
//
// At the start rank 0's parameters and buffers are the ones of all ranks; rank 0's buffers, such as
// the running statistics of a batch norm, are again after each backward pass. Parameters that are
// frozen at the start are not of the Parallel: one that trains later is an error of the next
// Backward, as its gradient would be this rank's alone.
//
// # Memory and streams
//
// Gradients are reduced where they are: buckets are groups of operations, and no memory. The stream
// of the Parallel and the runtime's are ordered by events, in both directions, and what a step
// frees is free at once. Steps can be captured, on all ranks, if every parameter gets a gradient in
// them; take an eager step before.
//
// # Failure
//
// What ends the communicator ends Backward of all ranks, at the latest after the communicator's
// timeout: a rank whose Backward fails aborts it, and so does one whose sharded step or clipping,
// AllReduce, Gather or Verify fails; one that closes its communicator or does something else is
// noticed by the others. A rank that fails elsewhere closes its communicator, so that no other rank
// waits for it. A training goes on with a new communicator and a new Parallel. Operations are queued.
// Therefore a rank may see the error later, from the next Backward, or from [Parallel.Err] after a
// wait for a result. Gradients, and parameters that an optimiser has updated with them, are undefined
// then: go on from a checkpoint.
//
// A Parallel belongs to the goroutine of its parameters.
type Parallel struct {
	hook   parallelHook
	beside beside
	comm   device.Communicator
	rt     *tensor.Runtime
	stream device.Stream // of all operations of comm
	cfg    Config

	replicas []*replica
	trained  []*autograd.Parameter // of the replicas
	frozen   []autograd.Named      // parameters that are none of them
	state    []nn.NamedTensor      // parameters, frozen ones too, and buffers: what all ranks have alike
	buffers  []*tensor.Tensor
	ones     *tensor.Tensor // int32, one for each replica
	counts   *tensor.Tensor // of ranks that have a gradient, for each replica

	buckets []bucket
	learned bool // the buckets are in the order of a backward pass
	pass    pass
	passes  int // that were reduced
	local   int // calls of NoSync that the program is in
	closed  bool
}

// Config are the options of a [Parallel], the same on all ranks. The zero value is PyTorch's.
type Config struct {
	// BucketBytes is how many bytes of gradients a bucket has before it is reduced; 0: 25 MiB.
	// FirstBucketBytes is that of the bucket that is reduced first, so that the exchange begins
	// early; 0: 1 MiB. A bucket has whole gradients, and so may have more.
	BucketBytes, FirstBucketBytes int64
	// LocalBuffers leaves each rank its own buffers after the start (broadcast_buffers=False).
	LocalBuffers bool
	// VerifyEvery lets each so-many-th backward pass that is reduced end with [Parallel.Verify]; 0: none.
	// A pass of a graph is verified before its replay, except for buffers.
	VerifyEvery int
	// Shard is what each rank keeps a part of alone.
	Shard Sharding
}

// Sharding is what of a training is kept in parts, one on each rank (Rajbhandari et al., ZeRO,
// 2020). Every parameter is cut into as many parts as there are ranks; the last rank has what is
// left over too. Optimisers of such parameters, made after the [Parallel], keep the state of this
// rank's parts and update these, and each rank gets the others' parts at the end of the step.
// Numbers are bit-identical to those without sharding where a kernel's result does not depend on
// an element's position in its tensor. Two sums are exceptions, because they are added in another
// order: norms of sharded gradients, and sharded gradients of several backward passes without
// [Parallel.NoSync].
type Sharding uint8

const (
	// ShardNothing: every rank has all.
	ShardNothing Sharding = iota
	// ShardState: of the optimiser's state a rank has its parts (ZeRO stage 1).
	ShardState
	// ShardGradients: of the gradients too (stage 2). Each is freed when its bucket is on its way,
	// in the backward pass; [autograd.Parameter.Grad] is nil behind it.
	ShardGradients
)

const (
	defaultBucketBytes      = 25 << 20
	defaultFirstBucketBytes = 1 << 20
)

// replica is a parameter that is trained by a Parallel.
type replica struct {
	*autograd.Parameter
	of     *Parallel
	name   string
	index  int  // among the Parallel's
	bucket int  // its index
	ready  bool // its gradient of this backward pass is whole, on this rank
	part   shard
}

// replicaOf returns a parameter's replica, or nil if no Parallel trains it.
func replicaOf(p *autograd.Parameter) *replica {
	r, _ := autograd.Attached[*replica](p)
	return r
}

// Join hooks the Parallel to a tape that trains the parameter.
func (r *replica) Join(t *autograd.Tape, v *autograd.Variable) error {
	if v.RequiresGrad() {
		t.Hook(&r.of.hook)
	}
	return nil
}

// Refuses refuses another Parallel, and attachments that move the parameter's memory.
func (r *replica) Refuses(other autograd.Attachment) error {
	if o, ok := other.(*replica); ok && o.of != r.of {
		return fmt.Errorf("%w: it is in another Parallel: close that one", autograd.ErrInvalid)
	}
	return refusesAway(other)
}

// refusesAway refuses attachments that move the parameter's memory off the device.
func refusesAway(a autograd.Attachment) error {
	if _, ok := a.(autograd.Opener); ok {
		return fmt.Errorf("%w: the ranks of a Parallel exchange it on the device, and it is offloaded: close the Parallel, or call offload.Parameters with nil, before the other", autograd.ErrInvalid)
	}
	return nil
}

// beside is the attachment of parameters that were frozen when the Parallel was made.
type beside struct{ of *Parallel }

// Join hooks the Parallel to a tape that trains the parameter, so that its Begin fails, unless
// another Parallel trains it.
func (b *beside) Join(t *autograd.Tape, v *autograd.Variable) error {
	if v.RequiresGrad() && replicaOf(v.Parameter()) == nil {
		t.Hook(&b.of.hook)
	}
	return nil
}

// Refuses refuses attachments that move the parameter's memory.
func (b *beside) Refuses(other autograd.Attachment) error { return refusesAway(other) }

// New makes this process' or goroutine's model a rank of a communicator, which the Parallel has to
// itself until it is closed; the caller closes it then. All ranks call it, with models of the same
// parameters and buffers; others are an error that names the rank. The model is a [nn.Layer], or
// anything that [nn.ParametersOf] walks; it is on the device of the communicator, in one runtime,
// and its parameters are in no other Parallel. It waits for the other ranks. After an error the
// caller closes the communicator, which ends the other ranks' New; their parameters and buffers may
// be rank 0's by then, or undefined.
func New(ctx context.Context, comm device.Communicator, model any, cfg Config) (*Parallel, error) {
	d, err := newParallel(ctx, comm, model, cfg)
	if err != nil {
		return nil, fmt.Errorf("parallel: New: %w", err)
	}
	return d, nil
}

func newParallel(ctx context.Context, comm device.Communicator, model any, cfg Config) (*Parallel, error) {
	switch {
	case ctx == nil || comm == nil || model == nil:
		return nil, fmt.Errorf("%w: the context, the communicator and the model must not be nil", autograd.ErrInvalid)
	case cfg.Shard > ShardGradients:
		return nil, fmt.Errorf("%w: Shard is %d: want one of ShardNothing to ShardGradients", autograd.ErrInvalid, cfg.Shard)
	case cfg.BucketBytes < 0 || cfg.FirstBucketBytes < 0 || cfg.VerifyEvery < 0:
		return nil, fmt.Errorf("%w: buckets of %d bytes, the first of %d, Verify every %d: want 0 or more", autograd.ErrInvalid, cfg.BucketBytes, cfg.FirstBucketBytes, cfg.VerifyEvery)
	}
	if cfg.BucketBytes == 0 {
		cfg.BucketBytes = defaultBucketBytes
	}
	if cfg.FirstBucketBytes == 0 {
		cfg.FirstBucketBytes = min(defaultFirstBucketBytes, cfg.BucketBytes)
	}
	d := &Parallel{comm: comm, cfg: cfg}
	d.hook.of, d.beside.of = d, d
	if err := d.collect(model); err != nil {
		return nil, err
	}
	var err error
	if d.stream, err = comm.Device().NewStream(device.StreamOptions{}); err != nil {
		return nil, err
	}
	if err := d.start(tensor.Detached(ctx)); err != nil {
		return nil, errors.Join(err, d.release())
	}
	for _, r := range d.replicas {
		err = errors.Join(err, r.Attach(r))
		r.SetGrad(r.Grad()) // gradients are float32 from now on, whatever a tape has made before
	}
	for _, p := range d.frozen {
		err = errors.Join(err, p.Attach(&d.beside))
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// collect finds what the ranks share.
func (d *Parallel) collect(model any) error {
	state, err := nn.StateDict(model)
	if err != nil {
		return err
	}
	params, buffers := nn.ModelState(model)
	seen := map[*tensor.Tensor]bool{}
	for _, t := range state {
		if !seen[t.Tensor] { // tied weights have several names
			d.state = append(d.state, t)
		}
		seen[t.Tensor] = true
		if d.rt == nil {
			d.rt = t.Runtime()
		}
		switch _, known := dataType(t.Dtype()); {
		case t.Runtime() != d.rt:
			return fmt.Errorf("%w: %q and %q live in two runtimes", tensor.ErrRuntime, state[0].Name, t.Name)
		case !known:
			return fmt.Errorf("%w: %q is %v, which ranks can't exchange", tensor.ErrDtype, t.Name, t.Dtype())
		}
	}
	if d.rt != nil && d.rt.Device().ID() != d.comm.Device().ID() {
		return fmt.Errorf("%w: the model is on %s, and the communicator on %s", autograd.ErrInvalid, d.rt.Device().Name(), d.comm.Device().Name())
	}
	for _, p := range params {
		r := &replica{Parameter: p.Parameter, of: d, name: p.Name, index: len(d.replicas), part: shardOf(p.Parameter, d.comm)}
		var a autograd.Attachment = r
		if !p.RequiresGrad() {
			a = &d.beside
		}
		if err := p.CanAttach(a); err != nil {
			return fmt.Errorf("parameter %q: %w", p.Name, err)
		}
		if !p.RequiresGrad() {
			d.frozen = append(d.frozen, p)
			continue
		}
		if !slices.ContainsFunc(d.replicas, func(r *replica) bool { return r.Parameter == p.Parameter }) {
			d.replicas, d.trained = append(d.replicas, r), append(d.trained, p.Parameter)
		}
	}
	for _, b := range buffers {
		if !slices.Contains(d.buffers, b.Tensor) {
			d.buffers = append(d.buffers, b.Tensor)
		}
	}
	if len(d.replicas) == 0 {
		return fmt.Errorf("%w: the model has no parameters that are trained", autograd.ErrInvalid)
	}
	return nil
}

// Rank is this rank, from 0 on, and Size the number of ranks.
func (d *Parallel) Rank() int { return d.comm.Rank() }

// Size is the number of ranks.
func (d *Parallel) Size() int { return d.comm.Size() }

// NoSync calls f, in which backward passes reduce nothing: gradients add up on each rank until the
// first one behind it reduces them all (DistributedDataParallel.no_sync). All ranks do so alike.
func (d *Parallel) NoSync(f func() error) error {
	if f == nil {
		return fmt.Errorf("parallel: NoSync: %w: the function is nil", autograd.ErrInvalid)
	}
	d.local++
	defer func() { d.local-- }()
	return f()
}

// Err is what has ended the communicator, or nil, with this rank's number. It never waits: behind a
// wait for the runtime's stream it tells of all that came before.
func (d *Parallel) Err() error {
	if err := d.comm.AsyncError(); err != nil {
		return fmt.Errorf("parallel: %w", d.failed("an earlier operation", err))
	}
	return nil
}

// failed is an error of this rank's.
func (d *Parallel) failed(what string, err error) error {
	return fmt.Errorf("rank %d of %d: %s: %w", d.Rank(), d.Size(), what, err)
}

// Close ends the exchange: the parameters are the program's alone again. It waits for what is
// queued, which the communicator's timeout bounds. Graphs of steps must not be replayed any more.
// It is idempotent; Close of nil does nothing.
func (d *Parallel) Close() error {
	if d == nil || d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for _, r := range d.replicas {
		errs = append(errs, r.ZeroGrad(context.Background()))
		r.Detach(r)
	}
	for _, p := range d.frozen {
		p.Detach(&d.beside)
	}
	return errors.Join(append(errs, d.release())...)
}

func (d *Parallel) release() error {
	return errors.Join(d.stream.Close(), d.ones.Release(), d.counts.Release())
}

// String has the rank and what it trains.
func (p *Parallel) String() string {
	return fmt.Sprintf("rank %d of %d on %s: %d parameters", p.comm.Rank(), p.comm.Size(), p.rt.Device().Name(), len(p.replicas))
}
