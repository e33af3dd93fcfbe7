package nn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Initializer makes what a training needs, parameters and layers with their first values, data,
// optimisers, tapes, on one runtime, in one dtype, from one sequence of random numbers:
//
//	in := nn.Init(ctx, env, nn.Seed(1))
//	model := nn.Sequential{in.Linear(784, 512), nn.ReLU{}, in.Linear(512, 10)}
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
//	if err := in.Err(); err != nil {
//
// Its first error sticks: the call that fails and all later ones return values that do nothing and
// are never nil, and what reads those fails with that error. What was made since Err last returned
// nil is released. Close releases everything that it made.
//
// A layer of the program's own is made of parameters, by a function that takes an Initializer, and
// tells of its own errors with Fail. An Initializer belongs to one goroutine at a time.
type Initializer struct {
	ctx   context.Context
	rt    *tensor.Runtime
	dtype tensor.Dtype
	// compute is the tapes'.
	compute tensor.Dtype
	rand    *rand.Rand
	// source is where rand has its numbers from: its state is what a checkpoint keeps.
	source *rand.PCG
	err    error

	made     []made // in the order of the making
	accepted int    // how much of made Err has handed to the program
	bodies   int    // of Steps, that run now
	steps    int64  // that Steps has begun
	closed   bool
	closeErr error
}

// InitOption configures an [Initializer].
type InitOption interface {
	apply(*Initializer)
}

type initOption func(*Initializer)

func (f initOption) apply(in *Initializer) { f(in) }

// Seed gives an initialiser the same random numbers in every run (torch.manual_seed; the generator is a PCG). Without
// it they differ.
func Seed(seed uint64) InitOption {
	return initOption(func(in *Initializer) { in.source = rand.NewPCG(seed, 0) })
}

// Dtype is the type of an initialiser's parameters and tensors, Float32 or Float64. Without it it is Float32.
func Dtype(dtype tensor.Dtype) InitOption {
	return initOption(func(in *Initializer) { in.dtype = dtype })
}

