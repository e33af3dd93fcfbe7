package offload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// moving is an optimiser after a step, some of whose tensors an offloader moves.
type moving struct {
	*tapetest.Failing
	ps   autograd.Parameters
	adam *optim.Adam
	off  *tensor.Offloader
}

func newMoving(t testing.TB, m *tapetest.Failing) *moving {
	adam := optim.NewAdam(m.Weights(), optim.AdamConfig{LR: new(0.5), AMSGrad: true})
	require.NoError(t, adam.Err())
	m.Differentiate(adam.Parameters())
	require.NoError(t, errors.Join(adam.Step(m.Ctx), adam.ZeroGrad(m.Ctx)))
	return &moving{m, adam.Parameters(), adam, newOffloader(t, m)}
}

func newOffloader(t testing.TB, m *tapetest.Failing) *tensor.Offloader {
	off, err := tensor.NewOffloader(m.RT, tensor.OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	return off
}

// end brings all tensors back and frees them.
func (v *moving) end() error {
	err := errors.Join(offload.Parameters(v.Ctx, v.ps, nil), v.Release(v.adam), v.off.Close())
	if s := v.off.Stats(); s.Offloaded.Current != 0 || s.PinnedBytes.Current != 0 {
		err = errors.Join(err, fmt.Errorf("%d tensors are offloaded, and %d bytes pinned", s.Offloaded.Current, s.PinnedBytes.Current))
	}
	return err
}

// elements returns the bytes of a tensor, on the device or on the host.
func (v *moving) elements(x *tensor.Tensor) string {
	if x == nil {
		return ""
	}
	var b bytes.Buffer
	require.NoError(v.T, tensor.WriteBytes(v.Ctx, x, &b))
	return b.String()
}

// seen is a tensor as a caller sees it.
type seen struct {
	elements string
	away     bool
}

// see returns values, gradients and state, and where they are.
func (v *moving) see() any {
	all := []any{v.adam.Record()}
	for i, p := range v.ps {
		for _, x := range append([]*tensor.Tensor{p.Value(), p.Grad()}, v.adam.State(i)...) {
			all = append(all, seen{v.elements(x), x != nil && x.Offloaded()})
		}
	}
	return all
}

// whole checks the state after a failed operation: each tensor is on the device or on the host, and
// has its old elements or the operation's result.
func (v *moving) whole(want any) func(before any, err error) error {
	return func(before any, err error) error {
		was, now := before.([]any), v.see().([]any)
		for i, x := range now {
			is, ok := x.(seen)
			if !ok || is.elements == was[i].(seen).elements || want != nil && is.elements == want.([]any)[i].(seen).elements {
				continue
			}
			return fmt.Errorf("tensor %d of %d is neither as before nor as after a success: %w", i, len(now), err)
		}
		return v.usable(err)
	}
}

// usable takes a step with all tensors.
func (v *moving) usable(err error) error {
	tape := autograd.NewTape(v.Ctx, v.RT)
	optim.Minimize(tape, tapetest.Squares(tape, v.ps), v.adam)
	if failed := tape.Close(); failed != nil {
		return fmt.Errorf("%w: a step fails with %w", err, failed)
	}
	return nil
}

// moves returns a trial of an operation that moves tensors. Tensors that stayed for lack of pinned
// memory move later.
func (v *moving) moves(do func(ctx context.Context) error) failtest.Trial {
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			stayed := v.off.Stats().Stayed
			err := do(ctx)
			if err == nil && v.off.Stats().Stayed > stayed {
				err = do(ctx)
			}
			return err
		},
		See: v.see, Undo: v.end, Left: v.whole(nil),
	}
}

func parameters(t testing.TB, m *tapetest.Failing) failtest.Trial {
	v := newMoving(t, m)
	return v.moves(func(ctx context.Context) error { return offload.Parameters(ctx, v.ps, v.off) })
}

func back(t testing.TB, m *tapetest.Failing) failtest.Trial {
	v := newMoving(t, m)
	require.NoError(t, offload.Parameters(m.Ctx, v.ps, v.off))
	return v.moves(func(ctx context.Context) error { return offload.Parameters(ctx, v.ps, nil) })
}

func state(t testing.TB, m *tapetest.Failing) failtest.Trial {
	v := newMoving(t, m)
	return v.moves(func(ctx context.Context) error { return offload.State(ctx, v.adam, v.off, 1) })
}

