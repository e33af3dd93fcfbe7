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

// Parallel trains one model on several ranks (torch.nn.parallel.DistributedDataParallel). Each rank
// has a copy of the model and computes on its part of every batch:
//
//	dp, err := parallel.New(ctx, comm, model, parallel.Config{})
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
//	for _, tape := range in.Steps(1000) {
//		x, y := next() // of this rank
//		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
//	}
//	err = errors.Join(dp.Err(), dp.Close(), comm.Close())
//
// The loop is the same as on one rank. If a tape has read parameters of the model, its
// [autograd.Tape.Backward] replaces their gradients with the mean of all ranks' gradients. So with
// batches of equal size and a loss that is a mean, every rank takes the step that a single rank
// would take on the whole batch. Gradients are reduced in buckets during the backward pass, on the
// Parallel's own stream; work that is queued on the runtime's stream after Backward finds them
// reduced. All ranks must run the same number of these backward passes, but a pass need not use all
// parameters. A parameter without a gradient on this rank gets the mean with the other ranks'. A
// parameter without one on any rank has none afterwards; to find that out, this rank waits at the
// end of Backward.
//
// New copies rank 0's parameters and buffers to all ranks. Each backward pass copies rank 0's
// buffers again, such as the running statistics of a batch norm. Parameters that are frozen when
// New is called do not belong to the Parallel. If one of them trains later, the next Backward
// fails, because its gradient would be this rank's alone.
//
// # Memory and streams
//
// Gradients are reduced in place: a bucket is a group of operations and needs no memory. Events
// order the Parallel's stream and the runtime's in both directions, so that memory that a step
// frees can be reused at once. Steps can be captured, on all ranks, if every parameter gets a
// gradient in them; take an eager step first.
//
// # Failure
//
// If the communicator ends, Backward fails on all ranks, at the latest after the communicator's
// timeout. A rank aborts the communicator if its Backward, sharded step, sharded clipping,
// AllReduce, Gather or Verify fails. The other ranks also notice if a rank closes its communicator
// or makes different calls. If a rank fails elsewhere, the program must close that rank's
// communicator, so that no other rank waits for it. Operations are queued, so a rank may get the
// error later, from the next Backward, or from [Parallel.Err] after a wait for a result. Gradients,
// and parameters that an optimiser has updated with them, are undefined then. Continue from a
// checkpoint, with a new communicator and a new Parallel.
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
	frozen   []autograd.Named      // parameters without a replica
	state    []nn.NamedTensor      // all parameters and buffers, the same on all ranks
	buffers  []*tensor.Tensor
	ones     *tensor.Tensor // int32 ones, one for each replica
	counts   *tensor.Tensor // number of ranks that have a gradient, for each replica

	buckets []bucket
	learned bool // the buckets are in the order of a backward pass
	pass    pass
	passes  int // number of reduced passes
	local   int // nesting depth of NoSync
	closed  bool
}

// Config are the options of a [Parallel], the same on all ranks. The zero value is PyTorch's.
type Config struct {
	// BucketBytes is the size of gradients at which a bucket is full and reduced; 0 is 25 MiB.
	// FirstBucketBytes is that of the first bucket, which is smaller so that the exchange begins
	// early; 0 is 1 MiB, or BucketBytes if that is less. A bucket has whole gradients, so it may be
	// larger.
	BucketBytes, FirstBucketBytes int64
	// LocalBuffers lets each rank keep its own buffers after New (broadcast_buffers=False).
	LocalBuffers bool
	// VerifyEvery n calls [Parallel.Verify] at the end of every n-th backward pass that is reduced;
	// 0 is never. For passes of a graph it is called before the replay, without buffers.
	VerifyEvery int
	// Shard selects the data of which each rank keeps only its part.
	Shard Sharding
}

// Sharding selects the data that is kept in parts, one on each rank (Rajbhandari et al., ZeRO,
// 2020). Every parameter is divided into as many equal parts as there are ranks; the last rank also
// has the remainder. Optimisers of such parameters must be made after the [Parallel]. They keep the
// state of this rank's parts and update these, and each rank receives the other parts at the end of
// the step. Results are bit-identical to those without sharding, as far as a kernel's result does
// not depend on an element's position in its tensor. Two sums are exceptions, because they are
// added in another order: norms of sharded gradients, and sharded gradients of several backward
// passes without [Parallel.NoSync].
type Sharding uint8