// Init makes an initialiser of things on rt. ctx is the context of its allocations and of its
// optimisers and tapes; what it makes belongs to no lifetime in ctx.
func Init(ctx context.Context, rt *tensor.Runtime, options ...InitOption) *Initializer {
	in := &Initializer{ctx: ctx, rt: rt, dtype: tensor.Float32, compute: tensor.Float32}
	for _, o := range options {
		if o != nil {
			o.apply(in)
		}
	}
	if in.source == nil {
		in.source = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	in.rand = rand.New(in.source)
	switch {
	case ctx == nil:
		in.ctx = context.Background()
		in.fail("Init", fmt.Errorf("%w: the context is nil; use context.Background()", autograd.ErrInvalid))
	case rt == nil:
		in.fail("Init", fmt.Errorf("%w: the runtime is nil: see the error of tensor.Open", autograd.ErrInvalid))
	case in.dtype != tensor.Float32 && in.dtype != tensor.Float64:
		in.fail("Init", fmt.Errorf("%w: parameters must be float32 or float64, not %v: for 16 bits see ComputeDtype", tensor.ErrDtype, in.dtype))
	case in.compute.Wide() != 0 && in.compute.Wide() != in.dtype:
		in.fail("Init", fmt.Errorf("%w: parameters are %v: tapes compute in %v from %v ones", tensor.ErrDtype, in.dtype, in.compute, in.compute.Wide()))
	default:
		if in.compute != tensor.Float32 && in.compute.Wide() == 0 {
			in.fail("Init", fmt.Errorf("%w: a tape can't compute in %v: want a dtype of 16 bits, or float32", tensor.ErrDtype, in.compute))
		}
	}
	return in
}

// Runtime is where everything is made.
func (in *Initializer) Runtime() *tensor.Runtime { return in.rt }

// Context is the context that Init was given.
func (in *Initializer) Context() context.Context { return in.ctx }

// Dtype is the type of the parameters.
func (in *Initializer) Dtype() tensor.Dtype { return in.dtype }

// RandomState returns the state of the initialiser's random numbers (torch.get_rng_state).
func (in *Initializer) RandomState() ([]byte, error) { return in.source.MarshalBinary() }

// SetRandomState makes the random numbers go on from a state (torch.set_rng_state).
func (in *Initializer) SetRandomState(state []byte) error { return in.source.UnmarshalBinary(state) }

// Rand is the source of the random numbers, for layers that draw their own.
func (in *Initializer) Rand() *rand.Rand { return in.rand }

// Err returns the first error, or nil. With nil what was made until now is the program's: a later
// error leaves it alone.
func (in *Initializer) Err() error {
	if in.err == nil {
		in.accepted = len(in.made)
	}
	return in.err
}

// Fail makes err stick, unless it is nil or another one does, and releases what was made since Err
// last returned nil. It is for layers outside of this package.
func (in *Initializer) Fail(err error) {
	if in.err != nil || err == nil {
		return
	}
	unaccepted := in.made[in.accepted:]
	in.made = in.made[:in.accepted]
	in.err = releaseAll(in.ctx, unaccepted, err)
}

// fail is Fail for an error of one of the package's own calls.
func (in *Initializer) fail(call string, err error) {
	if err != nil {
		in.Fail(fmt.Errorf("nn: %s: %w", call, err))
	}
}

// usable tells whether a call can make something.
func (in *Initializer) usable(call string) bool {
	if in.closed {
		in.fail(call, fmt.Errorf("%w: the initialiser was closed", autograd.ErrInvalid))
	}
	return in.err == nil
}

// Close releases what the initialiser made: optimisers, parameters with their gradients, tensors. What the program has
// released already is left alone. It returns the error that sticks, if any, and is idempotent.
func (in *Initializer) Close() error {
	if !in.closed {
		in.closed = true
		in.closeErr = releaseAll(in.ctx, in.made, in.err)
		in.made, in.accepted = nil, 0
	}
	return in.closeErr
}

// Steps gives a tape for each of n steps of a training, and closes it after the body of the loop,
// however that ends. The loop ends early when the initialiser has an error: that of a step's tape,
// with which it sticks, or of its context, which is looked at before each step. The tapes' random
// operations have seeds of the initialiser's sequence. In profiles the steps of all calls are
// counted, from 1 on ([memcache.WithStep]). Tensors that [Initializer.Tensor] and
// [Initializer.Labels] make in the body are the step's, and are released with its tape.
//
//	for step, tape := range in.Steps(200) {
//		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
//		optim.Minimize(tape, loss, adam)
//	}
//	err := in.Err()
//
// In a capture ([tensor.Runtime.Capture]) the loop runs once, and each replay is as many steps
// more, whose tapes have seeds of their own.
func (in *Initializer) Steps(n int) iter.Seq2[int, *autograd.Tape] {
	return func(yield func(int, *autograd.Tape) bool) {
		for i := 0; i < n && in.usable("Steps"); i++ {
			if err := in.ctx.Err(); err != nil {
				in.stick(fmt.Errorf("nn: Steps: after %d of %d: %w", i, n, err))
				return
			}
			if !in.step(i, yield) {
				return
			}
		}
	}
}

func (in *Initializer) step(i int, yield func(int, *autograd.Tape) bool) bool {
	tape, before := in.tape(), len(in.made)
	in.bodies++
	defer func() {
		in.bodies--
		in.stick(errors.Join(tape.Close(), in.releaseData(before)))
	}()
	return yield(i, tape)
}

// tape is the next step's. In a capture it takes memory from the capture's pool, and each replay is
// a step, with a seed of its own. What fails in a capture that fails is Capture's error, and does
// not stick.
func (in *Initializer) tape() *autograd.Tape {
	c := in.rt.Capturing()
	if c == nil {
		in.steps++
		tape := autograd.NewTape(memcache.WithStep(in.ctx, in.steps), in.rt)
		tape.SetComputeDtype(in.compute)
		tape.SetSeed(in.rand.Uint64())
		return tape
	}
	was := in.err
	c.OnFailure(func() { in.err = was })
	if in.err == nil {
		in.accepted = len(in.made) // an error of the capture releases nothing that was there before
	}
	tape := autograd.NewTape(c.Pool().Context(memcache.WithStep(in.ctx, in.steps+1)), in.rt)
	in.stick(c.OnReplay(func() error { in.steps++; return nil }))
	tape.SetComputeDtype(in.compute)
	tape.SetSeedFrom(in.rand.Uint64)
	return tape
}

// stick is Fail for an error that comes after the making, and leaves everything as it is.
func (in *Initializer) stick(err error) {
	if in.err == nil {
		in.err = err
	}
}

// String is such as "initializer of 12 tensors and layers".
func (in *Initializer) String() string {
	return fmt.Sprintf("initializer of %d tensors and layers", len(in.made))
}

// ComputeDtype lets the tapes of [Initializer.Steps] compute in 16 bits, while parameters are
// float32: see [autograd.Tape.SetComputeDtype], which tapes that the program makes are told by.
func ComputeDtype(dtype tensor.Dtype) InitOption {
	return initOption(func(in *Initializer) { in.compute = dtype })
}