func stateBack(t testing.TB, m *tapetest.Failing) failtest.Trial {
	v := newMoving(t, m)
	require.NoError(t, offload.State(m.Ctx, v.adam, v.off, 1))
	return v.moves(func(ctx context.Context) error { return offload.State(ctx, v.adam, nil, 0) })
}

// others moves parameters from one offloader to another one.
func others(t testing.TB, m *tapetest.Failing) failtest.Trial {
	v := newMoving(t, m)
	other := newOffloader(t, m)
	require.NoError(t, offload.Parameters(m.Ctx, v.ps, other))
	trial := v.moves(func(ctx context.Context) error { return offload.Parameters(ctx, v.ps, v.off) })
	trial.Undo = func() error { return errors.Join(v.end(), other.Close()) }
	return trial
}

// stage returns an optimiser with gradients. Each of its parameters is a group and a piece.
func stage(t testing.TB, m *tapetest.Failing) *moving {
	v := newMoving(t, m)
	for i := range v.ps {
		require.NoError(t, offload.Parameters(m.Ctx, v.ps[i:i+1], v.off))
	}
	require.NoError(t, offload.State(m.Ctx, v.adam, v.off, 1))
	return v
}

// uses returns a trial of an operation on tensors that are on the host. A twin shows its result.
func uses(do func(ctx context.Context, v *moving) error) func(testing.TB, *tapetest.Failing) failtest.Trial {
	return func(t testing.TB, m *tapetest.Failing) failtest.Trial {
		twin := stage(t, m)
		require.NoError(t, do(m.Ctx, twin))
		want := twin.see()
		require.NoError(t, errors.Join(twin.ps.ZeroGrad(m.Ctx), twin.end()))
		v := stage(t, m)
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				err := do(ctx, v)
				if err != nil {
					return errors.Join(err, v.ps.ZeroGrad(m.Ctx))
				}
				return v.settle()
			},
			See: v.see, Undo: v.end, Left: v.whole(want),
		}
	}
}

// settle moves tensors that stayed for lack of pinned memory to the host.
func (v *moving) settle() error {
	if v.off.Stats().Stayed == 0 {
		return nil
	}
	for i := range v.ps {
		if err := offload.Parameters(v.Ctx, v.ps[i:i+1], v.off); err != nil {
			return err
		}
	}
	return offload.State(v.Ctx, v.adam, v.off, 1)
}

// trains takes a step on a tape.
func trains(ctx context.Context, v *moving) error {
	tape := autograd.NewTape(ctx, v.RT)
	optim.Minimize(tape, tapetest.Squares(tape, v.ps), v.adam)
	return tape.Close()
}

// differentiates makes a pass with offloaded activations.
func differentiates(ctx context.Context, v *moving) error {
	tape := autograd.NewTape(ctx, v.RT)
	_, err := tape.Backward(offload.Activations(tape, v.off, func() *autograd.Variable {
		var sum *autograd.Variable
		for i, p := range slices.Backward(v.ps) {
			x := tape.Sum(tape.Tanh(tape.Square(tape.Tanh(tape.Param(p.Parameter)))))
			if sum == nil {
				sum = x
			} else {
				sum = tape.Add(tape.Mul(sum, x), tape.MulScalar(x, float64(1+i)))
			}
		}
		return sum
	}))
	return errors.Join(err, tape.Close())
}

const (
	some   = "after an error of memory or of a copy some may have moved"
	pieces = "a step in pieces has updated those before the error"
)

func partly(why string) map[failtest.Kind]string {
	return map[failtest.Kind]string{failtest.Failed: why, failtest.OutOfMemory: why, failtest.Ended: why}
}

var failureRows = []failtest.Row[*tapetest.Failing]{
	{Of: "Parameters", Partly: partly(some), Make: parameters},
	{Of: "Parameters with nil", Partly: partly(some), Make: back},
	{Of: "Parameters of another offloader", Partly: partly(some), Make: others},
	{Of: "State", Partly: partly(some), Make: state},
	{Of: "State with nil", Partly: partly(some), Make: stateBack},
	{Of: "Minimize", Partly: partly(pieces), Make: uses(trains)},
	{Of: "Activations", Partly: partly(some), Make: uses(differentiates)},
}

// TestEveryFailure: whichever driver call, allocation or check of a context fails, each moved
// tensor is complete on the device or on the host, and can be used and moved afterwards.
func TestEveryFailure(t *testing.T) { tapetest.FailingSuite(t, failureRows) }
