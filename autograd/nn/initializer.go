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

// Initializer makes the objects of a training: parameters and layers with their initial values,
// data, and tapes. It uses one runtime, one dtype and one sequence of random numbers:
//
//	in := nn.Init(ctx, env, nn.Seed(1))
//	model := nn.Sequential{in.Linear(784, 512), nn.ReLU{}, in.Linear(512, 10)}
//	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
//	if err := in.Err(); err != nil {
//
// Its first error sticks: the call that fails and all later ones return values that do nothing and
// are never nil, and each use of these values fails with that error. Everything made since Err last
// returned nil is released. Close releases everything that the Initializer made.
//
// A program makes a layer of its own in a function that takes an Initializer, makes the parameters
// with it, and reports errors to Fail. An Initializer belongs to one goroutine at a time.
type Initializer struct {
	ctx   context.Context
	rt    *tensor.Runtime
	dtype tensor.Dtype
	// compute is the compute dtype of the tapes.
	compute tensor.Dtype
	rand    *rand.Rand
	// source is the source of rand. Checkpoints keep its state.
	source *rand.PCG
	err    error

	made     []made // in the order of creation
	accepted int    // length of made when Err last returned nil
	bodies   int    // number of loop bodies of Steps that run now
	steps    int64  // number of steps that Steps has begun
	closed   bool
	closeErr error
}

// InitOption configures an [Initializer].
type InitOption interface {
	apply(*Initializer)
}

type initOption func(*Initializer)

func (f initOption) apply(in *Initializer) { f(in) }

// Seed makes the random numbers the same in every run (torch.manual_seed; the generator is a PCG).
// Without it they differ.
func Seed(seed uint64) InitOption {
	return initOption(func(in *Initializer) { in.source = rand.NewPCG(seed, 0) })
}

// Dtype sets the dtype of an initialiser's parameters and tensors: Float32, the default, or
// Float64.
func Dtype(dtype tensor.Dtype) InitOption {
	return initOption(func(in *Initializer) { in.dtype = dtype })
}

// Init makes an initialiser on rt. ctx is the context of its allocations and of its optimisers and
// tapes. Its objects belong to no lifetime in ctx.
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
		in.fail("Init", fmt.Errorf("%w: parameters are %v: a tape that computes in %v needs %v ones", tensor.ErrDtype, in.dtype, in.compute, in.compute.Wide()))
	default:
		if in.compute != tensor.Float32 && in.compute.Wide() == 0 {
			in.fail("Init", fmt.Errorf("%w: a tape can't compute in %v: want a dtype of 16 bits, or float32", tensor.ErrDtype, in.compute))
		}
	}
	return in
}

// Runtime returns the initialiser's runtime.
func (in *Initializer) Runtime() *tensor.Runtime { return in.rt }

// Context returns the context of Init.
func (in *Initializer) Context() context.Context { return in.ctx }

// Dtype returns the dtype of the parameters.
func (in *Initializer) Dtype() tensor.Dtype { return in.dtype }

// RandomState returns the state of the initialiser's random numbers (torch.get_rng_state).
func (in *Initializer) RandomState() ([]byte, error) { return in.source.MarshalBinary() }

// SetRandomState continues the random numbers from a state (torch.set_rng_state).
func (in *Initializer) SetRandomState(state []byte) error { return in.source.UnmarshalBinary(state) }

// Rand returns the source of the random numbers, for layers that draw their own.
func (in *Initializer) Rand() *rand.Rand { return in.rand }

// Err returns the first error, or nil. If it returns nil, a later error does not release the
// objects made until now.
func (in *Initializer) Err() error {
	if in.err == nil {
		in.accepted = len(in.made)
	}
	return in.err
}

// Fail makes err stick, unless it is nil or another error does, and releases everything made since
// Err last returned nil. It is for layers outside of this package.
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

// usable reports whether a call can make something.
func (in *Initializer) usable(call string) bool {
	if in.closed {
		in.fail(call, fmt.Errorf("%w: the initialiser was closed", autograd.ErrInvalid))
	}
	return in.err == nil
}

// Close releases what the initialiser made or owns: optimisers, parameters with their gradients,
// tensors. It skips those that the program has released. It returns the error that sticks, if any,
// and is idempotent.
func (in *Initializer) Close() error {
	if !in.closed {
		in.closed = true
		in.closeErr = releaseAll(in.ctx, in.made, in.err)
		in.made, in.accepted = nil, 0
	}
	return in.closeErr
}

// Steps yields a tape for each of n training steps, and closes it after the loop's body, also if
// the body panics or leaves the loop. The loop ends early when the initialiser has an error. The
// error of a step's tape sticks to the initialiser, and the error of its context, which Steps
// checks before each step, does too. The tapes' random operations have seeds from the initialiser's
// sequence. Profiles count the steps of all calls, from 1 on ([memcache.WithStep]). Tensors that
// [Initializer.Tensor] and [Initializer.Labels] make in the body belong to the step, and are
// released with its tape.
//
//	for step, tape := range in.Steps(200) {
//		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
//		optim.Minimize(tape, loss, adam)
//	}
//	err := in.Err()
//
// In a capture ([tensor.Runtime.Capture]) the loop runs once, and each replay counts as the same
// number of further steps, with new seeds.
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

// tape makes the tape of the next step. In a capture it takes memory from the capture's pool, and
// each replay is a step with a new seed. An error in a failed capture does not stick, because
// Capture returns it.
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
		in.accepted = len(in.made) // an error of the capture releases nothing made before it
	}
	tape := autograd.NewTape(c.Pool().Context(memcache.WithStep(in.ctx, in.steps+1)), in.rt)
	in.stick(c.OnReplay(func() error { in.steps++; return nil }))
	tape.SetComputeDtype(in.compute)
	tape.SetSeedFrom(in.rand.Uint64)
	return tape
}

// stick is Fail, but releases nothing.
func (in *Initializer) stick(err error) {
	if in.err == nil {
		in.err = err
	}
}

// String returns a text such as "initializer of 12 tensors and layers".
func (in *Initializer) String() string {
	return fmt.Sprintf("initializer of %d tensors and layers", len(in.made))
}

// ComputeDtype makes the tapes of [Initializer.Steps] compute in 16 bits, while parameters are
// float32. For other tapes call [autograd.Tape.SetComputeDtype].
func ComputeDtype(dtype tensor.Dtype) InitOption {
	return initOption(func(in *Initializer) { in.compute = dtype })
}
