package checkpoint_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type weights struct{ A, B any }

var failureRows = []failtest.Row[*tapetest.Failing]{
	{Of: "Checkpoint.Save", Make: func(t testing.TB, m *tapetest.Failing) failtest.Trial {
		adam, c, path := trained(t, m)
		require.NoError(t, os.WriteFile(path, []byte("older"), 0o600))
		return failtest.Trial{
			Do: func(ctx context.Context) error { return c.Save(ctx, path) },
			See: func() any {
				text, err := os.ReadFile(path)
				files, _ := filepath.Glob(filepath.Dir(path) + "/*")
				return []any{string(text), err, len(files), m.SeeOptimizer(adam)}
			},
			Undo: func() error { return m.Release(adam) },
		}
	}},
	{Of: "Checkpoint.Load", Partly: partly, Make: func(t testing.TB, m *tapetest.Failing) failtest.Trial {
		adam, c, path := trained(t, m)
		require.NoError(t, c.Save(m.Ctx, path))
		want := m.SeeOptimizer(adam)
		require.NoError(t, errors.Join(adam.Step(m.Ctx), adam.Step(m.Ctx)))
		return failtest.Trial{
			Do:   func(ctx context.Context) error { return c.Load(ctx, path) },
			See:  func() any { return m.SeeOptimizer(adam) },
			Undo: func() error { return m.Release(adam) },
			Left: func(_ any, err error) error { // loading again loads everything
				if again := c.Load(m.Ctx, path); again != nil || !reflect.DeepEqual(want, m.SeeOptimizer(adam)) {
					return errors.Join(errors.New("not as it was saved"), again, err)
				}
				return nil
			},
		}
	}},
	{Of: "Checkpoint.Load of a rank's parts", Partly: partly, Make: func(t testing.TB, m *tapetest.Failing) failtest.Trial {
		adam, c, path := trained(t, m)
		require.NoError(t, errors.Join(c.Save(m.Ctx, path), adam.Close()))
		for _, p := range adam.Parameters() {
			require.NoError(t, p.Attach(&firstOnly{}))
		}
		rank := optim.NewAdam(adam.Parameters(), optim.AdamConfig{LR: new(0.5)})
		c.Optimizer = rank
		require.NoError(t, errors.Join(rank.Err(), c.Load(m.Ctx, path)))
		want := m.SeeOptimizer(rank)
		for i, n := range rank.Record().Tensors {
			for _, x := range rank.State(i)[:n] {
				require.NoError(t, m.RT.Zero(m.Ctx, x))
			}
		}
		return failtest.Trial{
			Do:   func(ctx context.Context) error { return c.Load(ctx, path) },
			See:  func() any { return m.SeeOptimizer(rank) },
			Undo: func() error { return m.Release(rank) },
			Left: func(_ any, err error) error {
				if again := c.Load(m.Ctx, path); again != nil || !reflect.DeepEqual(want, m.SeeOptimizer(rank)) {
					return errors.Join(errors.New("not as it was saved"), again, err)
				}
				return nil
			},
		}
	}},
}

// firstOnly is a rank that keeps the state of a parameter's first number.
type firstOnly struct{ optim.Sharded }

func (*firstOnly) Refuses(autograd.Attachment) error { return nil }

func (*firstOnly) StateShape() []int { return []int{1} }

func (*firstOnly) PartGrad() *tensor.Tensor { return nil }

func (*firstOnly) Part(ctx context.Context, whole, part *tensor.Tensor) error {
	rt := part.Runtime()
	first, err := rt.Rows(ctx, whole, 0, 1)
	if err != nil {
		return err
	}
	return errors.Join(rt.CopyInPlace(ctx, part, first), first.Release())
}

// partly is the reason why Load may have loaded a part.
var partly = map[failtest.Kind]string{
	failtest.Failed: "an error of a copy", failtest.Ended: "an error of a copy", failtest.OutOfMemory: "an error of memory",
}

// trained returns an optimiser after a step, with its checkpoint.
func trained(t testing.TB, m *tapetest.Failing) (*optim.Adam, checkpoint.Checkpoint, string) {
	ps := m.Weights()
	adam := optim.NewAdam(ps, optim.AdamConfig{LR: new(0.5)})
	require.NoError(t, adam.Err())
	m.Differentiate(ps)
	require.NoError(t, adam.Step(m.Ctx))
	model := &weights{ps[0].Parameter, ps[1].Parameter}
	return adam, checkpoint.Checkpoint{Model: model, Optimizer: adam}, filepath.Join(t.TempDir(), "c.safetensors")
}

// TestEveryFailure: whichever driver call, allocation or check of a context fails, Save and Load
// have done everything or nothing, except for a documented part, and succeed afterwards.
func TestEveryFailure(t *testing.T) {
	if !testing.Short() {
		t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, failureRows) })
	}
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, failureRows) })
}
