package autograd_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// summing is the host's backend, with cross entropies that keep sums as a GPU's do.
type summing struct {
	backend.Backend
	env         backend.Env
	kept, taken device.Ptr // the sums of the last loss and of the last gradient
}

// opening is what the backend "summing" opens, if it is not nil.
var opening atomic.Pointer[summing]

func init() {
	backend.Register("summing", func(env backend.Env) (_ backend.Backend, err error) {
		s := opening.Load()
		if s == nil {
			return nil, backend.ErrOther
		}
		s.env = env
		s.Backend, err = backend.For(env, "host")
		return s, err
	})
}

func (s *summing) Supports(c *backend.Call) bool {
	return c.Op == backend.CrossEntropyWithSums || s.Backend.Supports(c)
}

func (s *summing) Do(ctx context.Context, c *backend.Call) error {
	switch c.Op {
	case backend.CrossEntropyGrad:
		s.taken = c.Args[5].Ptr
	case backend.CrossEntropyWithSums:
		defer c.Free()
		s.kept = c.Args[1].Ptr
		loss := s.env.NewCall(backend.CrossEntropy, c.Dtype)
		for _, i := range []int{0, 2, 3, 4, 5} {
			loss.Add(c.Args[i])
		}
		backend.SetParams(loss, *backend.ParamsOf[plan.Entropy](c.Params()))
		return s.Backend.Do(ctx, loss)
	}
	return s.Backend.Do(ctx, c)
}

// TestCrossEntropyKeepsSums: the backward pass gives the sums that came with the loss to the
// gradient, with and without options, and frees them.
func TestCrossEntropyKeepsSums(t *testing.T) {
	s := &summing{}
	opening.Store(s)
	defer opening.Store(nil)
	env, err := tensor.Open("host", tensor.Backend("summing"))
	require.NoError(t, err)
	ctx := t.Context()
	logits, err := tensor.FromSlice(ctx, env, []float32{0, 0, 0, 0, 0, 0}, 2, 3)
	require.NoError(t, err)
	labels, err := tensor.FromSlice(ctx, env, []int32{0, 2}, 2)
	require.NoError(t, err)
	for _, options := range [][]tensor.LossOption{nil, {tensor.ReduceMean}} {
		s.kept, s.taken = 0, 0
		tape := autograd.NewTape(ctx, env)
		x := tape.Leaf(logits)
		loss, err := tape.Backward(tape.CrossEntropy(x, labels, options...))
		require.NoError(t, err)
		grad, err := tensor.ToSlice[float32](ctx, x.Grad(), nil)
		require.NoError(t, err)
		require.InDeltaSlice(t, []float32{-1. / 3, 1. / 6, 1. / 6, 1. / 6, 1. / 6, -1. / 3}, grad, 1e-6)
		require.NotZero(t, s.kept)
		require.Equal(t, s.kept, s.taken)
		live, _ := env.Live()
		require.Equal(t, 4, live, "logits, labels, the loss and the gradient")
		require.NoError(t, loss.Release())
		require.NoError(t, tape.Close())
	}
	require.NoError(t, logits.Release())
	require.NoError(t, labels.Release())
	live, _ := env.Live()
	require.Zero(t, live)
	require.NoError(t, env.Close())
}