const (
	// ShardNothing keeps all data on every rank.
	ShardNothing Sharding = iota
	// ShardState keeps only this rank's parts of the optimiser's state (ZeRO stage 1).
	ShardState
	// ShardGradients also keeps only this rank's parts of the gradients (stage 2). The whole
	// gradients are freed in the backward pass, after the reduction of their bucket;
	// [autograd.Parameter.Grad] is nil afterwards.
	ShardGradients
)

const (
	defaultBucketBytes      = 25 << 20
	defaultFirstBucketBytes = 1 << 20
)

// replica is a parameter that a Parallel trains.
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

// Join hooks the Parallel to a tape on which the parameter requires a gradient.
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
		return fmt.Errorf("%w: a parameter can't be in a Parallel and offloaded at the same time: first close the Parallel, or call offload.Parameters with nil", autograd.ErrInvalid)
	}
	return nil
}

// beside is the attachment of parameters that were frozen at New.
type beside struct{ of *Parallel }

// Join hooks the Parallel to a tape on which the parameter requires a gradient, so that Begin
// fails, unless another Parallel trains the parameter.
func (b *beside) Join(t *autograd.Tape, v *autograd.Variable) error {
	if v.RequiresGrad() && replicaOf(v.Parameter()) == nil {
		t.Hook(&b.of.hook)
	}
	return nil
}

// Refuses refuses attachments that move the parameter's memory.
func (b *beside) Refuses(other autograd.Attachment) error { return refusesAway(other) }

// New trains model as one rank of the communicator comm. Only the Parallel may use comm until the
// Parallel is closed; the caller must close comm afterwards. All ranks must call New with models of
// the same parameters and buffers; otherwise the error names the rank. The model is a [nn.Layer],
// or anything that [nn.ParametersOf] walks. It must be in one runtime on the communicator's device,
// and its parameters in no other Parallel. New waits for the other ranks. After an error the caller
// must close the communicator, which makes New fail on the other ranks; parameters and buffers may
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
		r.SetGrad(r.Grad()) // converts gradients of earlier tapes to float32
	}
	for _, p := range d.frozen {
		err = errors.Join(err, p.Attach(&d.beside))
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// collect finds the model's parameters and buffers and checks them.
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

// Rank returns this rank, from 0 to Size-1.
func (d *Parallel) Rank() int { return d.comm.Rank() }

// Size returns the number of ranks.
func (d *Parallel) Size() int { return d.comm.Size() }

// NoSync calls f. Backward passes in f reduce nothing: gradients accumulate on each rank, until the
// first pass after f reduces them (DistributedDataParallel.no_sync). All ranks must do the same.
func (d *Parallel) NoSync(f func() error) error {
	if f == nil {
		return fmt.Errorf("parallel: NoSync: %w: the function is nil", autograd.ErrInvalid)
	}
	d.local++
	defer func() { d.local-- }()
	return f()
}

// Err returns the error that ended the communicator, with this rank's number, or nil. It never
// waits. After a wait for the runtime's stream it covers all earlier operations.
func (d *Parallel) Err() error {
	if err := d.comm.AsyncError(); err != nil {
		return fmt.Errorf("parallel: %w", d.failed("an earlier operation", err))
	}
	return nil
}

// failed adds this rank's number to an error.
func (d *Parallel) failed(what string, err error) error {
	return fmt.Errorf("rank %d of %d: %s: %w", d.Rank(), d.Size(), what, err)
}

// Close detaches the Parallel from the parameters. It waits for queued operations, at most for the
// communicator's timeout. Graphs of steps must not be replayed afterwards. It is idempotent, and
// Close of nil does nothing.
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

// String returns a text such as "rank 0 of 2 on host: 4 parameters".
func (p *Parallel) String() string {
	return fmt.Sprintf("rank %d of %d on %s: %d parameters", p.comm.Rank(), p.comm.Size(), p.rt.Device().Name(), len(p.replicas))
}
